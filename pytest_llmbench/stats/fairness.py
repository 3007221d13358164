"""How evenly something is shared: Jain's index, and the share that waits far longer than the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats import bootstrap
from pytest_llmbench.stats.dependence import block_length, effective_size
from pytest_llmbench.stats.proportion import wilson_interval
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, Samples, as_runs, pooled

_CELLS = 30_000
"""Of a resampling matrix held at once, as in :mod:`pytest_llmbench.stats.bootstrap`."""


class Starvation(NamedTuple):
    share: float
    starved: int
    of: int
    effective_n: float
    interval: Interval


def jain_index(shares: FloatArray) -> float | None:
    """J = (Σ x)² / (n Σ x²), from 1/n (one has all) to 1 (all alike); section 5.6.4.

    ``None`` without shares and when all are zero. ValueError for negative ones.
    """
    if (shares < 0).any():
        raise ValueError("Jain's index is of shares, which are not negative")
    largest = float(np.max(shares, initial=0.0))
    if largest == 0.0:
        return None
    scaled = shares / largest  # so that no square overflows or vanishes
    return float(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()))


def jain_influence(samples: Samples) -> Runs:
    """What each sample contributes to the error of J: 2 (x - m1)/m1 - (x² - m2)/m2, times J.

    Its dependence is the index's: effective size and block length are read from it.
    """
    runs = as_runs(samples)
    every = pooled(runs)
    first, second = float(np.mean(every)), float(np.mean(np.square(every)))
    index = first**2 / second
    return tuple(index * (2 * (run / first - 1) - (np.square(run) / second - 1)) for run in runs)


def jain_interval(samples: Samples, *, seed: int, level: float = 0.95, block: int | None = None) -> Interval:
    """Interval of J of dependent samples; open where J is undefined. ``block``: of :func:`jain_influence`.

    Circular block bootstrap, studentised on the logarithmic scale (Hall 1992): each resample's log J is taken
    relative to its own standard error. J rests on squares, so its standard error is small whenever the few
    largest samples happen to be missing; percentiles of plain resamples would be too narrow.
    """
    runs = as_runs(samples)
    every = pooled(runs)
    index = jain_index(every)
    if len(every) < 2 or index is None:
        return OPEN
    if float(np.ptp(every)) == 0.0:
        return Interval(1.0, 1.0)
    runs = tuple(run / float(every.max()) for run in runs)
    block = block_length(jain_influence(runs)) if block is None else block
    terms, blocks = _block_terms(runs, block), max(2, round(len(every) / block))
    centre, error = _log_jain(terms.mean(axis=1)[:, None], blocks)
    random = np.random.default_rng(seed)
    rows = max(1, _CELLS // blocks)
    scores = []
    for first in range(0, bootstrap.RESAMPLES, rows):
        drawn = random.integers(terms.shape[1], size=(min(rows, bootstrap.RESAMPLES - first), blocks))
        logarithms, errors = _log_jain(
            np.stack([np.take(term, drawn).mean(axis=1) for term in terms]), blocks
        )
        defined = errors > 0
        scores.append((logarithms - centre)[defined] / errors[defined])
    low, high = np.quantile(np.concatenate(scores), [(1 - level) / 2, (1 + level) / 2])
    lower, upper = np.exp(centre - np.array([high, low])[:, None] * error)[:, 0]
    return Interval(max(1 / len(every), min(float(lower), index)), min(1.0, max(float(upper), index)))


def _block_terms(runs: Runs, block: int) -> FloatArray:
    """For the circular block at every position its means of x and x², and their products."""
    circles = [np.concatenate((run, run[: block - 1])) for run in runs]
    means, squares = (
        np.concatenate(
            [np.convolve(circle**power, np.full(block, 1 / block), mode="valid") for circle in circles]
        )
        for power in (1, 2)
    )
    return np.stack([means, squares, means**2, squares**2, means * squares])


def _log_jain(terms: FloatArray, blocks: int) -> tuple[FloatArray, FloatArray]:
    """log (m1²/m2), and its standard error from the variance of 2 x̄/m1 - x̄²/m2 over blocks."""
    first, second, first_squared, second_squared, product = terms
    variance = 4 * first_squared / first**2 + second_squared / second**2 - 4 * product / (first * second) - 1
    return np.log(first**2 / second), np.sqrt(np.maximum(variance, 0.0) / blocks)


def jain_of_means_interval(groups: Sequence[FloatArray], *, freedom: float, level: float = 0.95) -> Interval:
    """Interval of J over the values of some groups, each given as its resampled (bootstrap) values.

    J has its maximum where all groups are alike, so resampled indices always lie below 1, even if the groups
    are alike in truth. Unless a Wald test of the logarithms rejects that, the upper end is therefore 1.
    """
    drawn = np.stack(groups)
    if len(drawn) < 2 or float(drawn.min()) <= 0:
        return OPEN
    indices = np.square(drawn.sum(axis=0)) / (len(drawn) * np.square(drawn).sum(axis=0))
    lower, upper = bootstrap.interval_between(indices, freedom + 1, level=level)
    return Interval(lower, 1.0 if _all_alike(np.log(drawn), freedom, level) else upper)


def starvation(samples: Samples, *, factor: float = 5.0, level: float = 0.95) -> Starvation | None:
    """Share of waits longer than ``factor`` times the median wait (section 5.6.4, AMB-10); ``None`` without.

    Wilson's interval, at the effective size of the starved/not starved series.
    """
    runs = as_runs(samples)
    if not runs:
        return None
    threshold = factor * float(np.median(pooled(runs)))
    starved = [(run > threshold).astype(np.float64) for run in runs]
    count, of = sum(int(run.sum()) for run in starved), sum(len(run) for run in starved)
    worth = effective_size(starved)
    interval = wilson_interval(count, of, level=level, effective_n=worth)
    return Starvation(count / of, count, of, worth, interval)


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


__all__ = [
    "Starvation",
    "jain_index",
    "jain_influence",
    "jain_interval",
    "jain_of_means_interval",
    "starvation",
]
