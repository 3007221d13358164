"""The energy that the embedded engine's accelerators take, as an exact function of time, and what they tell
of it."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_llmbench.simulator.engine.config import EngineConfig, PowerOptions
from pytest_llmbench.simulator.engine.engine import Engine

ACCELERATOR = "simulated accelerator"
"""The model of the accelerators."""
MOST_POINTS = 2**20
"""Number of points at which a curve drops every second one: it stays exact at the others."""
_AVERAGE_NS = 1_000_000_000
_COOL_C, _C_PER_W = 30.0, 0.06


@dataclass(slots=True)
class EnergyCurve:
    """The energy that all accelerators of one engine have taken since it began.

    Between two points power is constant; after the last one it is ``idle_w``, which is that of all of them.
    """

    idle_w: float
    at_ns: array[int] = field(default_factory=lambda: array("q"))
    """Instants of the points; the first is the engine's start."""
    energy_j: array[float] = field(default_factory=lambda: array("d"))
    """Energy up to each point, in joules."""
    busy_ns: array[int] = field(default_factory=lambda: array("q"))
    """Time with a step up to each point, in nanoseconds."""

    def joules(self, at_ns: int) -> float:
        """Energy up to an instant, in joules; 0 before the start."""
        place = bisect_right(self.at_ns, at_ns) - 1
        if place < 0:
            return 0.0
        return self.energy_j[place] + self._watts(place) * (at_ns - self.at_ns[place]) / 1e9

    def watts(self, at_ns: int) -> float:
        """Power at an instant, in watts."""
        place = bisect_right(self.at_ns, at_ns) - 1
        return self._watts(place) if place >= 0 else self.idle_w

    def mean_watts(self, from_ns: int, to_ns: int) -> float:
        """Mean power between two instants, in watts; at one where they are the same."""
        if to_ns <= from_ns:
            return self.watts(to_ns)
        return (self.joules(to_ns) - self.joules(from_ns)) / (to_ns - from_ns) * 1e9

    def _watts(self, place: int) -> float:
        if place + 1 == len(self.at_ns):
            return self.idle_w
        took_ns = self.at_ns[place + 1] - self.at_ns[place]
        return (self.energy_j[place + 1] - self.energy_j[place]) / took_ns * 1e9

    def busy(self, from_ns: int, to_ns: int) -> float:
        """Share of a time in which a step ran, 0 to 1."""
        return (self._busy_ns(to_ns) - self._busy_ns(from_ns)) / (to_ns - from_ns) if to_ns > from_ns else 0.0

    def _busy_ns(self, at_ns: int) -> float:
        place = bisect_right(self.at_ns, at_ns) - 1
        if place < 0 or place + 1 == len(self.at_ns):
            return float(self.busy_ns[max(place, 0)])
        before, grown = self.busy_ns[place], self.busy_ns[place + 1] - self.busy_ns[place]
        return before + grown * (at_ns - self.at_ns[place]) / (self.at_ns[place + 1] - self.at_ns[place])


