"""Sample percentiles, and their intervals.

Percentiles interpolate between order statistics, type 7 of Hyndman and Fan (1996, The American Statistician
50), as all figures of the draft do (AMB-36) and what other tools print.

**Independent samples**: two order statistics are a distribution-free interval. Of n independent samples the
number below the true percentile is binomial(n, q / 100), whatever they are distributed like. So the ends are
the l-th and the u-th smallest sample, where (two-sided, α = 1 - level)

    l - 1 = the largest b with P(B ≤ b) ≤ α/2,      u = the smallest b with P(B ≥ b) ≤ α/2.

l < 1 or u > n means that the sample cannot support that end: it is open. Ties make the interval conservative.

**Dependent samples**: order statistics at the effective sample size. The sampling error of a percentile x is
that of the share of samples above it (Woodruff 1952, JASA 47; Bahadur 1966). The 0/1 series "above x" in
arrival order has a long-run variance ω² (:mod:`~pytest_llmbench.stats.spectral`), so n samples are worth n /
τ independent ones, τ = ω² / p (1 - p). The ranks are those of the binomial of that many, with two
corrections:

- τ is an estimate with B degrees of freedom: n / τ is multiplied by (z / t_B)², z and t_B the two-sided
  quantiles (Korn and Graubard 1998, Survey Methodology 24).
- A higher load has not only longer but stickier queues. An upper end u is held against what u itself would
  imply: 1 + (τ - 1) √(1 + (u - x) / s) in place of τ, s = max(x, mean) - min the level seen. Theory has up to
  the square of the level for a queue near saturation (Whitt 1989, Management Science 35); its root is what
  the coverage needs. Where the sample is a few memories long τ - 1 is multiplied by the square of
  :func:`~pytest_llmbench.stats.spectral.stretched` if that is more, and the end may be open. Independent
  samples, τ = 1, are left alone.

Few samples lie beyond a high percentile, and service noise hides how they come in bursts, so beyond the
median τ - 1 is at least half of the median's: long queues last longer than short ones.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from pytest_llmbench.stats.backlog import NO_RISE, Rise
from pytest_llmbench.stats.dependence import SHORTEST_SERIES, exceedances, informative, memory
from pytest_llmbench.stats.runs import FloatArray, Interval, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import (
    Spread,
    memories_required,
    normal_quantile,
    quantile,
    spread,
    stretched,
    with_rise,
)

PERCENTILES: Mapping[str, float] = MappingProxyType(
    {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
)
"""Name of a statistic of a distribution → its percentile."""


class Ordered(Protocol):
    """Samples in ascending order, accessed by rank: a sorted vector, or one that is only counted."""

    def __len__(self) -> int: ...

    def __getitem__(self, rank: int, /) -> Any: ...


def percentile(samples: FloatArray, q: float) -> float:
    """The q-th percentile, ``q`` from 0 to 100. ValueError without samples: there is no number to give."""
    return float(percentiles(samples, (q,))[0])


def percentiles(samples: FloatArray, qs: Sequence[float]) -> FloatArray:
    """Several percentiles of the same samples. ValueError without samples."""
    if len(samples) == 0:
        raise ValueError("no samples, no percentile")
    return np.asarray(np.percentile(samples, qs, method="linear"), dtype=np.float64)


def percentile_ranks(n: int, qs: Sequence[float]) -> list[int]:
    """The ranks, from 0, that :func:`ordered_percentile` reads."""
    lows = [math.floor((n - 1) * q / 100) for q in qs]
    return [rank for low in lows for rank in (low, min(low + 1, n - 1))]


def ordered_percentile(ordered: Ordered, q: float) -> float:
    """Type 7 percentile of samples in ascending order, reading two of them. ValueError without samples."""
    if len(ordered) == 0:
        raise ValueError("no samples, no percentile")
    rank = (len(ordered) - 1) * q / 100
    low = math.floor(rank)
    below = float(ordered[low])
    if rank == low:
        return below
    return below + (rank - low) * (float(ordered[low + 1]) - below)


def ordered_percentile_interval(
    ordered: Ordered, q: float, *, level: float = 0.95, effective_n: float | None = None
) -> Interval:
    """Interval of the q-th percentile from samples in ascending order.

    ``effective_n``: of how many independent samples they are worth; default as many as there are. Fewer give
    the spread of the smaller binomial, stretched to the ranks of this sample.
    """
    lower, upper = ranks(len(ordered), q, level=level, effective_n=effective_n)
    return Interval(
        None if lower is None else float(ordered[lower - 1]),
        None if upper is None else float(ordered[upper - 1]),
    )


def ranks(
    n: int, q: float, *, level: float = 0.95, effective_n: float | None = None
) -> tuple[int | None, int | None]:
    """The ranks l and u of the ends, from 1 to n; ``None`` for an open end. ValueError for q or level out of
    range."""
    _check(q, level)
    worth = n if effective_n is None else min(n, max(1, math.floor(effective_n)))
    if n < 1:
        return None, None
    below, above = _limits(worth, q / 100, (1 - level) / 2)
    lower = (below - 1) * n // worth + 1 if below >= 1 else None
    upper = -(-above * n // worth) if above <= worth else None
    return lower, upper


@lru_cache(maxsize=4096)
def _limits(worth: int, share: float, tail: float) -> tuple[int, int]:
    """The ranks of the interval's ends among ``worth`` independent samples: the lower less one, the upper as
    it is. Cached: the latencies of a load share them, and so do loads of equal length."""
    from scipy.special import bdtr, bdtrc

    below = bisect_right(range(worth), tail, key=lambda b: float(bdtr(b, worth, share)))
    above = bisect_left(range(worth), -tail, key=lambda b: -float(bdtrc(b, worth, share))) + 1
    return below, above


def samples_required(q: float, level: float = 0.95) -> int:
    """Fewest independent samples with which both ends exist: the smallest n with max(p, 1-p)^n ≤ (1 -
    level)/2.

    Two-sided 95 %: 36 for P90, 72 for P95, 368 for P99, 3688 for P99.9.
    """
    _check(q, level)
    rarer = max(q, 100 - q) / 100
    return math.ceil(math.log((1 - level) / 2) / math.log(rarer))


def _check(q: float, level: float) -> None:
    if not 0 < q < 100:
        raise ValueError(f"a percentile with an interval lies between 0 and 100, not at {q}")
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")


_TAIL = 0.5
_FEWEST = 15
"""Fewest independent samples for an upper end of dependent ones: with fewer it could lie anywhere."""
_HALF_AS_MANY_AGAIN = 1.5
_RISE_BEYOND = 2.0
"""Factor by which a percentile beyond the median rises more than the mean with a hidden queue."""
_USUAL_LEVEL, _NEAR_AN_END, _MUCH_LESS = 0.95, 5.0, 0.7
"""Limits for percentiles up to the median: the level of the interval at whose ends the worth is looked at,
how far beyond it is not, and the share of it from which on the worth at an end counts."""
_MOST_ROUNDS = 50
"""Most rounds of the search for an upper end, which settles after a few; each round is one binary search."""


class Worth(NamedTuple):
    """The effective size of a sample for one of its percentiles."""

    samples: float
    """Number of independent samples for which the share above the percentile would vary as much, from 1 to
    n."""
    freedom: float
    """Degrees of freedom of that estimate."""
    recalled: float = 0.0
    """(m - 1) / n: the share of the samples that their memory spans."""
    resampled: FloatArray | None = None
    """The resampled means, as in :class:`~pytest_llmbench.stats.spectral.Spread`; None for Student's t."""

    @classmethod
    def of_spread(cls, of: Spread) -> Worth:
        return cls(of.worth, of.freedom, of.recalled, of.resampled)

    def at_least_as_dependent(self, n: int, of: Worth) -> Worth:
        """The worth for a percentile beyond the median, with at least half of what dependence costs the
        median."""
        excess = max(n / self.samples - 1, _TAIL * (n / of.samples - 1))
        return self._replace(samples=n / (1 + excess))

    def discounted(self, level: float) -> float:
        """The number of samples reduced by (z / t)², since it is an estimate itself."""
        return self.samples * (normal_quantile(level) / quantile(self, level)) ** 2

    def usable(self, n: int, level: float) -> float:
        """The effective number of samples that an interval from n samples uses.

        A series too short to look for dependence is used as it is.
        """
        return self.discounted(level) if n >= SHORTEST_SERIES else self.samples

    def usable_above(self, n: int, level: float, *, fewest: float | None = None) -> float | None:
        """The effective number for an upper end, since the sample may be a stretch of a few memories;
        ``None``: the end is open. ``fewest``: below that many it is, by default 15."""
        usable, excess = self.usable(n, level), n / self.samples - 1
        if excess <= 0:
            return usable
        stretch = stretched(self.recalled, level)
        if stretch is None:
            return None
        left = usable * (1 + excess) / (1 + excess * stretch**2)
        return left if left >= (_FEWEST if fewest is None else fewest) else None

    def required(self, independent: int, n: int, level: float) -> int:
        """How many samples, as dependent as these n, are worth ``independent`` ones, where these are not. The
        discount shrinks as samples come in, so it is left out as long as that is more than n. The sample does
        not tell what else keeps an end open (stickier queues above): then half as many again."""
        plain, discounted = independent / self.samples, independent / self.usable(n, level)
        more = next(more for more in (plain, discounted, _HALF_AS_MANY_AGAIN) if more > 1)
        return math.ceil(n * max(more, memories_required(self.recalled, level)))


