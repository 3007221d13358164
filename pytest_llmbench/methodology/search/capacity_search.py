"""The most requests or sessions at once that meet criteria: doubling to the first failure, then bisection
(AMB-11).

The capacity test reports what it finds; the memory-pressure test starts from it, on its own workload. All of
a level begin together, as the draft has requests do (section 5.5.3), and the end of each starts the next. A
level of sessions lasts for a number of them per slot: turns pause, so seconds would say nothing. What counts
of it is the time while every slot has a session, without its first tenth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar

from pytest_llmbench.methodology.measuring.levels import Seen, level_of
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice, part_of
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting
from pytest_llmbench.methodology.search.probing import Level, Tried, ceilings, doubling, tried_levels
from pytest_llmbench.metrics.kv_cache import out_of_memory_errors, timeouts
from pytest_llmbench.metrics.session_figures import jobs_of, turn_metrics
from pytest_llmbench.model.draft import COMPLETIONS_OF_A_SLOT, LEAST_COMPLETION
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.request import USUAL, OfSessions, TurnClass
from pytest_llmbench.model.result import PROBE
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.sessions import turns_of

LEVEL_S = ByScale(quick=3.0, standard=20.0, full=60.0)
COMPLETIONS_PER_SLOT = ByScale(quick=2.0, standard=10.0, full=float(COMPLETIONS_OF_A_SLOT))
"""Completions per slot that a level lasts for, or its time if that is longer (section 5.5.3)."""
FIRST_LEVEL, HIGHEST_LEVEL = 8, 512
"""Requests in flight at which a search starts, and the most that it tries."""
QUICK_MAXIMUM = 64
SESSIONS_PER_SLOT = ByScale(quick=2, standard=4, full=10)


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria of a level (section 5.5.2). One with an out-of-memory error always fails."""

    ttft_p99_ms: float | None = None
    min_completion: float = LEAST_COMPLETION
    turn_ttft_p95_ms: Mapping[TurnClass, float] = field(default_factory=dict)
    """Class of turns → ceiling on the P95 of its TTFT, in ms."""

    def failures(self, seen: Seen) -> tuple[str, ...]:
        """Why the level fails; empty when it passes."""
        found = [] if seen.observation.stopped is None else [f"ended early: {seen.observation.stopped}"]
        ratio = seen.level.completion_ratio
        if ratio is None or ratio < self.min_completion:
            text = "nothing was sent" if ratio is None else f"completion {ratio:.2%}"
            ours = timeouts(seen.records)
            named = f"; {ours} were given up by the load generator's own deadline" if ours else ""
            found.append(f"{text} (at least {self.min_completion:.0%}{named})")
        if self.ttft_p99_ms is not None:
            p99 = seen.point("ttft.p99")
            if p99 is None:
                found.append("TTFT P99 not known")
            elif p99 > self.ttft_p99_ms:
                found.append(f"TTFT P99 {p99:.1f} ms (at most {self.ttft_p99_ms:g} ms)")
        if memory := out_of_memory_errors(seen.records):
            found.append(f"{memory} out-of-memory errors")
        for turns, limit in self.turn_ttft_p95_ms.items():
            p95 = seen.point(f"turn_ttft[{turns}].p95")
            if p95 is None:
                found.append(f"TTFT P95 of turn {turns} not known")
            elif p95 > limit:
                found.append(f"TTFT P95 of turn {turns} {p95:.1f} ms (at most {limit:g} ms)")
        return (*found, *self._cut_off(seen.observation))

    def _cut_off(self, run: Observation) -> list[str]:
        """Why the level fails for sessions that were cut off. A failed turn takes those after it along, which
        nobody sent and no share of requests shows."""
        jobs = jobs_of(run.records) if run.plan.load.of_sessions else None
        if not jobs or 1 - jobs.cut_off / len(jobs) >= self.min_completion:
            return []
        return [
            f"{jobs.cut_off} of {len(jobs)} sessions cut off (at least {self.min_completion:.0%} complete)"
        ]

    @property
    def limits(self) -> tuple[Objective, ...]:
        """The limits on latency."""
        return () if self.ttft_p99_ms is None else ceilings({"ttft.p99": self.ttft_p99_ms})


def capacity_estimate(found: Tried) -> Estimate:
    """The capacity with its bracket: at least what passed, less than what failed. 0 when nothing passed."""
    passed = found.passed or 0
    method = f"bracket of the search: {passed} passed"
    capacity = Estimate(
        float(passed), float(passed), None, 0.95, len(found.levels), method, "count",
        kind=EstimateKind.BRACKET,
    )  # fmt: skip
    if found.failed is None:
        return capacity.at_least(Reason.RANGE_ENDED, "that is the highest level of the search")
    method += f", {found.failed} failed"
    return replace(capacity, upper=float(found.failed - 1), method=method)


