"""Steadiness of a series: whether it has reached its level and keeps it (section
5.2.3.2).

Three questions with three answers. :func:`change_across` is the rule of the ledger: the least-squares slope
over equal slices, times their number, is at most 10 % of the mean. It knows nothing of noise: with few
requests per slice chance alone exceeds it now and then. :func:`drift` asks whether chance could, and how
large the drift is. :func:`warm_up_end` says where the beginning, that differs from the rest, ends.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.memory import memory
from pytest_llmbench.stats.runs import FloatArray, Interval

MOST_CHANGE = 0.10
SEGMENTS = 5
BATCH = 5
"""Batch size of MSER-5."""
MOST_WINDOWS, FEWEST_WINDOWS = 20, 6
_MEMORIES_PER_WINDOW = 4
"""Length of a window in memories: medians of windows that long are nearly independent."""


class Drift(NamedTuple):
    """The drift of the window medians of a series."""

    change: float
    """Theil–Sen slope per window · windows / median of the medians: relative, with its sign."""
    interval: Interval
    """The interval of the change."""
    p_value: float
    """The p-value of Mann and Kendall's two-sided test of "no monotone trend"."""
    windows: int

    def drifting(self, *, level: float = 0.95, most: float = MOST_CHANGE) -> bool:
        """Whether the series drifts more than by chance, and by more than ``most``.

        Either alone is no reason to discard a measurement.
        """
        return self.p_value < 1 - level and abs(self.change) > most


def change_across(slices: FloatArray) -> float | None:
    """The relative change across the window, with its sign: slope per slice · number of slices / mean.

    ``None``: fewer than two slices, or a mean of zero.
    """
    if len(slices) < 2 or not float(np.mean(slices)) > 0:
        return None
    slope = float(np.polyfit(np.arange(len(slices)), slices, 1)[0])
    return slope * len(slices) / float(np.mean(slices))


def warm_up_end(samples: FloatArray) -> int | None:
    """How many samples in arrival order to drop before the rest is level, by MSER-5.

    Of the means y_1 … y_k of batches of five, d are dropped so that Σ_{i>d} (y_i - ȳ_d)² / (k - d)² is least,
    ȳ_d the mean of those that stay (White 1997, Simulation 69; White, Cobb and Spratt 2000). A minimum in the
    second half of the series, or fewer than ten batches, give ``None``: the run is too short to have settled.
    """
    batches = len(samples) // BATCH
    if batches < 2 * BATCH:
        return None
    means = np.asarray(samples[: batches * BATCH], dtype=np.float64).reshape(batches, BATCH).mean(axis=1)
    means = means - means.mean()
    # Sums over all that stay, for every d at once; the last few batches vary too little by chance.
    stay = batches - np.arange(batches - BATCH)
    sums = np.cumsum(means[::-1])[::-1][: len(stay)]
    squares = np.cumsum(np.square(means)[::-1])[::-1][: len(stay)]
    criterion = np.maximum(squares - np.square(sums) / stay, 0.0) / np.square(stay)
    dropped = int(np.argmin(criterion))
    return dropped * BATCH if dropped <= batches // 2 else None


def drift(samples: FloatArray, *, level: float = 0.95) -> Drift | None:
    """Trend over the medians of equal windows, in arrival order: Mann (1945) and Kendall's S, ties corrected,
    and the slope of Theil and Sen (Sen 1968, JASA 63) with its interval.

    Windows: at most 20, each four memories long, so that queueing is not taken for a trend; the memory is
    that of the series without its straight line. ``None`` where fewer than 6 fit: the run is too short to
    tell a drift from its own memory; and for a median of zero.
    """
    n = len(samples)
    if n < 2 * FEWEST_WINDOWS:
        return None
    at = np.arange(n) - (n - 1) / 2
    level_line = samples - float(at @ samples) / float(at @ at) * at
    windows = min(MOST_WINDOWS, n // max(2, _MEMORIES_PER_WINDOW * memory(level_line)))
    if windows < FEWEST_WINDOWS:
        return None
    medians = np.array([np.median(part) for part in np.array_split(samples, windows)])
    middle = float(np.median(medians))
    if not middle > 0:
        return None
    return _trend(medians, windows / middle, level)


def _trend(medians: FloatArray, scale: float, level: float) -> Drift:
    from scipy.special import ndtr, ndtri

    first, second = np.triu_indices(len(medians), 1)
    slopes = np.sort((medians[second] - medians[first]) / (second - first))
    concordance = float(np.sign(slopes).sum())
    deviation = math.sqrt(_concordance_variance(medians))
    # With continuity correction; without any spread there is no trend either.
    score = max(0.0, abs(concordance) - 1) / deviation if deviation > 0 else 0.0
    reach = float(ndtri((1 + level) / 2)) * deviation
    below = math.floor((len(slopes) - reach) / 2) - 1
    above = math.ceil((len(slopes) + reach) / 2)
    ends = float(slopes[max(0, below)]), float(slopes[min(len(slopes) - 1, above)])
    return Drift(
        change=scale * float(np.median(slopes)),
        interval=Interval(scale * ends[0], scale * ends[1]),
        p_value=2 * float(ndtr(-score)),
        windows=len(medians),
    )


def _concordance_variance(values: FloatArray) -> float:
    def term(count: float) -> float:
        return count * (count - 1) * (2 * count + 5)

    _, ties = np.unique(values, return_counts=True)
    return (term(len(values)) - sum(term(float(count)) for count in ties)) / 18
