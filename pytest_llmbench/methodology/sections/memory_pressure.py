"""Memory Pressure Behavior, section 5.8 of the draft.

Objective: what the system does when memory is short: preemption, swapping, degradation. Procedure: capacity
by the search of test 5.5 on the same workload, with a threshold for TTFT from one request at a time where the
marker has none; then levels at 100, 110, 125 and 150 % of it (AMB-19), at least 120 s each, watching
completions, preemptions, latency and out-of-memory errors. After each level short probes tell how long the
system takes to be as fast as before; one that stops answering ends the test there.

Of a workload of sessions the levels are sessions at once, whose contexts stay while their users think: as
they grow in number, turns that return find less of their history in the cache. The draft knows requests
alone, so clauses about these are not met then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import Seen, level_of, no_history, qualified, too_long
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.warmup import warm_up
from pytest_llmbench.methodology.parameters import TestParameters, limit, parameter
from pytest_llmbench.methodology.pressure import (
    PRESSED,
    IdleSessions,
    Oversubscribed,
    PressedLevels,
    Recovery,
    before_overload,
    pressed,
    pressure_finding,
    recovery_probes,
)
from pytest_llmbench.methodology.procedure import (
    ByScale,
    Procedure,
    Setting,
    TestDefinition,
    by_load,
)
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.methodology.search.level_search import (
    SESSIONS_PER_SLOT,
    Criteria,
    RequestLevels,
    SessionLevels,
    find_capacity,
    level_plan,
)
from pytest_llmbench.metrics.kv_cache import (
    out_of_memory_errors,
    preemption_loss,
    preemption_rate,
    preemption_recovery_rate,
    timeouts,
)
from pytest_llmbench.model.draft import CONTEXT_OUTPUT_TOKENS, PRESSURE_S
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.facts import IsolationFact, LoadFact, SUTFact
from pytest_llmbench.model.numbers import Amount, percent_label, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.request import TurnClass, Workload
from pytest_llmbench.model.result import PROBE, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.long_context import LONG_CONTEXT, MIXED_TARGETS, long_context
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

HEADING = Heading("memory_pressure", "5.8", "Memory Pressure Behavior")

LEVELS_PERCENT = (100.0, 110.0, 125.0, 150.0)

SESSIONS = (4, 8, 16, 32, 64)
"""Sessions at once, level by level: so few that any cache holds them, then ever twice as many."""

UNLOADED = ByScale(quick=5, standard=20, full=40)
"""Number of requests sent one at a time, whose TTFT gives the criterion of the search."""


TIMES_P50, TIMES_P99 = 10.0, 2.0
"""Factors of the criterion: ten times that median, the draft's mark of a saturated system (section 5.2.3.1),
or twice that P99 where the lengths of the workload alone spread further."""


FIRST_LEVELS = (8, 16)
"""The first levels of the search for the capacity, listed in a plan."""

LEVEL_S = ByScale(quick=5.0, standard=30.0, full=PRESSURE_S)


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Levels beyond capacity, up to failure: needs ``--llm-allow-overload`` and an isolated system. Limits
    hold at every level beyond 100 %. With a workload of sessions, ever more sessions at once, whose contexts
    wait for their next turn."""

    takes_adapters = False
    for_sessions = ("sessions", "sessions_per_slot", "turn_ttft_p95_ms", "min_turn_hit_rate", "min_sessions")
    for_requests = dict.fromkeys(
        ("capacity", "duration_s", "max_preemption_rate", "max_recovery_s", "levels_percent"),
        "with sessions, give the levels as sessions at once",
    )

    workload: str | Workload = parameter("workload", "long-context")
    capacity: int | None = parameter(
        "count",
        doc="requests in flight that count as 100 %, if known; otherwise the search of test 5.5 finds the "
        "number.",
    )
    ttft_p99_ms: float | None = parameter(
        "positive",
        doc="criterion of the capacity search (default: derived from the TTFT of one request at a time); "
        "with sessions: criterion of every level.",
    )
    levels_percent: Sequence[float] = parameter(
        "levels", LEVELS_PERCENT, doc="loads in percent of capacity; 100 is the base."
    )
    duration_s: float | None = parameter("positive", doc="duration of a level.", scale=LEVEL_S)
    min_completion: float | None = limit(
        "completion_rate[{}]",
        "share",
        doc="with sessions: least share that completes, a criterion of every level; default 0.99.",
    )
    max_preemption_rate: float | None = limit("preemption_rate[{}]", "share")
    max_recovery_s: float | None = limit("recovery_time[{}]")
    sessions: Sequence[int] = parameter("counts", SESSIONS, doc="with sessions: levels, in sessions at once.")
    sessions_per_slot: int | None = parameter(
        "count",
        doc="with sessions: sessions that a level sends per session in flight.",
        scale=SESSIONS_PER_SLOT,
    )
    turn_ttft_p95_ms: Mapping[int | str, float] | None = parameter(
        "positive_by_turn",
        doc='with sessions: criterion on TTFT P95 by turn number, ``{"2+": 300}``.',
    )
    min_turn_hit_rate: Mapping[int | str, float] | None = parameter(
        "share_by_turn",
        doc='with sessions: criterion on the cached share of cacheable tokens, by turn number: ``{"2+": '
        "0.9}``.",
    )
    min_sessions: int | None = limit(
        "max_sessions", "count", doc="with sessions: every level up to this one must meet the criteria."
    )

    def contradictions(self) -> list[str]:
        found = []
        if len(self.sessions) < 2:
            found.append(f"sessions has one level, {self.sessions[0]}: give at least two to compare")
        if self.min_sessions is not None and self.min_sessions not in self.sessions:
            levels = ", ".join(map(str, self.sessions))
            found.append(
                f"min_sessions is {self.min_sessions}, which is not a level: the levels are {levels}"
            )
        return found

    def session_levels(self, setting: Setting) -> SessionLevels:
        least = 0.99 if self.min_completion is None else self.min_completion
        turns = {TurnClass.parse(key): limit for key, limit in (self.turn_ttft_p95_ms or {}).items()}
        criteria = Criteria(self.ttft_p99_ms, least, turns)
        return SessionLevels(setting=setting, criteria=criteria, per_slot=self.sessions_per_slot)

    @property
    def qualifiers(self) -> Sequence[str]:
        """The levels beyond capacity; none of sessions, whose share that completes is a criterion."""
        beyond = [percent for percent in self.levels_percent if percent > 100]
        return [] if self.has_sessions else [percent_label(percent) for percent in beyond]

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return (*super().objectives, PRESSED)


