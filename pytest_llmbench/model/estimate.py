"""A number that knows how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

LOWER_BOUND = "a lower bound"
"""In the method of an estimate that is open upwards since nothing above it was tested: no larger sample
would close it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A point with its confidence interval.

    ``None`` for ``lower`` or ``upper`` means that the interval is **open** on that side: the sample cannot
    support a bound there. ``None`` for ``point`` means undefined (no samples); such an estimate satisfies
    no limit and is never shown as zero.
    """

    point: float | None
    lower: float | None
    upper: float | None
    level: float
    """Confidence level, 0 to 1."""
    n: int
    """Samples the estimate rests on."""
    method: str
    unit: str
    n_required: int | None = None
    """Samples from which on the interval closes on both sides, if it is open for want of them."""

    def __post_init__(self) -> None:
        for name in ("point", "lower", "upper"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"Estimate.{name} is {value}; None stands for undefined and for open")

    @classmethod
    def undefined(cls, *, unit: str, method: str, level: float = 0.95, n: int = 0) -> Estimate:
        return cls(point=None, lower=None, upper=None, level=level, n=n, method=method, unit=unit)

    @property
    def defined(self) -> bool:
        return self.point is not None

    @property
    def closed(self) -> bool:
        """True when the interval has both ends."""
        return self.lower is not None and self.upper is not None


__all__ = ["LOWER_BOUND", "Estimate"]
