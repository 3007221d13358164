"""Whether a series is stationary: a queue that grows without bound, a level that is reached and kept.

Growth of a queue (saturation rule 1, AMB-14): the window is cut into five equal segments. The queue grows
when its time-weighted mean rises strictly from segment to segment, by at least max(2, 20 % of the first) from
the first to the last.

Steadiness of a series (section 5.2.3.2): two questions with two answers. :func:`change_across` is the rule of
the ledger: the least-squares slope over equal slices, times their number, is at most 10 % of the mean. It
knows nothing of noise: with few requests per slice chance alone exceeds it now and then. :func:`drift` asks
whether chance could, and how large the drift is.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.dependence import memory
from pytest_llmbench.stats.runs import FloatArray, IntArray

SEGMENTS = 5
_LEAST_RISE = 2.0
_LEAST_RELATIVE_RISE = 0.2


class Steps(NamedTuple):
    """A piecewise constant series: ``values[i]`` holds from ``at_ns[i]`` (ascending) until the next one."""

    at_ns: IntArray
    values: FloatArray
    before: float
    """The value before the first instant."""


class Growth(NamedTuple):
    means: tuple[float, ...]
    """Time-weighted mean of each segment."""
    growing: bool


def in_flight_steps(starts_ns: IntArray, ends_ns: IntArray) -> Steps:
    """The number of requests [start, end) under way, as a step series.

    A negative start (``MISSING``): never begun, left out. A negative end: not ended, under way from then on.
    """
    begun = starts_ns >= 0
    ended = begun & (ends_ns >= 0)
    instants = np.concatenate((starts_ns[begun], ends_ns[ended]))
    changes = np.concatenate((np.ones(int(begun.sum())), -np.ones(int(ended.sum()))))
    at_ns, places = np.unique(instants, return_inverse=True)
    change = np.bincount(places, weights=changes, minlength=len(at_ns))
    return Steps(at_ns.astype(np.int64), np.cumsum(change), 0.0)


def in_flight_at(instants_ns: IntArray, starts_ns: IntArray, ends_ns: IntArray) -> FloatArray:
    """For each instant, how many of the requests [start, end) that began before it are under way.

    Negative starts and ends as in :func:`in_flight_steps`; at a negative instant none is.
    """
    begun = starts_ns >= 0
    before = np.searchsorted(np.sort(starts_ns[begun]), instants_ns, side="left")
    over = np.searchsorted(np.sort(ends_ns[begun & (ends_ns >= 0)]), instants_ns, side="right")
    return np.where(instants_ns >= 0, np.maximum(before - over, 0), 0).astype(np.float64)


def gauge_steps(at_ns: IntArray, values: FloatArray) -> Steps:
    """Readings of a gauge, ascending in time, as a step series: each holds until the next, the first also
    before itself.

    ValueError without readings.
    """
    if len(at_ns) == 0 or len(at_ns) != len(values):
        raise ValueError(f"a gauge needs readings and an instant for each: {len(values)}, {len(at_ns)}")
    return Steps(np.asarray(at_ns, dtype=np.int64), np.asarray(values, dtype=np.float64), float(values[0]))


def segment_means(steps: Steps, start_ns: int, end_ns: int, segments: int = SEGMENTS) -> tuple[float, ...]:
    """Time-weighted mean in each of equal segments of the window. ValueError for an empty window."""
    if end_ns <= start_ns:
        raise ValueError("a window ends after it starts")
    edges = (end_ns - start_ns) * np.arange(segments + 1) / segments
    # Relative to the window: floats keep nanoseconds there.
    inside = (steps.at_ns > start_ns) & (steps.at_ns < end_ns)
    first = int(np.searchsorted(steps.at_ns, start_ns, side="right"))
    held = steps.before if first == 0 else float(steps.values[first - 1])
    instants = np.concatenate(([0.0], (steps.at_ns[inside] - start_ns).astype(np.float64)))
    values = np.concatenate(([held], steps.values[inside]))
    lasting = np.diff(instants, append=edges[-1])
    area = np.concatenate(([0.0], np.cumsum(values * lasting)))
    at_edges = np.interp(edges, np.append(instants, edges[-1]), area)
    return tuple(float(mean) for mean in np.diff(at_edges) / np.diff(edges))


def time_under_way(
    starts_ns: IntArray, ends_ns: IntArray, start_ns: int, end_ns: int, segments: int = SEGMENTS
) -> FloatArray:
    """Nanoseconds that the requests [start, end) spend in each segment of the window, all together.

    Divided by the length of a segment that is the mean of :func:`in_flight_steps` over it; but it adds up
    over the parts of a long run. Negative starts and ends as there.
    """
    begun = starts_ns >= 0
    starts, ends = starts_ns[begun], np.where(ends_ns >= 0, ends_ns, end_ns)[begun]
    edges = start_ns + np.rint((end_ns - start_ns) * np.arange(segments + 1) / segments).astype(np.int64)
    sums = [
        int((np.clip(ends, low, high) - np.clip(starts, low, high)).clip(min=0).sum())
        for low, high in pairwise(edges.tolist())
    ]
    return np.array(sums, dtype=np.float64)


def growth(steps: Steps, start_ns: int, end_ns: int) -> Growth:
    """The five means of the window and the verdict of the rule. ValueError for an empty window."""
    means = segment_means(steps, start_ns, end_ns)
    return Growth(means, is_growing(means))


def is_growing(means: tuple[float, ...]) -> bool:
    """Whether the means rise strictly each time, and by at least max(2, 20 % of the first) in all."""
    rising = all(later > earlier for earlier, later in pairwise(means))
    return rising and means[-1] - means[0] >= max(_LEAST_RISE, _LEAST_RELATIVE_RISE * means[0])


MOST_CHANGE = 0.10
MOST_WINDOWS, FEWEST_WINDOWS = 20, 6
_MEMORIES_PER_WINDOW = 4
"""Length of a window in memories: medians of windows that long are nearly independent."""


class Drift(NamedTuple):
    """The drift of the window medians of a series."""

    change: float
    """Theil–Sen slope per window · windows / median of the medians: relative, with its sign."""
    p_value: float
    """The p-value of Mann and Kendall's two-sided test of "no monotone trend"."""

    def drifting(self, *, most: float = MOST_CHANGE) -> bool:
        """Whether the series drifts more than by chance (95 %), and by more than ``most``.

        Either alone is no reason to discard a measurement.
        """
        return self.p_value < 1 - 0.95 and abs(self.change) > most


