"""How latency grows with length: a power law and a straight line through the means of the lengths.

Each length is one point, mean length against mean latency, whatever the number of its requests (section
5.9.4, AMB-21). Intervals: the requests of each length are resampled (from 50 on in circular blocks, with the
automatic block length) and the fit repeated; so they hold the truth if the model does. R² tells how well it
fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats import bootstrap
from pytest_llmbench.stats.dependence import block_length
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval

FEWEST_LENGTHS = 3
"""Two points fit any line."""

_FEWEST_FOR_BLOCKS = 50
"""Fewer requests of a length cannot tell dependence from chance; they are resampled one by one."""


class Group(NamedTuple):
    """The requests of one length, in arrival order."""

    lengths: FloatArray
    latencies: FloatArray


class Fit(NamedTuple):
    slope: float
    intercept: float
    r_squared: float | None
    """``None`` where the fitted values do not vary at all."""
    slope_interval: Interval
    intercept_interval: Interval
    points: int
    samples: int


def power_law(groups: Sequence[Group], *, seed: int, level: float = 0.95) -> Fit | None:
    """log latency = slope · log length + intercept: the slope is the exponent k of latency ∝ length^k.

    ``None`` for fewer than three different lengths or a mean that is not positive.
    """
    return _fit(groups, seed, level, logarithmic=True)


def straight_line(groups: Sequence[Group], *, seed: int, level: float = 0.95) -> Fit | None:
    """latency = slope · length + intercept, in the units given. ``None`` for fewer than three lengths."""
    return _fit(groups, seed, level, logarithmic=False)


def _fit(groups: Sequence[Group], seed: int, level: float, *, logarithmic: bool) -> Fit | None:
    used = [group for group in groups if len(group.latencies)]
    x = np.array([float(np.mean(group.lengths)) for group in used])
    y = np.array([float(np.mean(group.latencies)) for group in used])
    if len(np.unique(x)) < FEWEST_LENGTHS or (logarithmic and min(x.min(), y.min()) <= 0):
        return None
    scale = np.log if logarithmic else np.asarray
    slope, intercept = _least_squares(scale(x), scale(y))
    slopes, intercepts = OPEN, OPEN
    if min(len(group.latencies) for group in used) > 1:
        draws = [_drawn(group, seed + place) for place, group in enumerate(used)]
        freedom = sum(blocks - 1 for _, _, blocks in draws)
        resampled = _least_squares(
            scale(np.stack([lengths for lengths, _, _ in draws])),
            scale(np.stack([latencies for _, latencies, _ in draws])),
        )
        slopes, intercepts = (
            bootstrap.interval_between(values, freedom + 1, level=level) for values in resampled
        )
    return Fit(
        slope=float(slope),
        intercept=float(intercept),
        r_squared=_r_squared(scale(x), scale(y), float(slope), float(intercept)),
        slope_interval=slopes,
        intercept_interval=intercepts,
        points=len(used),
        samples=sum(len(group.latencies) for group in used),
    )


def _least_squares(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slope and intercept along the first axis."""
    around = x - x.mean(axis=0)
    slope = (around * y).sum(axis=0) / np.square(around).sum(axis=0)
    return slope, y.mean(axis=0) - slope * x.mean(axis=0)


def _r_squared(x: FloatArray, y: FloatArray, slope: float, intercept: float) -> float | None:
    total = float(np.square(y - y.mean()).sum())
    if total == 0.0:
        return None
    return 1.0 - float(np.square(y - slope * x - intercept).sum()) / total


def _drawn(group: Group, seed: int) -> tuple[FloatArray, FloatArray, float]:
    """Mean length and mean latency of every resample, and the number of blocks.

    k blocks vary (k - 1)/k as much around their mean as around the truth, which is a lot at 20 requests per
    length: the deviations are stretched by √(k/(k - 1)).
    """
    block = block_length(group.latencies) if len(group.latencies) >= _FEWEST_FOR_BLOCKS else 1
    blocks = len(group.latencies) / block
    means = []
    for values in group:
        centre = float(np.mean(values))
        resampled = bootstrap.resampled_means(values, seed=seed, block=block)
        stretched = centre + math.sqrt(blocks / (blocks - 1)) * (resampled - centre)
        means.append(np.maximum(stretched, float(np.min(values))))
    return means[0], means[1], blocks


__all__ = ["FEWEST_LENGTHS", "Fit", "Group", "power_law", "straight_line"]
