"""The three points of a throughput-latency curve (section 5.3.4): knee, saturation point, operating point.

Each is a tested level, so each is known to within its neighbour: the interval is that bracket, not one of
confidence. A point that no level reached lies above the highest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.search.probing import known_to_bracket, value_of
from pytest_llmbench.model.estimate import LOWER_BOUND, Estimate

KNEE_FACTOR = 2.0
NOT_REACHED = "not reached"
NO_SLO, NONE_MEETS = "no SLO given", "no level meets the SLO"
_THROUGHPUT = "output_token_throughput"


@dataclass(frozen=True)
class Curve:
    """``None`` where no level is the point."""

    levels: tuple[Seen, ...]
    """Ascending."""
    wanted: bool
    """Whether there are objectives that an operating point has to meet."""
    knee: Seen | None
    saturation: Seen | None
    operating: Seen | None
    highest: Seen | None
    """The level of the highest throughput."""
    sustained: Seen | None
    """The same among the levels that hold."""
    first_flagged: Seen | None
    """The lowest level that a saturation rule names (section 5.2.3.1)."""

    @property
    def knee_rate(self) -> Estimate:
        return self._bracket(self.knee)

    @property
    def saturation_rate(self) -> Estimate:
        return self._bracket(self.saturation)

    @property
    def operating_rate(self) -> Estimate:
        if self.operating is None:
            return self._no_operating_point("req/s")
        rate = value_of(self.operating)
        above = [value_of(seen) for seen in self.levels if value_of(seen) > rate]
        n = len(self.levels)
        return Estimate(rate, rate, min(above, default=None), 0.95, n, "bracket of the levels", "req/s")

    @property
    def operating_throughput(self) -> Estimate:
        if self.operating is None:
            return self._no_operating_point("tok/s")
        return self._of_the_highest(self.operating, lambda seen: seen.level.passed is True)

    @property
    def sustained_throughput(self) -> Estimate | None:
        """The maximum, as a sweep knows it: the same figure as a search's, between levels farther apart."""
        if self.sustained is None:
            return None
        return self._of_the_highest(self.sustained, holds)

    def _of_the_highest(self, best: Seen, passes: Callable[[Seen], bool]) -> Estimate:
        return known_to_bracket(best.level.metrics[_THROUGHPUT], best, self.levels, passes)

    def _no_operating_point(self, unit: str) -> Estimate:
        method = NONE_MEETS if self.wanted else NO_SLO
        return Estimate.undefined(unit=unit, method=method, n=len(self.levels))

    def _bracket(self, point: Seen | None) -> Estimate:
        """The bracket of a point, from the level before it up to it.

        Where no level is the point, it lies above all levels and is not known.
        """
        rates = [value_of(seen) for seen in self.levels]
        if not rates:
            return Estimate.undefined(unit="req/s", method="no levels")
        if point is None:
            method = f"{NOT_REACHED}: the highest level, {rates[-1]:g} req/s, is {LOWER_BOUND}"
            return Estimate(None, rates[-1], None, 0.95, len(rates), method, "req/s")
        rate = value_of(point)
        before = max((other for other in rates if other < rate), default=None)
        return Estimate(rate, before, rate, 0.95, len(rates), "bracket of the levels", "req/s")


def curve_of(levels: Sequence[Seen], *, wanted: bool) -> Curve:
    ascending = tuple(sorted(levels, key=value_of))
    passing = [seen for seen in ascending if seen.level.passed] if wanted else []
    return Curve(
        levels=ascending,
        wanted=wanted,
        knee=knee(ascending, "ttft.p99"),
        saturation=first_drop(ascending),
        operating=_most(passing),
        highest=_most(ascending),
        sustained=_most([seen for seen in ascending if holds(seen)]),
        first_flagged=next((seen for seen in ascending if seen.level.saturated), None),
    )


def holds(seen: Seen) -> bool:
    """Whether no saturation rule names the level, or it keeps up and meets the objectives."""
    return not seen.level.saturated or seen.level.passed is True


def knee(ascending: Sequence[Seen], metric: str) -> Seen | None:
    """The lowest level, above that of the minimum, whose P99 is more than twice the lowest P99."""
    found = [(value, seen) for seen in ascending if (value := seen.point(metric)) is not None]
    if not found:
        return None
    lowest, at = min(found, key=lambda pair: pair[0])
    above = [(v, seen) for v, seen in found if value_of(seen) > value_of(at)]
    return next((seen for value, seen in above if value > KNEE_FACTOR * lowest), None)


def first_drop(ascending: Sequence[Seen]) -> Seen | None:
    """The first level with less throughput than the one before (AMB-15), by more than both are known to."""
    known = [seen for seen in ascending if seen.point(_THROUGHPUT) is not None]
    return next((later for earlier, later in pairwise(known) if _drops(earlier, later)), None)


def _drops(earlier: Seen, later: Seen) -> bool:
    """Whether throughput drops beyond both intervals, and not for lack of requests.

    Random arrivals may come more slowly at the higher rate.
    """
    before, after = (seen.level.metrics[_THROUGHPUT] for seen in (earlier, later))
    if before.lower is None or after.upper is None or after.upper >= before.lower:
        return False
    return _arrivals_per_s(later) >= _arrivals_per_s(earlier)


def _arrivals_per_s(seen: Seen) -> float:
    return len(seen.inside) / seen.level.window_s if seen.level.window_s > 0 else 0.0


def _most(levels: Sequence[Seen]) -> Seen | None:
    known = [seen for seen in levels if seen.point(_THROUGHPUT) is not None]
    return max(known, key=lambda seen: seen.point(_THROUGHPUT) or 0.0, default=None)
