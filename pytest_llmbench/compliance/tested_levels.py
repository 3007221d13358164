"""The load levels of a result, each with the run that it came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_llmbench.compliance.evidence_view import EvidenceView, NoEvidenceError, has
from pytest_llmbench.metrics.kv_cache import out_of_memory_errors
from pytest_llmbench.metrics.throughput import Window, level_window, submitted_inside
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import BURST, CHARACTERISATION, NOT_OFFERED, Level

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
