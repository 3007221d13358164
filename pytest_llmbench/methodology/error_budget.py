"""What failed of a run: whether the error budget was kept, and whether it was raised; what the load generator
gave up on; sessions that were cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import SessionLoad
from pytest_llmbench.model.record import MOST_FAILED_SHARE, NO_FAILURES, Outcome
from pytest_llmbench.model.records import Records


@dataclass(frozen=True, slots=True)
class Budget:
    max_error_share: float = MOST_FAILED_SHARE
    usual_share: float = MOST_FAILED_SHARE
    """The default of the test. That of goodput is 1: what failed is not good, which its limit is about."""


def of_sessions(seen: Sequence[Observation]) -> list[Records]:
    return [run.records for run in seen if isinstance(run.plan.load, SessionLoad)]


def kinds_of_failure(records: Sequence[Records]) -> str:
    """How many requests failed in which way, and the first error as the server put it, in brackets; empty
    where none failed."""
    counts = sum((Counter(own.counts()) for own in records), Counter[str]())
    kinds = ", ".join(
        f"{count} {name}" for name, count in counts.items() if name not in NO_FAILURES and count
    )
    told = (pair for own in records for pair in zip(own.error, own.failed, strict=True))
    first = next((error for error, bad in told if bad and error), None)
    return "" if not kinds else f" ({kinds}; first error: {first})" if first else f" ({kinds})"


def error_budget(records: Records, budget: Budget) -> Finding:
    """Whether the budget was kept. No budget allows for the failure of every request: then nothing was
    measured."""
    counts = records.counts()
    submitted = int(records.judged.sum())
    failed = int(records.failed.sum())
    share = failed / submitted if submitted else float(not len(records))
    ok = len(records) > 0 and share <= budget.max_error_share and share < 1
    detail = kinds_of_failure([records]) if failed else ""
    if counts[Outcome.TIMEOUT]:
        detail += (
            f"; {counts[Outcome.TIMEOUT]} were given up by the load generator's own deadlines, which "
            "--llm-timeout or timeout_s extends"
        )
    if share == 1 and budget.max_error_share >= 1:
        detail += "; without one good request nothing was measured, whatever the budget"
    return Finding(
        "error_budget",
        ok=ok,
        voids=True,
        message=f"{failed} of {submitted} requests failed, budget {budget.max_error_share:.1%}{detail}",
        value=share,
        limit=budget.max_error_share,
        unit="ratio",
    )


def raised_budget(records: Records, budget: Budget) -> Finding | None:
    """The finding on an error budget above the usual one; no class comes with more failures than that."""
    if budget.max_error_share <= budget.usual_share:
        return None
    judged, failed = int(records.judged.sum()), int(records.failed.sum())
    return Finding(
        "raised_error_budget",
        ok=False,
        voids=False,
        message=f"the error budget was raised to {budget.max_error_share:.1%} of the requests, usually "
        f"{budget.usual_share:.1%}: {failed} of {judged} failed, and no latency is of them",
        value=budget.max_error_share,
        limit=budget.usual_share,
        unit="ratio",
    )


def given_up(records: Records) -> Finding | None:
    """The finding on requests that the load generator gave up on, whose latencies nobody knows."""
    gone, judged = int(records.given_up.sum()), int(records.judged.sum())
    if not gone:
        return None
    timeouts = int(records.has_outcome(Outcome.TIMEOUT).sum())
    how = f"{timeouts} at a deadline of ours" if timeouts else ""
    how += f"{', ' if how else ''}{gone - timeouts} with the load" if gone > timeouts else ""
    return Finding(
        "given_up",
        ok=False,
        voids=False,
        message=f"{gone} of {judged} requests were given up on ({how}): they took longer than was waited, so "
        f"percentiles above {100 * (1 - gone / judged):.4g} % and means have no upper end",
        value=gone / judged,
        limit=0,
        unit="ratio",
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
    return Finding(
        "sessions_cut_off",
        ok=share <= budget.max_error_share,
        voids=True,
        message=f"{cut} of {sessions} sessions were cut off by a turn that did not end well, and {unsent} "
        f"turns never sent; budget {budget.max_error_share:.1%}",
        value=share,
        limit=budget.max_error_share,
        unit="ratio",
    )
