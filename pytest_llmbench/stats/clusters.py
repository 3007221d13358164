"""Samples that come in clusters: the gaps of a request, the requests of a session.

Samples of a cluster are alike, and clusters depend on each other in time; n samples of k clusters can be
worth as little as the clusters are. Everything here is computed from a few numbers per cluster, or counted:
the samples are gone through block by block, some times over, and are never needed all at once. No figure
depends on where a block ends, because whatever is added up is added up per cluster first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.stats.counted import CountedOrder, look_up
from pytest_llmbench.stats.percentile_intervals import Worth
from pytest_llmbench.stats.percentiles import Ordered, ordered_percentile, percentile_ranks
from pytest_llmbench.stats.runs import FloatArray, Runs, pooled
from pytest_llmbench.stats.spectral import spread

SORTED = 1 << 18
"""Most samples that are sorted; more of them are counted, which is faster from here on and needs no
memory."""
_FEWEST_BEYOND = 20
"""Fewest samples beyond a threshold, as in :mod:`pytest_llmbench.stats.dependence`: the clustering of a rarer
event is read at one this frequent."""

IntArray = npt.NDArray[np.int64]
Blocks = Callable[[], Iterable[tuple[IntArray, IntArray]]]
"""Returns the samples, some whole clusters at a time, with the lengths of these; the same ones at each
call."""


class Moments(NamedTuple):
    """The moments of each cluster, in the samples' unit."""

    means: FloatArray
    squares: FloatArray
    """Σ (x - mean of the cluster)²."""
    largest: FloatArray
    mean: float
    """The mean of all samples."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """Consecutive stretches of a flat series of samples, none empty, in arrival order, run after run.

    The samples are whole numbers: ``per_unit`` of them are one unit.
    """

    counts: IntArray
    """Number of samples of each cluster."""
    run_lengths: tuple[int, ...]
    """Number of clusters of each run."""
    numbers: Blocks
    per_unit: float = 1.0

    @classmethod
    def joined(cls, runs: Sequence[Clusters]) -> Clusters:
        """The clusters of several runs as one; the runs must have the same unit."""
        if len(runs) == 1:
            return runs[0]

        def numbers() -> Iterator[tuple[IntArray, IntArray]]:
            for run in runs:
                yield from run.numbers()

        counts = np.concatenate([run.counts for run in runs]) if runs else np.empty(0, dtype=np.int64)
        lengths = tuple(length for run in runs for length in run.run_lengths)
        return cls(counts, lengths, numbers, runs[0].per_unit if runs else 1.0)

    def __len__(self) -> int:
        """The number of samples."""
        return self._length

    @cached_property
    def _length(self) -> int:
        return int(self.counts.sum())

    def blocks(self) -> Iterator[FloatArray]:
        """The samples, some whole clusters at a time."""
        for numbers, _ in self._filled():
            yield numbers / self.per_unit

    def sums(self, of: Callable[[FloatArray], npt.NDArray[np.generic]]) -> FloatArray:
        """Sum of ``of(samples)`` over each cluster."""
        found, first = np.empty(len(self.counts)), 0
        for numbers, counts in self._filled():
            part = slice(first, first := first + len(counts))
            found[part] = np.add.reduceat(of(numbers / self.per_unit), _starts(counts), dtype=np.float64)
        return found

    def total(self, of: Callable[[FloatArray], npt.NDArray[np.generic]]) -> float:
        """Sum of ``of(samples)`` over all samples."""
        return float(np.sum(self.sums(of)))

    @cached_property
    def moments(self) -> Moments:
        means, squares, largest = np.empty((3, len(self.counts)))
        first = total = 0
        for numbers, counts in self._filled():
            part, starts = slice(first, first := first + len(counts)), _starts(counts)
            sums = np.add.reduceat(numbers, starts)
            total += int(sums.sum())
            means[part] = sums / counts / self.per_unit
            around = numbers / self.per_unit - np.repeat(means[part], counts)
            squares[part] = np.add.reduceat(np.square(around), starts)
            largest[part] = np.maximum.reduceat(numbers, starts) / self.per_unit
        return Moments(means, squares, largest, total / len(self) / self.per_unit if total else 0.0)

    @property
    def deviation(self) -> float:
        """Sample standard deviation (n - 1) of all samples. ValueError for fewer than two."""
        if len(self) < 2:
            raise ValueError("fewer than two samples do not deviate")
        of = self.moments
        return math.sqrt(
            float(np.sum(of.squares + self.counts * np.square(of.means - of.mean))) / (len(self) - 1)
        )

    @cached_property
    def ordered(self) -> Ordered:
        """The samples in ascending order."""
        if len(self) > SORTED:
            return CountedOrder(
                lambda: (numbers for numbers, _ in self._filled()), len(self), per_unit=self.per_unit
            )
        every = [numbers for numbers, _ in self._filled()]
        return np.sort(np.concatenate(every) if every else np.empty(0)) / self.per_unit

    def by_run(self, of_clusters: FloatArray) -> Runs:
        """One number per cluster, split into runs; runs without clusters are left out."""
        parts = np.split(of_clusters, np.cumsum(self.run_lengths)[:-1])
        return tuple(part for part in parts if len(part))

    def percentile_worths(self, qs: Sequence[float]) -> list[Worth]:
        """The effective number of independent samples for each of these percentiles, from 1 to the number of
        samples n.

        p(1 - p) / Var(p), p the share of samples above the percentile as a ratio of sums over clusters, and
        its variance that of the linearised ratio Σ (above_i - p · count_i) / n, with the clusters' long-run
        dependence.
        """
        n = len(self)
        margin = min(50.0, 100.0 * _FEWEST_BEYOND / n)
        rare = [min(max(q, margin), 100.0 - margin) for q in (50.0, *qs)]
        look_up(self.ordered, (*percentile_ranks(n, rare), n - 1))
        above = self._above([ordered_percentile(self.ordered, q) for q in rare])
        # Of many clusters these are the largest vectors there are: each goes when it has been used.
        median = self._worth(above.pop(0), tested=False)
        return [
            self._worth(above.pop(0), tested=True)
            if q <= 50
            else self._worth(above.pop(0), tested=False).at_least_as_dependent(n, median)
            for q in qs
        ]

    def _above(self, thresholds: Sequence[float]) -> list[npt.NDArray[np.int32]]:
        """For each threshold, how many samples of each cluster lie above it."""
        found = [np.empty(len(self.counts), dtype=np.int32) for _ in thresholds]
        largest, first = self.ordered[-1], 0
        for numbers, counts in self._filled():
            part, starts = slice(first, first := first + len(counts)), _starts(counts)
            values = numbers / self.per_unit
            for threshold, own in zip(thresholds, found, strict=True):
                # With ties nothing may lie above the percentile; then reaching it is the event.
                above = values > threshold if largest > threshold else values >= threshold
                own[part] = np.add.reduceat(above, starts, dtype=np.int32)
        return found

    def _worth(self, above: npt.NDArray[np.int32], *, tested: bool) -> Worth:
        n = len(self)
        share = float(above.sum(dtype=np.int64)) / n
        errors = self.by_run(above - share * self.counts)
        every = pooled(errors)
        clusters = len(every)
        of = spread(errors, tested=tested)
        if of is None:
            # Too few clusters for more than their plain spread.
            variance = float(np.mean(np.square(every))) / max(1, clusters - 1)
            worth = Worth(float(n), float(max(1, clusters - 1)))
        else:
            variance, worth = of.error**2, Worth.of_spread(of)._replace(samples=float(n))
        if variance == 0.0:
            return worth
        samples = share * (1 - share) * (n / clusters) ** 2 / variance
        return worth._replace(samples=min(float(n), max(1.0, samples)))

    def _filled(self) -> Iterator[tuple[IntArray, IntArray]]:
        return ((numbers, counts) for numbers, counts in self.numbers() if len(counts))


def _starts(counts: IntArray) -> IntArray:
    return np.asarray(np.cumsum(counts) - counts, dtype=np.int64)