def least_squares_slope(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """The slope Σ (x - x̄) y / Σ (x - x̄)² of the least-squares line through at least three points, in units of
    ``y`` per unit of ``x``, and its standard error; 0 and infinity where all ``x`` are equal."""
    around = x - x.mean()
    squares = float(around @ around)
    if squares == 0.0:
        return 0.0, math.inf
    slope = float(around @ y) / squares
    rest = y - y.mean() - slope * around
    return slope, math.sqrt(float(rest @ rest) / (len(y) - 2) / squares)


def change_across(slices: FloatArray) -> float | None:
    """The relative change across the window, with its sign: slope per slice · number of slices / mean.

    ``None``: fewer than two slices, or a mean of zero.
    """
    if len(slices) < 2 or not float(np.mean(slices)) > 0:
        return None
    slope = float(np.polyfit(np.arange(len(slices)), slices, 1)[0])
    return slope * len(slices) / float(np.mean(slices))


def drift(samples: FloatArray) -> Drift | None:
    """Trend over the medians of equal windows, in arrival order: Mann (1945) and Kendall's S, ties corrected,
    and the slope of Theil and Sen (Sen 1968, JASA 63).

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
    from scipy.special import ndtr

    first, second = np.triu_indices(len(medians), 1)
    slopes = (medians[second] - medians[first]) / (second - first)
    concordance = float(np.sign(slopes).sum())
    deviation = math.sqrt(_concordance_variance(medians))
    # With continuity correction; without any spread there is no trend either.
    score = max(0.0, abs(concordance) - 1) / deviation if deviation > 0 else 0.0
    return Drift(windows / middle * float(np.median(slopes)), 2 * float(ndtr(-score)))


def _concordance_variance(values: FloatArray) -> float:
    def term(count: float) -> float:
        return count * (count - 1) * (2 * count + 5)

    _, ties = np.unique(values, return_counts=True)
    return (term(len(values)) - sum(term(float(count)) for count in ties)) / 18
