"""The uncertainty of a result: what the measuring machine may have added to each figure or taken from it, by
the stamps of the records, and whether the measurement was good enough.

A load is void where they leave a figure more uncertain than a limit, unless the test has limits of its own
and they touch none of these: then, as below it, the figures say by how much.
Percentiles count as far as the sample holds them: one request read late among fifty is no P99.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.methodology.measuring.offered import set_aside
from pytest_llmbench.metrics.input_lengths import LABELS
from pytest_llmbench.metrics.uncertainty import (
    Leeway,
    Leeways,
    furthest,
    is_exact,
    leeways,
    rate_leeway,
    request_ends,
)
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import StreamingFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import empty_slot_share
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note

FULL_CORE_SHARE = 0.9
"""CPU use of the measuring process, in cores, above which it is overloaded."""

LATE_READS, LATE_GAPS, EMPTY = "late_reads", "late_gaps", "empty_slots"
"""Names of the checks."""


def spoiled(run: Observation, *, gaps: bool = False) -> tuple[Finding, ...]:
    """The findings on what this machine spoiled. ``gaps``: the test is about the time between tokens."""
    found = (late_reads(run), late_gaps(run) if gaps else None, empty_slots(run))
    return tuple(finding for finding in found if finding is not None and finding.voids and not finding.ok)


def late_reads(run: Observation) -> Finding | None:
    """The finding on late reads in TTFT; None where every instant of it is exact."""
    return _furthest(LATE_READS, "ttft", run)


def late_gaps(run: Observation) -> Finding | None:
    """The finding on late reads in the time between chunks, for tests that are about it."""
    return _furthest(LATE_GAPS, "itl", run)


def _furthest(check: str, family: str, run: Observation) -> Finding | None:
    """The finding on the percentile that is furthest beyond its limit, or else nearest to it."""
    held = furthest(run, family)
    if held is None:
        return None
    name, leeway, limit = held
    ok = leeway.most <= limit
    stands = not ok and _no_limit_is_near(run)
    chunks, late = len(run.records.chunk_ns), int(run.records.unresolved_chunks.clip(0).sum())
    return Finding.of(
        check,
        ok,
        leeway.most,
        limit,
        voids=not stands,
        statistic=name.upper(),
        seen=Amount(leeway.seen, "ms"),
        high=leeway.too_high_by >= leeway.too_low_by,
        late=Amount(late / max(1, chunks), "ratio") if late else None,
        loop=not late,
        stands=stands,
        remedy=None if ok or stands else _remedy(run),
    )


def _no_limit_is_near(run: Observation) -> bool:
    """Whether the test has limits that void it, and each is one that its metric keeps, or breaks, wherever
    between the ends of its leeway it lies."""
    return bool(run.at_stake) and all(_is_decided(run, limit) for limit in run.at_stake)


def _is_decided(run: Observation, limit: Objective) -> bool:
    """Whether this machine cannot have put the metric on the other side of the limit; False where how far it
    may be off is not known."""
    family, statistic = limit.metric.split("[")[0].split(".")[0], limit.metric.rpartition(".")[2]
    if family in _OF_GOOD:
        return any(each.metric.endswith(f".{EACH}") for each in run.at_stake)
    if limit.unit in _RATES or family in _OF_OUTCOMES:
        return True
    known = leeways(family, [run])
    if known is None or statistic == "std":
        return False
    if not known:
        return True
    if statistic == EACH or any(f"[{label}]" in limit.metric for label in LABELS):
        # Which requests is not known here: none may lie on either side of the limit.
        ends = request_ends(run, family)
        if ends is None:
            slowest, fastest = known["max"], known["min"]
            low = np.array([fastest.seen - fastest.too_high_by])
            high = np.array([slowest.seen + slowest.too_low_by])
        else:
            low, high = ends
        return not bool(((low <= limit.limit) & (high >= limit.limit) & (low < high)).any())
    leeway = known.get(statistic)
    if leeway is None:
        return False
    return limit.holds(leeway.seen - leeway.too_high_by) == limit.holds(leeway.seen + leeway.too_low_by)


def limits_at_stake(
    limits: Sequence[Objective], good_ms: Sequence[tuple[str, float]] = ()
) -> tuple[Objective, ...]:
    """What this machine must not have decided: the limits of a test, and those in ms that a request
    keeps by itself: it is then good, or the system has recovered."""
    return (*limits, *(Objective(f"{quantity}.{EACH}", "<=", limit, "ms") for quantity, limit in good_ms))


def empty_slots(run: Observation) -> Finding | None:
    """The finding on empty slots of a closed loop; None where no slot was left empty."""
    share, lag_ns = empty_slot_share(run.plan.load, run.records), run.selfcheck.replacement_lag_p99_ns
    if not share:
        return None
    limit = run.host_limits.empty_slot_share
    return Finding.of(
        EMPTY,
        share <= limit,
        share,
        limit,
        refilled=None if lag_ns is None else Amount(lag_ns / 1e6, "ms"),
        remedy=_remedy(run),
    )


def _remedy(run: Observation) -> Note:
    """What helps a generator that was late."""
    share = run.selfcheck.cpu_share
    return Note.of("lower_load" if share is not None and share > FULL_CORE_SHARE else "free_cpu")


_RATES = ("req/s", "tok/s")
"""Units of what does not know when reads were taken."""
_OF_OUTCOMES = (
    "completion_rate", "fail_rate", "session_completion_rate", "cut_share", "cut_begun_share",
    "schema_violation_rate", "think_share", "budget_force_rate", "makespan", "accuracy", "accuracy_of_set",
)  # fmt: skip
"""Metrics that do not know either."""
_OF_GOOD = ("goodput", "goodput_share", "output_token_goodput", "time_to_recovery")
"""Metrics that know it by the limits on each request."""
EACH = "each"
"""Statistic of a limit that every request keeps or breaks by itself."""
SERVER_INSTANTS = "C"
"""The ITL option in which the server reports when a token was made."""


def with_uncertainty(result: TestResult) -> TestResult:
    """The result with the uncertainty of each metric. That of a level, ``itl[90%].p99``, rests on the load
    of that level; one of the test on all loads together, or, where these are levels, on the most uncertain
    one."""
    aside = set_aside(result.levels)
    runs = [run for index, run in enumerate(result.observations) if index not in aside]
    if all(map(is_exact, runs)):
        return result
    served = result.facts.value(StreamingFact.ITL_OPTION) == SERVER_INSTANTS
    of_level: dict[str, list[_Bounds]] = {}
    levels = []
    for level in result.levels:
        if level.observation is None:
            levels.append(level)
            continue
        bounds = _Bounds([result.observations[level.observation]], served=served)
        levels.append(replace(level, metrics=_bounded(level.metrics, [bounds], {})))
        if level.observation not in aside:
            of_level.setdefault(level.label, []).append(bounds)
    every = [bounds for some in of_level.values() for bounds in some] or [_Bounds(runs, served=served)]
    return replace(result, metrics=_bounded(result.metrics, every, of_level), levels=tuple(levels))


class _Bounds:
    """The uncertainty for one load, or for several together; each family is computed once."""

    def __init__(self, runs: Sequence[Observation], *, served: bool) -> None:
        self._runs = runs
        self._served = served
        self._known: dict[str, Leeways] = {}

    def of(self, name: str, estimate: Estimate) -> Leeway | None:
        if estimate.point is not None and estimate.unit in _RATES:
            return rate_leeway(self._runs, estimate.point)
        family, statistic = name.split("[")[0].split(".")[0], name.rpartition(".")[2]
        if family == "itl" and self._served:
            return None
        if family not in self._known:
            self._known[family] = leeways(family, self._runs) or {}
        return self._known[family].get(statistic)


def _bounded(
    metrics: Mapping[str, Estimate], every: Sequence[_Bounds], of_level: Mapping[str, Sequence[_Bounds]]
) -> dict[str, Estimate]:
    return {
        name: _widened(name, estimate, of_level.get(name.partition("[")[2].rpartition("]")[0], every))
        for name, estimate in metrics.items()
    }


def _widened(name: str, estimate: Estimate, bounds: Sequence[_Bounds]) -> Estimate:
    found = [leeway for each in bounds if (leeway := each.of(name, estimate)) is not None and leeway.most > 0]
    if not found:
        return estimate
    return replace(
        estimate,
        too_high_by=max(leeway.too_high_by for leeway in found),
        too_low_by=max(leeway.too_low_by for leeway in found),
    )
