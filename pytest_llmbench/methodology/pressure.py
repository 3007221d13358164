"""Signs of short memory in a level of the memory pressure test, by what the engine reports (section 5.8.3);
and the time until the system is as fast as before, by short probes.

A level beyond capacity that leaves memory free shows nothing of what the test is about: where the engine says
so of all of them the test is void, and where it says nothing it is not a pass.

How much of idle sessions is still in memory when their users come back: levels of ever more sessions at
once.

While a user thinks, the context of a session stays in the KV cache only as long as nothing else needs the
room. What a returning turn could find there is known in closed form, the tokens that an earlier prompt of its
session began with; what it found is what the server says. The unit of every interval is the session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.remeasured import Attempts, attempted
from pytest_llmbench.metrics.kv_cache import out_of_memory_errors, zeros_of
from pytest_llmbench.metrics.latency import e2e_ms
from pytest_llmbench.metrics.server_side import tells_cached
from pytest_llmbench.metrics.session_figures import jobs_of, turn_shares
from pytest_llmbench.metrics.throughput import load_end_ns
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount, Cell, Figure, Row, cells, percent_label, percentage, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.request import USUAL, TurnClass
from pytest_llmbench.model.result import Plot, Table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

_OF_SESSIONS = (
    "Sessions", "Completed", "Returning Turns", "Could be Cached", "Cached", "Hit Rate",
    "TTFT P50, Returning", "TTFT P95, Returning", "TTFT P95, First", "Preemptions per Request", "Recovery",
    "Status", "Reason",
)  # fmt: skip

HIGH_KV_USE = 0.9
"""Share of the KV cache in use from which it counts as full: what is left does not take one more of a dozen
requests."""
LEAST_QUEUED = 0.1
"""Least share of the readings in which requests wait for a full KV cache, for memory to count as short: one
reading of a full cache says that it once was, not that anybody had to wait for it."""
FEWEST_QUEUED = 3
"""Fewest such readings, however few there are."""
PRESSED = Objective("pressed_levels", ">", 0.0, "ratio")
_MARGIN = 1.1
_COLUMNS = (
    "Oversub Level", "Concurrency", "Complete", "Preempt", "Recovered", "Lost per preemption", "Fail Rate",
    "TTFT P99", "Recovery",
)  # fmt: skip
_SHOWN = (
    "completion_rate[{}]", "preemption_rate[{}]", "preemption_recovery_rate[{}]", "preemption_loss[{}]",
    "fail_rate[{}]", "ttft[{}].p99", "recovery_time[{}]",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs of short memory in a level. None: the engine does not report the sign."""

    preemptions: float | None
    out_of_memory: int
    kv_use: float | None
    """The highest reading of the share of the KV cache in use."""
    queued: int | None
    """Number of readings in which requests waited while the batch had places and the KV cache was full."""
    readings: int

    @property
    def pressed(self) -> bool | None:
        """Whether memory was short: a request had to give way, to fail or to wait for it.

        None where the engine reports neither preemptions nor requests that wait for its KV cache.
        """
        if self.preemptions or self.out_of_memory or self._queues:
            return True
        return None if self.preemptions is None and self.queued is None else False

    @property
    def _queues(self) -> bool:
        return (self.queued or 0) >= max(FEWEST_QUEUED, LEAST_QUEUED * self.readings)

    @property
    def told(self) -> tuple[Note, ...]:
        """The signs that the engine reports, one by one."""
        told = [] if self.preemptions is None else [Note.of("preemptions", count=self.preemptions)]
        told += [Note.of("out_of_memory", count=self.out_of_memory)] if self.out_of_memory else []
        told += [] if self.kv_use is None else [Note.of("kv_use", most=Amount(self.kv_use, "ratio"))]
        if self.queued is not None:
            told.append(Note.of("queued", count=self.queued, readings=self.readings))
        return tuple(told)


