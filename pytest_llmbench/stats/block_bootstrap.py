"""Studentised block bootstrap of a mean, for bootstrap intervals (``--llm-intervals``).

A resample is k blocks of neighbouring samples, drawn with replacement from all runs and never across two;
its studentised mean is t* = (mean* - mean) / s*, s* the standard error from the k blocks drawn. The quantiles
of t* stand in for Student's: mean - t*(1 - α/2) s and mean - t*(α/2) s (Hall 1992, The Bootstrap and
Edgeworth Expansion; Götze and Künsch 1996, Annals of Statistics 24). They bring the sample's skewness along.

Blocks are 2 m samples long, m the memory, and n / 100 at least, n / 6 at most. Whatever has an interval rests
on a mean, that of its influence or of a 0/1 series, so this serves every figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import numpy as np

from pytest_llmbench.stats.runs import FloatArray, Runs

Intervals = Literal["analytic", "bootstrap"]
RESAMPLES = 1999
_MEMORIES, _MOST_BLOCKS, _FEWEST_BLOCKS = 2, 100, 6

_chosen: ContextVar[Intervals] = ContextVar("intervals", default="analytic")


def choose(intervals: Intervals) -> None:
    """Set the kind of intervals for this context from here on."""
    _chosen.set(intervals)


@contextmanager
def chosen(intervals: Intervals) -> Iterator[None]:
    token = _chosen.set(intervals)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_chosen() -> bool:
    return _chosen.get() == "bootstrap"


def draw(runs: Runs, lags: int, seed: int) -> tuple[float, float, FloatArray] | None:
    """The variance of the mean of all runs, its degrees of freedom, and the studentised means of resamples in
    ascending order; ``None`` for fewer than six blocks, or blocks that do not differ."""
    n = sum(map(len, runs))
    longest = max(1, n // _FEWEST_BLOCKS)
    length = min(longest, min(map(len, runs)), max(_MEMORIES * lags, math.ceil(n / _MOST_BLOCKS)))
    apart = np.concatenate([_block_means(run, length)[::length] for run in runs])
    count = len(apart)
    if count < _FEWEST_BLOCKS or float(np.ptp(apart)) == 0.0:
        return None
    every = np.concatenate([_block_means(run, length) for run in runs])
    drawn = every[np.random.default_rng([seed, n]).integers(len(every), size=(RESAMPLES, count))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(count)
    usable = errors > 1e-9 * float(np.max(errors))
    if not usable.any():
        return None
    studentised = (drawn.mean(axis=1) - float(every.mean()))[usable] / errors[usable]
    return float(np.var(apart, ddof=1)) / count, count - 1.0, np.sort(studentised)


def _block_means(run: FloatArray, length: int) -> FloatArray:
    """The means of all blocks of this length, one beginning at every sample."""
    sums = np.cumsum(np.concatenate(([0.0], run)))
    return np.asarray((sums[length:] - sums[:-length]) / length, dtype=np.float64)