@dataclass(frozen=True, kw_only=True)
class Levels(ABC):
    """The levels of a search: closed loops from ``initial`` up to ``maximum`` at once."""

    setting: Setting
    criteria: Criteria = Criteria()
    initial: int = FIRST_LEVEL
    maximum: int = HIGHEST_LEVEL
    of_sessions: ClassVar[bool] = False

    @property
    def ceiling(self) -> int:
        return min(self.maximum, QUICK_MAXIMUM) if self.setting.scale == "quick" else self.maximum

    @property
    def first(self) -> int:
        return min(self.initial, self.ceiling)

    @property
    def at_stake(self) -> tuple[Objective, ...]:
        return ()

    @abstractmethod
    def level(self, slots: int, before: Mapping[int, Seen]) -> Level: ...

    def judged(self, seen: Seen) -> Seen:
        failures = self.criteria.failures(seen)
        return seen.with_(passed=not failures, fail_reasons=failures)

    def bound_notes(self, found: Tried) -> tuple[Note, ...]:
        """Notes on a bracket that is open at one end."""
        sessions = self.of_sessions
        if found.passed is None:
            return (Note.of("not_even_one", sessions=sessions),)
        if found.failed is None:
            quick = self.ceiling < self.maximum
            return (Note.of("bound_reached", passed=found.passed, sessions=sessions, quick=quick),)
        return ()


def find_capacity(levels: Levels) -> Procedure[Tried]:
    """Search for the capacity in requests or sessions at once."""
    chooser, again = doubling(levels.first, levels.ceiling), levels.setting.remeasure
    found = yield from tried_levels(chooser, levels.level, again, needed=True, at_stake=levels.at_stake)
    return replace(found, notes=(*levels.bound_notes(found), *found.notes))


@dataclass(frozen=True, kw_only=True)
class RequestLevels(Levels):
    """Levels of requests in flight, on the workload and the SUT variant of ``sequence``. ``duration_s``:
    duration of a level, as a marker asks for it."""

    sequence: RequestSlice
    duration_s: float | None = None

    @property
    def at_stake(self) -> tuple[Objective, ...]:
        return self.criteria.limits

    def requests(self, slots: int) -> RequestSlice:
        """The requests of a level. They are the same for every search of this range, whatever its criteria,
        so these share levels."""
        length_s = LEVEL_S.at(self.setting.scale, self.duration_s)
        asked: dict[str, Any] = {"duration_s": length_s, "range": [self.first, self.ceiling]}
        return self.sequence.next_part(self.setting, "level of capacity", concurrency=slots, **asked)

    def level(self, slots: int, before: Mapping[int, Seen]) -> Level:
        own, most_rps = self.requests(slots), _most_rps(before.values())

        def plan() -> LoadPlan:
            return level_plan(self.setting, own, slots, self.duration_s, most_rps).with_(may_break=True)

        def see(run: Observation) -> Seen:
            return self.judged(level_of(own.sent(run), seed=self.setting.seed, role=PROBE))

        return Level(plan, see)


@dataclass(frozen=True, kw_only=True)
class SessionLevels(Levels):
    """Levels of sessions at once. ``per_slot``: sessions per slot of a level, on average; None: the default
    of the scale."""

    per_slot: int | None = None
    of_sessions = True

    def plan(self, slots: int, attempt: int = 1) -> LoadPlan:
        """The plan of a level, shared by every search that has this level, whatever its criteria. Each
        attempt has sessions of its own."""
        setting, workload = self.setting, self.setting.workload
        assert isinstance(workload, OfSessions)
        sessions = slots * SESSIONS_PER_SLOT.count(setting.scale, self.per_slot)
        told = {"slots": slots, "sessions": sessions, **({} if attempt == 1 else {"attempt": attempt})}
        part = part_of(setting, workload, "level of sessions at once", **told)
        turns, load = turns_of(workload, sessions, part.seed), ClosedLoop(slots, of_sessions=True)
        return part.plan(setting, f"{slots} sessions at once", load, turns, may_break=True)

    def see(self, run: Observation) -> Seen:
        """The level with its TTFT by turn, and why it fails."""
        seen = level_of(run, seed=self.setting.seed, role=PROBE)
        classes = dict.fromkeys((*USUAL, *self.criteria.turn_ttft_p95_ms))
        by_turn = turn_metrics([seen.inside], classes, seed=self.setting.seed)
        return self.judged(seen.with_(metrics={**seen.level.metrics, **by_turn}, steady=None))

    def level(self, slots: int, before: Mapping[int, Seen]) -> Level:  # noqa: ARG002 - rates tell nothing here
        numbers = count(1)
        return Level(lambda: self.plan(slots, next(numbers)), self.see)


def _most_rps(levels: Iterable[Seen]) -> float | None:
    """The highest rate that the next level can have, per second: four times the fastest so far, since it has
    at most twice the slots."""
    rates = [rate for seen in levels if (rate := seen.point("request_throughput")) is not None and rate > 0]
    return 4.0 * max(rates) if rates else None


def level_plan(
    setting: Setting,
    sequence: RequestSlice,
    concurrency: int,
    duration_s: float | None = None,
    most_rps: float | None = None,
) -> LoadPlan:
    """A level: all slots at once, each end replaced, for the time or the completions per slot, whichever is
    longer."""
    return sequence.closed_loop(
        setting,
        f"{concurrency} in flight",
        concurrency,
        duration_s=LEVEL_S.at(setting.scale, duration_s),
        at_least=concurrency * COMPLETIONS_PER_SLOT.count(setting.scale),
        most_rps=most_rps,
    )