@dataclass(frozen=True)
class Step:
    """A level to be sent: its plan, anew for each attempt, and how a run of it is seen."""

    key: float
    name: str
    plan: Callable[[], LoadPlan]
    see: Callable[[Observation], Seen]


@dataclass
class Overload:
    """The levels that were run, by percent of the capacity or by sessions at once."""

    capacity: int | None = None
    levels: dict[float, Seen] = field(default_factory=dict)
    void: dict[float, Sequence[Seen]] = field(default_factory=dict)
    """Attempts at levels that this machine spoiled."""
    recoveries: dict[float, Recovery] = field(default_factory=dict)
    search: list[Seen] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def run(self, setting: Setting, probes: RequestSlice, steps: Iterable[Step]) -> Procedure[None]:
        """Run the levels one after the other, each with its attempts, until the system does not recover."""
        calm = yield from before_overload(setting, probes)
        for step in steps:
            attempts, recovery = yield from pressed(setting, step.plan, step.see, probes, calm)
            self.levels[step.key], self.void[step.key] = attempts.level, attempts.runs[:-1]
            self.recoveries[step.key] = recovery
            self.notes += attempts.notes
            if recovery.gave_up is not None:
                self.notes.append(Note.of("stopped_after", level=step.name, why=recovery.gave_up))
                return


def fitted(setting: Setting) -> Setting:
    """The setting with the lengths of Long Context that the model accepts (AMB-03).

    A smoke run takes the shortest.
    """
    limit = setting.facts.value(SUTFact.CONTEXT_LIMIT_TOKENS)
    if setting.workload != LONG_CONTEXT:
        return setting
    if setting.scale == "quick":
        limit = (
            min(MIXED_TARGETS) + CONTEXT_OUTPUT_TOKENS
            if limit is None
            else min(limit, 2 * min(MIXED_TARGETS))
        )
    return setting if limit is None else replace(setting, workload=long_context(limit))


