"""The empirical distribution function, thinned for drawing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MOST_POINTS = 500


def ecdf(
    samples: npt.NDArray[np.float64], most: int = MOST_POINTS
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(values, shares ≤ value), ascending, at most ``most`` points; both empty without samples.

    The smallest and the largest sample are kept. Half of the points lie evenly over the ranks, half get
    denser towards the top, so that the last percent is drawn as finely as the rest.
    """
    if most < 2:
        raise ValueError(f"an empirical distribution needs at least 2 points, not {most}")
    n = len(samples)
    if n == 0:
        return (), ()
    ordered = np.sort(samples)
    ranks = np.arange(n) if n <= most else _thinned_ranks(n, most)
    values, shares = ordered[ranks], (ranks + 1) / n
    return tuple(values.tolist()), tuple(shares.tolist())


def _thinned_ranks(n: int, most: int) -> npt.NDArray[np.int64]:
    even = np.linspace(0, n - 1, most // 2)
    from_top = n - np.geomspace(1, n, most - most // 2)
    return np.unique(np.rint(np.concatenate((even, from_top))).astype(np.int64))


__all__ = ["MOST_POINTS", "ecdf"]
