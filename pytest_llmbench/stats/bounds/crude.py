"""Crude ends of the figures of a sample, where its own are open: wider than the sampling error, not nowhere.

A sample that is a few memories of its system long is worth few independent ones, and order statistics at that
number bound nothing, though all its values lie close together. What may still move them all is the level of
the system. So an end is that of independent samples, moved by a factor e^ℓ, both counted from the smallest
value: ℓ = t · error / (mean - min), the error and Student's t those of the mean
(:mod:`~pytest_llmbench.stats.spectral`), lengthened for few memories as there, but by half at most; and by as
much as the middle half of the runs lies above the whole, since a run begins and ends in an idle system.

"Independent" is taken for half as many samples. Where these do not support an upper end it is the largest
value; and where not even all do, the largest value lengthened by (a / b)^0.4, b the share beyond the
percentile, a the share beyond which one of n independent values lies with the asked certainty,
1 - a = tail^(1/n): the tail is taken to be no heavier than that of Pareto's law with exponent 2.5.

Chosen by simulation; how often such ends hold: docs/reference/statistics.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats import order_statistics
from pytest_llmbench.stats.backlog import NO_RISE, Rise
from pytest_llmbench.stats.bounds.moments import moment_bound
from pytest_llmbench.stats.percentile_intervals import risen
from pytest_llmbench.stats.percentiles import Ordered
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, mean_of, middle, pooled
from pytest_llmbench.stats.spectral import (
    FEWEST_EFFECTIVE,
    Spread,
    mean_interval,
    normal_quantile,
    quantile,
    stretched,
    with_rise,
)

CRUDELY = ", crude ends"
"""Added to the method of an estimate with such an end."""
FEWEST = 100
"""Fewest samples for a crude end."""
_TAIL_POWER = 0.4
_LONGEST_STRETCH = 1.5


class Crude(NamedTuple):
    """The crude ends of one sample."""

    least: float
    """The smallest value."""
    mean: float
    factor: float
    """e^ℓ."""
    level: float

    @classmethod
    def of(cls, runs: Runs, of: Spread | None, level: float, rise: Rise = NO_RISE) -> Crude | None:
        """The crude ends of runs with this spread of their mean; None for fewer than a hundred samples, and
        where a hidden queue may be of any length."""
        every = pooled(runs)
        if of is None or len(every) < FEWEST or math.isinf(rise.mean):
            return None
        least, mean = float(every.min()), mean_of(every)
        height = mean - least
        if height <= 0:
            return cls(least, mean, 1.0, level)
        inner = mean_of(np.concatenate([middle(run) for run in runs])) - least
        return cls(least, mean, level_factor(height, of, level) * max(1.0, inner / height), level)

    def of_mean(self) -> Interval:
        height = self.mean - self.least
        return Interval(self.least + height / self.factor, self.least + height * self.factor)

    def of_percentile(self, ordered: Ordered, q: float) -> Interval:
        """The ends of the q-th percentile; the lower one is None where half as many independent samples have
        none. ``ordered``: the samples in ascending order."""
        lower, _ = order_statistics.percentile_interval(
            ordered, q, level=self.level, effective_n=len(ordered) / 2
        )
        upper = self._independent_upper(ordered, q)
        return Interval(
            None if lower is None else self.least + (lower - self.least) / self.factor,
            self.least + (upper - self.least) * self.factor,
        )

    def _independent_upper(self, ordered: Ordered, q: float) -> float:
        n, largest = len(ordered), float(ordered[-1])
        upper = order_statistics.percentile_interval(ordered, q, level=self.level, effective_n=n / 2).upper
        longer = (self._unseen(n) / (1 - q / 100)) ** _TAIL_POWER
        return self.least + (largest - self.least) * max(1.0, longer) if upper is None else upper

    def share_above(self, n: int, largest: float, limit: float) -> float:
        """The most that the share of values above a limit may be, where all n are below it: the limit is the
        crude end of the percentile with that share beyond it. 1 where it is none's."""
        room = (limit - self.least) / self.factor
        if room <= 0 or room < largest - self.least:
            return 1.0
        return self._unseen(n) * math.pow((largest - self.least) / room, 1 / _TAIL_POWER)

    def _unseen(self, n: int) -> float:
        """a: the share beyond which one of n independent values lies with the asked certainty."""
        return float(1 - ((1 - self.level) / 2) ** (1 / n))


def level_factor(height: float, of: Spread, level: float) -> float:
    """e^ℓ of a positive figure with this spread; 1 for a figure of 0."""
    if height <= 0:
        return 1.0
    stretch = min(_LONGEST_STRETCH, stretched(of.recalled, level) or _LONGEST_STRETCH)
    error = of.error * math.sqrt(1 + of.dependence * (stretch**2 - 1))
    return math.exp(quantile(of, level) * error / height)


def mean_ends(runs: Runs, of: Spread, *, level: float, rise: Rise) -> tuple[Interval, bool]:
    """The interval of the mean of latencies, and whether it has a crude end: where the sample is worth fewer
    than 30, or bounds nothing above."""
    own = mean_interval(runs, level=level, of=of, rise=rise.mean, fall=rise.fall)
    if of.worth >= FEWEST_EFFECTIVE and own.upper is not None:
        return own, False
    crude = Crude.of(runs, of, level, rise)
    if crude is None:
        return Interval(own.lower, None), False
    every = pooled(runs)
    independent = normal_quantile(level) * float(every.std()) / math.sqrt(len(every))
    upper = with_rise(crude.of_mean().upper, crude.mean, independent, rise.mean)
    return Interval(own.lower, upper), True


def far_ends(
    crude: Crude | None, runs: Runs, ordered: FloatArray, q: float, *, lags: int, level: float, rise: Rise
) -> Interval:
    """Ends of the q-th percentile for where its own are open: above the nearer of the crude one and the bound
    by a moment, lengthened for a hidden queue. ``crude``: of these runs; ``lags``: their memory."""
    lower, upper = OPEN if crude is None else crude.of_percentile(ordered, q)
    bound = moment_bound(runs, q, lags=lags, level=level)
    if bound is not None:
        upper = bound.end if upper is None else min(upper, bound.end)
    return Interval(lower, risen(upper, ordered, q, level=level, rise=rise))
