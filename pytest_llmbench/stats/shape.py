"""The shape of a distribution of gaps: number of modes, weight of the tail (section 5.4).

Samples are a vector, or more of them than one would have room for, gone through block by block
(:class:`~pytest_llmbench.stats.clusters.Clusters`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pytest_llmbench.stats.counted import look_up
from pytest_llmbench.stats.percentiles import Ordered, ordered_percentile, percentile_ranks
from pytest_llmbench.stats.runs import FloatArray, IntArray

if TYPE_CHECKING:
    from pytest_llmbench.stats.clusters import Clusters

PROMINENCE = 0.05
"""Least prominence of a peak that counts as a mode, relative to the highest peak."""
FINEST_BANDWIDTH = 0.02
"""Smallest bandwidth of the kernel. Gaps closer than about 2 % are one mode: timers and schedulers are no
finer, and a clock that ticks would make a mode of every tick."""
FEWEST_EXCESSES = 20

Tail = Literal["heavy", "exponential", "light"]
_HEAVY, _LIGHT = 1.2, 0.8
_CELLS_PER_BANDWIDTH = 8
_MOST_BINS = 120
_REACH = 5
"""Number of bandwidths after which the Gaussian kernel is cut off."""
_MOST_CELLS = 1 << 20


class Histogram(NamedTuple):
    """A histogram with bins of equal width in the logarithm. Empty without samples above zero."""

    edges: tuple[float, ...] = ()
    """Edges of the bins in the samples' unit, ascending; one more than there are bins."""
    shares: tuple[float, ...] = ()
    """The share of all samples in each bin. With those at or below zero they add up to 1."""


class Modality(NamedTuple):
    modes: tuple[float, ...]
    """The modes: where the density of the logarithm peaks, in the samples' unit, ascending."""
    zeros: int
    """Number of samples at or below zero, which have no logarithm and are left out."""
    bandwidth: float
    """The bandwidth of the kernel, in natural logarithms; 0 for fewer than two samples."""
    histogram: Histogram = Histogram()
    """The histogram with bins as wide as the bandwidth, so that modes stay apart; wider where those would be
    more than 120."""

    @property
    def multimodal(self) -> bool:
        return len(self.modes) > 1


@dataclass(frozen=True, eq=False)
class _Vector:
    """Samples in memory, gone through as :class:`~pytest_llmbench.stats.clusters.Clusters` are."""

    samples: FloatArray

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def ordered(self) -> Ordered:
        return np.sort(self.samples)

    def blocks(self) -> Iterator[FloatArray]:
        yield self.samples

    def total(self, of: Callable[[FloatArray], Any]) -> float:
        return float(np.sum(of(self.samples)))


def modality(samples: FloatArray | Clusters) -> Modality:
    """The modes: peaks of a Gaussian kernel density of log sample with a prominence of at least 5 % of the
    highest.

    Bandwidth: Silverman's 0.9 min(s, IQR / 1.34) n^(-1/5), the standard deviation alone where the
    interquartile range is zero, and at least 0.02. The samples are first counted in cells of an eighth of it.
    """
    pool = _pool(samples)
    zeros = sum(int(np.count_nonzero(block <= 0)) for block in pool.blocks())
    if zeros == len(pool):
        return Modality((), zeros, 0.0)
    look_up(pool.ordered, (zeros, len(pool) - 1, *_quartile_ranks(pool, zeros)))
    least, most = float(pool.ordered[zeros]), float(pool.ordered[len(pool) - 1])
    low, high = math.log(least), math.log(most)
    if low == high:
        half = math.exp(FINEST_BANDWIDTH / 2)
        one = Histogram((least / half, least * half), ((len(pool) - zeros) / len(pool),))
        return Modality((least,), zeros, 0.0, one)
    bandwidth = _bandwidth(pool, zeros)
    width = max(bandwidth / _CELLS_PER_BANDWIDTH, (high - low) / _MOST_CELLS)
    margin = math.ceil(_REACH * bandwidth / width) + 1
    counts = np.zeros(int((high - low) / width + 0.5) + 2 * margin + 1, dtype=np.int64)
    for block in pool.blocks():
        cells = ((np.log(block[block > 0]) - low) / width + 0.5).astype(np.int64) + margin
        counts += np.bincount(cells, minlength=len(counts))
    offsets = np.arange(-margin, margin + 1) * width / bandwidth
    density = np.convolve(counts.astype(np.float64), np.exp(-0.5 * np.square(offsets)), mode="same")
    peaks = np.exp(low + (_peaks(density) - margin) * width)
    histogram = _histogram(counts[margin:-margin], low, width, len(pool))
    return Modality(tuple(float(peak) for peak in peaks), zeros, bandwidth, histogram)