class PowerMeter:
    """Adds up the energy of one engine, step by step."""

    def __init__(self, options: PowerOptions, config: EngineConfig, begun_ns: int) -> None:
        assert options.idle_w is not None, "without it there is nothing to measure"
        self.options, self.config = options, config
        self.curve = EnergyCurve(
            options.idle_w * config.accelerator_count,
            array("q", [begun_ns]),
            array("d", [0]),
            array("q", [0]),
        )
        self._step_w = (options.idle_w + options.step_w) * config.accelerator_count

    def note_step(self, begun_ns: int, ended_ns: int, prefill_tokens: int, output_tokens: int) -> None:
        """Note a step; the one before it has ended by then."""
        curve = self.curve
        last_ns, energy_j, busy_ns = curve.at_ns[-1], curve.energy_j[-1], curve.busy_ns[-1]
        begun_ns = max(begun_ns, last_ns)
        if begun_ns > last_ns:
            energy_j += curve.idle_w * (begun_ns - last_ns) / 1e9
            self._add(begun_ns, energy_j, busy_ns)
        took_ns = max(ended_ns - begun_ns, 1)
        tokens_mj = (
            self.options.prefill_mj_per_token * prefill_tokens
            + self.options.decode_mj_per_token * output_tokens
        )
        self._add(
            begun_ns + took_ns, energy_j + self._step_w * took_ns / 1e9 + tokens_mj / 1e3, busy_ns + took_ns
        )

    def _add(self, at_ns: int, energy_j: float, busy_ns: int) -> None:
        curve = self.curve
        curve.at_ns.append(at_ns)
        curve.energy_j.append(energy_j)
        curve.busy_ns.append(busy_ns)
        if len(curve.at_ns) > MOST_POINTS:
            for column in (curve.at_ns, curve.energy_j, curve.busy_ns):
                del column[1:-1:2]


def power_meters(options: PowerOptions, engines: Iterable[Engine], begun_ns: int) -> tuple[PowerMeter, ...]:
    """A meter for each engine; empty where nothing is known of their power."""
    if options.idle_w is None:
        return ()
    return tuple(PowerMeter(options, engine.config, begun_ns) for engine in engines)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What one accelerator tells of itself."""

    number: int
    power_w: float
    """Mean of the last second, in watts."""
    energy_j: float
    """Its energy counter, in joules."""
    utilisation: float
    """Share of the last second in which a step ran, 0 to 1."""
    memory_bytes: int
    """Memory in use: weights and all blocks of the KV cache, which are set aside at the start."""
    temperature_c: float

    @property
    def uuid(self) -> str:
        return f"GPU-00000000-0000-0000-0000-{self.number:012d}"


def read_devices(meters: Sequence[PowerMeter], now_ns: int) -> list[DeviceReading] | None:
    """What the accelerators of these engines tell at an instant; None: nothing answers (``silent``)."""
    options, begun_ns = meters[0].options, meters[0].curve.at_ns[0]
    fault_ns = begun_ns + round(options.power_fault_after_s * 1e9)
    fault = options.power_fault if now_ns >= fault_ns else None
    if fault == "silent":
        return None
    period_ns = round(options.power_update_ms * 1e6)
    at_ns = now_ns - (now_ns - begun_ns) % period_ns if period_ns else now_ns
    found = list(_told(meters, at_ns))
    if fault == "device_gone":
        found.pop()
    elif fault is not None:
        reset = fault == "counter_resets"
        since_ns, until_ns = (fault_ns, max(fault_ns, at_ns)) if reset else (begun_ns, min(fault_ns, at_ns))
        curve, count = meters[-1].curve, meters[-1].config.accelerator_count
        counted_j = (curve.joules(until_ns) - curve.joules(since_ns)) / count
        found[-1] = replace(found[-1], energy_j=counted_j)
    return found


def _told(meters: Sequence[PowerMeter], at_ns: int) -> Iterator[DeviceReading]:
    number = 0
    for meter in meters:
        config, curve = meter.config, meter.curve
        count = config.accelerator_count
        since_ns = max(at_ns - _AVERAGE_NS, curve.at_ns[0])
        # As NVML tells it, a mean: an instant's is idle whenever the engine answers between two steps.
        power_w = curve.mean_watts(since_ns, at_ns) / count
        kv_gib = config.kv_blocks * config.kv_block_tokens * config.kv_kib_per_token / 2**20
        for _ in range(count):
            yield DeviceReading(
                number=number,
                power_w=power_w,
                energy_j=curve.joules(at_ns) / count,
                utilisation=curve.busy(since_ns, at_ns),
                memory_bytes=round((config.weights_gib + kv_gib) / count * 2**30),
                temperature_c=_COOL_C + _C_PER_W * power_w,
            )
            number += 1
