"""Searches for the most that meets criteria: doubling to the first failure, then bisection (AMB-11). A search
is a kind of levels, each with its load and its criteria: requests at once, sessions at once, jobs per hour.

**At once.** All of a level begin together, as the draft has requests do (section 5.5.3), and the end of each
starts the next. A level of sessions lasts for a number of them per slot: turns pause, so seconds would say
nothing. What counts of it is the time while every slot has a session, without its first tenth. The capacity
test reports what it finds; the memory-pressure test starts from it, on its own workload.

**Jobs per hour.** A level starts sessions at one rate, for so long that the system fills up and goes on:
until sessions have been started for as long as they last there are fewer of them at once than later. So a
level is judged by the sessions that begin after twice the mean job time (of exponential times six of seven
that will go on at once do so by then), and passes only if that leaves at least half of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from typing import Any, ClassVar

import numpy as np

from pytest_llmbench.methodology.measuring.levels import (
    Seen,
    level_of,
    of_sessions,
    queue_grows,
    session_plan,
)
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.methodology.search.probing import OpenEnd, ceilings, doubling, searched
from pytest_llmbench.metrics.balance import COMPLETION_SHARE, IN_FLIGHT, Queue, growth_in_flight, queue_of
from pytest_llmbench.metrics.kv_cache import out_of_memory_errors, timeouts
from pytest_llmbench.metrics.session_figures import begun, jobs_of, turn_metrics
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.draft import COMPLETIONS_OF_A_SLOT, LEAST_COMPLETION
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.numbers import against, number, percentage, quantity, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import USUAL, Session, TurnClass
from pytest_llmbench.model.result import PROBE
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.stationarity import least_squares_slope

Level = tuple[Callable[[], LoadPlan], Callable[[Observation], Seen]]
"""One value of a search: its load, asked for before each attempt, and the judged level that a run makes."""


@dataclass(frozen=True)
class Tried:
    """What a search found."""

    passed: int | None
    """The highest value that passed; None where none did."""
    failed: int | None
    """The lowest value above it that did not; None where the range ended first."""
    by_value: Mapping[int, Seen]
    """The levels that count, in the order in which they were run."""
    runs: tuple[Seen, ...]
    """All levels that were run, including attempts that this machine spoiled."""
    notes: tuple[Note, ...]

    @property
    def levels(self) -> tuple[Seen, ...]:
        return tuple(self.by_value.values())

    @property
    def best(self) -> Seen | None:
        return None if self.passed is None else self.by_value[self.passed]


@dataclass(frozen=True, kw_only=True)
class Levels(ABC):
    """The levels of a search from ``initial`` up to ``maximum``, and whether each meets the criteria."""

    setting: Setting
    initial: int
    maximum: int
    needed: ClassVar[bool] = True
    """See :func:`~pytest_llmbench.methodology.remeasured.attempted`; ``at_stake`` as well."""

    @property
    def first(self) -> int:
        return self.initial

    @property
    def ceiling(self) -> int:
        return self.maximum

    @property
    def lowest(self) -> int:
        """The value down to which the search goes if its first level fails."""
        return 1

    @property
    def at_stake(self) -> tuple[Objective, ...]:
        return ()

    @abstractmethod
    def plan(self, value: int, attempt: int = 1) -> LoadPlan:
        """The plan of a level, shared by every search that has this level, whatever its criteria. Each
        attempt has requests of its own."""

    @abstractmethod
    def see(self, run: Observation) -> Seen:
        """The judged level."""

    def level(self, value: int, before: Mapping[int, Seen]) -> Level:  # noqa: ARG002 - for those that tell
        """The level of a value. ``before``: the levels before it, by their value."""
        attempts = count(1)
        return lambda: self.plan(value, next(attempts)), self.see


def find(levels: Levels) -> Procedure[Tried]:
    """Search for the highest level that passes."""
    by_value: dict[int, Seen] = {}
    runs, notes = list[Seen](), list[Note]()
    again, stake = levels.setting.remeasure, levels.at_stake

    def at(value: int) -> Procedure[bool]:
        level = levels.level(value, by_value)
        attempts = yield from attempted(*level, again, needed=levels.needed, at_stake=stake)
        by_value[value] = attempts.level
        runs.extend(attempts.runs)
        notes.extend(attempts.notes)
        return attempts.level.level.passed is True

    passed, failed = yield from searched(doubling(levels.first, levels.ceiling, levels.lowest), at)
    return Tried(passed, failed, by_value, tuple(runs), tuple(notes))


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
            text = "nothing was sent" if ratio is None else f"completion {percentage(ratio)}"
            ours = timeouts(seen.records)
            named = f"; {ours} were given up by the load generator's own deadline" if ours else ""
            found.append(f"{text} (at least {percentage(self.min_completion)}{named})")
        if self.ttft_p99_ms is not None:
            p99 = seen.point("ttft.p99")
            if p99 is None:
                found.append("TTFT P99 not known")
            elif p99 > self.ttft_p99_ms:
                most = self.ttft_p99_ms
                found.append(f"TTFT P99 {against(p99, most, 'ms')} (at most {trimmed(most)} ms)")
        if memory := out_of_memory_errors(seen.records):
            found.append(f"{memory} out-of-memory errors")
        for turns, limit in self.turn_ttft_p95_ms.items():
            p95 = seen.point(f"turn_ttft[{turns}].p95")
            if p95 is None:
                found.append(f"TTFT P95 of turn {turns} not known")
            elif p95 > limit:
                found.append(
                    f"TTFT P95 of turn {turns} {against(p95, limit, 'ms')} (at most {trimmed(limit)} ms)"
                )
        jobs = jobs_of(seen.records) if seen.observation.plan.load.of_sessions else None
        if jobs and 1 - jobs.cut_off / len(jobs) < self.min_completion:
            # A failed turn takes those after it along, which nobody sent and no share of requests shows.
            cut = f"{jobs.cut_off} of {len(jobs)} sessions cut off"
            found.append(f"{cut} (at least {percentage(self.min_completion)} complete)")
        return tuple(found)


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
class LevelsAtOnce(Levels):
    """Closed loops from ``initial`` up to ``maximum`` at once."""

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

    def judged(self, seen: Seen) -> Seen:
        failures = self.criteria.failures(seen)
        return seen.with_(passed=not failures, fail_reasons=failures)


def find_capacity(levels: LevelsAtOnce) -> Procedure[Tried]:
    """Search for the capacity in requests or sessions at once. Notes say which end of the bracket is open."""
    found, sessions = (yield from find(levels)), levels.of_sessions
    if found.passed is None:
        return replace(found, notes=(Note.of("not_even_one", sessions=sessions), *found.notes))
    if found.failed is not None:
        return found
    quick = levels.ceiling < levels.maximum
    bound = Note.of("bound_reached", passed=found.passed, sessions=sessions, quick=quick)
    return replace(found, notes=(bound, *found.notes))


@dataclass(frozen=True, kw_only=True)
class RequestLevels(LevelsAtOnce):
    """Levels of requests in flight, on the workload and the SUT variant of ``sequence``. ``duration_s``:
    duration of a level, as a marker asks for it."""

    sequence: RequestSlice
    duration_s: float | None = None

    @property
    def at_stake(self) -> tuple[Objective, ...]:
        limit = self.criteria.ttft_p99_ms
        return () if limit is None else ceilings({"ttft.p99": limit})

    def requests(self, slots: int) -> RequestSlice:
        """The requests of a level. They are the same for every search of this range, whatever its criteria,
        so these share levels."""
        length_s = LEVEL_S.at(self.setting.scale, self.duration_s)
        asked: dict[str, Any] = {"duration_s": length_s, "range": [self.first, self.ceiling]}
        return self.sequence.next_part(self.setting, "level of capacity", concurrency=slots, **asked)

    def plan(self, value: int, attempt: int = 1) -> LoadPlan:  # noqa: ARG002 - those of one sequence go on
        return level_plan(self.setting, self.requests(value), value, self.duration_s)

    def see(self, run: Observation) -> Seen:
        return self.judged(level_of(run, seed=self.setting.seed, role=PROBE))

    def level(self, value: int, before: Mapping[int, Seen]) -> Level:
        """The next attempt goes on in the requests of the level. It has at most twice the slots of a level
        before it, so at most four times the fastest rate so far."""
        rates = [seen.point("request_throughput") or 0.0 for seen in before.values()]
        own, most_rps = self.requests(value), 4.0 * max(rates, default=0.0) or None

        def plan() -> LoadPlan:
            return level_plan(self.setting, own, value, self.duration_s, most_rps).with_(may_break=True)

        return plan, lambda run: self.see(own.sent(run))


@dataclass(frozen=True, kw_only=True)
class SessionLevels(LevelsAtOnce):
    """Levels of sessions at once. ``per_slot``: sessions per slot of a level, on average; None: the default
    of the scale."""

    per_slot: int | None = None
    of_sessions = True

    def plan(self, value: int, attempt: int = 1) -> LoadPlan:
        sessions = value * SESSIONS_PER_SLOT.count(self.setting.scale, self.per_slot)
        asked = {"slots": value, "sessions": sessions, **({} if attempt == 1 else {"attempt": attempt})}
        load, label = ClosedLoop(value, of_sessions=True), f"{value} sessions at once"
        kind = "level of sessions at once"
        return session_plan(self.setting, kind, label, load, sessions, asked, may_break=True)

    def see(self, run: Observation) -> Seen:
        """The level with its TTFT by turn, and why it fails."""
        seen = level_of(run, seed=self.setting.seed, role=PROBE)
        classes = dict.fromkeys((*USUAL, *self.criteria.turn_ttft_p95_ms))
        by_turn = turn_metrics([seen.inside], classes, seed=self.setting.seed)
        return self.judged(seen.with_(metrics={**seen.level.metrics, **by_turn}, steady=None))


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


FIRST_RATE, HIGHEST_RATE = 200, 6_400
"""Jobs per hour at which a search starts, and the most that it tries."""
LOWEST_SHARE = 4
"""A search whose first level fails goes down to the first level divided by this."""
RATE_S = ByScale(quick=30.0, standard=300.0, full=900.0)
"""Seconds for which the sessions of a level are started, unless their pauses need longer."""
LEVEL_SESSIONS = ByScale(quick=10, standard=100, full=500)
"""The fewest sessions of a level."""
FILL = 2.0
"""Number of mean job times after which a level counts as full."""
_PAUSES = 5.0
"""Duration of a level in mean pauses of a session: twice FILL, and a quarter for what the model takes."""
_SHAPES = 200
_FEWEST_FOR_SLOPE = 10
_CHANCE = 1.645
"""Least slope in standard errors: it is exceeded by chance in one of twenty levels that keep up."""
_HOUR_S = 3600.0
TOO_SHORT = "too short to tell"

Figures = Callable[[Records], Mapping[str, Estimate]]


@dataclass(frozen=True, kw_only=True)
class JobLevels(Levels):
    """Levels of sessions started at a rate, in jobs per hour."""

    limits: Sequence[Objective]
    """The limits of a level; each is compared with the point of its metric."""
    figures: Figures
    """Computes the metrics of the limits from the records of the sessions that count."""
    law: OpenLoop
    """How sessions start; the rate is replaced by that of each level."""
    initial: int = FIRST_RATE
    maximum: int = HIGHEST_RATE
    duration_s: float | None = None
    """Shortest time for which sessions of a level are started, in seconds; None: the default of the scale, or
    long enough for the pauses of the workload."""
    sessions: int | None = None
    """Fewest sessions of a level; None: the default of the scale."""
    max_error_share: float = 0.01
    needed = False

    @property
    def lowest(self) -> int:
        return max(1, self.initial // LOWEST_SHARE)

    @cached_property
    def level_s(self) -> float:
        """The seconds for which sessions of a level are started."""
        usual = RATE_S.at(self.setting.scale, self.duration_s)
        if self.duration_s is not None:
            return usual
        shapes = islice(of_sessions(self.setting.workload).shapes(self.setting.seed), _SHAPES)
        pauses = [paused_s(session) for session in shapes]
        return max(usual, _PAUSES * sum(pauses) / max(1, len(pauses)))

    def plan(self, value: int, attempt: int = 1) -> LoadPlan:
        fewest = LEVEL_SESSIONS.count(self.setting.scale, self.sessions)
        sessions = max(fewest, math.ceil(value * self.level_s / _HOUR_S))
        load = replace(self.law, rate=value / _HOUR_S)
        law = {"arrival": load.arrival, "burstiness": load.burstiness, "attempt": attempt}
        asked = {"jobs_per_hour": value, "sessions": sessions, **law}
        kind, label = "level of sessions", f"{value} jobs/h"
        return session_plan(self.setting, kind, label, load, sessions, asked, may_break=True)

    def see(self, run: Observation) -> Seen:
        counted, queue, reasons, too_short = _judged(run)
        seen = level_of(run, seed=self.setting.seed, role=PROBE)
        figures = {**seen.level.metrics, **self.figures(counted)}
        broken = self._broken(run, figures)
        reasons = (*broken, *reasons)
        growing = queue is not None and queue.growth.growing
        return seen.with_(
            metrics=figures,
            in_flight_means=() if queue is None else queue.growth.means,
            queue_source="" if queue is None else queue.source,
            queue_growing=None if queue is None else growing,
            steady=None,
            saturated=None,
            overloaded=growing,
            saturation_reasons=(),
            passed=None if too_short and not broken else not reasons,
            fail_reasons=reasons,
        )

    def _broken(self, run: Observation, figures: Mapping[str, Estimate]) -> tuple[str, ...]:
        found = [] if run.stopped is None else [f"ended early: {run.stopped}"]
        jobs = jobs_of(run.records)
        if jobs.cut_off > self.max_error_share * len(jobs):
            found.append(
                f"{jobs.cut_off} of {len(jobs)} sessions cut off (at most {percentage(self.max_error_share)})"
            )
        for limit in self.limits:
            known = figures.get(limit.metric)
            point = None if known is None or known.among_given_up else known.point
            if point is None:
                found.append(f"{limit.metric} not known")
            elif not limit.holds(point):
                seen = against(point, limit.limit, limit.unit)
                is_share = limit.unit == "ratio"
                most = percentage(limit.limit) if is_share else f"{trimmed(limit.limit)} {limit.unit}"
                found.append(f"{limit.metric} {seen} (limit {limit.op} {most})")
        return tuple(found)


def paused_s(session: Session) -> float:
    """The sum of the pauses, in seconds, on the longest way through a session: its duration if the server
    takes no time."""
    due_ns: list[int] = []
    for turn in session.turns:
        due_ns.append(max((due_ns[number - 1] for number in turn.wait_for), default=0) + turn.pause_ns)
    return max(due_ns) / 1e9


@dataclass(frozen=True)
class JobsFound(Tried):
    """The result of a search for the jobs per hour."""

    decided: int | None
    """The lowest rate above the one that passed which broke a limit; None where the range ended first, or
    nothing above decides."""
    began: tuple[float, float]
    """The jobs per hour at which sessions of these two levels really began: a schedule drawn at random may be
    faster or slower than planned. The planned rate where there is no such level."""
    why_open: OpenEnd | None
    """Why ``decided`` is None; None if it is not."""

    @property
    def estimate(self) -> Estimate:
        """The jobs per hour with their bracket: at least what passed, less than what failed, each as planned
        or as it began, whichever is farther out. Undefined when nothing passed."""
        passed, n = self.passed, len(self.runs)
        if passed is None:
            method = "no tested rate kept the limits"
            return Estimate.undefined(unit="count", method=method, n=n, reason=Reason.NO_LEVEL)
        slow, fast = self.began
        method = f"bracket of the search: {passed} passed (began at {number(slow)})"
        upper = None if self.decided is None else max(float(self.decided), fast)
        method += "" if self.decided is None else f", {self.decided} failed (began at {number(fast)})"
        point, kind = float(passed), EstimateKind.BRACKET
        found = Estimate(point, min(point, slow), upper, 0.95, n, method, "count", kind=kind)
        return found if self.why_open is None else found.at_least(*self.why_open)


def find_jobs_per_hour(levels: JobLevels) -> Procedure[JobsFound]:
    """Search for the jobs per hour: an open loop of sessions."""
    tried = yield from find(levels)
    by_rate, passed, notes = tried.by_value, tried.passed, list(tried.notes)
    failed, why = _upper_end(by_rate, passed or 0)
    if passed is None:
        shown = by_rate[min(by_rate)].level.fail_reasons
        shown = shown or (() if why is None else (why.words,))
        notes.append(Note.of("no_jobs", lowest=min(by_rate), reasons=shown))
    elif why is not None:
        notes.append(Note.of("more_jobs_may", passed=passed, why=why.words))
    began = (_start_rate(by_rate, passed), _start_rate(by_rate, failed))
    return JobsFound(passed, tried.failed, by_rate, tried.runs, tuple(notes), failed, began, why)


def _start_rate(by_rate: Mapping[int, Seen], jobs: int | None) -> float:
    """The jobs per hour at which the sessions of a level really began."""
    if jobs is None:
        return 0.0
    begun_ns, _ = begun(by_rate[jobs].records)
    took_ns = int(np.ptp(begun_ns)) if len(begun_ns) > 1 else 0
    return float(f"{(len(begun_ns) - 1) * 1e9 * _HOUR_S / took_ns:.4g}") if took_ns else float(jobs)


def _upper_end(by_rate: Mapping[int, Seen], passed: int) -> tuple[int | None, OpenEnd | None]:
    """The lowest rate above ``passed`` that broke a limit, and why there is none. Levels that were not
    offered, or were too short to tell, broke none."""
    above = sorted(jobs for jobs in by_rate if jobs > passed)
    failed = [jobs for jobs in above if by_rate[jobs].level.passed is False]
    if failed:
        return failed[0], None
    if not above:
        return None, OpenEnd(Reason.RANGE_ENDED, f"every tested rate up to {passed} jobs/h kept them")
    reasons = by_rate[above[0]].level.fail_reasons
    if not reasons:
        return None, OpenEnd(Reason.BEYOND_GENERATOR, f"{above[0]} jobs/h are beyond this generator")
    return None, OpenEnd(Reason.UNDECIDED, f"{above[0]} jobs/h: {'; '.join(reasons)}")


def _judged(run: Observation) -> tuple[Records, Queue | None, tuple[str, ...], bool]:
    """The records of the sessions that count, the queue in their time, reasons why the level cannot pass,
    and whether it was too short to tell."""
    records = run.records
    jobs = jobs_of(records)
    if not jobs.complete.any():
        return Records.concatenate([]), None, ("no session was completed",), False
    begun_ns, which = begun(records)
    first_ns, last_ns = run.started_ns, int(begun_ns.max())
    fill_ns = round(FILL * float(jobs.time_s[jobs.complete].mean()) * 1e9)
    counted = records.select((begun_ns[which] >= first_ns + fill_ns) & (records.session != MISSING))
    if last_ns - first_ns < 2 * fill_ns:
        lasted, needed = (quantity(ns / 1e9, "s") for ns in (last_ns - first_ns, 2 * fill_ns))
        why = f"{TOO_SHORT}: sessions started for {lasted}, their length needs {needed}"
        return (counted if len(counted) else records), None, (why,), True
    window = Window(records, first_ns + fill_ns, last_ns)
    queue = queue_of(run, window) or Queue(IN_FLIGHT, growth_in_flight(window))
    return counted, queue, (*queue_grows(queue), *_behind(counted)), False


def _behind(counted: Records) -> tuple[str, ...]:
    """The reason, if sessions end too slowly and the slope is no chance. Sessions that begin dt apart and
    take slope · dt longer end (1 + slope) dt apart: the rate of the ends is 1 / (1 + slope) of that of the
    starts."""
    jobs = jobs_of(counted)
    begun_s = begun(counted)[0][np.searchsorted(np.unique(counted.session), jobs.session)] / 1e9
    x, y = begun_s[jobs.complete], jobs.llm_s[jobs.complete]
    if len(x) < _FEWEST_FOR_SLOPE or np.ptp(x) == 0:
        return ()
    slope, error = least_squares_slope(x, y - y.mean())
    if slope <= 1 / COMPLETION_SHARE - 1 or slope <= _CHANCE * error:
        return ()
    share, limit = percentage(1 / (1 + slope)), percentage(COMPLETION_SHARE)
    told = f"sessions end at {share} of the rate at which they begin (limit {limit})"
    return (f"{told}: their LLM time grows by {quantity(slope, 's')} per second",)
