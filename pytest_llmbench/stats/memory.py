"""The memory of a series of samples: the lags after which nothing is significant.

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
"""The fewest means at the longest scale that memory is looked for at."""
_FIRST_LAGS, _QUIET_END = 512, 10


def memory(samples: Samples, *, scales: bool = True) -> int:
    """Lags after which no autocorrelation of the runs is significant; 1 for independent samples.

    ``scales``: or none of their means of 2, 4, 8, … in a row, if that is farther.
    """
    varied = _varied(samples)
    if not varied:
        return 1
    return max(1, _last_lag(varied), _farthest(varied, 2) if scales else 0)


def persistence(samples: Samples) -> int:
    """The same of positive autocorrelation without a gap: what swings to and fro has none."""
    varied = _varied(samples)
    return max(1, _farthest(varied, 1)) if varied else 1


def _varied(samples: Samples) -> list[FloatArray]:
    """Runs that are long enough and not constant, scaled so that no square overflows or vanishes."""
    runs = [run for run in as_runs(samples) if len(run) >= SHORTEST_SERIES]
    scale = max((float(np.max(np.abs(run))) for run in runs), default=0.0)
    return [run / scale for run in runs if not is_constant(run)]


def _farthest(varied: Sequence[FloatArray], width: int) -> int:
    """The farthest significant lag at the scales from ``width`` on."""
    longest = 0
    while sum(len(run) // width for run in varied) >= _FEWEST_MEANS:
        means = [batch_means(run, width) for run in varied if len(run) // width >= SHORTEST_SERIES]
        rough = [run for run in means if not is_constant(run)]
        longest = max(longest, width * _first_lags(rough) if rough else 0)
        width *= 2
    return longest


def _first_lags(means: Sequence[FloatArray]) -> int:
    """How many lags from the first on have significant positive autocorrelation: of many scales that are
    tried, single lags further out would turn up by chance."""
    n = sum(map(len, means))
    correlation = _correlation(means, min(max(map(len, means)) // 2, _FIRST_LAGS))[1:]
    small = np.flatnonzero(correlation < significant_correlation(n))
    return int(small[0]) if len(small) else len(correlation)


def _last_lag(runs: Sequence[FloatArray]) -> int:
    n, longest = sum(map(len, runs)), max(map(len, runs)) // 2
    lags = min(longest, _FIRST_LAGS)
    while True:
        last = last_significant_lag(_correlation(runs, lags), n)
        # Significant to the end of the lags looked at: there may be more.
        if last < lags - _QUIET_END or lags == longest:
            return last
        lags = min(longest, 8 * lags)


def _correlation(runs: Sequence[FloatArray], lags: int) -> FloatArray:
    """ρ(0) … of all runs, each around its own mean."""
    total = np.zeros(lags + 1)
    for run in runs:
        own = min(lags, len(run) - 1)
        total[: own + 1] += len(run) * autocovariance(run, own)
    return np.asarray(total / total[0], dtype=np.float64)
