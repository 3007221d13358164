"""The shape of a distribution of gaps: number of modes, weight of the tail (METHODOLOGY §11.4)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from pytest_llmbench.stats.percentiles import percentiles
from pytest_llmbench.stats.runs import FloatArray

PROMINENCE = 0.05
"""Of a peak that counts as a mode, relative to the highest peak."""
FINEST_BANDWIDTH = 0.02
"""Gaps closer than about 2 % are one mode: timers and schedulers are no finer, and a clock that ticks would
make a mode of every tick."""
FEWEST_EXCESSES = 20

Tail = Literal["heavy", "exponential", "light"]
_HEAVY, _LIGHT = 1.2, 0.8
_CELLS_PER_BANDWIDTH = 8
_REACH = 5
"""Bandwidths after which the Gaussian kernel is cut."""
_MOST_CELLS = 1 << 20


class Modality(NamedTuple):
    modes: tuple[float, ...]
    """Where the density of the logarithm peaks, in the samples' unit, ascending."""
    zeros: int
    """Samples at or below zero, which have no logarithm and are left out."""
    bandwidth: float
    """Of the kernel, in natural logarithms; 0 for fewer than two samples."""

    @property
    def multimodal(self) -> bool:
        return len(self.modes) > 1


def modality(samples: FloatArray) -> Modality:
    """Peaks of a Gaussian kernel density of log sample with a prominence of at least 5 % of the highest.

    Bandwidth: Silverman's 0.9 min(s, IQR / 1.34) n^(-1/5), the standard deviation alone where the
    interquartile range is zero, and at least 0.02. The samples are first counted in cells of an eighth of it.
    """
    positive = samples[samples > 0]
    zeros = len(samples) - len(positive)
    if not len(positive):
        return Modality((), zeros, 0.0)
    logarithms = np.log(positive)
    low, high = float(logarithms.min()), float(logarithms.max())
    if low == high:
        return Modality((float(positive[0]),), zeros, 0.0)
    bandwidth = _bandwidth(logarithms)
    width = max(bandwidth / _CELLS_PER_BANDWIDTH, (high - low) / _MOST_CELLS)
    margin = math.ceil(_REACH * bandwidth / width) + 1
    cells = ((logarithms - low) / width + 0.5).astype(np.int64) + margin
    counts = np.bincount(cells, minlength=int(cells.max()) + margin + 1)
    offsets = np.arange(-margin, margin + 1) * width / bandwidth
    density = np.convolve(counts.astype(np.float64), np.exp(-0.5 * np.square(offsets)), mode="same")
    peaks = np.exp(low + (_peaks(density) - margin) * width)
    return Modality(tuple(float(peak) for peak in peaks), zeros, bandwidth)


def tail_variation(samples: FloatArray) -> float | None:
    """Coefficient of variation of the excesses over P90: 1 for an exponential tail.

    ``None`` with fewer than 20 samples above P90.
    """
    if not len(samples):
        return None
    threshold = float(percentiles(samples, (90.0,))[0])
    excesses = samples[samples > threshold] - threshold
    if len(excesses) < FEWEST_EXCESSES:
        return None
    return float(np.std(excesses, ddof=1)) / float(np.mean(excesses))


def tail_class(variation: float) -> Tail:
    """Above 1.2 heavy, below 0.8 light, else exponential."""
    if variation > _HEAVY:
        return "heavy"
    return "light" if variation < _LIGHT else "exponential"


def tail_ratio(samples: FloatArray) -> float | None:
    """P99 / P50; 6.64 for an exponential law. ``None`` without samples and for a P50 of zero."""
    if not len(samples):
        return None
    middle, tail = map(float, percentiles(samples, (50.0, 99.0)))
    return tail / middle if middle > 0 else None


def _bandwidth(logarithms: FloatArray) -> float:
    quarter, three_quarters = percentiles(logarithms, (25.0, 75.0))
    deviation = float(np.std(logarithms, ddof=1))
    robust = float(three_quarters - quarter) / 1.34
    spread = min(deviation, robust) if robust > 0 else deviation
    return max(0.9 * spread * math.pow(len(logarithms), -0.2), FINEST_BANDWIDTH)


def _peaks(density: FloatArray) -> FloatArray:
    from scipy.signal import find_peaks

    found, _ = find_peaks(density, prominence=PROMINENCE * float(density.max()))
    return np.asarray(found, dtype=np.float64)


__all__ = [
    "FINEST_BANDWIDTH",
    "PROMINENCE",
    "Modality",
    "Tail",
    "modality",
    "tail_class",
    "tail_ratio",
    "tail_variation",
]