def signs_of(seen: Observation) -> Signs:
    """The signs from the engine's counters and gauges, and from the preemptions that the replies report.

    Who waits while the batch is full waits for a place in it, not for memory.
    """
    use = queued = None
    readings = 0
    engine = seen.engine
    during = None if engine is None else engine.gauge("kv_use", seen.started_ns, load_end_ns(seen))
    if engine is not None and during is not None and len(during[1]):
        use, readings = float(during[1].max()), len(during[1])
        inside = np.isin(engine.at_ns, during[0])
        waiting, running = engine.gauges.get("waiting"), engine.gauges.get("running")
        if waiting is not None:
            full = (engine.gauges["kv_use"] >= HIGH_KV_USE) & (waiting > 0) & inside
            if running is not None and engine.max_num_seqs is not None:
                full &= running < engine.max_num_seqs
            queued = int(full.sum())
    return Signs(preemption_events(seen), out_of_memory_errors(seen.records), use, queued, readings)


def preemption_events(seen: Observation) -> float | None:
    """Number of preemptions by the engine's counter; without a counter, those that the replies report. None:
    not reported."""
    counted = None if seen.engine is None else seen.engine.grown("preemptions")
    if counted is not None:
        return counted
    told = seen.records.preemptions[seen.records.preemptions != MISSING]
    return float(told.sum()) if len(told) else None


@dataclass(frozen=True)
class Oversubscribed:
    """The levels of a test of memory pressure, ascending: of requests in flight, by percent of the capacity.

    A level beyond the base is pressed where memory was short in it.
    """

    levels: Mapping[float, Seen]
    unknown: ClassVar = "the engine reports neither preemptions nor requests that wait for its KV cache"
    """Why nothing is known of any level."""
    unknown_case: ClassVar = "memory_pressure.unknown"

    def named(self, key: float) -> str:
        """The qualifier of a level's metrics."""
        return percent_label(key)

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The metrics over all levels."""
        return {"pressed_levels": pressed_levels(self)}

    @property
    def beyond(self) -> list[float]:
        """The levels in which memory is to be short."""
        return [percent for percent in self.levels if percent > 100]

    def pressed(self, key: float) -> bool | None:
        """Whether memory was short in a level; None where that is not known."""
        return self._signs[key].pressed

    @cached_property
    def _signs(self) -> dict[float, Signs]:
        return {percent: signs_of(self.levels[percent].observation) for percent in self.beyond}

    def said(self, keys: Sequence[float]) -> tuple[Note, ...]:
        """The signs of some levels, one by one."""
        return tuple(
            Note.of("memory_at", level=f"{trimmed(key)} %", signs=self._signs[key].told) for key in keys
        )

    def none(self, known: Sequence[float]) -> tuple[str, dict[str, Any]]:
        """The case of the finding and its parameters where memory was short in none of the ``known`` levels.
        By what would help: the level at which the KV cache would be full if it went on filling as it did up
        to the highest one."""
        highest, told = max(known), {"levels": self.said(known)}
        use, seen = self._signs[highest].kv_use, self.levels[highest]
        batch = None if seen.observation.engine is None else seen.observation.engine.max_num_seqs
        if use is None or use <= 0:
            return "memory_pressure.none", told
        if batch is not None and batch < (seen.level.concurrency or 0) / use:
            return "memory_pressure.batch_full", {"batch": batch, **told}
        return "memory_pressure.none", {"percent": math.ceil(_MARGIN * highest / use / 10) * 10, **told}

    def table(self, metrics: Mapping[str, Estimate]) -> Table:
        """Table 11: the draft's columns, and what the server reports on preemptions."""
        rows: tuple[Row, ...] = tuple(
            (
                percent_label(percent) + (" (base)" if percent == 100 else ""),
                seen.level.concurrency or 0,
                *cells(metrics, (name.format(percent_label(percent)) for name in _SHOWN)),
            )
            for percent, seen in self.levels.items()
        )
        return Table("memory_pressure", "Memory Pressure Degradation", _COLUMNS, rows)

    @property
    def plots(self) -> tuple[Plot, ...]:
        """A plot of completion over the level of oversubscription."""
        ratios = {percent: seen.level.completion_ratio for percent, seen in self.levels.items()}
        known = {percent: 100 * ratio for percent, ratio in ratios.items() if ratio is not None}
        plot = Plot(
            id="memory_pressure",
            title="Completion under oversubscription",
            x_label="requests in flight, % of capacity",
            y_label="completed (%)",
            series={"completed": (tuple(known), tuple(known.values()))},
        )
        return (plot,)