def measure(parameters: Parameters, setting: Setting, _: WarmupReport) -> Procedure[TestResult]:
    setting = fitted(setting)
    # Short prompts warm up as well, and a hundred long ones would be a memory test by themselves.
    warmup = yield from warm_up(setting, workload=SYNTHETIC_UNIFORM)
    overload, sequence = Overload(), RequestSlice(setting.workload)
    yield from _capacity(parameters, setting, overload, sequence)
    if overload.capacity is not None:
        probes = probes_of(parameters, setting, sequence)
        steps = (_step(parameters, setting, overload, sequence, each) for each in parameters.levels_percent)
        yield from overload.run(setting, probes, steps)
    load = {
        **overload.facts,
        LoadFact.MODEL: "closed",
        LoadFact.DURATION_S: LEVEL_S.at(setting.scale, parameters.duration_s),
        LoadFact.LEVELS_PERCENT: list(parameters.levels_percent),
        LoadFact.CAPACITY_CONCURRENCY: overload.capacity,
    }
    budgeted = [seen for percent, seen in overload.levels.items() if percent <= 100]
    report = _report(overload, Oversubscribed(overload.levels), setting.seed, load, budgeted)
    return result_of(HEADING, parameters, setting, warmup, report)


def measure_sessions(parameters: Parameters, setting: Setting, _: WarmupReport) -> Procedure[TestResult]:
    warmup = yield from warm_up(setting, workload=SYNTHETIC_UNIFORM)
    probes = recovery_probes(setting, RequestSlice(setting.workload), sessions=list(parameters.sessions))
    overload = Overload(notes=[Note.of("memory_of_idle_sessions")])
    steps = (_session_step(parameters, setting, slots) for slots in parameters.sessions)
    yield from overload.run(setting, probes, steps)
    floors = {TurnClass.parse(key): least for key, least in (parameters.min_turn_hit_rate or {}).items()}
    idle = IdleSessions.of(overload.levels, floors, setting.seed)
    load: dict[str, Any] = {LoadFact.MODEL: "closed", LoadFact.SESSION_LEVELS: list(parameters.sessions)}
    report = _report(overload, idle, setting.seed, load, list(idle.levels.values())[:1])
    return result_of(HEADING, parameters, setting, warmup, report)


def _session_step(parameters: Parameters, setting: Setting, slots: int) -> Step:
    """A level, with other sessions where it is run again."""
    numbers = count(1)
    role = "baseline" if slots == min(parameters.sessions) else "overload"

    def see(run: Observation) -> Seen:
        return parameters.session_levels(setting).see(run).with_(role=role)

    return Step(
        slots, f"{slots} sessions", lambda: _session_plan(parameters, setting, slots, next(numbers)), see
    )


def _session_plan(parameters: Parameters, setting: Setting, slots: int, attempt: int = 1) -> LoadPlan:
    plan = parameters.session_levels(setting).plan(slots, attempt)
    return plan.with_(may_break=False, stop_when_failing=True)


def _capacity(
    parameters: Parameters, setting: Setting, overload: Overload, sequence: RequestSlice
) -> Procedure[None]:
    if parameters.capacity is not None:
        overload.capacity = parameters.capacity
        overload.facts = {
            LoadFact.CAPACITY_SOURCE: "declared by the marker (capacity)",
            LoadFact.CAPACITY_FOUND: False,
        }
        return
    threshold_ms = parameters.ttft_p99_ms
    if threshold_ms is None:
        threshold_ms = yield from _threshold_ms(setting, overload, sequence)
    found = yield from find_capacity(
        RequestLevels(setting=setting, sequence=sequence, criteria=Criteria(ttft_p99_ms=threshold_ms))
    )
    overload.capacity = found.passed
    overload.search += found.runs
    overload.facts = {
        LoadFact.CAPACITY_SOURCE: "found by this test's search, on the same workload",
        LoadFact.CAPACITY_FOUND: True,
        LoadFact.CAPACITY_TTFT_P99_MS: threshold_ms,
    }
    overload.notes += found.notes
    if found.passed is None:
        overload.notes.append(Note.of("no_capacity_to_exceed"))


