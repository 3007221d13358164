"""Interval of a percentile of dependent samples: order statistics at what the samples are worth.

The sampling error of a percentile x is that of the share of samples above it (Woodruff 1952, JASA 47; Bahadur
1966). The 0/1 series "above x" in arrival order has a long-run variance ω²
(:mod:`~pytest_llmbench.stats.spectral`), so n samples are worth n / τ independent ones, τ = ω² / p (1 - p).
The ranks are those of the binomial of that many (:mod:`~pytest_llmbench.stats.order_statistics`), with two
corrections:

- τ is an estimate with B degrees of freedom: n / τ is multiplied by (z / t_B)², z and t_B the two-sided
  quantiles (Korn and Graubard 1998, Survey Methodology 24).
- A higher load has not only longer but stickier queues. An upper end u is held against what u itself would
  imply: 1 + (τ - 1) √(1 + (u - x) / s) in place of τ, s = max(x, mean) - min the level seen. Theory has up to
  the square of the level for a queue near saturation (Whitt 1989, Management Science 35); its root is what
  the coverage needs. Independent samples, τ = 1, are left alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats import order_statistics
from pytest_llmbench.stats.dependence import SHORTEST_SERIES, exceedances
from pytest_llmbench.stats.percentiles import ordered_percentile
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import memory, spread, student_quantile

_MOST_ROUNDS = 50
"""The upper end settles after a few; each round is one binary search."""


class Worth(NamedTuple):
    """What a sample is worth for one of its percentiles."""

    samples: float
    """Independent samples whose share above it would vary as much, from 1 to n."""
    freedom: float
    """Degrees of freedom of that figure."""

    def discounted(self, level: float) -> float:
        """Fewer, for the figure being an estimate itself: · (z / t)²."""
        from scipy.special import ndtri

        return self.samples * (float(ndtri((1 + level) / 2)) / student_quantile(self.freedom, level)) ** 2

    def usable(self, n: int, level: float) -> float:
        """As an interval from n samples takes it; a series too short to look for dependence as it is."""
        return self.discounted(level) if n >= SHORTEST_SERIES else self.samples

    def required(self, independent: int, n: int, level: float) -> int:
        """How many samples, dependent as these n are, are worth that many independent ones, where these are
        not. The discount shrinks as samples come in, so it is left out as long as that is more than n. Of
        what else keeps an end open (stickier queues above) the sample says nothing: half as many again."""
        plain, discounted = independent / self.samples, independent / self.usable(n, level)
        return math.ceil(n * next(more for more in (plain, discounted, 1.5) if more > 1))


def series_memory(samples: Samples) -> int:
    """Memory of the samples or of their "above the median" series, whichever is longer: a system's, not a
    single statistic's. The long waits are few and blur in the one, the rare event shows nothing in the other.
    """
    runs = as_runs(samples)
    return max(memory(runs), memory(exceedances(runs, 50.0)))


def percentile_worth(samples: Samples, q: float, *, lags: int | None = None) -> Worth:
    """For the q-th percentile; with fewer than 20 samples beyond it, for the nearest that has 20.

    ``lags``: default :func:`series_memory`; the event's own memory counts if it is longer.
    """
    above = exceedances(samples, q)
    n = sum(map(len, above))
    lags = max(memory(above), series_memory(samples) if lags is None else lags)
    of = spread(above, lags=lags)
    return Worth(float(n), float(max(1, n - 1))) if of is None else Worth(of.worth, of.freedom)


def percentile_interval(
    samples: Samples, q: float, *, level: float = 0.95, worth: Worth | None = None
) -> Interval:
    """Interval of the q-th percentile of one run or several; ``None`` where the samples support no bound.

    ``worth``: default :func:`percentile_worth`.
    """
    runs = as_runs(samples)
    if not runs:
        return OPEN
    worth = percentile_worth(runs, q) if worth is None else worth
    return ordered_interval(np.sort(pooled(runs)), q, worth, level=level)


def ordered_interval(ordered: FloatArray, q: float, worth: Worth, *, level: float = 0.95) -> Interval:
    """The same of samples in ascending order."""
    n = len(ordered)
    usable = worth.usable(n, level)
    lower, upper = order_statistics.percentile_interval(ordered, q, level=level, effective_n=usable)
    point, least = ordered_percentile(ordered, q), float(ordered[0])
    height = max(point, float(np.mean(ordered))) - least
    excess = n / worth.samples - 1
    if excess <= 0 or height <= 0:
        return Interval(lower, upper)
    for _ in range(_MOST_ROUNDS):
        if upper is None or upper <= point:
            break
        stickier = 1 + excess * math.sqrt(1 + (upper - point) / height)
        further = order_statistics.percentile_interval(
            ordered, q, level=level, effective_n=usable * (1 + excess) / stickier
        ).upper
        if further == upper:
            break
        upper = further
    return Interval(lower, upper)


__all__ = [
    "Worth",
    "ordered_interval",
    "percentile_interval",
    "percentile_worth",
    "series_memory",
]
