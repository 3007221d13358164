"""Judgements become pytest outcomes: invalid is an error at setup, a broken limit fails the call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.plugin.failures import (
    ComplianceFailure,
    GateFailure,
    GateInconclusive,
    InvalidRun,
    Judged,
    NotMeasured,
)
from pytest_llmbench.plugin.markers import all_marks

if TYPE_CHECKING:
    from pytest_llmbench.harness.judging import Measured
    from pytest_llmbench.store.schema import TestOutcome

MEASURED = pytest.StashKey["Measured"]()
MISSING = pytest.StashKey[str]()
"""Why the number that the test read last is missing."""


def refuse_if_invalid(measured: Measured) -> None:
    reasons = measured.void_text()
    if reasons:
        told = f"{measured.void_headline()}: this run is not judged\n{reasons}"
        raise InvalidRun(told, measured.void_summary())


def raise_unless_measured(item: pytest.Item) -> None:
    """Raise if a test has markers by which nothing was measured; called in the call phase of every test."""
    from pytest_llmbench.plugin.collection import MARKED

    marked, marks = item.stash.get(MARKED, None), all_marks(item)
    known = () if marked is None else marked.marks
    if [*map(id, marks)] != [*map(id, known)]:
        raise NotMeasured(
            SuiteError(
                "its llmbench markers were changed after collection, and what they ask for was not measured",
                where=item.nodeid,
                remedy="write them on the test, its class or module, or add them in pytest_itemcollected or "
                "pytest_collection_modifyitems (not trylast)",
            )
        )
    if marks and MEASURED not in item.stash:
        raise NotMeasured(
            SuiteError(
                "is marked, and nothing was measured: it runs without the fixture llm_result of this plugin",
                where=item.nodeid,
                remedy="mark test functions only, and override no llm_result",
            )
        )


def raise_unless_good(item: pytest.Item) -> None:
    """Raise if the measurement is not good enough; called in the call phase of every test, before its body.

    Does nothing for a test without a measurement.
    """
    measured = item.stash.get(MEASURED, None)
    if measured is None:
        return
    if measured.gate_fails:
        raise GateFailure(f"FAIL: {measured.verdict_text()}", measured.verdict_summary())
    if measured.gate_is_inconclusive and measured.inconclusive_fails:
        raise GateInconclusive(f"INCONCLUSIVE: {measured.verdict_text()}", measured.verdict_summary())
    shortfall = measured.compliance_shortfall()
    if shortfall:
        told = f"NOT COMPLIANT ENOUGH: {shortfall}"
        raise ComplianceFailure(told, told.partition("\n")[0])


def summarise(error: BaseException, report: pytest.TestReport) -> None:
    """Replace the exception's name in the short test summary by what was judged."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if isinstance(error, Judged) and crash is not None:
        crash.message = error.summary


def note_missing(item: pytest.Item) -> Callable[[str], None]:
    """A function that a result calls with the reason when the test reads a number that is missing."""

    def note(why: str) -> None:
        item.stash[MISSING] = why

    return note


def explain_missing(item: pytest.Item, error: BaseException) -> None:
    """Explain the TypeError of a test that compared a missing number, such as an open end, which is None."""
    why = item.stash.get(MISSING, None)
    if why is not None and isinstance(error, TypeError) and "NoneType" in str(error):
        error.args = (f"{why} ({error})",)


def _outcome(report: pytest.TestReport) -> TestOutcome:
    if hasattr(report, "wasxfail"):
        return "xpassed" if report.outcome == "passed" else "xfailed"
    return "error" if report.when == "setup" else report.outcome


def line_of(item: pytest.Item) -> int | None:
    """The line, from 1, at which the test begins. None if it is not in the file of its node id, as the method
    of a base class may be."""
    path, line, _ = item.location
    same = item.nodeid.partition("::")[0] == path.replace(os.sep, "/")
    return line + 1 if same and line is not None else None


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the result on the report, which crosses from an xdist worker to the controller.

    Every attempt of a rerun test carries its own; the controller keeps them all.
    """
    from pytest_llmbench.plugin.collection import MARKED

    if MARKED not in item.stash or report.when == "teardown":
        return
    if report.when == "setup" and report.outcome != "failed":
        return  # passed setup: the call report follows; skipped: nothing was measured
    measured = item.stash.get(MEASURED, None)
    outcome = _outcome(report)
    if measured is not None:
        entry = measured.entry(outcome)
        del item.stash[MEASURED]
    else:
        from pytest_llmbench.harness.judging import unmeasured_entry

        marked = item.stash[MARKED]
        entry = unmeasured_entry(item.nodeid, marked.definition, outcome, error=str(report.longrepr or ""))
    report.llmbench = entry | {"line": line_of(item)}  # type: ignore[attr-defined]  # plain JSON types only: xdist serialises it
