"""Steadiness: whether the throughput of a window stays level (section 5.2.3.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.throughput import Window, output_tokens_per_slice
from pytest_llmbench.stats.steady import MOST_CHANGE, SEGMENTS, change_across, drift

FloatArray = npt.NDArray[np.float64]
_STUDENT = 3.182
"""Quantile of Student's t at 97.5 % for five slices, three degrees of freedom."""
SLICES = 200
"""Number of slices of the window, to tell a trend from noise."""


class Steadiness(NamedTuple):
    change: float
    """Least-squares slope over five slices, times their number, relative to the mean."""
    by_chance: bool
    """Whether noise explains the slope: there is no trend at the 95 % level. By Mann and Kendall's test in
    finer slices; where the replies are too long for these to be independent, by Student's t about the line
    through the five."""

    @property
    def level(self) -> bool:
        """Whether the throughput stays within 10 %, or strays no further than chance would take it."""
        return abs(self.change) <= MOST_CHANGE or self.by_chance


def steadiness(window: Window) -> Steadiness | None:
    """The steadiness of the output tokens in the window; None without output, or where a request lacks its
    count."""
    coarse = output_tokens_per_slice(window, SEGMENTS)
    change = None if coarse is None else change_across(coarse)
    if coarse is None or change is None:
        return None
    fine = output_tokens_per_slice(window, SLICES)
    trend = None if fine is None else drift(fine)
    return Steadiness(change, _slope_by_chance(coarse) if trend is None else not trend.drifting(most=0.0))


def _slope_by_chance(slices: FloatArray) -> bool:
    """Whether zero lies in the 95 % interval of the least-squares slope."""
    at = np.arange(len(slices)) - (len(slices) - 1) / 2
    slope = float(at @ slices) / float(at @ at)
    rest = slices - slices.mean() - slope * at
    error = np.sqrt(float(rest @ rest) / (len(slices) - 2) / float(at @ at))
    return bool(abs(slope) <= _STUDENT * error)
