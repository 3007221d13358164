"""How long a system takes after an overload to be as fast as before, by short probes, or that it does not
answer any more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.metrics.latency import e2e_ms
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

PROBES_BEFORE = 3
SLOWER = 1.5
"""A probe within this factor of the ones before the overload is as fast as they were."""
PROBE_RATE = 2.0
"""Probes per second while waiting: they come after an overload and must not be one."""
MOST_PROBES = 120
_PROBE = SyntheticWorkload("recovery probe", Fixed(128), Fixed(16))


@dataclass(frozen=True, slots=True)
class Calm:
    """The probes before the overload."""

    e2e_ms: float | None
    sent: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the probes after one level saw."""

    estimate: Estimate
    """``recovery_time`` in seconds: from the end of sending to the answer of the first probe that is fast."""
    gave_up: str | None = None
    """Why the test has to end here."""
    restarted: bool = False


def recovery_probes(setting: Setting, test: RequestSlice, **asked: Any) -> RequestSlice:
    """The sequence of all probes of a test on ``test``."""
    return replace(test, workload=_PROBE).next_part(setting, "recovery probe", **asked)


def before_overload(setting: Setting, probes: RequestSlice) -> Procedure[Calm]:
    """Median of a few probes on the idle system."""
    values = []
    for number in range(PROBES_BEFORE):
        seen = probes.sent((yield _probe(setting, probes, number)))
        values += e2e_ms(seen.records).tolist()
    return Calm(float(np.median(values)) if values else None, PROBES_BEFORE)


def recovered(
    setting: Setting, probes: RequestSlice, calm: Calm, overload: Observation
) -> Procedure[Recovery]:
    """Probe until it is as fast as before, or the probes are used up."""
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
    return Recovery(Estimate.undefined(unit="s", method=method), gave_up=method, restarted=restarted)


def _seconds(value: float, probes: int) -> Estimate:
    """The probe before the last was slow, so the moment lies up to one probe earlier."""
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
