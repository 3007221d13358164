"""Change points: where a series changes its level or its spread, by E-divisive with a permutation test.

Matteson & James 2014, Journal of the American Statistical Association 109: 334-345, with exponent 1. For two
stretches X of n and Y of m values the energy statistic (Székely & Rizzo 2005) is

    E = 2 / (n m) Σ|x_i - y_j| - 2 / (n (n - 1)) Σ_{i<k}|x_i - x_k| - 2 / (m (m - 1)) Σ_{j<k}|y_j - y_k|,
    Q = n m / (n + m) · E,

and the best split of a stretch is where Q of what is left and right of it is largest. It is a change point
when Q is larger than chance makes it: the values of each stretch are shuffled within it ``_PERMUTATIONS``
times, and p = (1 + shuffles whose best split is as good) / (1 + shuffles). Then the stretches left and right
are split in the same way, the best of all first, until p is above the significance.

One simplification: each split takes Y to the end of its stretch, where the paper may end it earlier too.
Nothing is assumed of how the values are distributed; they have to be independent of each other while nothing
changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.runs import FloatArray

SIGNIFICANCE = 0.01
"""The share of series without any change that show a change point all the same."""
FEWEST_BETWEEN = 3
"""Fewest values between two change points, before the first and after the last."""
MOST_VALUES = 2000
"""Most values of a series: the distances between all pairs are held in memory, and shuffled 999 times."""
_PERMUTATIONS = 999
_TOGETHER, _MOST_DISTANCES = 32, 1 << 18
"""Shuffles that are worked through at once, and the most distances that they hold in memory."""
_SEED = 20140
_ROUNDING = 1e-9
"""Relative difference of two values of Q that counts as rounding."""


class ChangePoint(NamedTuple):
    at: int
    """Index of the first value after the change."""
    p_value: float


class _Split(NamedTuple):
    at: int
    q: float


def fewest_values(significance: float = SIGNIFICANCE) -> int:
    """Fewest values in which a change could be told from chance at all: 11 at the usual significance.

    If n values fall apart into halves, 2 of the C(n, n/2) orders of high and low do so as cleanly. That has
    to be half of the significance, since shuffles only sample the orders.
    """
    count = 2 * FEWEST_BETWEEN
    while 2 / math.comb(count, count // 2) > significance / 2:
        count += 1
    return count


def change_points(values: Sequence[float], *, significance: float = SIGNIFICANCE) -> list[ChangePoint]:
    """The change points of finite values in their order, ascending; empty for fewer than
    :func:`fewest_values`.

    The same values give the same points: the shuffles have a seed of their own. ValueError for a value that
    is not finite, for more than ``MOST_VALUES``, and for a significance that the shuffles cannot show.
    """
    series = np.asarray(values, dtype=np.float64)
    if len(series) > MOST_VALUES:
        raise ValueError(f"at most {MOST_VALUES} values, not {len(series)}")
    if not np.isfinite(series).all():
        raise ValueError("values must be finite: one that is undefined is left out by whoever knows why")
    if not 1 / (1 + _PERMUTATIONS) <= significance < 1:
        raise ValueError(f"significance must be {1 / (1 + _PERMUTATIONS)} or more and below 1")
    if len(series) < fewest_values(significance):
        return []
    series = series / (np.abs(series).max() or 1.0)  # so that no distance is beyond a float
    apart = np.abs(series[:, None] - series[None, :])
    found: list[ChangePoint] = []
    while True:
        cuts = [0, *sorted(point.at for point in found), len(series)]
        stretches = list(pairwise(cuts))
        best = _best_of(apart, stretches)
        if best is None:
            return sorted(found)
        generator = np.random.default_rng((_SEED, len(found)))
        p_value = _p_value(apart, stretches, best.q, significance, generator)
        if p_value is None:
            return sorted(found)
        found.append(ChangePoint(best.at, p_value))


def _best_of(apart: FloatArray, stretches: Sequence[tuple[int, int]]) -> _Split | None:
    splits = []
    for start, end in stretches:
        own = apart[start:end, start:end]
        if _can_be_split(own):
            q = _split_statistics(own)
            best = int(np.argmax(q))
            splits.append(_Split(start + FEWEST_BETWEEN + best, float(q[best])))
    return max(splits, key=lambda split: split.q, default=None)


def _can_be_split(apart: FloatArray) -> bool:
    """Whether a stretch is long enough, and its values differ."""
    return len(apart) >= 2 * FEWEST_BETWEEN and bool(apart.any())


def _split_statistics(apart: FloatArray) -> FloatArray:
    """Q of each split of a stretch, from the first that is allowed on. ``apart``: distances between all pairs
    of its values, the last two axes; further ones are of further orders of the same values."""
    size = apart.shape[-1]
    whole = np.zeros((*apart.shape[:-2], size + 1, size + 1))
    whole[..., 1:, 1:] = apart.cumsum(axis=-2).cumsum(axis=-1)  # sums over every rectangle from the corner
    left = np.arange(FEWEST_BETWEEN, size - FEWEST_BETWEEN + 1)
    right = size - left
    within_left = whole[..., left, left]
    between = whole[..., left, size] - within_left
    within_right = whole[..., size, size, None] - 2 * whole[..., left, size] + within_left
    # Both triangles of the symmetric matrix are in the sums within: the factor 2 of the formula.
    energy = (
        2 * between / (left * right)
        - within_left / (left * (left - 1))
        - (within_right / (right * (right - 1)))
    )
    return np.asarray(left * right / size * energy)


def _p_value(
    apart: FloatArray,
    stretches: Sequence[tuple[int, int]],
    q: float,
    significance: float,
    generator: np.random.Generator,
) -> float | None:
    """The share of shuffles with a split as good as ``q``; None as soon as it is certain to be too large."""
    split = [(start, end) for start, end in stretches if _can_be_split(apart[start:end, start:end])]
    together = max(1, min(_TOGETHER, _MOST_DISTANCES // apart.size))
    as_good = 0
    for first in range(0, _PERMUTATIONS, together):
        orders = np.array(
            [
                np.concatenate([start + generator.permutation(end - start) for start, end in stretches])
                for _ in range(min(together, _PERMUTATIONS - first))
            ]
        )
        best = np.full(len(orders), -math.inf)
        for start, end in split:
            own = orders[:, start:end]
            shuffled = apart[own[:, :, None], own[:, None, :]]
            np.maximum(best, _split_statistics(shuffled).max(axis=-1), out=best)
        as_good += int((best >= q - _ROUNDING * abs(q)).sum())
        if 1 + as_good > significance * (1 + _PERMUTATIONS):
            return None
    return (1 + as_good) / (1 + _PERMUTATIONS)
