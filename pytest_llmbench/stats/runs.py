"""Samples of one run or of several: one vector per run, each in arrival order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Runs = tuple[FloatArray, ...]
Samples = FloatArray | Sequence[FloatArray]
"""One vector, or one per run. Dependence is looked for inside runs and blocks never straddle two of them."""


class Interval(NamedTuple):
    """``None``: open on that side, the sample cannot support a bound there."""

    lower: float | None
    upper: float | None


OPEN = Interval(None, None)


def as_runs(samples: Samples) -> Runs:
    """The non-empty runs as float64 vectors. ValueError for anything but finite one-dimensional vectors."""
    parts = [samples] if isinstance(samples, np.ndarray) else list(samples)
    runs = [np.asarray(part, dtype=np.float64) for part in parts]
    for run in runs:
        if run.ndim != 1:
            raise ValueError(f"a run is a one-dimensional vector of samples, not {run.ndim}-dimensional")
        if not np.isfinite(run).all():
            raise ValueError("samples must be finite: a value that was not observed is left out, not marked")
    return tuple(run for run in runs if run.size)


def pooled(runs: Runs) -> FloatArray:
    """All samples in one vector, which of a single run is that run itself; empty when there is none."""
    if len(runs) == 1:
        return runs[0]
    return np.concatenate(runs) if runs else np.empty(0)