def series_memory(samples: Samples) -> int:
    """The memory of the samples or of their "above the median" series, whichever is longer: it belongs to the
    system, not to a single statistic. The long waits are few and blur in the one, the rare event shows
    nothing in the other."""
    runs = as_runs(samples)
    return max(memory(runs), memory(exceedances(runs, 50.0)))


def percentile_worth(
    samples: Samples, q: float, *, lags: int | None = None, median: Worth | None = None
) -> Worth:
    """The worth of the samples for the q-th percentile; with fewer than 20 samples beyond it, for the nearest
    that has 20.

    ``lags``: by default :func:`series_memory`; the event's own memory counts if it is longer. ``median``: the
    worth for P50, by default computed where it is needed.
    """
    runs = as_runs(samples)
    lags = series_memory(runs) if lags is None else lags
    own = _worth(runs, q, lags, tested=q <= 50)
    if not runs:
        return own
    if q <= 50:
        return _worth_between_modes(runs, q, lags, own)
    median = median_worth(runs, lags=lags) if median is None else median
    return own.at_least_as_dependent(sum(map(len, runs)), median)


def percentile_worths(samples: Samples, qs: Sequence[float], *, lags: int | None = None) -> list[Worth]:
    """:func:`percentile_worth` of each; percentiles with the same stand-in share one result."""
    runs = as_runs(samples)
    n, lags = sum(map(len, runs)), series_memory(runs) if lags is None else lags
    median, found = median_worth(runs, lags=lags), dict[tuple[bool, float], Worth]()
    for q in qs:
        key = q <= 50, informative(q, n)
        if key not in found:
            found[key] = percentile_worth(runs, q, lags=lags, median=median)
    return [found[q <= 50, informative(q, n)] for q in qs]


