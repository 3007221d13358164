"""An upper bound of a percentile where order statistics give none: Markov's inequality on a high moment.

For samples X ≥ 0, P(X > u) ≤ E[Xᵏ] / uᵏ. So the q-th percentile is at most (E[Xᵏ] / (1 - q/100))^(1/k), and
at most the same with an upper limit of that moment: mean of the powers + t · error, t and error those of the
means of B consecutive batches. The bound is loose (1.8 times the P99 of exponential latencies for k = 3, at
best) and needs far fewer samples than the percentile's own interval, so it decides limits that are far away.

B = n / (4 m), from 3 to 16, m the memory of the series: batches must be nearly independent. k is 3, and 4
where the sample is 64 memories long. The sample may be a quiet stretch: the fourth moment of a thousand
requests then misses the true percentile of a queue at 80 to 90 % load in up to 30 of a hundred samples, and
any moment of a few hundred does. Hence no bound below 500 samples, nor below 16 memories, nor for a
percentile with fewer than five samples beyond it. How often it holds: docs/reference/statistics.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.runs import FloatArray, Runs
from pytest_llmbench.stats.spectral import student_quantile

FEWEST, FEWEST_BEYOND, FEWEST_MEMORIES = 500, 5, 16
"""Samples in all, samples beyond the percentile, and lengths of the memory that a bound takes."""
_POWER, _HIGHER_POWER = 3, 4
_MEMORIES_OF_HIGHER = 64
_FEWEST_BATCHES, _MOST_BATCHES = 3, 16
_MEMORIES = 4
"""The memories that a batch is long."""


class MomentBound(NamedTuple):
    end: float
    power: int

    def __str__(self) -> str:
        return "the mean (Markov)" if self.power == 1 else f"the moment E[X^{self.power}]"


def bound_by_mean(mean_upper: float | None, least: float, q: float) -> MomentBound | None:
    """The same by the upper end of the mean: P(X > u) ≤ E[X] / u. For P50 that is twice the mean; it holds
    wherever the mean's interval does, of few samples too. ``None`` above P50, where it says next to nothing,
    where the mean is open, and for negative samples. ``least``: the smallest."""
    if mean_upper is None or least < 0 or q > 50:
        return None
    return MomentBound(mean_upper / (1 - q / 100), 1)


def nearest(*bounds: MomentBound | None) -> MomentBound | None:
    """The lowest of those that there are."""
    return min((bound for bound in bounds if bound is not None), default=None)


def moment_bound(runs: Runs, q: float, *, lags: int, level: float = 0.95) -> MomentBound | None:
    """Upper end of the q-th percentile at ``level`` (two-sided, as the ends of intervals are), and the power
    of its moment; ``None`` for too few samples, see above, and for negative ones. It grows with q.

    ``runs``: in arrival order. ``lags``: their memory.
    """
    n = sum(map(len, runs))
    beyond = 1 - q / 100
    # n (1 - q/100) is 4.999… for 500 samples and P99.
    if n < max(FEWEST, FEWEST_MEMORIES * lags) or n * beyond < FEWEST_BEYOND - 1e-9:
        return None
    if min(float(run.min()) for run in runs) < 0:
        return None
    power = _HIGHER_POWER if n >= _MEMORIES_OF_HIGHER * lags else _POWER
    scale = max(float(run.max()) for run in runs)
    if scale == 0.0:
        return MomentBound(0.0, power)
    powers = tuple((run / scale) ** power for run in runs)
    means = _batch_means(powers, n, max(_FEWEST_BATCHES, min(_MOST_BATCHES, n // (_MEMORIES * lags))))
    if len(means) < _FEWEST_BATCHES:
        return None
    moment = sum(float(own.sum()) for own in powers) / n
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
    highest = moment + student_quantile(len(means) - 1, level) * error
    return MomentBound(float(scale * (highest / beyond) ** (1 / power)), power)


def _batch_means(runs: Runs, n: int, batches: int) -> FloatArray:
    """Each run has its share of the batches, and one at least."""
    found = []
    for run in runs:
        own = min(len(run), max(1, round(batches * len(run) / n)))
        found += [float(np.mean(part)) for part in np.array_split(run, own)]
    return np.asarray(found, dtype=np.float64)
