"""SIGTERM is handled as Ctrl-C: the load ends and results so far are reported; a second signal, either, stops
at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

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
