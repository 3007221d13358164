"""The load levels of a result, each with the run that it came from, and the evidence for the capacity that
they are percentages of: a figure by itself is no measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_llmbench.compliance.evidence import EvidenceView, NoEvidenceError, has
from pytest_llmbench.metrics.kv_cache import out_of_memory_errors
from pytest_llmbench.metrics.throughput import Window, level_window, submitted_inside
from pytest_llmbench.model.facts import WorkloadFact
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import BURST, CHARACTERISATION, NOT_OFFERED, PROBE, Level, TestResult

NINE_LATENCIES = tuple(
    f"{family}.{statistic}" for family in ("ttft", "tpot", "e2e") for statistic in ("p50", "p95", "p99")
)


@dataclass(frozen=True)
class Tested:
    """One level with the run that it came from."""

    level: Level
    run: Observation

    @property
    def label(self) -> str:
        return self.level.label

    @property
    def records(self) -> Records:
        return self.run.records

    @property
    def value(self) -> float:
        """The requested load: requests per second, or requests in flight."""
        offered = self.level.offered_rps
        return float(self.level.concurrency or 0) if offered is None else offered

    @cached_property
    def window(self) -> Window:
        return level_window(self.run, self.level.role)

    @cached_property
    def inside(self) -> Records:
        return submitted_inside(self.window)

    @property
    def lasted_s(self) -> float:
        """Seconds for which the load was kept up: an open loop to its end, a closed one until an end was not
        replaced."""
        slots, end_ns = self.run.plan.load.requests_in_flight, self.window.end_ns
        if slots is not None:
            ends = np.sort(self.records.finished_ns[has(self.records.finished_ns)])
            unreplaced = len(self.records) - slots
            if 0 <= unreplaced < len(ends):
                end_ns = int(ends[unreplaced])
        return (end_ns - self.run.started_ns) / 1e9

    def known(self, metric: str) -> float | None:
        estimate = self.level.metrics.get(metric)
        return None if estimate is None else estimate.point

    def point(self, metric: str) -> float:
        point = self.known(metric)
        if point is None:
            raise NoEvidenceError(f"{metric} of level {self.label}")
        return point

    @property
    def out_of_memory(self) -> int:
        """Failed requests whose error speaks of memory that ran out."""
        return out_of_memory_errors(self.records)

    @property
    def restarted(self) -> bool:
        """Whether a counter of the engine fell during the run."""
        engine = self.run.engine
        return engine is not None and any(
            engine.totals_after.get(name, before) < before for name, before in engine.totals_before.items()
        )

    def refused_share(self) -> float:
        return int(self.records.has_outcome(Outcome.REFUSED).sum()) / max(len(self.records), 1)


def tested(view: EvidenceView, *roles: str) -> tuple[Tested, ...]:
    """The levels of these roles, or all but bursts, at least one of them. Levels that were given up stand
    under their own role, ``reported (given up)``."""
    found = tuple(
        level for level in view.result.levels if (level.role in roles if roles else _is_tested(level))
    )
    if not found:
        raise NoEvidenceError(f"levels of role {' or '.join(roles)}" if roles else "levels")
    view.note("levels", [level.label for level in found])
    return tuple(_tested(view, level) for level in found)


def _is_tested(level: Level) -> bool:
    return level.role not in (BURST, CHARACTERISATION) and not level.role.endswith(NOT_OFFERED)


def _tested(view: EvidenceView, level: Level) -> Tested:
    known: dict[int, Tested] = view.evidence.counted.setdefault("levels", {})
    key = next(place for place, other in enumerate(view.result.levels) if other is level)
    if key not in known:
        known[key] = Tested(level, _run_of(view, level))
    return known[key]


def _run_of(view: EvidenceView, level: Level) -> Observation:
    runs = view.result.observations
    if level.observation is None or not 0 <= level.observation < len(runs):
        raise NoEvidenceError(f"the run of level {level.label}")
    return runs[level.observation]


def need_points(levels: Sequence[Tested], names: Iterable[str]) -> None:
    """Raise NoEvidenceError unless every level has these metrics."""
    names = tuple(names)
    for one in levels:
        for name in names:
            one.point(name)


def names_of(levels: Sequence[Tested]) -> str:
    return ", ".join(one.label for one in levels)


_SAME_RATE = 0.01
"""Largest relative difference of equal rates: rates of plans have three digits."""
MOST_BESIDE = 0.10
"""Largest relative difference of a stated capacity from the one that a throughput test of the report
found."""
WIDEST_BRACKET = 0.10
"""Largest distance between a load that holds and the next one that does not, as a share of the latter: the
draft's levels lie as far apart (sections 5.3.3 and 5.2.3.1). Of a maximum in a wider bracket nobody knows
where it is."""
SATURATES_FROM, SATURATES_TO = 80.0, 130.0
"""Percentages of a capacity between which a sweep beyond it begins to saturate, if it is one."""


def is_narrow(holds: float, fails: float, load_model: str = "open") -> bool:
    """Whether a maximum between these loads is found; of requests in flight neighbours are close enough."""
    widest = (WIDEST_BRACKET + _SAME_RATE) * fails
    return fails - holds <= (max(widest, 1.0) if load_model == "closed" else widest)


def measurement_behind(view: EvidenceView, rate: float) -> str | None:
    """The measurement that shows ``rate`` to be the capacity; None where there is none.

    A search of this test, with a saturated level close above; or a throughput test of the report on the same
    system with the same workload, with such a one.
    """
    if _found_by_search(view, rate):
        return "found by this test's search"
    name = view.need(WorkloadFact.NAME)
    rates = [
        found
        for sibling in view.evidence.others("throughput")
        if sibling.facts.value(WorkloadFact.NAME) == name
        for found in _sustainable(sibling)
    ]
    view.note("throughput_tests_rps", rates)
    if any(abs(found - rate) <= MOST_BESIDE * found for found in rates):
        return "as the throughput test of this report found"
    return None


def _found_by_search(view: EvidenceView, rate: float) -> bool:
    """Whether a tested level at that rate held, and one above it, on the same variant, did not."""
    if not any(level.role == PROBE for level in view.result.levels):
        return False
    probes = tested(view, PROBE)
    held = [
        one for one in probes if one.level.saturated is False and abs(one.value - rate) <= _SAME_RATE * rate
    ]
    return any(
        other.level.saturated is True
        and other.value > one.value
        and is_narrow(one.value, other.value, one.level.load_model)
        for one in held
        for other in probes
        if other.run.plan.variant == one.run.plan.variant
    )


def _sustainable(result: TestResult) -> list[float]:
    found = result.metrics.get("sustainable_rate")
    if found is None or found.point is None or found.upper is None:
        return []
    return [found.point] if is_narrow(found.point, found.upper) else []


def confirmed_by_sweep(levels: Sequence[Tested]) -> bool:
    """Whether levels up to and beyond the capacity saturate near it, not far below it and not far above."""
    saturated = [one.level.percent_of_capacity for one in levels if one.level.saturated]
    first = min((percent for percent in saturated if percent is not None), default=None)
    return first is not None and SATURATES_FROM <= first <= SATURATES_TO
