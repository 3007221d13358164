"""The memory of a series of samples: the number of lags after which no autocorrelation is significant.

Of a slow queue under noisy service no single lag tells: each autocorrelation is the queue's small share of
the variance. Means of 2, 4, 8 … samples in a row average the noise out and leave the queue, so it is looked
for at every such scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_llmbench.stats.dependence import (
    SHORTEST_SERIES,
    autocovariance,
    last_significant_lag,
    significant_correlation,
)
from pytest_llmbench.stats.runs import FloatArray, Samples, as_runs, batch_means, is_constant

_FEWEST_MEANS = 32
"""Fewest means at the longest scale at which memory is looked for."""
_FIRST_LAGS, _QUIET_END = 512, 10


def memory(samples: Samples, *, scales: bool = True) -> int:
    """The memory in lags: after them no autocorrelation of the runs is significant; 1 for independent
    samples.

    ``scales``: or none of their means of 2, 4, 8, … in a row, if that is farther.
    """
    varied = _varied(samples)
    if not varied:
        return 1
    return max(1, _last_lag(varied, _nearest(varied)), _farthest(varied) if scales else 0)


def memory_and_persistence(samples: Samples) -> tuple[int, int]:
    """:func:`memory`, and the memory in positive autocorrelation without a gap, of which a series that
    oscillates has none. Both follow from the same correlations."""
    varied = _varied(samples)
    if not varied:
        return 1, 1
    nearest, farthest, n = _nearest(varied), _farthest(varied), sum(map(len, varied))
    without_gap = _before_gap(nearest, n) if n >= _FEWEST_MEANS else 0
    return max(1, _last_lag(varied, nearest), farthest), max(1, without_gap, farthest)


def _varied(samples: Samples) -> list[FloatArray]:
    """The runs that are long enough and not constant, scaled so that no square overflows or vanishes."""
    runs = [run for run in as_runs(samples) if len(run) >= SHORTEST_SERIES]
    scale = max((float(np.max(np.abs(run))) for run in runs), default=0.0)
    return [run / scale for run in runs if not is_constant(run)]


def _farthest(varied: Sequence[FloatArray]) -> int:
    """The farthest significant lag at the scales from 2 on."""
    longest, width = 0, 2
    while sum(len(run) // width for run in varied) >= _FEWEST_MEANS:
        means = [batch_means(run, width) for run in varied if len(run) // width >= SHORTEST_SERIES]
        rough = [run for run in means if not is_constant(run)]
        longest = max(longest, width * _before_gap(_nearest(rough), sum(map(len, rough))) if rough else 0)
        width *= 2
    return longest


def _nearest(runs: Sequence[FloatArray]) -> FloatArray:
    """Autocorrelations of all runs at the first lags, from ρ(0) on."""
    return _correlation(runs, min(max(map(len, runs)) // 2, _FIRST_LAGS))


def _before_gap(correlation: FloatArray, n: int) -> int:
    """How many lags from the first on have significant positive autocorrelation. Further ones do not count:
    with many scales tried, single lags would turn up by chance."""
    small = np.flatnonzero(correlation[1:] < significant_correlation(n))
    return int(small[0]) if len(small) else len(correlation) - 1


def _last_lag(runs: Sequence[FloatArray], nearest: FloatArray) -> int:
    n, longest = sum(map(len, runs)), max(map(len, runs)) // 2
    correlation = nearest
    while True:
        last, lags = last_significant_lag(correlation, n), len(correlation) - 1
        # Significant to the end of the lags looked at: there may be more.
        if last < lags - _QUIET_END or lags == longest:
            return last
        correlation = _correlation(runs, min(longest, 8 * lags))


def _correlation(runs: Sequence[FloatArray], lags: int) -> FloatArray:
    """Autocorrelations ρ(0), ρ(1) … of all runs, each around its own mean."""
    total = np.zeros(lags + 1)
    for run in runs:
        own = min(lags, len(run) - 1)
        total[: own + 1] += len(run) * autocovariance(run, own)
    return np.asarray(total / total[0], dtype=np.float64)
