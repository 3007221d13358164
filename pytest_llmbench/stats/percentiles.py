"""Sample percentiles.

Two estimators, to be declared and never mixed: ``linear``, interpolation between order statistics, type 7 of
Hyndman and Fan (1996, The American Statistician 50), is what all figures of the draft are (AMB-36) and what
other tools print. ``harrell-davis`` is a mean of all order statistics, steadier for P50 to P90; of a P99 of
few samples it makes a blend with the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np

from pytest_llmbench.stats.runs import FloatArray

Estimator = Literal["linear", "harrell-davis"]
PERCENTILES: Mapping[str, float] = MappingProxyType(
    {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
)
"""Name of a statistic of a distribution → its percentile."""


class Ordered(Protocol):
    """Samples in ascending order, accessed by rank: a sorted vector, or one that is only counted."""

    def __len__(self) -> int: ...

    def __getitem__(self, rank: int, /) -> Any: ...


def percentile(samples: FloatArray, q: float, *, estimator: Estimator = "linear") -> float:
    """The q-th percentile, ``q`` from 0 to 100. ValueError without samples: there is no number to give."""
    return float(percentiles(samples, (q,), estimator=estimator)[0])


def percentiles(samples: FloatArray, qs: Sequence[float], *, estimator: Estimator = "linear") -> FloatArray:
    """Several percentiles of the same samples. ValueError without samples."""
    if len(samples) == 0:
        raise ValueError("no samples, no percentile")
    if estimator == "harrell-davis":
        ordered = np.sort(samples)
        return np.array([_harrell_davis(ordered, q) for q in qs])
    return np.asarray(np.percentile(samples, qs, method="linear"), dtype=np.float64)


def percentile_ranks(n: int, qs: Sequence[float]) -> list[int]:
    """The ranks, from 0, that :func:`ordered_percentile` reads."""
    lows = [math.floor((n - 1) * q / 100) for q in qs]
    return [rank for low in lows for rank in (low, min(low + 1, n - 1))]


def ordered_percentile(ordered: Ordered, q: float) -> float:
    """Type 7 percentile of samples in ascending order, reading two of them. ValueError without samples."""
    if len(ordered) == 0:
        raise ValueError("no samples, no percentile")
    rank = (len(ordered) - 1) * q / 100
    low = math.floor(rank)
    below = float(ordered[low])
    if rank == low:
        return below
    return below + (rank - low) * (float(ordered[low + 1]) - below)


def _harrell_davis(ordered: FloatArray, q: float) -> float:
    """Harrell and Davis' estimate Σ w_i x_(i), w_i = I(i/n) - I((i-1)/n), I the distribution function of
    Beta((n+1)p, (n+1)(1-p)) (1982, Biometrika 69). P0 and P100 are the extremes."""
    if not 0 < q < 100:
        return float(ordered[0] if q <= 0 else ordered[-1])
    from scipy.special import betainc

    n, share = len(ordered), q / 100
    reached = betainc((n + 1) * share, (n + 1) * (1 - share), np.arange(n + 1) / n)
    return float(np.diff(reached) @ ordered)
