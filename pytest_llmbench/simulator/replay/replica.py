"""One engine of a replay: its requests in flight, the ends of its steps, and its gauges."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.model.observation import EngineReadings, FloatArray
from pytest_llmbench.model.records import IntColumn
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.loop import Replica
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.replay.records import InFlight, Steps

if TYPE_CHECKING:
    from pytest_llmbench.simulator.engine.power import PowerMeter

SAMPLE_NS = 250_000_000
"""Nanoseconds between two samples of the gauges."""
SOURCE = "the embedded engine's model"


class GaugeSampler:
    """Samples the gauges every :data:`SAMPLE_NS` from the start of a plan. The cost is per sample, not per
    token."""

    def __init__(self, engine: Engine, start_ns: int) -> None:
        self._engine = engine
        self.due_ns = start_ns
        """Instant of the next sample."""
        self._at_ns = array("q")
        self._gauges = {name: array("d") for name in ("running", "waiting", "kv_use")}

    def idle_until(self, now_ns: int) -> None:
        """Note that no step was under way up to this instant, which is not included."""
        self.during((), now_ns)

    def during(self, finished: Sequence[EngineSequence], until_ns: int) -> None:
        """Note that a step ends at this instant, which belongs to the next one. Sequences that end with it
        count as running."""
        engine = self._engine
        self._note(until_ns - 1, engine.running + len(finished), engine.waiting, engine.kv_usage)

    def _note(self, until_ns: int, running: int, waiting: int, kv_use: float) -> None:
        gauges = self._gauges
        while self.due_ns <= until_ns:
            self._at_ns.append(self.due_ns)
            gauges["running"].append(running)
            gauges["waiting"].append(waiting)
            gauges["kv_use"].append(kv_use)
            self.due_ns += SAMPLE_NS

    def readings(self, samples: int) -> dict[str, FloatArray]:
        """``samples`` readings of each gauge; those after the last one taken are 0, as the engine was
        empty."""
        idle = samples - len(self._at_ns)
        return {name: np.pad(np.array(values), (0, idle)) for name, values in self._gauges.items()}

    @property
    def at_ns(self) -> IntColumn:
        return np.array(self._at_ns, dtype=np.int64)


class ReplayReplica(Replica[InFlight]):
    """An engine with its requests, during one plan."""

    def __init__(self, number: int, engine: Engine, start_ns: int) -> None:
        super().__init__(number, engine)
        self.strikes: dict[int, list[InFlight]] = {}
        """Replies to which a fault happens at a step, if they have come far enough, by the number of that
        step."""
        self.gauges = GaugeSampler(engine, start_ns)
        self.first_step = engine.next_step
        self.step_ends_ns = array("q")
        """Ends of the steps from ``first_step`` on."""
        self.step: StepResult | None = None
        """The step under way; None: there is none."""
        self.ends_ns = start_ns
        """Instant at which :attr:`step` ends."""
        self.power: PowerMeter | None = None

    def forget_needless(self) -> None:
        """Forget the ends of steps that gave no token to a request that is in flight."""
        begun = [s.first_step for s in self.in_flight if s.first_step is not None]
        # Kept: the steps of those that run. One that runs now has its first token from the present step on.
        needless = min(begun, default=self.engine.next_step) - self.first_step
        del self.step_ends_ns[:needless]
        self.first_step += needless


def steps_of(replicas: Sequence[ReplayReplica], to_client_ns: int) -> Steps:
    """The steps of all replicas that are still remembered, as the client observes them."""
    ends_ns = [np.array(replica.step_ends_ns, dtype=np.int64) for replica in replicas]
    firsts, place = [], 0
    for replica, own in zip(replicas, ends_ns, strict=True):
        firsts.append(replica.first_step - place)
        place += len(own)
    return Steps(tuple(firsts), np.concatenate(ends_ns) + to_client_ns, to_client_ns)


def slots_of(replicas: Sequence[ReplayReplica]) -> int:
    """How many requests all replicas have at work at most."""
    return sum(replica.engine.config.max_num_seqs for replica in replicas)


def readings_of(
    replicas: Sequence[ReplayReplica], before: dict[str, float], after: dict[str, float]
) -> EngineReadings:
    """The samples of the gauges, with the counters before and after. Over several replicas, requests and
    batches are added up, and the share of the KV cache is that of all caches together."""
    samplers = [replica.gauges for replica in replicas]
    at_ns = max((sampler.at_ns for sampler in samplers), key=len)
    own = [sampler.readings(len(at_ns)) for sampler in samplers]
    gauges = {name: np.sum([values[name] for values in own], axis=0) for name in own[0]}
    gauges["kv_use"] /= len(replicas)
    return EngineReadings(
        at_ns=at_ns,
        gauges=gauges,
        totals_before=before,
        totals_after=after,
        max_num_seqs=slots_of(replicas),
        source=SOURCE,
    )
