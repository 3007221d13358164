"""A ratio of sums of dependent samples, Σ a / Σ b: rates over slices of time, hits over tokens asked for.

Its influence is (a - ratio · b) / mean b, a mean, and its interval Student's t on the long-run variance of
that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pytest_llmbench.stats.memory import memory_and_persistence
from pytest_llmbench.stats.runs import OPEN, Interval, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, Spread, quantile, spread, student_interval


class Ratio(NamedTuple):
    point: float
    of: Spread | None
    """The spread of the influence; ``None`` below ten samples."""

    def interval(self, level: float) -> Interval:
        """The interval; open below 30 effective samples. The numerators must not be negative, and neither is
        a lower end."""
        if self.of is None or self.of.worth < FEWEST_EFFECTIVE:
            return OPEN
        lower, upper = student_interval(self.point, self.of, level=level)
        return Interval(None if lower is None else max(0.0, lower), upper)

    def crude(self, level: float) -> Interval:
        """The same distance on the scale of logarithms, for few effective samples."""
        if self.of is None or self.point <= 0:
            return OPEN
        away = math.exp(quantile(self.of, level) * self.of.error / self.point)
        return Interval(self.point / away, self.point * away)


def ratio_of(numerators: Samples, denominators: Samples, *, seed: int = 0) -> Ratio:
    """The ratio of paired samples, one vector per run in the order of time, at least one.

    Raises ValueError where the lengths differ or a denominator is not positive. ``seed``: of bootstrap
    intervals.
    """
    above, below = as_runs(numerators), as_runs(denominators)
    if [len(run) for run in above] != [len(run) for run in below]:
        raise ValueError("numerators and denominators differ in length")
    if any(float(run.min()) <= 0 for run in below):
        raise ValueError("a ratio of sums needs positive denominators")
    point = float(pooled(above).sum() / pooled(below).sum())
    around = as_runs(influence(above, below, point))
    lags, without_gap = memory_and_persistence(around)
    of = spread(around, lags=lags, seed=seed)
    if of is not None:
        # Batches of an engine swing to and fro in slices of time; that is no slow process half seen.
        recalled = (without_gap - 1) / sum(map(len, around))
        of = of._replace(recalled=min(of.recalled, recalled))
    return Ratio(point, of)


def influence(above: Runs, below: Runs, ratio: float) -> Runs:
    """The influence of each pair: how far it moves the ratio, times the number of pairs."""
    mean = float(pooled(below).mean())
    return tuple((a - ratio * b) / mean for a, b in zip(above, below, strict=True))
