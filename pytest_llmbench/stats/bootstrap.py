"""Circular block bootstrap: intervals of means, ratios of sums and central percentiles of dependent samples.

A resample is made of blocks of neighbouring samples, drawn with replacement from all runs, each run closed to
a circle (Politis and Romano 1992); the last block is cut so that a resample is as long as the sample. Blocks
keep the dependence inside them, which resampling single requests destroys.

The interval runs between two percentiles of the resampled statistic. k = n / block blocks behave like k
independent values, so the percentiles are those of Student's t with k - 1 degrees of freedom instead of the
normal law: Φ(√(k/(k-1)) t_{α/2, k-1}) (the expanded percentile interval of Hesterberg 2015, The American
Statistician 69). With many blocks that is α/2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.stats.dependence import block_length, exceedances
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, Samples, as_runs, pooled

RESAMPLES = 2000
_CELLS = 30_000
"""Of a resampling matrix held at once: fits the cache, and the allocator reuses it without page faults."""

IntArray = npt.NDArray[np.int64]


def mean_interval(
    samples: Samples,
    *,
    seed: int,
    level: float = 0.95,
    block: int | None = None,
    resamples: int = RESAMPLES,
) -> Interval:
    """Interval of the mean. Open for fewer than two samples. ``block``: default :func:`block_length`."""
    runs = as_runs(samples)
    if sum(map(len, runs)) < 2:
        return OPEN
    block = block_length(runs) if block is None else block
    means = resampled_means(runs, seed=seed, block=block, resamples=resamples)
    return interval_between(means, sum(map(len, runs)) / block, level=level)


def ratio_interval(
    numerators: Samples,
    denominators: Samples,
    *,
    seed: int,
    level: float = 0.95,
    block: int | None = None,
    resamples: int = RESAMPLES,
) -> Interval:
    """Interval of Σ numerator / Σ denominator, drawn in pairs. Denominators must be positive.

    The default block length is that of numerator - ratio · denominator, whose mean carries the ratio's error.
    """
    above, below = as_runs(numerators), as_runs(denominators)
    if [len(run) for run in above] != [len(run) for run in below]:
        raise ValueError("numerators and denominators differ in length")
    if any(float(run.min()) <= 0 for run in below):
        raise ValueError("a ratio of sums needs positive denominators")
    if sum(map(len, above)) < 2:
        return OPEN
    if block is None:
        ratio = sum(float(run.sum()) for run in above) / sum(float(run.sum()) for run in below)
        block = block_length(tuple(a - ratio * b for a, b in zip(above, below, strict=True)))
    tops, bottoms = _circles(above, block), _circles(below, block)
    ratios = _resampled_sums(tops, resamples, seed) / _resampled_sums(bottoms, resamples, seed)
    return interval_between(ratios, tops.size / block, level=level)


def percentile_interval(
    samples: Samples,
    q: float,
    *,
    seed: int,
    level: float = 0.95,
    block: int | None = None,
    resamples: int = RESAMPLES,
) -> Interval:
    """Interval of a central percentile (type 7). For tails use order statistics: this is too short there.

    The default block length is that of the indicator "above the percentile", whose mean carries its error.
    """
    runs = as_runs(samples)
    if sum(map(len, runs)) < 2:
        return OPEN
    block = block_length(exceedances(runs, q)) if block is None else block
    values = resampled_percentiles(runs, q, seed=seed, block=block, resamples=resamples)
    return interval_between(values, sum(map(len, runs)) / block, level=level)


def resampled_means(samples: Samples, *, seed: int, block: int, resamples: int = RESAMPLES) -> FloatArray:
    """The mean of every resample, for statistics that are functions of means.

    Vectors of the same run lengths, given the same seed and block, are drawn together, as pairs; so are
    those of :func:`resampled_percentiles`.
    """
    runs = as_runs(samples)
    # Around the mean: prefix sums of small numbers of both signs keep their last digits.
    centre = float(np.mean(pooled(runs)))
    circles = _circles(tuple(run - centre for run in runs), block)
    return centre + _resampled_sums(circles, resamples, seed) / circles.size


def resampled_percentiles(
    samples: Samples, q: float, *, seed: int, block: int, resamples: int = RESAMPLES
) -> FloatArray:
    """The q-th percentile (type 7) of every resample."""
    circles = _circles(as_runs(samples), block)
    order = np.argsort(circles.extended, kind="stable")
    ordered = circles.extended[order]
    values = [
        _resampled_percentiles(ordered, order, circles, chunk, q)
        for chunk in _draws(circles, resamples, seed, len(order))
    ]
    return np.concatenate(values)


def interval_between(statistics: FloatArray, blocks: float, *, level: float = 0.95) -> Interval:
    """Expanded percentile interval of a resampled statistic that rests on ``blocks`` = n / block values."""
    tail = _expanded_tail(blocks, level)
    lower, upper = np.quantile(statistics, [tail, 1 - tail])
    return Interval(float(lower), float(upper))


class _Circles(NamedTuple):
    """The runs one after another, each followed by its own first ``block - 1`` samples again."""

    extended: FloatArray
    origins: IntArray
    """Where blocks may start: the position of every sample proper."""
    block: int

    @property
    def size(self) -> int:
        return len(self.origins)


def _circles(runs: Runs, block: int) -> _Circles:
    shortest = min(len(run) for run in runs)
    if not 1 <= block <= shortest:
        raise ValueError(f"a block has 1 to {shortest} samples, the length of the shortest run, not {block}")
    starts = np.cumsum([0, *(len(run) + block - 1 for run in runs[:-1])])
    return _Circles(
        extended=np.concatenate([np.concatenate((run, run[: block - 1])) for run in runs]),
        origins=np.concatenate(
            [start + np.arange(len(run)) for start, run in zip(starts, runs, strict=True)]
        ),
        block=block,
    )


def _draws(circles: _Circles, resamples: int, seed: int, row_cells: int) -> Iterator[IntArray]:
    """Matrices of block starts, one row per resample; together ``resamples`` rows of ``row_cells`` each."""
    random = np.random.default_rng(seed)
    blocks = -(-circles.size // circles.block)
    rows = max(1, _CELLS // row_cells)
    for first in range(0, resamples, rows):
        drawn = random.integers(circles.size, size=(min(rows, resamples - first), blocks))
        yield circles.origins[drawn]


def _last_block(circles: _Circles) -> int:
    return (circles.size - 1) % circles.block + 1


def _resampled_sums(circles: _Circles, resamples: int, seed: int) -> FloatArray:
    """Sum of each resample, from prefix sums: one look-up per block instead of one per sample."""
    prefix = np.concatenate(([0.0], np.cumsum(circles.extended)))
    whole = prefix[circles.block :] - prefix[: -circles.block]
    sums = []
    for starts in _draws(circles, resamples, seed, len(circles.origins) // circles.block + 1):
        last = starts[:, -1]
        sums.append(whole[starts[:, :-1]].sum(axis=1) + prefix[last + _last_block(circles)] - prefix[last])
    return np.concatenate(sums)


def _resampled_percentiles(
    ordered: FloatArray, order: IntArray, circles: _Circles, starts: IntArray, q: float
) -> FloatArray:
    """Type 7 percentile of each resample. ``ordered`` is the extended series in the given ascending order."""
    reached = np.cumsum(np.take(_weights(circles, starts), order, axis=1))
    # One running count over all rows: row r reaches its rank-th value where the count passes r n + rank.
    rank = (circles.size - 1) * q / 100
    low = math.floor(rank)
    wanted = np.arange(len(starts)) * circles.size + low
    values = ordered[np.searchsorted(reached, wanted, side="right") % len(ordered)]
    if rank > low:
        above = ordered[np.searchsorted(reached, wanted + 1, side="right") % len(ordered)]
        values = values + (rank - low) * (above - values)
    return np.asarray(values, dtype=np.float64)


def _weights(circles: _Circles, starts: IntArray) -> IntArray:
    """How often each position of the extended series occurs in each resample (one column to spare)."""
    rows, width, block = len(starts), len(circles.extended) + 1, circles.block
    row = np.arange(rows)
    counts = np.bincount((starts + (row * width)[:, None]).ravel(), minlength=rows * width)
    begun = counts.reshape(rows, width)
    # +1 where a block starts, -1 where it ends, summed up. The last block of each row ends early.
    steps = begun.copy()
    steps[:, block:] -= begun[:, :-block]
    last = starts[:, -1]
    steps[row, last + block] += 1
    steps[row, last + _last_block(circles)] -= 1
    return np.cumsum(steps).reshape(rows, width)


def _expanded_tail(blocks: float, level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
    from scipy.special import ndtr, stdtrit

    freedom = max(blocks - 1, 1.0)
    quantile = float(stdtrit(freedom, (1 - level) / 2))
    return float(ndtr(math.sqrt((freedom + 1) / freedom) * quantile))


__all__ = [
    "RESAMPLES",
    "interval_between",
    "mean_interval",
    "percentile_interval",
    "ratio_interval",
    "resampled_means",
    "resampled_percentiles",
]
