"""One engine of a replay: its requests in flight, the ends of its steps, and its gauges."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import cycle

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.observation import AdapterCall, EngineReadings, FloatArray
from pytest_llmbench.model.plan import Churn
from pytest_llmbench.model.records import IntColumn
from pytest_llmbench.model.telemetry import DeviceSeries, Lost, Quantity, Telemetry
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.loop import Replica
from pytest_llmbench.simulator.engine.power import ACCELERATOR, PowerMeter, read_devices
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.replay.records import InFlight, Steps

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

    def note(self, until_ns: int, finished: Sequence[EngineSequence] = ()) -> None:
        """Note that a step ends at this instant, which belongs to the next one, or that there was none.
        Sequences that end with it count as running."""
        engine, gauges = self._engine, self._gauges
        running, waiting, kv_use = engine.running + len(finished), engine.waiting, engine.kv_usage
        while self.due_ns < until_ns:
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


_TOLD: Sequence[Quantity] = ("power_w", "energy_j", "utilisation", "memory_bytes", "temperature_c")


def sampled(meters: Sequence[PowerMeter], from_ns: int, to_ns: int, interval_s: float = 0.5) -> Telemetry:
    """Readings from one instant to another, both included, ``interval_s`` apart; the last one may come
    sooner."""
    instants = (*range(from_ns, to_ns, round(interval_s * 1e9)), to_ns)
    asked = [(at_ns, read_devices(meters, at_ns)) for at_ns in instants]
    answered = [(at_ns, devices) for at_ns, devices in asked if devices is not None]
    silent_ns = next((at_ns for at_ns, devices in asked if devices is None), None)
    lost = [] if silent_ns is None else [Lost(SOURCE, "no_answer", at_ns=silent_ns if answered else None)]
    found = []
    for number in range(sum(meter.config.accelerator_count for meter in meters) if answered else 0):
        own = [(at_ns, devices[number]) for at_ns, devices in answered if number < len(devices)]
        missed_ns = next((at_ns for at_ns, devices in answered if number >= len(devices)), None)
        if not own:
            lost.append(Lost(SOURCE, "vanished", detail=f"accelerator {number}"))
            continue
        found.append(
            DeviceSeries(
                id=own[0][1].uuid,
                kind="gpu",
                name=ACCELERATOR,
                at_ns=np.array([at_ns for at_ns, _ in own], dtype=np.int64),
                values={
                    name: np.array([getattr(each, name) for _, each in own], dtype=np.float64)
                    for name in _TOLD
                },
                source=SOURCE,
                vanished_ns=missed_ns,
            )
        )
    return Telemetry(tuple(found), interval_s, tuple(lost))


class AdapterCalls:
    """Unloads and loads adapters of the engines as a plan has it: an unload takes no time, a load
    ``adapter_load_ms``, and a request that names the adapter meanwhile is refused."""

    def __init__(self, churn: Churn, engines: Sequence[Engine], start_ns: int) -> None:
        """Raises SuiteError for adapters that the engines do not have."""
        names, config = [name for name, _ in churn.adapters], engines[0].config
        if unknown := [name for name in names if name not in config.adapter_names]:
            raise SuiteError(
                f"the engine has no adapter {', '.join(unknown)}",
                where="beside",
                remedy="give the embedded engine some: adapters=3 names them adapter-1 to adapter-3",
            )
        self._engines, self._names = engines, cycle(names)
        self._period_ns, self._start_ns = 1e9 / churn.rate, start_ns
        self._load_ns = round(config.adapter_load_ms * 1e6)
        self.absent: set[str] = set()
        """Adapters that are not loaded now."""
        self.done: list[AdapterCall] = []
        self._begun = 0
        self._loading: tuple[str, int] | None = None
        """The adapter that is being loaded, and since when."""
        self.due_ns = self._next_ns()
        """When the next call is sent, or the load under way ends."""

    def _next_ns(self) -> int:
        return self._start_ns + round((self._begun + 1) * self._period_ns)

    def make_due(self, now_ns: int) -> None:
        """Do what is due by now."""
        while self.due_ns <= now_ns:
            if self._loading is not None:
                self.end()
                continue
            name = next(self._names)
            self._begun += 1
            self.absent.add(name)
            self.done.append(AdapterCall("unload", name, self.due_ns, 0))
            for engine in self._engines:
                engine.unload_adapter(name)
                engine.load_adapter(name)
            self._loading = name, self.due_ns
            self.due_ns += self._load_ns

    def end(self) -> None:
        """End the load of an adapter that is under way, if there is one."""
        if self._loading is None:
            return
        (name, since_ns), self._loading = self._loading, None
        self.absent.discard(name)
        self.done.append(AdapterCall("load", name, since_ns, self._load_ns))
        self.due_ns = max(self.due_ns, self._next_ns())
