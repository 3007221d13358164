"""Intervals of a share of dependent trials, and of a ratio of sums of dependent samples.

That of a share is Clopper and Pearson's (1934, Biometrika 26): n trials are worth n / τ independent ones, τ
from the long-run variance of the 0/1 series (:mod:`~pytest_llmbench.stats.spectral`), discounted for its own
uncertainty (Korn and Graubard 1998, Survey Methodology 24) and, at both ends, for the sample being a stretch
of a few memories. Below an effective size of 30 dependent trials bound nothing; independent ones do at any
number, since the interval is exact. How far scores stay from their limit bounds the share from below too, and
the nearer end counts (:mod:`~pytest_llmbench.stats.crude`).

Ratios Σ a / Σ b are rates over slices of time, hits over tokens asked for. The influence of a pair is (a -
ratio · b) / mean b, a mean, and its interval Student's t on the long-run variance of that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.backlog import NO_RISE, Backlog, Rise
from pytest_llmbench.stats.crude import Crude
from pytest_llmbench.stats.dependence import exceedances, memory_and_persistence
from pytest_llmbench.stats.percentiles import Worth, median_worth, percentile_worth, series_memory
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, Spread, quantile, spread, student_interval

_MANY = 75.0
"""The percentile from which on few misses tell more about dependence than how many waited."""


class Share(NamedTuple):
    ones: int
    of: int
    worth: float
    """Effective number of independent trials."""
    interval: Interval
    crude: bool = False
    """Whether the lower end is a bound by how far the trials stayed away from the limit."""

    @property
    def share(self) -> float:
        return self.ones / self.of


def share_within(scores: Samples, *, level: float = 0.95, backlog: Backlog | None = None) -> Share | None:
    """Share of scores that are at most 1. ``scores``: one vector per run in the order of trials; ``None``
    without trials.

    How much trials depend on each other is read from how close they came to 1, so that a run without a miss
    is not taken for so many independent successes; and as of a percentile, misses of the minority are never
    taken for less than half as dependent as the median. ``backlog``: in the unit of the scores; the lower end
    allows for a hidden queue as long as it may be.
    """
    runs = as_runs(scores)
    if not runs:
        return None
    met, lags = _within(runs), series_memory(runs)
    q = 100.0 * float(np.mean(pooled(met)))
    median = median_worth(runs, lags=lags)
    found = share_of(met, level=level, dependence=exceedances(runs, q), median=median if q > 50 else None)
    if found is None or found.interval.lower is None:
        return found
    lower = _lower_as_dependent_as_there(found, runs, lags, median, level)
    rise = NO_RISE if backlog is None else backlog.rise(runs, level)
    crude = Crude.of(runs, spread(runs, lags=lags), level, rise)
    if crude is not None:
        far = _crude_lower(crude, pooled(runs), found)
        found, lower = found._replace(crude=far > lower), max(far, lower)
    if backlog is not None:
        lower = min(lower, _lower_of_longer_waits(found, runs, backlog, rise, level))
    return found._replace(interval=Interval(lower, found.interval.upper))


def _lower_as_dependent_as_there(found: Share, runs: Runs, lags: int, median: Worth, level: float) -> float:
    """The lower end by the worth for the percentile that it names, if that is less.

    That at least a share p keeps a limit says that the p-th percentile is at most the limit, so the end is as
    dependent as that percentile's. Fewer misses than these come in a quiet stretch, and look independent.
    """
    lower = found.interval.lower
    if not lower:
        return 0.0
    worth = percentile_worth(runs, 100 * lower, lags=lags, median=median)
    alike = found.ones == found.of
    usable = worth.usable(found.of, level) if alike else worth.usable_above(found.of, level, fewest=1)
    if usable is None:
        return 0.0
    tail = (1 - level) / 2
    return min(lower, exact_share_interval(found.ones, found.of, tail=tail, effective_n=usable)[0])


def _crude_lower(crude: Crude, scores: FloatArray, found: Share) -> float:
    """The lower end by how far the scores stay from 1: that of half as many independent scores with the
    highest level; and where all kept it, 1 is the crude end of some percentile."""
    kept = int(np.count_nonzero(crude.moved(scores) <= 1.0))
    tail = (1 - crude.level) / 2
    lower, _ = exact_share_interval(kept, found.of, tail=tail, effective_n=found.of / 2)
    if found.ones < found.of:
        return lower
    return max(lower, 1 - crude.share_above(found.of, float(scores.max()), 1.0))


def _lower_of_longer_waits(found: Share, runs: Runs, backlog: Backlog, rise: Rise, level: float) -> float:
    """The lower end if waits were as long as they may be: √(a² + d²) below the share, a the distance for
    independent trials, d what such waits may take from it."""
    if 100 * found.share > _MANY:
        worse = float(np.mean(pooled(_within(backlog.lengthened(runs, rise.share)))))
    else:
        worse = backlog.share_within(runs, 1.0, rise.beyond, level)
    independent, _ = exact_share_interval(found.ones, found.of, tail=(1 - level) / 2)
    return max(0.0, found.share - math.hypot(found.share - independent, max(0.0, found.share - worse)))


def _within(runs: Runs) -> Runs:
    return tuple((run <= 1.0).astype(np.float64) for run in runs)


def share_of(
    happened: Samples,
    *,
    level: float = 0.95,
    dependence: Samples | None = None,
    median: Worth | None = None,
) -> Share | None:
    """Share of ones in 0/1 series, one per run in the order of trials; ``None`` without trials.

    ``dependence``: series of the same trials to read the dependence from, if it shows more there; of trials
    that all ended alike nothing else does. ``median``: the worth for the median of what the trials are of,
    if they are known to be half as dependent.
    """
    runs = as_runs(happened)
    if not runs:
        return None
    every = pooled(runs)
    n, count = len(every), int(every.sum())
    alike = count in (0, n)
    # How close rare events came is itself a rare event: no test for a rising spectrum, as with percentiles.
    worth = share_worth(runs if dependence is None else as_runs(dependence), tested=not alike)
    if median is not None:
        worth = worth.at_least_as_dependent(n, median)
    if alike and dependence is None:
        return Share(count, n, float(n), Interval(*exact_share_interval(count, n, tail=(1 - level) / 2)))
    interval = OPEN
    if alike or worth.recalled == 0 or worth.samples >= FEWEST_EFFECTIVE:
        # That all ended alike is no quiet stretch of a share that is known to change.
        effective = worth.usable(n, level) if alike else worth.usable_above(n, level, fewest=1)
        if effective is not None:
            tail = (1 - level) / 2
            interval = Interval(*exact_share_interval(count, n, tail=tail, effective_n=effective))
    return Share(count, n, worth.samples, interval)


def share_worth(series: Samples, *, tested: bool = True) -> Worth:
    """The worth of 0/1 series. ``tested``: as in :func:`~pytest_llmbench.stats.spectral.spread`."""
    runs = as_runs(series)
    n = sum(map(len, runs))
    of = spread(runs, lags=series_memory(runs), tested=tested)
    return Worth(float(n), float(max(1, n - 1))) if of is None else Worth.of_spread(of)


def exact_share_interval(
    successes: int, trials: int, *, tail: float, effective_n: float | None = None
) -> tuple[float, float]:
    """Clopper and Pearson's interval, with the effective number of trials in place of theirs: it holds for
    shares near 0 and 1, where others do not. ``tail``: error on each side."""
    from scipy.special import betaincinv

    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    n = float(trials) if effective_n is None else min(float(trials), max(1.0, effective_n))
    good = n * successes / trials
    lower = 0.0 if successes == 0 else float(betaincinv(good, n - good + 1, tail))
    upper = 1.0 if successes == trials else float(betaincinv(good + 1, n - good, 1 - tail))
    return lower, upper


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
