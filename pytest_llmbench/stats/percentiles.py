"""Sample percentiles: linear interpolation between order statistics, type 7 of Hyndman and Fan (AMB-36)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_llmbench.stats.runs import FloatArray


def percentile(samples: FloatArray, q: float) -> float:
    """The q-th percentile, ``q`` from 0 to 100. ValueError without samples: there is no number to give."""
    return float(percentiles(samples, (q,))[0])


def percentiles(samples: FloatArray, qs: Sequence[float]) -> FloatArray:
    """Several percentiles of the same samples. ValueError without samples."""
    if len(samples) == 0:
        raise ValueError("no samples, no percentile")
    return np.asarray(np.percentile(samples, qs, method="linear"), dtype=np.float64)


__all__ = ["percentile", "percentiles"]