def _threshold_ms(setting: Setting, overload: Overload, sequence: RequestSlice) -> Procedure[float | None]:
    """The threshold for TTFT in ms, from requests sent one at a time; None where none of them had a TTFT."""
    own = _unloaded(setting, sequence)

    def see(run: Observation) -> Seen:
        seen = level_of(own.sent(run), seed=setting.seed, role=PROBE)
        return seen.with_(passed=bool(seen.records.ok.any()))

    attempts = yield from attempted(lambda: _unloaded_plan(setting, own), see, setting.remeasure, needed=True)
    overload.search += attempts.runs
    overload.notes += attempts.notes
    seen = attempts.level
    p50, p99 = seen.point("ttft.p50"), seen.point("ttft.p99")
    if p50 is None or p99 is None:
        return None
    threshold_ms = max(TIMES_P50 * p50, TIMES_P99 * p99)
    overload.notes.append(
        Note.of(
            "criterion_of_search",
            threshold=Amount(threshold_ms, "ms"),
            times_p50=float(TIMES_P50),
            p50=Amount(p50, "ms"),
            times_p99=float(TIMES_P99),
            p99=Amount(p99, "ms"),
        )
    )
    return threshold_ms


def _unloaded(setting: Setting, sequence: RequestSlice) -> RequestSlice:
    return sequence.next_part(setting, "one at a time", requests=UNLOADED.count(setting.scale))


def _unloaded_plan(setting: Setting, own: RequestSlice) -> LoadPlan:
    at_least = UNLOADED.count(setting.scale)
    return own.closed_loop(setting, "1 in flight", 1, duration_s=None, at_least=at_least)


def _step(
    parameters: Parameters, setting: Setting, overload: Overload, sequence: RequestSlice, percent: float
) -> Step:
    own = _pressing(parameters, setting, sequence, percent)
    lowest = percent == min(parameters.levels_percent)

    def plan() -> LoadPlan:
        return _pressure_plan(parameters, setting, own, overload.capacity or 1, percent, _rate(overload))

    def see(run: Observation) -> Seen:
        return level_of(
            own.sent(run),
            seed=setting.seed,
            percent_of_capacity=percent,
            role="baseline" if lowest and percent == 100 else "overload",
        )

    return Step(percent, f"{trimmed(percent)} %", plan, see)


def probes_of(parameters: Parameters, setting: Setting, sequence: RequestSlice) -> RequestSlice:
    """The probes that look for recovery, one sequence for all levels; none is sent twice."""
    return recovery_probes(setting, sequence, levels=parameters.levels_percent, **_asked(parameters))


def _asked(parameters: Parameters) -> dict[str, Any]:
    """The author's parameters of the loads, without the workload."""
    names = ("capacity", "ttft_p99_ms", "duration_s")
    return {name: getattr(parameters, name) for name in names}


def _rate(overload: Overload) -> float | None:
    """Twice the highest rate that the search saw: no closed loop of half as many more requests reaches
    more."""
    rates = [rate for seen in overload.search if (rate := seen.point("request_throughput")) is not None]
    return 2.0 * max(rates) if rates and max(rates) > 0 else None


def _pressing(
    parameters: Parameters, setting: Setting, sequence: RequestSlice, percent: float
) -> RequestSlice:
    return sequence.next_part(setting, "level of pressure", percent=percent, **_asked(parameters))


def _pressure_plan(
    parameters: Parameters,
    setting: Setting,
    own: RequestSlice,
    capacity: int,
    percent: float,
    most_rps: float | None,
) -> LoadPlan:
    concurrency = math.ceil(capacity * percent / 100)
    plan = own.closed_loop(
        setting,
        f"{percent_label(percent)} of capacity",
        concurrency,
        duration_s=LEVEL_S.at(setting.scale, parameters.duration_s),
        at_least=2 * concurrency,
        most_rps=most_rps,
    )
    return plan.with_(stop_when_failing=True)


def _report(
    overload: Overload, told: PressedLevels, seed: int, load: Mapping[str, Any], budgeted: Sequence[Seen]
) -> Report:
    """The report on the levels. ``told``: what they say of memory."""
    metrics: dict[str, Estimate] = {}
    for key, seen in told.levels.items():
        own = _level_metrics(seen, overload.recoveries.get(key), seed)
        # Levels ascend, so the plain names are left to the highest. Figures by turn have the turn for their
        # qualifier; those of each level stand with the level.
        alone = {name: each for name, each in own.items() if not name.startswith("turn_")}
        metrics |= qualified(alone, told.named(key)) | own
    ran = bool(told.levels)
    metrics |= told.metrics if ran else {}
    runs = [run for key, seen in told.levels.items() for run in (*overload.void[key], seen)]
    return Report(
        levels=[*overload.search, *runs],
        metrics=metrics,
        tables=(told.table(metrics),) if ran else (),
        plots=told.plots if ran else (),
        notes=[*overload.notes, *_notes(told, overload.recoveries)],
        load={**load, IsolationFact.HEALTH_PROBE: "a probe request after every level"},
        budgeted=budgeted,
        findings=(pressure_finding(told),) if ran else (),
    )