def _worth_between_modes(runs: Runs, q: float, lags: int, own: Worth) -> Worth:
    """The worth at the ends of the interval if it is much less there, else ``own``.

    Of a system with two levels, the level of the moment and the noise around it are told apart between the
    two alone, and the percentile of the sample lies on one of them.
    """
    ordered = np.sort(pooled(runs))
    n = len(ordered)
    usable = own.usable(n, _USUAL_LEVEL)
    ends = ordered_percentile_interval(ordered, q, level=_USUAL_LEVEL, effective_n=usable)
    places = [100 * int(np.searchsorted(ordered, end, side="right")) / n for end in ends if end is not None]
    there = [
        _worth(runs, min(max(place, _NEAR_AN_END), 100 - _NEAR_AN_END), lags, tested=False)
        for place in places
    ]
    least = min((own, *there), key=lambda worth: worth.samples)
    return least if least.samples < _MUCH_LESS * own.samples else own


def median_worth(samples: Samples, *, lags: int) -> Worth:
    """The worth for P50, with which that of higher percentiles is compared.

    It leaves out the test for a rising spectrum, whose false alarms would open every tail.
    """
    return _worth(as_runs(samples), 50.0, lags, tested=False)


def _worth(runs: Runs, q: float, lags: int, *, tested: bool) -> Worth:
    above = exceedances(runs, q)
    n = sum(map(len, above))
    if informative(q, n) != 50:  # the memory of "above the median" is among those of the series already
        # A rare event seems to repeat at some scale by chance alone.
        lags = max(memory(above, scales=q <= 50), lags)
    of = spread(above, lags=lags, tested=tested, skewed=False)
    if of is None:
        return Worth(float(n), float(max(1, n - 1)))
    return Worth.of_spread(of)


