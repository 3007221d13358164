"""The failures that this plugin raises: judgements, and measurements that could not be made."""

from __future__ import annotations

import pytest

from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.redaction import terminal_text


class Judged(pytest.fail.Exception):  # type: ignore[name-defined, misc]
    """A failure of pytest's own class: shown as a message, without a traceback through our code."""

    def __init__(self, message: str, summary: str) -> None:
        """``summary``: the text for the short test summary."""
        super().__init__(terminal_text(message), pytrace=False)
        self.summary = terminal_text(summary)


class InvalidRun(Judged):
    """The run did not measure the SUT: its numbers are not judged. Raised at setup, so pytest says error."""


class NotMeasured(Judged):
    """The measurement could not be made: an error of this package, with its own message."""

    def __init__(self, error: LLMBenchError) -> None:
        super().__init__(str(error), str(error).partition("\n")[0])
        self.is_mistake = isinstance(error, SuiteError)
        """Whether the author has to mend something."""


class GateFailure(Judged):
    """A limit is broken: the whole interval lies beyond it."""


class GateInconclusive(GateFailure):
    """The interval does not decide. Fails under its own name unless ``--llm-inconclusive=pass``."""


class ComplianceFailure(GateFailure):
    """The marker asked for a compliance class that the run does not reach."""
