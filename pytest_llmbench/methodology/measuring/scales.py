"""How long and how many, by scale: the draft's own figures (``full``), a gate, or a smoke run (``quick``)."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmbench.methodology.procedure import Scale


@dataclass(frozen=True, slots=True)
class ByScale:
    """One quantity at the three scales."""

    quick: float
    standard: float
    full: float

    def at(self, scale: Scale, asked: float | None = None) -> float:
        """The value of the scale. What a marker asks for stands before ``standard``; it can only shorten
        ``quick`` and only lengthen ``full``."""
        value: float = getattr(self, scale)
        if asked is None:
            return value
        if scale == "quick":
            return min(value, asked)
        return max(value, asked) if scale == "full" else asked

    def count(self, scale: Scale, asked: int | None = None) -> int:
        """The same for a number of things."""
        return round(self.at(scale, asked))


PROBE_S = ByScale(quick=4.0, standard=20.0, full=60.0)
"""A level of a search, ramp-up included (section 5.2.2.1; AMB-17: probes may be as short as 60 s)."""
LEVEL_S = ByScale(quick=4.0, standard=30.0, full=60.0)
"""A level of a sweep (section 5.3.2)."""
REPORTED_S = ByScale(quick=6.0, standard=60.0, full=300.0)
"""The level whose throughput is reported (section 5.2.2.1, advised)."""
