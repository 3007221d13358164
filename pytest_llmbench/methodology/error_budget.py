"""What failed of a run: whether the error budget was kept, and whether it was raised; what the load generator
gave up on; sessions that were cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import MOST_FAILED_SHARE, NO_FAILURES, Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.sentences import Note


@dataclass(frozen=True, slots=True)
class Budget:
    max_error_share: float = MOST_FAILED_SHARE
    usual_share: float = MOST_FAILED_SHARE
    """The default of the test. That of goodput is 1: what failed is not good, which its limit is about."""


def of_sessions(seen: Sequence[Observation]) -> list[Records]:
    return [run.records for run in seen if run.plan.load.of_sessions]


def kinds_of_failure(records: Sequence[Records]) -> dict[str, Any]:
    """How many requests failed in which way, and the first error as the server put it; empty where none
    failed."""
    counts = sum((Counter(own.counts()) for own in records), Counter[str]())
    told = (pair for own in records for pair in zip(own.error, own.failed, strict=True))
    kinds = tuple(
        Note.of("outcome", count=count, name=str(name))
        for name, count in counts.items()
        if name not in NO_FAILURES and count
    )
    return {"kinds": kinds, "first_error": next((error for error, bad in told if bad and error), None)}


def error_budget(records: Records, budget: Budget) -> Finding:
    """Whether the budget was kept. No budget allows for the failure of every request: then nothing was
    measured."""
    counts = records.counts()
    submitted = int(records.judged.sum())
    failed = int(records.failed.sum())
    share = failed / submitted if submitted else float(not len(records))
    ok = len(records) > 0 and share <= budget.max_error_share and share < 1
    return Finding.of(
        "error_budget",
        ok,
        share,
        budget.max_error_share,
        failed=failed,
        requests=submitted,
        timeouts=counts[Outcome.TIMEOUT] or None,
        none_good=share == 1 and budget.max_error_share >= 1,
        **kinds_of_failure([records]),
    )


def raised_budget(records: Records, budget: Budget) -> Finding | None:
    """The finding on an error budget above the usual one; no class comes with more failures than that."""
    if budget.max_error_share <= budget.usual_share:
        return None
    judged, failed = int(records.judged.sum()), int(records.failed.sum())
    return Finding.of(
        "raised_error_budget",
        value=budget.max_error_share,
        limit=budget.usual_share,
        failed=failed,
        requests=judged,
    )


def given_up(records: Records) -> Finding | None:
    """The finding on requests that the load generator gave up on, whose latencies nobody knows."""
    gone, judged = int(records.given_up.sum()), int(records.judged.sum())
    if not gone:
        return None
    timeouts = int(records.has_outcome(Outcome.TIMEOUT).sum())
    return Finding.of(
        "given_up",
        value=gone / judged,
        limit=0,
        gone=gone,
        requests=judged,
        at_deadline=timeouts or None,
        with_load=gone - timeouts or None,
        known=Amount(1 - gone / judged, "ratio"),
    )


def sessions_cut_off(seen: Sequence[Observation], budget: Budget) -> Finding | None:
    """The finding on sessions cut off: more of them fail than of turns, as one ends all later ones."""
    loads = of_sessions(seen)
    if not loads:
        return None
    from pytest_llmbench.metrics.session_figures import jobs_of

    jobs = [jobs_of(records) for records in loads]
    sessions = sum(map(len, jobs))
    if not sessions:
        return None
    cut, unsent = sum(run.cut_off for run in jobs), sum(run.unsent for run in jobs)
    share = cut / sessions
    most = budget.max_error_share
    return Finding.of(
        "sessions_cut_off", share <= most, share, most, cut=cut, sessions=sessions, unsent=unsent
    )
