"""Does a series of slices keep its level across the window? (METHODOLOGY §10, section 5.2.3.2)

The rule of the ledger: the least-squares slope over equal slices, times their number, is at most 10 % of the
mean. It knows nothing of noise: with few requests per slice chance alone exceeds it now and then, so a level
that breaks it deserves a second look before it is called unsteady.
"""

from __future__ import annotations

import numpy as np

from pytest_llmbench.stats.runs import FloatArray

MOST_CHANGE = 0.10
SEGMENTS = 5


def change_across(slices: FloatArray) -> float | None:
    """Slope per slice · number of slices / mean: the relative change across the window, with its sign.

    ``None``: fewer than two slices, or a mean of zero.
    """
    if len(slices) < 2 or not float(np.mean(slices)) > 0:
        return None
    slope = float(np.polyfit(np.arange(len(slices)), slices, 1)[0])
    return slope * len(slices) / float(np.mean(slices))


__all__ = ["MOST_CHANGE", "SEGMENTS", "change_across"]
