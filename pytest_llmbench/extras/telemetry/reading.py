"""What one device told at one instant, on its way from the sampler's process to a series."""

from __future__ import annotations

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