def _level_metrics(seen: Seen, recovery: Recovery | None, seed: int) -> dict[str, Estimate]:
    runs = [seen.records]
    completion = seen.level.metrics["completion_rate"]
    own = {
        "fail_rate": _complement(completion),
        "preemption_rate": preemption_rate(runs),
        "preemption_recovery_rate": preemption_recovery_rate(runs),
        "preemption_loss": preemption_loss(runs, seed=seed),
        "preemptions_per_request": _events_per_request(seen.observation),
    }
    if recovery is not None:
        own["recovery_time"] = recovery.estimate
    return dict(seen.level.metrics) | own


def _complement(share: Estimate) -> Estimate:
    if share.point is None:
        return share
    lower, upper = (None if end is None else 1 - end for end in (share.upper, share.lower))
    return replace(share, point=1 - share.point, lower=lower, upper=upper)


def _events_per_request(seen: Observation) -> Estimate:
    """Preemptions / requests. The engine's counter counts events, so this is no share of requests."""
    events = None if seen.engine is None else seen.engine.grown("preemptions")
    if events is None or not len(seen.records):
        return Estimate.undefined(
            unit="ratio", method="the engine serves no counter of preemptions", reason=Reason.NOT_MEASURABLE
        )
    n, method = len(seen.records), "events of the engine's counter / requests"
    return Estimate.observed(events / n, n, method, "ratio")


def _notes(told: PressedLevels, recoveries: Mapping[float, Recovery]) -> list[Note]:
    found = []
    for key, seen in told.levels.items():
        name = told.named(key)
        if errors := out_of_memory_errors(seen.records):
            found.append(Note.of("level_out_of_memory", level=name, errors=errors))
        if ours := timeouts(seen.records):
            found.append(Note.of("level_timeouts", level=name, count=ours))
        if seen.observation.stopped is not None:
            found.append(Note.of("level_stopped", level=name, why=seen.observation.stopped))
    restarted = [told.named(key) for key, recovery in recoveries.items() if recovery.restarted]
    return found + [Note.of("engine_restarted", level=name) for name in restarted]


def _plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The plans of the levels; where the capacity is not declared, also the first doublings of the search."""
    told = fitted(setting)
    sequence, found = RequestSlice(told.workload), []
    if parameters.capacity is None:
        if parameters.ttft_p99_ms is None:
            found.append(_unloaded_plan(told, _unloaded(told, sequence)))
        found += [level_plan(told, sequence, concurrency) for concurrency in FIRST_LEVELS]
    capacity = parameters.capacity or FIRST_LEVELS[-1]
    for percent in parameters.levels_percent:
        own = _pressing(parameters, told, sequence, percent)
        found.append(_pressure_plan(parameters, told, own, capacity, percent, None))
    return tuple(found)


def _session_plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    return tuple(_session_plan(parameters, setting, slots) for slots in parameters.sessions)


def _needs(parameters: Parameters, setting: Setting) -> list[str]:  # noqa: ARG001 - the signature is the contract
    if setting.overload_allowed:
        return []
    return [
        "this test overloads the system on purpose, up to failure: run it on an isolated system only, with "
        "a recovery plan at hand, and confirm with --llm-allow-overload",
    ]


def _session_needs(parameters: Parameters, setting: Setting) -> list[str]:
    sent = _session_plans(parameters, setting)
    return [*too_long(setting, sent), *no_history(sent), *_needs(parameters, setting)]


def warmups(parameters: Parameters, setting: Setting) -> tuple[Workload, ...]:  # noqa: ARG001 - the signature is the contract
    return (SYNTHETIC_UNIFORM,)


procedure = by_load(framed(HEADING, measure, warm=False), framed(HEADING, measure_sessions, warm=False))
plans = by_load(_plans, _session_plans)

TEST = TestDefinition(*HEADING, Parameters, procedure, plans, by_load(_needs, _session_needs), warmups)
