"""An upper bound of a percentile where order statistics give none: Markov's inequality on a high moment.

For Y = X - min X ≥ 0, P(Y > u) ≤ E[Yᵏ] / uᵏ. So the q-th percentile of X is at most
min X + (E[Yᵏ] / (1 - q/100))^(1/k), and at most the same with an upper limit of that moment: mean of the
powers + t · error, t and error those of the means of 16 consecutive batches, the error lengthened where the
sample is a few memories long (:func:`~pytest_llmbench.stats.spectral.stretched`). The bound is loose (1.8
times the P99 of exponential latencies for k = 3, at best, and 1.5 times for k = 4) and needs far fewer
samples than the percentile's own interval, so it decides limits that are far away.

k = 3 + ½ ln(n / 24 m), from 3 to 4, m the memory of the series. A higher power is nearer and takes a longer
sample: a thousand requests of a queue at 80 to 90 % load may be a quiet stretch, and nothing in them tells it
from a calm system. The fourth moment then misses the true percentile in up to 30 of a hundred samples, and
any moment of a few hundred requests does. Hence no bound below 500 samples, nor below 16 memories, nor for a
percentile with fewer than five samples beyond it. How often it holds: docs/reference/statistics.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.runs import FloatArray, Runs
from pytest_llmbench.stats.spectral import stretched, student_quantile

FEWEST, FEWEST_BEYOND, FEWEST_MEMORIES = 500, 5, 16
"""Fewest samples in all, fewest samples beyond the percentile, and fewest lengths of the memory for a
bound."""
_LOWEST_POWER, _HIGHEST_POWER = 3.0, 4.0
_MEMORIES_OF_LOWEST = 24
_FEWEST_BATCHES, _BATCHES = 3, 16


class MomentBound(NamedTuple):
    end: float
    power: float


def samples_required(q: float, *, lags: int) -> int:
    """Fewest samples with this memory for which the q-th percentile has a bound."""
    # 5 / (1 - q/100) is 500.000…04 for P99.
    beyond = math.ceil(FEWEST_BEYOND / (1 - q / 100) - 1e-6)
    return max(FEWEST, FEWEST_MEMORIES * lags, beyond)


def moment_bound(runs: Runs, q: float, *, lags: int, level: float = 0.95) -> MomentBound | None:
    """Upper end of the q-th percentile at ``level`` (two-sided, as the ends of intervals are), and the power
    of its moment; ``None`` for too few samples, see above, and for negative ones. It grows with q.

    ``runs``: in arrival order. ``lags``: their memory.
    """
    n = sum(map(len, runs))
    if n < samples_required(q, lags=lags):
        return None
    spread_out = power_mean_bound(runs, lags=lags, level=level)
    if spread_out is None:
        return None
    least = min(float(run.min()) for run in runs)
    return MomentBound(least + spread_out.end / (1 - q / 100) ** (1 / spread_out.power), spread_out.power)


def power_mean_bound(runs: Runs, *, lags: int, level: float = 0.95) -> MomentBound | None:
    """Upper end of (E[Yᵏ])^(1/k), Y = X - min X, at ``level`` (two-sided); ``None`` for too few samples, see
    above, and for negative ones. No mean of a lower power is above it
    (Lyapunov's inequality)."""
    n = sum(map(len, runs))
    if n < max(FEWEST, FEWEST_MEMORIES * lags):
        return None
    least = min(float(run.min()) for run in runs)
    stretch = stretched((lags - 1) / n, level)
    if least < 0 or stretch is None:
        return None
    power = _power(n / lags)
    scale = max(float(run.max()) for run in runs) - least
    if scale == 0.0:
        return MomentBound(0.0, power)
    powers = tuple(((run - least) / scale) ** power for run in runs)
    means = _batch_means(powers, n, _BATCHES)
    if len(means) < _FEWEST_BATCHES:
        return None
    moment = sum(float(own.sum()) for own in powers) / n
    error = stretch * float(np.std(means, ddof=1)) / math.sqrt(len(means))
    highest = moment + student_quantile(len(means) - 1, level) * error
    return MomentBound(float(scale * highest ** (1 / power)), power)


def _power(memories: float) -> float:
    """The power of the moment, from 3 to 4, for a sample that is so many memories long."""
    power = _LOWEST_POWER + math.log(memories / _MEMORIES_OF_LOWEST) / 2
    return min(_HIGHEST_POWER, max(_LOWEST_POWER, power))


def _batch_means(runs: Runs, n: int, batches: int) -> FloatArray:
    """The means of consecutive batches. Each run has its share of the batches, and at least one."""
    found = []
    for run in runs:
        own = min(len(run), max(1, round(batches * len(run) / n)))
        found += [float(np.mean(part)) for part in np.array_split(run, own)]
    return np.asarray(found, dtype=np.float64)
