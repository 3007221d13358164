"""The empirical distribution function, thinned for drawing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pytest_llmbench.stats.counted import look_up
from pytest_llmbench.stats.percentiles import Ordered

MOST_POINTS = 500


def ecdf(samples: Ordered, most: int = MOST_POINTS) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(values, shares ≤ value), ascending, at most ``most`` points; both empty without samples.

    ``samples``: a vector in any order, or what is in ascending order already because it is only counted.
    The smallest and the largest sample are kept. Half of the points lie evenly over the ranks, half get
    denser towards the top, so that the last percent is drawn as finely as the rest.
    """
    n = len(samples)
    ranks = ecdf_ranks(n, most)
    ordered = np.sort(samples) if isinstance(samples, np.ndarray) else samples
    look_up(ordered, ranks)
    return tuple(float(ordered[rank]) for rank in ranks), tuple((rank + 1) / n for rank in ranks)


def ecdf_ranks(n: int, most: int = MOST_POINTS) -> list[int]:
    """The ranks, from 0, of the samples that are drawn."""
    if most < 2:
        raise ValueError(f"an empirical distribution needs at least 2 points, not {most}")
    return list(range(n)) if n <= most else _thinned_ranks(n, most).tolist()


def _thinned_ranks(n: int, most: int) -> npt.NDArray[np.int64]:
    even = np.linspace(0, n - 1, most // 2)
    from_top = n - np.geomspace(1, n, most - most // 2)
    return np.unique(np.rint(np.concatenate((even, from_top))).astype(np.int64))
