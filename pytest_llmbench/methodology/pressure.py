"""Signs of short memory in a level of the memory pressure test, by what the engine reports (section 5.8.3);
and the time until the system is as fast as before, by short probes.

A level beyond capacity that leaves memory free shows nothing of what the test is about: where the engine says
so of all of them the test is void, and where it says nothing it is not a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.remeasured import Attempts, attempted
from pytest_llmbench.metrics.latency import e2e_ms
from pytest_llmbench.metrics.memory_pressure import out_of_memory_errors
from pytest_llmbench.metrics.throughput import load_end_ns
from pytest_llmbench.model.cells import Amount
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

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

        None where the engine tells neither preemptions nor who waits for its KV cache.
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


def pressed_levels(levels: Mapping[float, Seen]) -> Estimate:
    """The share of levels beyond capacity with a preemption, an out-of-memory error or requests that waited
    for a full KV cache, among those of which that is known."""
    what = "the engine tells neither preemptions nor who waits for its KV cache"
    return pressed_share((signs.pressed for signs in _beyond(levels).values()), what)


def pressed_share(pressed: Iterable[bool | None], unknown: str) -> Estimate:
    """The share of levels with short memory among those of which it is known. ``unknown``: the reason if
    there are none."""
    known = [each for each in pressed if each is not None]
    if not known:
        return Estimate.undefined(unit="ratio", method=unknown, reason=Reason.NOT_MEASURABLE)
    share = sum(known) / len(known)
    return Estimate(
        share,
        share,
        share,
        level=0.95,
        n=len(known),
        method="counted levels",
        unit="ratio",
        kind=EstimateKind.OBSERVED,
    )


def pressure_finding(levels: Mapping[float, Seen]) -> Finding:
    """The finding on memory pressure: void if memory was short in no level beyond capacity, a warning if that
    is not known."""
    beyond = _beyond(levels)
    pressed = {percent: signs for percent, signs in beyond.items() if signs.pressed}
    told = {percent: signs for percent, signs in beyond.items() if signs.pressed is not None}
    share = pressed_levels(levels).point
    parameters: dict[str, Any] = {}
    if pressed:
        case, parameters["levels"] = "memory_pressure.found", _said(pressed)
    elif told:
        case, parameters = _helping(levels, told)
        parameters["levels"] = _said(told)
    else:
        case = "memory_pressure.unknown"
    return Finding.of(case, bool(pressed), share, PRESSED.limit, voids=bool(told), **parameters)


def _beyond(levels: Mapping[float, Seen]) -> dict[float, Signs]:
    return {percent: signs_of(seen.observation) for percent, seen in levels.items() if percent > 100}


def _said(levels: Mapping[float, Signs]) -> tuple[Note, ...]:
    return tuple(
        Note.of("memory_at", level=f"{percent:g} %", signs=signs.told) for percent, signs in levels.items()
    )


def _helping(levels: Mapping[float, Seen], told: Mapping[float, Signs]) -> tuple[str, dict[str, Any]]:
    """The case of the finding by what would help: the level at which the KV cache would be full if it went on
    filling as it did up to the highest one."""
    highest = max(told)
    use, seen = told[highest].kv_use, levels[highest]
    batch = None if seen.observation.engine is None else seen.observation.engine.max_num_seqs
    if use is None or use <= 0:
        return "memory_pressure.none", {}
    if batch is not None and batch < (seen.level.concurrency or 0) / use:
        return "memory_pressure.batch_full", {"batch": batch}
    return "memory_pressure.none", {"percent": math.ceil(_MARGIN * highest / use / 10) * 10}


PROBES_BEFORE = 3
SLOWER = 1.5
"""Largest factor by which a probe may be slower than those before the overload to count as fast as they
were."""
PROBE_RATE = 2.0
"""Rate of the probes, per second: they come after an overload and must not be one."""
MOST_PROBES = 120
_PROBE = SyntheticWorkload("recovery probe", Fixed(128), Fixed(16))


@dataclass(frozen=True, slots=True)
class Calm:
    """The result of the probes before the overload."""

    e2e_ms: float | None
    sent: int


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


def before_overload(setting: Setting, probes: RequestSlice) -> Procedure[Calm]:
    """Send a few probes to the idle system; returns their median."""
    values = []
    for number in range(PROBES_BEFORE):
        seen = probes.sent((yield _probe(setting, probes, number)))
        values += e2e_ms(seen.records).tolist()
    return Calm(float(np.median(values)) if values else None, PROBES_BEFORE)


def recovered(
    setting: Setting, probes: RequestSlice, calm: Calm, overload: Observation
) -> Procedure[Recovery]:
    """Probe until the system is as fast as before, or the probes are used up."""
    ended_ns = overload.ended_ns if overload.load_ended_ns is None else overload.load_ended_ns
    restarted = _restarted(overload)
    answered, number = False, 0
    while number < MOST_PROBES:
        seen = probes.sent((yield _probe(setting, probes, calm.sent + number)))
        number += 1
        values = e2e_ms(seen.records)
        answered = answered or len(values) > 0
        if len(values) and calm.e2e_ms is not None and values[0] <= SLOWER * calm.e2e_ms:
            return Recovery(_seconds((seen.ended_ns - ended_ns) / 1e9, number), restarted=restarted)
    state = "answers, but slower than before" if answered else "does not answer any more"
    method = f"not recovered within {MOST_PROBES} probes: the system {state}"
    undefined = Estimate.undefined(unit="s", method=method, reason=Reason.NOT_REACHED)
    return Recovery(undefined, gave_up=method, restarted=restarted)


def pressed(
    setting: Setting,
    plan: Callable[[], LoadPlan],
    see: Callable[[Observation], Seen],
    probes: RequestSlice,
    calm: Calm,
) -> Procedure[tuple[Attempts, Recovery]]:
    """Run a level with its attempts, and the recovery after the last one. Like the first, a further attempt
    begins with a system that has recovered."""
    sent = list[Observation]()

    def saw(run: Observation) -> Seen:
        sent.append(run)
        return see(run)

    def recover() -> Procedure[None]:
        yield from recovered(setting, probes, calm, sent[-1])

    attempts = yield from attempted(plan, saw, setting.remeasure, needed=True, prepare=recover)
    return attempts, (yield from recovered(setting, probes, calm, sent[-1]))


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