def _histogram(counts: IntArray, low: float, width: float, samples: int) -> Histogram:
    """A histogram from the counts of cells that are ``width`` wide, the first with ``low`` in its middle, in
    logarithms."""
    cells = max(_CELLS_PER_BANDWIDTH, math.ceil(len(counts) / _MOST_BINS))
    shares = np.add.reduceat(counts, np.arange(0, len(counts), cells)) / samples
    edges = np.exp(low + (np.arange(len(shares) + 1) * cells - 0.5) * width)
    return Histogram(tuple(edges.tolist()), tuple(shares.tolist()))


def tail_variation(samples: FloatArray | Clusters) -> float | None:
    """Coefficient of variation of the excesses over P90: 1 for an exponential tail.

    ``None`` with fewer than 20 samples above P90.
    """
    pool = _pool(samples)
    if not len(pool):
        return None
    look_up(pool.ordered, percentile_ranks(len(pool), (90.0,)))
    threshold = ordered_percentile(pool.ordered, 90.0)
    excesses = sum(int(np.count_nonzero(block > threshold)) for block in pool.blocks())
    if excesses < FEWEST_EXCESSES:
        return None
    mean = pool.total(lambda values: np.maximum(values - threshold, 0.0)) / excesses
    around = pool.total(lambda values: np.where(values > threshold, values - threshold - mean, 0.0) ** 2)
    return math.sqrt(around / (excesses - 1)) / mean


def tail_class(variation: float) -> Tail:
    """The class of a tail by its variation: above 1.2 heavy, below 0.8 light, else exponential."""
    if variation > _HEAVY:
        return "heavy"
    return "light" if variation < _LIGHT else "exponential"


def _quartile_ranks(pool: _Vector | Clusters, zeros: int) -> list[int]:
    return [zeros + rank for rank in percentile_ranks(len(pool) - zeros, (25.0, 75.0))]


def _bandwidth(pool: _Vector | Clusters, zeros: int) -> float:
    n = len(pool) - zeros
    below = np.log([float(pool.ordered[rank]) for rank in _quartile_ranks(pool, zeros)])
    shares = [(n - 1) * q % 1.0 for q in (0.25, 0.75)]
    quarter, three_quarters = below[::2] + shares * (below[1::2] - below[::2])
    mean = pool.total(_logarithms) / n
    around = pool.total(lambda values: np.where(values > 0, _logarithms(values) - mean, 0.0) ** 2)
    deviation = math.sqrt(around / (n - 1))
    robust = float(three_quarters - quarter) / 1.34
    spread = min(deviation, robust) if robust > 0 else deviation
    return max(0.9 * spread * math.pow(n, -0.2), FINEST_BANDWIDTH)


def _logarithms(values: FloatArray) -> FloatArray:
    """Natural logarithms; 0 for values that have none."""
    return np.log(values, out=np.zeros(len(values)), where=values > 0)


def _pool(samples: FloatArray | Clusters) -> _Vector | Clusters:
    return _Vector(samples) if isinstance(samples, np.ndarray) else samples


def _peaks(density: FloatArray) -> FloatArray:
    """Indices of the prominent maxima; of a level one its middle.

    As ``scipy.signal.find_peaks`` has them, whose import takes half a second.
    """
    steps = np.diff(density)
    changes = np.flatnonzero(steps)
    rises = steps[changes] > 0
    tops = np.flatnonzero(rises[:-1] & ~rises[1:])
    least = PROMINENCE * float(density.max())
    tops = tops[density[changes[tops + 1]] >= least]
    places = (changes[tops] + 1 + changes[tops + 1]) // 2
    return np.array([place for place in places if _prominence(density, place) >= least], dtype=np.float64)


def _prominence(density: FloatArray, place: int) -> float:
    """The prominence of a peak: its height above the higher of the two valleys between it and what is
    higher."""
    height, valleys = density[place], []
    for side in (density[place::-1], density[place:]):
        higher = np.flatnonzero(side > height)
        valleys.append(side[: higher[0] if len(higher) else None].min())
    return float(height - max(valleys))
