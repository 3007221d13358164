"""How evenly something is shared: Jain's index, and the share that waits far longer than the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pytest_llmbench.stats.backlog import Backlog
from pytest_llmbench.stats.crude import power_mean_bound
from pytest_llmbench.stats.dependence import SHORTEST_SERIES
from pytest_llmbench.stats.memory import memory
from pytest_llmbench.stats.percentile_intervals import series_memory
from pytest_llmbench.stats.proportion import Share, share_of
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, Spread, legs, mean_interval, spread, upper_end

DRAWS = 2000
_SPREAD_POWER = 1.5
"""Power with which the error of c² grows: the least for which the interval holds for log-normal samples with
σ = 1, independent ones and ones with ρ = 0.8."""


def jain_index(shares: FloatArray) -> float | None:
    """Jain's index J = (Σ x)² / (n Σ x²), from 1/n (one has all) to 1 (all alike); section 5.6.4.

    ``None`` without shares and when all are zero. ValueError for negative ones.
    """
    if (shares < 0).any():
        raise ValueError("Jain's index is of shares, which are not negative")
    largest = float(np.max(shares, initial=0.0))
    if largest == 0.0:
        return None
    scaled = shares / largest  # so that no square overflows or vanishes
    return float(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()))


def jain_interval(
    samples: Samples, *, level: float = 0.95, of: Spread | None = None, backlog: Backlog | None = None
) -> Interval:
    """Interval of J of dependent samples; open where J is undefined. ``of``: their :func:`jain_spread`.
    ``backlog``: what each latency waited; if they have waits in them, both ends allow for the index of
    latencies whose waits are drawn out as far as they may be.

    J = 1 / (1 + c²), c the coefficient of variation: c² and both its ends are turned into J. c² rests on
    squares and is too small, with too small an error, whenever the few largest samples happen to be missing;
    its upper end is therefore the value whose error, growing as its power 3/2, still reaches the observed
    one. Where there is none, J is at least the square of the mean's lower end over the upper end of the mean
    square, each at half the error: far off, and enough for a floor that is farther. Where the mean square has
    no upper end either: c² is at most the mean square of what is above the smallest sample over the square of
    the mean, and that mean square is at most the square of a mean of a higher power.
    """
    runs = as_runs(samples)
    every = pooled(runs)
    index = jain_index(every)
    if len(every) < 2 or index is None:
        return OPEN
    if float(np.ptp(every)) == 0.0:
        return Interval(1.0, 1.0)
    of = jain_spread(runs) if of is None else of
    if of is None:
        return OPEN
    square = 1 / index - 1
    down, _ = legs(of, level)
    most = upper_end(square, of, level, _SPREAD_POWER)
    lower = _by_moments(runs, level) if most is None else 1 / (1 + most)
    lower = None if lower is None else max(1 / len(every), lower)
    upper = 1.0 if down is None else min(1.0, 1 / (1 + max(0.0, square - down)))
    if backlog is None or not backlog.may_lengthen(runs):
        return Interval(lower, upper)
    worse = jain_index(pooled(backlog.drawn_out(runs, level))) or index
    if worse >= index:
        return Interval(lower, max(upper, index + math.hypot(upper - index, worse - index)))
    if lower is not None:
        lower = max(1 / len(every), min(lower, index - math.hypot(index - lower, index - worse)))
    return Interval(lower, upper)


def _by_moments(runs: Runs, level: float) -> float | None:
    """A lower end of (Σ x)² / (n Σ x²), by moments; None where there is none."""
    each = (1 + level) / 2
    least = mean_interval(runs, level=each).lower
    if least is None or least <= 0:
        return None
    squares = tuple(np.square(run) for run in runs)
    lags = max(memory(squares), series_memory(runs))
    of = spread(squares, lags=lags)
    if of is None or of.worth < FEWEST_EFFECTIVE:
        return None
    most = mean_interval(squares, level=each, of=of).upper
    if most is not None:
        return least**2 / most
    highest = power_mean_bound(runs, lags=lags, level=each)
    return None if highest is None else 1 / (1 + (highest.end / least) ** 2)


def jain_spread(samples: Samples) -> Spread | None:
    """The spread of c² = 1/J - 1 = m2/m1² - 1, from its influence (x² - m2)/m1² - 2 (x - m1) m2/m1³.

    ``worth``: that of the influence or of the samples themselves, whichever is less; ``None`` below ten.
    """
    runs = as_runs(samples)
    every = pooled(runs)
    if len(every) < SHORTEST_SERIES or float(every.max()) <= 0.0:
        return None
    runs = tuple(run / float(every.mean()) for run in runs)
    second = float(np.mean(np.square(pooled(runs))))
    influence = tuple(np.square(run) - second - 2 * second * (run - 1) for run in runs)
    lags = max(memory(influence), series_memory(runs))
    own, other = spread(influence, lags=lags), spread(runs, lags=lags)
    if own is None or other is None:
        return None
    return own._replace(worth=min(own.worth, other.worth))


def jain_of_means_interval(groups: Sequence[FloatArray], *, freedom: float, level: float = 0.95) -> Interval:
    """Interval of J over the values of some groups, each given as draws of it.

    J has its maximum where all groups are alike, so drawn indices always lie below 1, even if the groups
    are alike in truth. Unless a Wald test of the logarithms rejects that, the upper end is therefore 1.
    """
    drawn = np.stack(groups)
    if len(drawn) < 2 or float(drawn.min()) <= 0:
        return OPEN
    indices = np.square(drawn.sum(axis=0)) / (len(drawn) * np.square(drawn).sum(axis=0))
    tail = _expanded_tail(max(freedom, 1.0), level)
    lower, upper = (float(end) for end in np.quantile(indices, [tail, 1 - tail]))
    return Interval(lower, 1.0 if _all_alike(np.log(drawn), freedom, level) else upper)


def drawn_ratio(
    arms: Sequence[tuple[float, Spread | None]], level: float, random: np.random.Generator
) -> FloatArray:
    """Draws of first mean / second mean, log-normal with the relative errors of both; empty where an error
    has no bound."""
    variance = 0.0
    for mean, of in arms:
        by = None if of is None else of.lengthening(level)
        if of is None or by is None:
            return np.empty(0)
        variance += (by * of.error / mean) ** 2
    return np.asarray(
        arms[0][0] / arms[1][0] * np.exp(math.sqrt(variance) * random.normal(size=DRAWS)), dtype=np.float64
    )


def starvation(samples: Samples, *, factor: float = 5.0, level: float = 0.95) -> Share | None:
    """Share of waits longer than ``factor`` times the median (section 5.6.4, AMB-10); ``None`` without
    waits."""
    runs = as_runs(samples)
    if not runs:
        return None
    threshold = factor * float(np.median(pooled(runs)))
    return share_of([(run > threshold).astype(np.float64) for run in runs], level=level)


def _expanded_tail(freedom: float, level: float) -> float:
    """The tail share at which quantiles of normal draws have the coverage of Student's t.

    It is Φ(√((ν + 1) / ν) t_{α/2, ν}) (Hesterberg 2015, The American Statistician 69).
    """
    from scipy.special import ndtr, stdtrit

    return float(ndtr(math.sqrt((freedom + 1) / freedom) * float(stdtrit(freedom, (1 - level) / 2))))


def _all_alike(logarithms: FloatArray, freedom: float, level: float) -> bool:
    """Wald test of "the differences to the first group are zero", with Hotelling's F quantile."""
    from scipy.special import fdtri

    differences = logarithms[1:] - logarithms[0]
    centre = differences.mean(axis=1)
    covariance = np.atleast_2d(np.cov(differences))
    if not np.diag(covariance).all():
        return not centre.any()
    count = len(centre)
    statistic = float(centre @ np.linalg.pinv(covariance) @ centre)
    rest = max(freedom - count + 1, 1.0)
    return statistic <= count * freedom / rest * float(fdtri(count, rest, level))
