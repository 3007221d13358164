"""The load levels of a result, and what their stored records say of each: window, samples, rates, queue.

All of it follows from the records, by the definitions of ``metrics``, so that a level cannot state what its
run did not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_llmbench.compliance.evidence_view import EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.stored import has
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.balance import Balance, completion_balance
from pytest_llmbench.metrics.in_flight import growth_in_flight, queue_of
from pytest_llmbench.metrics.memory_pressure import out_of_memory_errors
from pytest_llmbench.metrics.throughput import Window, level_window, output_tokens_per_slice, submitted_inside
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import BURST, CHARACTERISATION, NOT_OFFERED, Level
from pytest_llmbench.stats import percentiles
from pytest_llmbench.stats.growth import Growth
from pytest_llmbench.stats.runs import FloatArray

FAMILIES = {family: latency.FAMILIES[family] for family in ("ttft", "tpot", "e2e")}


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

    @property
    def end_ns(self) -> int:
        return self.window.end_ns

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.run.started_ns) / 1e9

    @property
    def lasted_s(self) -> float:
        """Seconds for which the load was kept up: an open loop to its end, a closed one until an end was not
        replaced."""
        load = self.run.plan.load
        if not isinstance(load, ClosedLoop):
            return self.duration_s
        ends = np.sort(self.records.finished_ns[has(self.records.finished_ns)])
        unreplaced = len(self.records) - load.concurrency
        if not 0 <= unreplaced < len(ends):
            return self.duration_s
        return (int(ends[unreplaced]) - self.run.started_ns) / 1e9

    @property
    def start_ns(self) -> int:
        """Start of the window, after the ramp-up."""
        return self.window.start_ns

    @property
    def window_s(self) -> float:
        return self.window.duration_s

    @cached_property
    def inside(self) -> Records:
        return submitted_inside(self.window)

    @cached_property
    def balance(self) -> Balance | None:
        """Completions in the window against what was due in it."""
        return completion_balance(self.records, self.window)

    @cached_property
    def queue(self) -> Growth | None:
        """The growth of the queue: by the server's waiting gauge, else by the requests in flight of an open
        loop.

        None where neither tells.
        """
        queue = queue_of(self.run, self.window)
        return None if queue is None else queue.growth

    @cached_property
    def in_flight_means(self) -> tuple[float, ...]:
        if self.end_ns <= self.start_ns:
            raise NoEvidenceError(f"a window of level {self.label}")
        return growth_in_flight(self.window).means

    @property
    def queue_means(self) -> tuple[float, ...]:
        return () if self.queue is None else self.queue.means

    @property
    def queue_grows(self) -> bool | None:
        return None if self.queue is None else self.queue.growing

    @property
    def output_tokens(self) -> float:
        """The output tokens of successful requests that arrived in the window."""
        if self.end_ns <= self.start_ns:
            raise NoEvidenceError(f"a window of level {self.label}")
        found = output_tokens_per_slice(self.window, 1)
        if found is None:
            raise NoEvidenceError("record.output_tokens")
        return float(found.sum())

    def point(self, metric: str) -> float:
        estimate = self.level.metrics.get(metric)
        if estimate is None or estimate.point is None:
            raise NoEvidenceError(f"{metric} of level {self.label}")
        return estimate.point

    @property
    def out_of_memory(self) -> int:
        """Failed requests whose error speaks of memory that ran out."""
        return out_of_memory_errors(self.records)

    @property
    def completed(self) -> float:
        """The completion rate, by the records; 0 where nothing tells it."""
        share = self.records.ok_share
        return 0.0 if share is None else share

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


def percentile(values: FloatArray, statistic: str) -> float:
    """A statistic of samples: ``p50`` … ``p99_9``, ``mean``, ``min``, ``max``, ``std`` (AMB-36)."""
    if not len(values):
        raise NoEvidenceError("samples")
    if statistic == "mean":
        return float(values.mean())
    if statistic in ("min", "max"):
        return float(values.min() if statistic == "min" else values.max())
    if statistic == "std":
        return float(np.std(values, ddof=1))
    return percentiles.percentile(values, float(statistic[1:].replace("_", ".")))


def close(stated: float | None, again: float, *, relative: float = 1e-3, absolute: float = 1e-3) -> bool:
    """Whether a stated number agrees with the one that the records give."""
    return stated is not None and abs(stated - again) <= max(absolute, relative * abs(again))


def over(top: float, bottom: float, what: str) -> float:
    """The quotient of two numbers; one over nothing is no evidence."""
    if not bottom > 0:
        raise NoEvidenceError(f"{what} above zero")
    return top / bottom


def names_of(levels: Sequence[Tested]) -> str:
    return ", ".join(one.label for one in levels)
