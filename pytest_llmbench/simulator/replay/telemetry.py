"""What a sampler would see of the accelerators of a replay, at its instants of virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_llmbench.model.telemetry import DeviceSeries, Lost, Quantity, Telemetry
from pytest_llmbench.simulator.engine.power import ACCELERATOR, PowerMeter, read_devices
from pytest_llmbench.simulator.replay.replica import SOURCE

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