PROBES_BEFORE = 3
SLOWER = 1.5
"""Largest factor by which a probe may be slower than those before the overload to count as fast as they
were."""
PROBE_RATE = 2.0
"""Rate of the probes, per second: they come after an overload and must not be one."""
MOST_PROBES = 120
_PROBE = SyntheticWorkload("recovery probe", Fixed(128), Fixed(16))


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of the probes after one level."""

    estimate: Estimate
    """``recovery_time`` in seconds: from the end of sending to the answer of the first fast probe."""
    gave_up: str | None = None
    """Why the test has to end here; None if it goes on."""
    restarted: bool = False


def recovery_probes(setting: Setting, test: RequestSlice, **asked: Any) -> RequestSlice:
    """The sequence of all probes in a test with the sequence ``test``."""
    return replace(test, workload=_PROBE).next_part(setting, "recovery probe", **asked)


def before_overload(setting: Setting, probes: RequestSlice) -> Procedure[float | None]:
    """Send a few probes to the idle system; returns their median E2E in ms, None where none was answered."""
    values = []
    for number in range(PROBES_BEFORE):
        seen = probes.sent((yield _probe(setting, probes, number)))
        values += e2e_ms(seen.records).tolist()
    return float(np.median(values)) if values else None


def recovered(
    setting: Setting, probes: RequestSlice, calm_ms: float | None, overload: Observation
) -> Procedure[Recovery]:
    """Probe until the system is as fast as before, or the probes are used up. ``calm_ms``: see
    :func:`before_overload`."""
    ended_ns = overload.ended_ns if overload.load_ended_ns is None else overload.load_ended_ns
    restarted = _restarted(overload)
    answered, number = False, 0
    while number < MOST_PROBES:
        seen = probes.sent((yield _probe(setting, probes, PROBES_BEFORE + number)))
        number += 1
        values = e2e_ms(seen.records)
        answered = answered or len(values) > 0
        if len(values) and calm_ms is not None and values[0] <= SLOWER * calm_ms:
            return Recovery(_seconds((seen.ended_ns - ended_ns) / 1e9, number), restarted=restarted)
    state = "answers, but slower than before" if answered else "no longer answers"
    method = f"not recovered within {MOST_PROBES} probes: the system {state}"
    undefined = Estimate.undefined(unit="s", method=method, reason=Reason.NOT_REACHED)
    return Recovery(undefined, gave_up=method, restarted=restarted)


def pressed(
    setting: Setting,
    plan: Callable[[], LoadPlan],
    see: Callable[[Observation], Seen],
    probes: RequestSlice,
    calm_ms: float | None,
) -> Procedure[tuple[Attempts, Recovery]]:
    """Run a level with its attempts, and the recovery after the last one. Like the first, a further attempt
    begins with a system that has recovered."""
    sent = list[Observation]()

    def saw(run: Observation) -> Seen:
        sent.append(run)
        return see(run)

    def recover() -> Procedure[None]:
        yield from recovered(setting, probes, calm_ms, sent[-1])

    attempts = yield from attempted(plan, saw, setting.remeasure, needed=True, prepare=recover)
    return attempts, (yield from recovered(setting, probes, calm_ms, sent[-1]))


def _seconds(value: float, probes: int) -> Estimate:
    """The recovery time in seconds. The probe before the last was slow, so it may be shorter by the time
    between two probes."""
    return Estimate(
        point=value,
        lower=max(value - 1.0 / PROBE_RATE, 0.0) if probes > 1 else 0.0,
        upper=value,
        level=0.95,
        n=probes,
        method="probes after the load, to the nearest one",
        unit="s",
    )


def _restarted(overload: Observation) -> bool:
    engine = overload.engine
    if engine is None:
        return False
    return any(
        engine.totals_after.get(name, before) < before for name, before in engine.totals_before.items()
    )


def _probe(setting: Setting, probes: RequestSlice, number: int) -> LoadPlan:
    # One arrival of a slow open loop comes a gap after its start: so the probes pace themselves.
    load = OpenLoop(PROBE_RATE, "uniform")
    plan = probes.open_loop(setting, f"recovery probe {number + 1}", load, 1.0 / PROBE_RATE)
    return plan.with_(phase=Phase.PROBE, requests=1, duration_s=None)


RETURNING = USUAL[1]
_HIT_RATE, _TTFT_P95 = f"turn_cache_hit_rate[{RETURNING}]", f"turn_ttft[{RETURNING}].p95"
LEAST_FALL = 0.05
"""Least fall of the hit rate that means short memory: blocks that are not full make some difference by
themselves."""
_OF_LEVELS = ("preemptions_per_request", "recovery_time")


@dataclass(frozen=True)
class IdleSessions:
    """The levels of such a test by the number of sessions at once. Each has passed or failed."""

    levels: Mapping[float, Seen]
    unknown: ClassVar = (
        "the server reports neither cached tokens nor preemptions; let its usage contain cached_tokens"
    )
    unknown_case: ClassVar = "memory_pressure.sessions_unknown"

    @classmethod
    def of(cls, levels: Mapping[float, Seen], floors: Mapping[TurnClass, float], seed: int) -> IdleSessions:
        """The levels with cached shares by turn. ``floors``: least hit rates by turn, further criteria of a
        level."""
        tells = any(tells_cached(seen.records) for seen in levels.values())
        classes = tuple(dict.fromkeys((*USUAL, *floors)))
        return cls(
            {slots: _with_cached(seen, classes, floors, tells, seed) for slots, seen in levels.items()}
        )

    def named(self, key: float) -> str:
        return f"{trimmed(key)} sessions"

    @property
    def _first(self) -> float:
        """The fewest sessions at once, with which the other levels are compared."""
        return min(self.levels)

    @property
    def beyond(self) -> list[float]:
        return [slots for slots in self.levels if slots > self._first]

    def pressed(self, key: float) -> bool | None:
        """Whether memory was short: there was a preemption or an out-of-memory error, or returning turns
        found less than those of the first level. None where that is not known.

        A KV cache in use up to the brim says nothing here: idle contexts are not in use.
        """
        signs = signs_of(self.levels[key].observation)
        if signs.preemptions or signs.out_of_memory:
            return True
        first = self._hit_rate(self._first)
        now = self._hit_rate(key)
        if first.point is None or now.point is None:
            return None
        apart = first.lower is None or now.upper is None or now.upper < first.lower
        return apart and first.point - now.point >= LEAST_FALL

    def _hit_rate(self, slots: float) -> Estimate:
        return self.levels[slots].level.metrics[_HIT_RATE]

    @property
    def metrics(self) -> dict[str, Estimate]:
        return {"pressed_levels": pressed_levels(self), "max_sessions": self.most_sessions}

    @property
    def most_sessions(self) -> Estimate:
        """The most sessions at once up to which all levels meet the criteria; below the first level that
        fails."""
        passed = list(takewhile(lambda slots: self.levels[slots].level.passed, self.levels))
        failed = [slots for slots in self.levels if slots not in passed][:1]
        most = float(passed[-1]) if passed else 0.0
        n, said = len(self.levels), f"levels: {trimmed(most)} passed" if passed else "levels: none passed"
        found = Estimate(most, most, None, 0.95, n, said, "count", kind=EstimateKind.BRACKET)
        if not failed:
            return found.at_least(Reason.RANGE_ENDED, "that is the highest level")
        return replace(found, upper=float(failed[0] - 1), method=f"{said}, {failed[0]} failed")

    def none(self, known: Sequence[float]) -> tuple[str, dict[str, Any]]:
        return "memory_pressure.no_sessions", {"levels": self.said([self._first, *known])}

    def said(self, keys: Sequence[float]) -> tuple[Note, ...]:
        return tuple(
            Note.of(
                "memory_of_sessions",
                sessions=self.named(slots),
                hit_rate=Amount(self._hit_rate(slots).point, "ratio"),
                signs=signs_of(self.levels[slots].observation).told,
            )
            for slots in keys
        )

    def table(self, metrics: Mapping[str, Estimate]) -> Table:
        rows = tuple(self._row(slots, seen, metrics) for slots, seen in self.levels.items())
        return Table("memory_pressure_sessions", "Memory Pressure by Idle Sessions", _OF_SESSIONS, rows)

    def _row(self, slots: float, seen: Seen, metrics: Mapping[str, Estimate]) -> tuple[Cell, ...]:
        own, jobs = seen.level.metrics, jobs_of(seen.records)
        return (
            int(slots),
            f"{len(jobs) - jobs.cut_off} of {len(jobs)}",
            int(RETURNING.holds(seen.inside.turn).sum()),
            *cells(own, (f"turn_cacheable_share[{RETURNING}]", f"turn_cached_share[{RETURNING}]")),
            Figure(_HIT_RATE, own[_HIT_RATE], "both"),
            *cells(own, (f"turn_ttft[{RETURNING}].p50", _TTFT_P95, f"turn_ttft[{USUAL[0]}].p95")),
            *cells(metrics, (f"{name}[{self.named(slots)}]" for name in _OF_LEVELS)),
            "Pass" if seen.level.passed else "Fail",
            "; ".join(seen.level.fail_reasons),
        )

    @property
    def plots(self) -> tuple[Plot, ...]:
        """Plots of what returning turns found in the cache, and how long they waited, over the sessions at
        once."""
        drawn = (
            ("session_memory_hit_rate", "Hit rate of returning turns", "hit rate (%)", _HIT_RATE, 100),
            ("session_memory_ttft", "TTFT of returning turns", "TTFT P95 (ms)", _TTFT_P95, 1),
        )
        found = (self._plot(*each) for each in drawn)
        return tuple(plot for plot in found if plot is not None)

    def _plot(self, name: str, title: str, y_label: str, metric: str, scale: float) -> Plot | None:
        points = {slots: seen.point(metric) for slots, seen in self.levels.items()}
        known = {slots: scale * point for slots, point in points.items() if point is not None}
        line = {"turns 2+": (tuple(map(float, known)), tuple(known.values()))}
        return Plot(name, title, "sessions at once", y_label, line, x_log=True) if known else None


PressedLevels = Oversubscribed | IdleSessions


def pressed_levels(told: PressedLevels) -> Estimate:
    """The share of levels with short memory among those beyond the base of which it is known."""
    known = [pressed for pressed in map(told.pressed, told.beyond) if pressed is not None]
    if not known:
        return Estimate.undefined(unit="ratio", method=told.unknown, reason=Reason.NOT_MEASURABLE)
    return Estimate.observed(sum(known) / len(known), len(known), "counted levels", "ratio", exact=True)


def pressure_finding(told: PressedLevels) -> Finding:
    """The finding on memory pressure: void if memory was short in no level beyond the base, a warning if that
    is not known."""
    pressed = {key: told.pressed(key) for key in told.beyond}
    known = [key for key in pressed if pressed[key] is not None]
    short = [key for key in known if pressed[key]]
    case, parameters = told.unknown_case, dict[str, Any]()
    if short:
        case, parameters = "memory_pressure.found", {"levels": told.said(short)}
    elif known:
        case, parameters = told.none(known)
    share = pressed_levels(told).point
    return Finding.of(case, bool(short), share, PRESSED.limit, voids=bool(known), **parameters)


def _with_cached(
    seen: Seen, classes: tuple[TurnClass, ...], floors: Mapping[TurnClass, float], tells: bool, seed: int
) -> Seen:
    """The level with cached shares of the turns inside its window. ``tells``: whether the server reports
    cached tokens in some level, so that no report means none."""
    inside = zeros_of(seen.inside) if tells else seen.inside
    metrics = {**seen.level.metrics, **turn_shares([inside], classes, seed=seed)}
    failures = [*seen.level.fail_reasons, *_below(metrics, floors)]
    return seen.with_(metrics=metrics, passed=not failures, fail_reasons=tuple(failures))


def _below(metrics: Mapping[str, Estimate], floors: Mapping[TurnClass, float]) -> list[str]:
    found = []
    for turns, floor in floors.items():
        rate = metrics[f"turn_cache_hit_rate[{turns}]"].point
        if rate is None:
            found.append(f"hit rate of turn {turns} not measured")
        elif rate < floor:
            found.append(f"hit rate of turn {turns} {percentage(rate)} (at least {percentage(floor)})")
    return found
