"""The failures that this plugin raises: judgements, and measurements that could not be made. And the exit
statuses that tell how the load tests failed, with ``--llm-exit-codes``.

pytest knows one status for every failure, 1. These stand in its place where all failures of a session are
verdicts of this plugin. One failure of another kind, and it stays 1: nobody who takes "undecided" for good
enough overlooks a test that is broken.

SIGTERM is handled as Ctrl-C: the load ends and results so far are reported; a second signal, either, stops at
once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from enum import IntEnum
from types import FrameType
from typing import Any

import pytest

from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.redaction import terminal_text

VERDICT = "llmbench_verdict"
"""Name of the report's attribute with the :class:`ExitStatus` of its failure; crosses from an xdist
worker."""


class ExitStatus(IntEnum):
    """Exit statuses, the worst first. pytest itself has 0 to 6, shells have 126 and up."""

    LIMIT_BROKEN = 10
    UNDECIDED = 11
    VOID = 12


MEANINGS = {
    ExitStatus.LIMIT_BROKEN: "a limit is broken",
    ExitStatus.UNDECIDED: "no limit is broken, some are undecided",
    ExitStatus.VOID: "no limit is broken or undecided, some tests are not judged",
}


class Judged(pytest.fail.Exception):  # type: ignore[name-defined, misc]
    """A failure of pytest's own class: shown as a message, without a traceback through our code."""

    status: ExitStatus | None = None
    """The exit status of a session in which nothing else fails; None: pytest's own."""

    def __init__(self, message: str, summary: str) -> None:
        """``summary``: the text for the short test summary."""
        super().__init__(terminal_text(message), pytrace=False)
        self.summary = terminal_text(summary)


class InvalidRun(Judged):
    """The run did not measure the SUT: its numbers are not judged. Raised at setup, so pytest says error."""

    status = ExitStatus.VOID


class NotMeasured(Judged):
    """The measurement could not be made: an error of this package, with its own message."""

    def __init__(self, error: LLMBenchError) -> None:
        super().__init__(str(error), str(error).partition("\n")[0])
        self.status = None if isinstance(error, SuiteError) else ExitStatus.VOID


class GateFailure(Judged):
    """A limit is broken: the whole interval lies beyond it."""

    status = ExitStatus.LIMIT_BROKEN


class GateInconclusive(GateFailure):
    """The interval does not decide. Fails under its own name unless ``--llm-inconclusive=pass``."""

    status = ExitStatus.UNDECIDED


class ComplianceFailure(GateFailure):
    """The marker asked for a compliance class that the run does not reach."""


def note_verdict(error: BaseException, report: pytest.TestReport) -> None:
    """Note on the report of a failed test which verdict made it fail, if one did. An author's mistake is
    none: a further run does not mend it."""
    by_hand = isinstance(error, LLMBenchError) and not isinstance(error, SuiteError)
    status = error.status if isinstance(error, Judged) else ExitStatus.VOID if by_hand else None
    if status is not None:
        setattr(report, VERDICT, int(status))


class FailedVerdicts:
    """The failures of a session that are verdicts, counted in the process that ends it."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def note(self, report: pytest.TestReport) -> None:
        # As pytest counts failures: an expected one is none, nor is an attempt that a plugin repeats.
        if report.failed and not hasattr(report, "wasxfail"):
            self._counts[getattr(report, VERDICT, 0)] += 1

    def status(self, session: pytest.Session) -> ExitStatus | None:
        """The exit status of the worst verdict; None if anything else failed, or nothing did."""
        verdicts = [found for found in ExitStatus if self._counts[found]]
        counted = sum(self._counts[found] for found in verdicts)
        # pytest counts failed collections as well, and a plugin may (pytest-cov, for a coverage too low).
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or counted != session.testsfailed:
            return None
        return verdicts[0] if verdicts else None


_TOLD = b"\nllmbench: a second signal: stopped at once, nothing more is reported\n"


class Interruption:
    """The signal handlers of a session that sends load. Handlers of somebody else are left alone."""

    def __init__(self, config: pytest.Config) -> None:
        self._signals = [signal.SIGTERM]
        if not config.getoption("usepdb", False) and not config.getoption("trace", False):
            self._signals.append(signal.SIGINT)  # a debugger's prompt has its own use for Ctrl-C
        self._before: dict[signal.Signals, Any] = {}
        self._came = 0
        self._stderr: int | None = None
        """A descriptor of standard error from before pytest captured it; None where there is none."""

    def install(self) -> None:
        """Install the handlers, which works in the main thread only. Safe to call twice."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._stderr is None:
            with suppress(OSError):
                self._stderr = os.dup(2)
        for number in self._signals:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = signal.signal(number, self._handle_signal)

    def remove(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None

    def forget(self) -> None:
        """Forget the first signal: whoever handled it did not end the session."""
        self._came = 0

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        self._came += 1
        if self._came == 1:
            raise KeyboardInterrupt(signal.Signals(number).name)
        # No clean-up that could wait for something: measuring processes and embedded engines end with
        # their lines to this one, and the kernel lets go of its locks.
        launched = sys.modules.get("pytest_llmbench.harness.sut.launched")
        if launched is not None:
            launched.kill_all()
        with suppress(OSError):
            os.write(2 if self._stderr is None else self._stderr, _TOLD)
        os._exit(pytest.ExitCode.INTERRUPTED)
