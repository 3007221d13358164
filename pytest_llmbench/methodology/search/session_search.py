"""Search for the most jobs per hour under limits: doubling to the first failure, then bisection, as for a
capacity.

A level starts sessions at one rate, for so long that the system fills up and goes on: until sessions have
been started for as long as they last there are fewer of them at once than later. So a level is judged by the
sessions that begin after twice the mean job time (of exponential times six of seven that will go on at once
do so by then), and passes only if that leaves at least half of it.

Probes of a load of sessions are some of its jobs, sent one at a time, which shows how long they take alone.
Each has the turns, lengths and pauses of a session of the load and words of its own, so that neither finds
the other's prompts in a cache. Probes are spread evenly over the load's sessions: those that begin while it
is still filling up are among them in the share that they have of the load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from pytest_llmbench.methodology.measuring.levels import Seen, level_of
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.measuring.one_load import Before, measured_runs
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting
from pytest_llmbench.methodology.remeasured import disturbed
from pytest_llmbench.methodology.search.probing import Level, OpenEnd, Tried, doubling, tried_levels
from pytest_llmbench.metrics.balance import COMPLETION_SHARE, IN_FLIGHT, Queue, growth_in_flight, queue_of
from pytest_llmbench.metrics.session_figures import Jobs, Slowdowns, jobs_of, slowdowns
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.model.request import OfSessions, Session, Workload
from pytest_llmbench.model.result import PROBE, VoidLoad
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.sessions import ProbeSessions, turns_of
from pytest_llmbench.workloads.stream import streamed

PROBES = 40
"""Default number of probes of a run with a limit on the slowdown. With 40 independent pairs the interval of
the median closes nine times in ten, with 20 every other time. Probes take their time one after the other,
pauses included, so more of them are for the author to ask for."""
QUICK_PROBES = 6


@dataclass(frozen=True)
class Probed:
    """The probes of one run."""

    numbers: tuple[int, ...]
    """For each probe the number of the run's session that it is paired with."""
    seen: Observation
    void: tuple[VoidLoad, ...]
    """Earlier attempts that this machine spoiled."""

    @property
    def usable(self) -> bool:
        return self.seen.interrupted is None and not disturbed(self.seen)

    def beside(self, loaded: Jobs) -> Slowdowns:
        """The slowdowns of the run; empty where this machine spoiled the probes."""
        alone = jobs_of(self.seen.records if self.usable else Records.concatenate([]))
        return slowdowns(loaded, alone, self.numbers)


Alone = Mapping[int, Probed]
"""Seed of a run's load → its probes."""


def not_probed(workload: Workload) -> list[str]:
    """Why sessions of a workload cannot be probed alone; empty where they can."""
    if streamed(workload).answers != "recorded":
        return [
            "a slowdown compares each job with itself, but live answers change its prompts each time: leave "
            "out its limit and probe_sessions, or use recorded answers"
        ]
    if not streamed(workload).rewords_sessions:
        return [
            "the slowdown needs a workload with a method reworded, which gives its sessions other words; "
            f"{workload.name!r} has none"
        ]
    return []