def ordered_interval(
    ordered: FloatArray, q: float, worth: Worth, *, level: float = 0.95, rise: Rise = NO_RISE
) -> Interval:
    """Interval of the q-th percentile from samples in ascending order.

    ``rise``: how much higher their mean may be for a queue that noise hides
    (:mod:`~pytest_llmbench.stats.backlog`). It moves the median about as far, and higher percentiles farther.
    """
    lower, upper = _ordered_interval(ordered, q, worth, level)
    return Interval(lower, risen(upper, ordered, q, level=level, rise=rise))


def risen(upper: float | None, ordered: FloatArray, q: float, *, level: float, rise: Rise) -> float | None:
    """An upper end of the q-th percentile that allows for a hidden queue."""
    if upper is None or rise == NO_RISE:
        return upper
    n, point = len(ordered), ordered_percentile(ordered, q)
    independent = ordered_percentile_interval(ordered, q, level=level, effective_n=n).upper
    if independent is None:
        return upper
    own = _RISE_BEYOND * rise.beyond if q > 50 else rise.median
    return with_rise(upper, point, independent - point, own)


def _ordered_interval(ordered: FloatArray, q: float, worth: Worth, level: float) -> Interval:
    n = len(ordered)
    usable = worth.usable(n, level)
    lower, upper = ordered_percentile_interval(ordered, q, level=level, effective_n=usable)
    point, least = ordered_percentile(ordered, q), float(ordered[0])
    height = max(point, float(np.mean(ordered))) - least
    excess = n / worth.samples - 1
    if excess <= 0 or height <= 0:
        return Interval(lower, upper)
    stretch = stretched(worth.recalled, level)
    if stretch is None:
        return Interval(lower, None)
    for _ in range(_MOST_ROUNDS):
        if upper is None or upper <= point:
            break
        stickier = 1 + excess * max(stretch**2, math.sqrt(1 + (upper - point) / height))
        left = usable * (1 + excess) / stickier
        further = ordered_percentile_interval(ordered, q, level=level, effective_n=left).upper
        if left < _FEWEST:
            return Interval(lower, None)
        if further == upper:
            break
        upper = further
    return Interval(lower, upper)


def closed_by(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The intervals of percentiles, the lowest first, with ends of ``others`` where they are open: no farther
    than those of a higher percentile above, and of a lower one below."""
    found = list(intervals)
    for place in range(len(found)):
        if found[place].lower is None:
            ends = (others[place].lower, found[place - 1].lower if place else None)
            found[place] = found[place]._replace(lower=max((e for e in ends if e is not None), default=None))
    for place in reversed(range(len(found))):
        if found[place].upper is None:
            higher = found[place + 1].upper if place + 1 < len(found) else None
            ends = (others[place].upper, higher)
            found[place] = found[place]._replace(upper=min((e for e in ends if e is not None), default=None))
    return found


def bounded_by_higher(intervals: Sequence[Interval], bounds: Sequence[float | None]) -> list[Interval]:
    """The intervals with upper ends no higher than the bound of their own or of a higher percentile, where
    there is one. The lowest percentile first."""
    found, least = list(intervals), math.inf
    for place in reversed(range(len(found))):
        bound, (lower, upper) = bounds[place], found[place]
        least = least if bound is None else min(least, bound)
        if least < (math.inf if upper is None else upper):
            found[place] = Interval(lower, least)
    return found


def in_order(intervals: Sequence[Interval]) -> list[Interval]:
    """The intervals of percentiles of one sample, the lowest first, with ends that grow as the percentiles
    do.

    What bounds a percentile from above bounds all lower ones, so an open upper end is at most the next higher
    percentile's, and the same for lower ends. Of two ends in the wrong order the nearer one gives way.
    """
    lowers, uppers = [end.lower for end in intervals], [end.upper for end in intervals]
    for place in range(1, len(intervals)):
        lowers[place] = lowers[place - 1] if lowers[place] is None else lowers[place]
        uppers[-place - 1] = uppers[-place] if uppers[-place - 1] is None else uppers[-place - 1]
    for place in range(1, len(intervals)):
        above, below = uppers[place], uppers[place - 1]
        if above is not None and below is not None:
            uppers[place] = max(above, below)
        lower, higher = lowers[-place - 1], lowers[-place]
        if lower is not None and higher is not None:
            lowers[-place - 1] = min(lower, higher)
    return [Interval(*ends) for ends in zip(lowers, uppers, strict=True)]
