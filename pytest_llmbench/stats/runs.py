"""Samples of one run or of several: one vector per run, each in arrival order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Runs = tuple[FloatArray, ...]
Samples = FloatArray | Sequence[FloatArray]
"""One vector, or one per run. Dependence is looked for inside runs and blocks never straddle two of them."""


class Interval(NamedTuple):
    """The ends of an interval; ``None``: open on that side, since the sample cannot support a bound there."""

    lower: float | None
    upper: float | None


OPEN = Interval(None, None)


class _Checked(tuple[FloatArray, ...]):
    """Runs that have been checked, so that the dozen functions behind one figure need not check them
    again."""


def as_runs(samples: Samples) -> Runs:
    """The non-empty runs as float64 vectors. ValueError for anything but finite one-dimensional vectors."""
    if isinstance(samples, _Checked):
        return samples
    parts = [samples] if isinstance(samples, np.ndarray) else list(samples)
    runs = [np.asarray(part, dtype=np.float64) for part in parts]
    for run in runs:
        if run.ndim != 1:
            raise ValueError(f"a run is a one-dimensional vector of samples, not {run.ndim}-dimensional")
        if not np.isfinite(run).all():
            raise ValueError("samples must be finite: a value that was not observed is left out, not marked")
    return _Checked(run for run in runs if run.size)


def events(runs: Sequence[npt.NDArray[np.bool_]]) -> Runs:
    """Runs of boolean series as series of 0 and 1, without empty ones."""
    return _Checked(run.astype(np.float64) for run in runs if run.size)


def mean_of(samples: FloatArray) -> float:
    """``np.mean`` without its overhead, which for a thousand samples is most of its time."""
    return float(np.add.reduce(samples)) / len(samples)


def batch_means(samples: FloatArray, width: int) -> FloatArray:
    """The means of consecutive batches of ``width`` samples; what is left over at the end has none."""
    batches = samples[: len(samples) // width * width].reshape(-1, width)
    return np.asarray(np.add.reduce(batches, axis=1) / width, dtype=np.float64)


def is_constant(samples: FloatArray) -> bool:
    return bool(np.maximum.reduce(samples) == np.minimum.reduce(samples))


def pooled(runs: Runs) -> FloatArray:
    """All samples in one vector; for a single run that run itself, empty when there is none."""
    if len(runs) == 1:
        return runs[0]
    return np.concatenate(runs) if runs else np.empty(0)


def middle(run: FloatArray) -> FloatArray:
    """The middle half of a run."""
    quarter = len(run) // 4
    return run[quarter : len(run) - quarter]
