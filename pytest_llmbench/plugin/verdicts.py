"""Judgements become pytest outcomes: invalid is an error at setup, a broken limit fails the call.

Plugins that run a failed test again (pytest-rerunfailures, pytest-retry, flaky) do it each in its own way;
what they share is that the set-up begins anew. The last attempt counts: the report is of it, and lists the
others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.plugin.collection import MARKED, PLACE
from pytest_llmbench.plugin.failures import (
    ComplianceFailure,
    GateFailure,
    GateInconclusive,
    Judged,
    NotMeasured,
    note_verdict,
)
from pytest_llmbench.plugin.markers import all_marks
from pytest_llmbench.plugin.session import SESSION
from pytest_llmbench.redaction import outward

if TYPE_CHECKING:
    from pytest_llmbench.harness.judging import MeasuredTest
    from pytest_llmbench.store.schema import TestOutcome


@dataclass
class Attempt:
    """One attempt at a test, from its set-up to its report."""

    earlier: list[dict[str, Any]] = field(default_factory=list)
    """The attempts before this one, as the report lists them."""
    measured: MeasuredTest | None = None
    properties: list[tuple[str, object]] = field(default_factory=list)
    """What :attr:`measured` added to the properties of the item."""
    error: BaseException | None = None
    """What the set-up or the call raised."""
    profile: Callable[[MeasuredTest], MeasuredTest] | None = None
    """Has the system of :attr:`measured` profiled, which is still up."""
    missing: str | None = None
    """Why the number that the test read last is missing."""
    is_called: bool = False
    """Whether the test is running: what is reported meanwhile are its subtests, and not the test."""
    listed: dict[str, Any] | None = None
    """This attempt as the report would list it under a later one; known once it is reported."""

    def take(self, item: pytest.Item, measured: MeasuredTest) -> None:
        self.measured, self.properties = measured, [*measured.properties]
        item.user_properties.extend(self.properties)


_NO_FAILURES = (pytest.skip.Exception, KeyboardInterrupt, pytest.exit.Exception)
_ATTEMPT = pytest.StashKey[Attempt]()


def attempt_at(item: pytest.Item) -> Attempt:
    """The attempt that is being made."""
    return item.stash.setdefault(_ATTEMPT, Attempt())


def note_missing(item: pytest.Item) -> Callable[[str], None]:
    """A function that a result calls with the reason when the test reads a number that is missing."""

    def note(why: str) -> None:
        attempt_at(item).missing = why

    return note


def raise_unless_measured(item: pytest.Item) -> None:
    """Raise if a test has markers by which nothing was measured; called in the call phase of every test."""
    attempt = attempt_at(item)
    if attempt.error is not None:
        raise attempt.error  # of its set-up: pytest-retry calls the test all the same
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
    if marks and attempt.measured is None:
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
    measured = attempt_at(item).measured
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


class Attempts:
    """Follows the attempts at each test, and puts on the report what came of the last one.

    pytest-retry makes all further attempts within ``pytest_runtest_makereport`` of the first, and calls no
    such hook for them: only who is around that hears of the last one.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        before, earlier = item.stash.get(_ATTEMPT, None), []
        if before is not None and MARKED in item.stash:
            listed = before.listed or _listed(_entry(item, _own_outcome(before)), before)
            earlier = [*before.earlier, listed]
            kept = [each for each in item.user_properties if each not in before.properties]
            item.user_properties[:] = kept
            item.config.stash[SESSION].forget(item.nodeid)
        item.stash[_ATTEMPT] = Attempt(earlier)
        try:
            with _noting(item):
                return (yield)
        finally:
            if attempt_at(item).error is not None:
                _profile(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        attempt_at(item).is_called = True
        try:
            with _noting(item):
                return (yield)
        finally:
            attempt_at(item).is_called = False
            _profile(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if report.when != "teardown" and not attempt_at(item).is_called:
            error = attempt_at(item).error
            _attach(item, report)
        if error is not None:
            excinfo, plain = call.excinfo, isinstance(error, LLMBenchError) and report.when == "setup"
            if plain and excinfo is not None and not item.config.getoption("fulltrace"):
                report.longrepr = excinfo.getrepr(style="value")  # of our own code nobody wants to read
            crash = getattr(report.longrepr, "reprcrash", None)
            if crash is not None and (isinstance(error, Judged) or plain):  # in the short test summary
                crash.message = error.summary if isinstance(error, Judged) else str(error).partition("\n")[0]
            note_verdict(error, report)
        return report


def _profile(item: pytest.Item) -> None:
    """Have the system profiled if the options ask for it after a test that ended so."""
    attempt, report = attempt_at(item), item.config.stash[SESSION]
    failed = attempt.error is not None
    if attempt.measured is None or attempt.profile is None or isinstance(attempt.error, _NO_FAILURES):
        return
    if not report.settings.profiles(item.nodeid, failed=failed):
        return
    try:
        with report.progress(item.nodeid, item.stash[PLACE]):
            attempt.measured = attempt.profile(attempt.measured)
    except KeyboardInterrupt:
        # pytest makes no report of a test that a signal ends, and this one has been measured.
        report.record.keep(_entry(item, _own_outcome(attempt)))
        raise


@contextmanager
def _noting(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    except BaseException as error:
        attempt = attempt_at(item)
        attempt.error = error
        if attempt.missing is not None and isinstance(error, TypeError) and "NoneType" in str(error):
            # The test compared a missing number, such as an open end, which is None.
            error.args = (f"{attempt.missing} ({error})",)
        raise


def _attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the result on the report, which crosses from an xdist worker to the controller."""
    attempt = attempt_at(item)
    if report.when == "setup" and report.passed:
        return  # the call report follows
    if MARKED in item.stash and (report.when == "call" or report.failed or attempt.earlier):
        failed = report.when == "setup" and report.outcome == "failed"
        outcome: TestOutcome = "error" if failed else report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xpassed" if report.outcome == "passed" else "xfailed"
        entry = _entry(item, outcome)  # plain JSON types only: xdist serialises it
        report.llmbench = entry  # type: ignore[attr-defined]
        report.user_properties = [*item.user_properties]
        attempt.listed = _listed(entry, attempt)
    attempt.measured = attempt.error = None


def _own_outcome(attempt: Attempt) -> TestOutcome:
    """The outcome of an attempt of which no plugin made a report."""
    if attempt.error is None:
        return "passed"
    return "skipped" if isinstance(attempt.error, pytest.skip.Exception) else "failed"


def _entry(item: pytest.Item, outcome: TestOutcome) -> dict[str, Any]:
    """The entry of ``report.json`` for the present attempt."""
    attempt = attempt_at(item)
    # The message first, without the traceback, which pytest shows.
    raised = attempt.error
    error = None if raised is None else f"{type(raised).__name__}: {raised}".removesuffix(": ")
    if isinstance(raised, pytest.FixtureLookupError):
        error = raised.msg or f"fixture {raised.argname!r} not found"
    elif isinstance(raised, pytest.fail.Exception | pytest.skip.Exception):
        error = str(raised)
    if attempt.measured is not None:
        entry = attempt.measured.entry(outcome, None if isinstance(attempt.error, Judged) else error)
    else:
        from pytest_llmbench.harness.judging import unmeasured_entry

        entry = unmeasured_entry(item.nodeid, item.stash[MARKED].definition, outcome, error=error or "")
    return entry | of_attempt(item)


def of_attempt(item: pytest.Item) -> dict[str, Any]:
    """The keys of an entry that say where its test is, and which attempt at it this was."""
    earlier = attempt_at(item).earlier
    # A test may not be in the file of its node id, as the method of a base class.
    path, begin, _ = item.location
    same = item.nodeid.partition("::")[0] == path.replace(os.sep, "/")
    line = begin + 1 if same and begin is not None else None
    return {"line": line, "attempts": len(earlier) + 1, "earlier_attempts": earlier}


def _listed(entry: dict[str, Any], attempt: Attempt) -> dict[str, Any]:
    from pytest_llmbench.reports.document import TestView

    told = attempt.error.summary if isinstance(attempt.error, Judged) else entry["error"] or ""
    status, reason = TestView(entry).headline, outward(told.partition("\n")[0])
    return {
        "status": status,
        "reason": reason.removeprefix(status).lstrip(": ") or None,
        **{name: entry[name] for name in ("records_file", "duration_s", "spent")},
    }
