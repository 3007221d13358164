"""What one device told at one instant, on its way from the sampler to a series; and a command that writes
such readings of a machine, one JSON object a line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

from pytest_llmbench.model.telemetry import Kind, Quantity, Why

KINDS: tuple[Kind, ...] = get_args(Kind)
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)


@dataclass(frozen=True, slots=True)
class Reading:
    """One device; see :class:`~pytest_llmbench.model.telemetry.DeviceSeries` for the fields."""

    id: str
    kind: Kind
    name: str
    values: Mapping[Quantity, float] = field(default_factory=dict)
    host: str = ""
    within: str = ""
    wraps_at_j: float | None = None


class SourceError(Exception):
    """A source has no figures: why, and in which words it says so."""

    def __init__(self, why: Why, detail: str = "") -> None:
        super().__init__(why, detail)
        self.why, self.detail = why, detail


class Source(Protocol):
    """Something that is asked for readings, again and again."""

    name: str

    def read(self) -> Sequence[Reading]:
        """What there is now. Raises SourceError."""
        ...


def finite(value: Any, factor: float = 1.0) -> float | None:
    """A number in our unit; None for what is none: drivers write ``N/A`` for what a device lacks."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value * factor if math.isfinite(value) else None


def told(**values: float | None) -> dict[Quantity, float]:
    """The quantities that are there."""
    return {name: value for name, value in values.items() if value is not None}  # type: ignore[misc]


MOST_BYTES = 2**20
"""Longest line that is read."""


def readings_of_line(line: str, host: str) -> Sequence[Reading]:
    """The devices of a line: one object with our names of quantities, a list of such as ``devices``, or what
    macmon writes. Raises SourceError for anything else."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise SourceError("not_readable", f"a line is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SourceError("not_readable", f"a line is not a JSON object: {line[:80]!r}")
    if "gpu_power" in found and "cpu_power" in found:
        return _of_macmon(found, host)
    devices = found.get("devices", [found])
    if not isinstance(devices, list) or not all(isinstance(each, dict) for each in devices):
        raise SourceError("not_readable", "devices is not a list of JSON objects")
    return [_of_object(each, host) for each in devices]


def _of_object(own: Mapping[str, Any], host: str) -> Reading:
    kind = own.get("kind", "node")
    if kind not in KINDS:
        raise SourceError("not_readable", f"kind is {kind!r}: write one of {', '.join(KINDS)}")
    values = told(**{name: finite(own.get(name)) for name in QUANTITIES})
    if not values:
        raise SourceError("not_readable", f"none of {', '.join(QUANTITIES)} is a number in an object")
    identifier = str(own.get("id", kind))
    within = str(own.get("within", ""))
    return Reading(identifier, kind, str(own.get("name", identifier)), values, host, within)


def _of_macmon(own: Mapping[str, Any], host: str) -> Sequence[Reading]:
    def use_of(name: str) -> tuple[float | None, float | None]:
        pair = own.get(name)
        return (
            (finite(pair[0]), finite(pair[1])) if isinstance(pair, list) and len(pair) == 2 else (None, None)
        )

    heat = own.get("temp") if isinstance(own.get("temp"), dict) else {}
    memory = own.get("memory") if isinstance(own.get("memory"), dict) else {}
    assert isinstance(heat, dict)
    assert isinstance(memory, dict)
    mhz, share = use_of("gpu_usage")
    gpu = told(
        power_w=finite(own["gpu_power"]),
        utilisation=share,
        clock_mhz=mhz,
        temperature_c=finite(heat.get("gpu_temp_avg")),
        memory_bytes=finite(memory.get("ram_usage")),
    )
    found = [Reading("gpu", "gpu", "GPU", gpu, host, "system")]
    found.append(Reading("cpu", "cpu", "CPU", told(power_w=finite(own["cpu_power"])), host, "system"))
    whole = told(power_w=finite(own.get("sys_power")))
    return [*found, Reading("system", "node", "the whole machine", whole, host)] if whole else found
