"""Series of made-up devices, in seconds from the start of a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.telemetry import DeviceSeries, Kind, Telemetry

S = 1_000_000_000


def device(
    at_ns: Any, identifier: str = "gpu-0", kind: Kind = "gpu", *, within: str = "", **values: Any
) -> DeviceSeries:
    columns = {name: np.asarray(own, dtype=np.float64) for name, own in values.items()}
    return DeviceSeries(
        identifier,
        kind,
        "model",
        np.asarray(at_ns, dtype=np.int64),
        columns,
        within=within,  # type: ignore[arg-type]
    )


def around(run: Observation, step_s: float = 0.25) -> Any:
    """Instants of readings from before a load until after it."""
    step_ns = round(step_s * S)
    return np.arange(run.started_ns - step_ns, run.ended_ns + 2 * step_ns, step_ns)


def drawing(run: Observation, watts: Mapping[str, float], **more: Any) -> Observation:
    """The load with accelerators that draw so many watts all the time."""
    at_ns = around(run)
    devices = [
        device(at_ns, name, power_w=np.full(len(at_ns), own), energy_j=(at_ns - at_ns[0]) / S * own)
        for name, own in watts.items()
    ]
    return replace(run, telemetry=Telemetry(tuple(devices), 0.25, **more))