def probe_numbers(probes: int, sessions: int) -> tuple[int, ...]:
    """The numbers of the sessions to be probed, spread evenly over the load."""
    count = min(probes, sessions)
    return tuple((2 * place + 1) * sessions // (2 * count) for place in range(count))


def probe_plan(setting: Setting, load: LoadPlan, numbers: Sequence[int], attempt: int = 1) -> LoadPlan:
    """The plan of the probes for the sessions ``numbers`` of ``load``, whose workload rewords sessions."""
    workload = ProbeSessions(streamed(load.workload), load.seed, tuple(numbers))
    part = part_of(setting, workload, "session probes", attempt=attempt)
    turns, one = turns_of(workload, len(numbers), part.seed), ClosedLoop(1, of_sessions=True)
    label = f"{len(numbers)} sessions alone"
    return part.plan(setting, label, one, turns, workload=workload, phase=Phase.PROBE)


def probed(setting: Setting, load: LoadPlan, probes: int, sessions: int) -> Procedure[Probed]:
    """Send the probes of ``load``, again while this machine spoils them."""
    numbers = probe_numbers(probes, sessions)

    def plan_of(run: int, attempt: int, before: Before) -> LoadPlan:  # noqa: ARG001 - the signature is shared
        return probe_plan(setting, load, numbers, attempt)

    (seen,), void = yield from measured_runs(1, 1 + setting.remeasure, plan_of)
    return Probed(numbers, seen, tuple(void))


def paused_s(session: Session) -> float:
    """The sum of the pauses, in seconds, on the longest way through a session: its duration if the server
    takes no time."""
    due_ns: list[int] = []
    for turn in session.turns:
        due_ns.append(max((due_ns[number - 1] for number in turn.wait_for), default=0) + turn.pause_ns)
    return max(due_ns) / 1e9


def no_pairs(probes: Sequence[Probed | None]) -> str:
    """Why there is no slowdown, in words."""
    if not any(probes):
        return "no session was probed alone"
    if not any(each.usable for each in probes if each is not None):
        return "this machine spoiled the probes"
    return "no session was completed both under load and alone"


def notes_of_probes(seen: Sequence[Observation], alone: Alone) -> tuple[Note, ...]:
    own = [probes for run in seen if (probes := alone.get(run.plan.seed)) is not None]
    spoiled = sum(not probes.usable for probes in own)
    jobs = [jobs_of(probes.seen.records) for probes in own if probes.usable]
    every, cut = sum(map(len, jobs)), sum(each.cut_off for each in jobs)
    notes = []
    if spoiled:
        notes.append(Note.of("spoiled_probes", spoiled=spoiled, runs=len(own)))
    if cut:
        notes.append(Note.of("probes_cut_off", cut=cut, probes=every))
    return tuple(notes)


FIRST_LEVEL, HIGHEST_LEVEL = 200, 6_400
"""Jobs per hour at which a search starts, and the most that it tries."""
LOWEST_SHARE = 4
"""A search whose first level fails goes down to the first level divided by this."""
LEVEL_S = ByScale(quick=30.0, standard=300.0, full=900.0)
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


@dataclass(frozen=True)
class JobsAsked:
    """The parameters of a search. Rates are in jobs per hour, that is sessions started per hour."""

    limits: Sequence[Objective]
    """The limits of a level; each is compared with the point of its metric."""
    figures: Figures
    """Computes the metrics of the limits from the records of the sessions that count."""
    law: OpenLoop
    """How sessions start; the rate is replaced by that of each level."""
    initial: int
    maximum: int
    duration_s: float
    """Shortest time for which sessions of a level are started, in seconds."""
    sessions: int | None = None
    """Fewest sessions of a level; None: the default of the scale."""
    max_error_share: float = 0.01

    @property
    def lowest(self) -> int:
        return max(1, self.initial // LOWEST_SHARE)


@dataclass(frozen=True)
class JobsFound:
    """The result of a search for the jobs per hour."""

    tried: Tried
    failed: int | None
    """The lowest rate above the one that passed which broke a limit; None where the range ended first, or
    nothing above decides."""
    began: tuple[float, float]
    """The jobs per hour at which sessions of these two levels really began: a schedule drawn at random may be
    faster or slower than planned. The planned rate where there is no such level."""
    why_open: OpenEnd | None
    """Why ``failed`` is None; None if it is not."""
    notes: tuple[Note, ...]

    @property
    def estimate(self) -> Estimate:
        """The jobs per hour with their bracket: at least what passed, less than what failed, each as planned
        or as it began, whichever is farther out. Undefined when nothing passed."""
        passed, n = self.tried.passed, len(self.tried.runs)
        if passed is None:
            method = "no tested rate kept the limits"
            return Estimate.undefined(unit="count", method=method, n=n, reason=Reason.NO_LEVEL)
        slow, fast = self.began
        method = f"bracket of the search: {passed} passed (began at {slow:g})"
        upper = None if self.failed is None else max(float(self.failed), fast)
        method += "" if self.failed is None else f", {self.failed} failed (began at {fast:g})"
        point, kind = float(passed), EstimateKind.BRACKET
        found = Estimate(point, min(point, slow), upper, 0.95, n, method, "count", kind=kind)
        return found if self.why_open is None else found.at_least(*self.why_open)


def find_jobs_per_hour(setting: Setting, asked: JobsAsked) -> Procedure[JobsFound]:
    """Search for the jobs per hour: an open loop of sessions, from ``initial`` up to ``maximum``."""

    def level(jobs: int, _: Mapping[int, Seen]) -> Level:
        attempts = count(1)
        return Level(
            lambda: session_level(setting, asked, jobs, next(attempts)),
            lambda run: _seen(setting, asked, run, jobs),
        )

    chooser = doubling(asked.initial, asked.maximum, asked.lowest)
    tried = yield from tried_levels(chooser, level, setting.remeasure)
    by_rate, passed, notes = tried.by_value, tried.passed, list(tried.notes)
    failed, why = _upper_end(by_rate, passed or 0)
    if passed is None:
        shown = by_rate[min(by_rate)].level.fail_reasons
        shown = shown or (() if why is None else (why.words,))
        notes.append(Note.of("no_jobs", lowest=min(by_rate), reasons=shown))
    elif why is not None:
        notes.append(Note.of("more_jobs_may", passed=passed, why=why.words))
    began = (_start_rate(by_rate, passed), _start_rate(by_rate, failed))
    return JobsFound(tried, failed, began, why, tuple(notes))


def _start_rate(by_rate: Mapping[int, Seen], jobs: int | None) -> float:
    """The jobs per hour at which the sessions of a level really began."""
    if jobs is None:
        return 0.0
    begun_ns = _begun_ns(by_rate[jobs].records)
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


def level_sessions(setting: Setting, asked: JobsAsked, jobs: int) -> int:
    """How many sessions are started in a level."""
    fewest = LEVEL_SESSIONS.count(setting.scale, asked.sessions)
    return max(fewest, math.ceil(jobs * asked.duration_s / _HOUR_S))


def level_duration_s(setting: Setting, asked_s: float | None) -> float:
    """Seconds for which sessions of a level are started: as asked for, else long enough for the pauses of the
    workload."""
    usual = LEVEL_S.at(setting.scale, asked_s)
    workload = setting.workload
    if asked_s is not None or not isinstance(workload, OfSessions):
        return usual
    pauses = [paused_s(session) for session in islice(workload.shapes(setting.seed), _SHAPES)]
    return max(usual, _PAUSES * sum(pauses) / max(1, len(pauses)))


def session_level(setting: Setting, asked: JobsAsked, jobs: int, attempt: int = 1) -> LoadPlan:
    """The plan of a level, shared by every search that has this level, whatever its limits. Each attempt has
    sessions of its own."""
    workload = setting.workload
    assert isinstance(workload, OfSessions)
    sessions, load = level_sessions(setting, asked, jobs), replace(asked.law, rate=jobs / _HOUR_S)
    law = {"arrival": load.arrival, "burstiness": load.burstiness, "attempt": attempt}
    told = {"jobs_per_hour": jobs, "sessions": sessions, **law}
    part = part_of(setting, setting.workload, "level of sessions", **told)
    turns = turns_of(workload, sessions, part.seed)
    return part.plan(setting, f"{jobs} jobs/h", load, turns, may_break=True)


def _seen(setting: Setting, asked: JobsAsked, run: Observation, jobs: int) -> Seen:
    counted, queue, reasons, too_short = _judged(run)
    seen = level_of(run, label=f"{jobs} jobs/h", seed=setting.seed, role=PROBE)
    figures = {**seen.level.metrics, **asked.figures(counted)}
    broken = _broken(asked, run, figures)
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


def _judged(run: Observation) -> tuple[Records, Queue | None, tuple[str, ...], bool]:
    """The records of the sessions that count, the queue in their time, reasons why the level cannot pass,
    and whether it was too short to tell."""
    records = run.records
    jobs = jobs_of(records)
    if not jobs.complete.any():
        return Records.concatenate([]), None, ("no session was completed",), False
    begun = _begun_ns(records)
    begun_ns = begun[np.unique(records.session, return_inverse=True)[1]]
    first_ns, last_ns = run.started_ns, int(begun.max())
    fill_ns = round(FILL * float(jobs.time_s[jobs.complete].mean()) * 1e9)
    counted = records.select((begun_ns >= first_ns + fill_ns) & (records.session != MISSING))
    if last_ns - first_ns < 2 * fill_ns:
        lasted, needed = (last_ns - first_ns) / 1e9, 2 * fill_ns / 1e9
        why = f"{TOO_SHORT}: sessions started for {lasted:.3g} s, their length needs {needed:.3g} s"
        return (counted if len(counted) else records), None, (why,), True
    window = Window(records, first_ns + fill_ns, last_ns)
    queue = queue_of(run, window) or Queue(IN_FLIGHT, growth_in_flight(window))
    return counted, queue, (*_overload(queue), *_behind(counted)), False


def _behind(counted: Records) -> tuple[str, ...]:
    """The reason, if sessions end too slowly and the slope is no chance. Sessions that begin dt apart and
    take slope · dt longer end (1 + slope) dt apart: the rate of the ends is 1 / (1 + slope) of that of the
    starts."""
    jobs = jobs_of(counted)
    begun_s = _begun_ns(counted)[np.searchsorted(np.unique(counted.session), jobs.session)] / 1e9
    x, y = begun_s[jobs.complete], jobs.llm_s[jobs.complete]
    if len(x) < _FEWEST_FOR_SLOPE or np.ptp(x) == 0:
        return ()
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    error = float(np.sqrt(np.square(y - slope * x).sum() / (len(x) - 2) / (x @ x)))
    if slope <= 1 / COMPLETION_SHARE - 1 or slope <= _CHANCE * error:
        return ()
    share = f"sessions end at {1 / (1 + slope):.0%} of the rate at which they begin"
    return (f"{share} (limit {COMPLETION_SHARE:.0%}): their LLM time grows by {slope:.2g} s per second",)


def _begun_ns(records: Records) -> IntColumn:
    """The instant at which each session began, in the order of session numbers."""
    number, inverse = np.unique(records.session, return_inverse=True)
    begun = np.full(len(number), np.iinfo(np.int64).max)
    np.minimum.at(begun, inverse, records.scheduled_ns)
    return begun


def _overload(queue: Queue) -> tuple[str, ...]:
    if not queue.growth.growing:
        return ()
    first, last = queue.growth.means[0], queue.growth.means[-1]
    return (f"the queue grows: {queue.source} {first:.1f} in the first fifth, {last:.1f} in the last",)


def _broken(asked: JobsAsked, run: Observation, figures: Mapping[str, Estimate]) -> tuple[str, ...]:
    found = [] if run.stopped is None else [f"ended early: {run.stopped}"]
    jobs = jobs_of(run.records)
    if jobs.cut_off > asked.max_error_share * len(jobs):
        found.append(f"{jobs.cut_off} of {len(jobs)} sessions cut off (at most {asked.max_error_share:.1%})")
    for limit in asked.limits:
        known = figures.get(limit.metric)
        point = None if known is None or known.among_given_up else known.point
        if point is None:
            found.append(f"{limit.metric} not known")
        elif not limit.holds(point):
            found.append(f"{limit.metric} {point:.4g} (limit {limit.op} {limit.limit:g} {limit.unit})")
    return tuple(found)
