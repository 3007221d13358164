"""Samples that come in clusters: the gaps of a request, the requests of a session.

Samples of a cluster are alike, and clusters depend on each other in time; n samples of k clusters can be
worth as little as the clusters are. Gaps between tokens of requests that are under way at the same time are
alike too: where it is known when each began, slices of time take the place of clusters.

Everything here is computed from a few numbers per cluster, or counted:
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
from pytest_llmbench.stats.percentiles import Ordered, Worth, ordered_percentile, percentile_ranks
from pytest_llmbench.stats.runs import FloatArray, IntArray, Runs, middle, pooled
from pytest_llmbench.stats.spectral import spread

SORTED = 1 << 18
"""Most samples that are sorted; more of them are counted, which is faster from here on and needs no
memory."""
SLICES = 400
"""Number of slices of time over all runs together."""
_FEWEST_BEYOND = 20
"""Fewest samples beyond a threshold, as in :mod:`pytest_llmbench.stats.dependence`: the clustering of a rarer
event is read at one this frequent."""

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


class Slices(NamedTuple):
    """Slices of the time of each run, numbered run after run."""

    since: IntArray
    """When each cluster begins, since the beginning of its run."""
    spans: IntArray
    """How long the run of each cluster is."""
    each: IntArray
    """Number of slices of that run."""
    first: IntArray
    """Number of its first slice."""
    run_lengths: tuple[int, ...]

    def places(self, numbers: IntArray, counts: IntArray, part: slice) -> IntArray:
        """The slice in which each sample of these consecutive clusters ends."""
        reached = np.cumsum(numbers)
        before = np.concatenate(([0], reached[np.cumsum(counts)[:-1] - 1]))
        ends = reached + np.repeat(self.since[part] - before, counts)
        each = np.repeat(self.each[part], counts)
        places = np.clip(ends * each // np.repeat(self.spans[part], counts), 0, each - 1)
        return np.asarray(places + np.repeat(self.first[part], counts))


class GroupWorth(NamedTuple):
    worth: Worth
    middle: float
    """:meth:`Clusters.in_the_middle` of the samples above the percentile."""


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
    starts: IntArray | None = None
    """The instant at which each cluster begins, if samples are durations that follow one another in it; in
    the unit of the numbers."""

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
        starts = [run.starts for run in runs if run.starts is not None]
        return cls(
            counts,
            lengths,
            numbers,
            runs[0].per_unit if runs else 1.0,
            np.concatenate(starts) if runs and len(starts) == len(runs) else None,
        )

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

    def by_run(self, of_each: FloatArray, lengths: Sequence[int] | None = None) -> Runs:
        """One number per cluster, split into runs; runs without clusters are left out. ``lengths``: of runs,
        where they are not numbers of clusters."""
        parts = np.split(of_each, np.cumsum(self.run_lengths if lengths is None else lengths)[:-1])
        return tuple(part for part in parts if len(part))

    @cached_property
    def slices(self) -> Slices | None:
        """The slices of time that the samples end in; None where no instants are known."""
        if self.starts is None or not len(self):
            return None
        totals = np.empty(len(self.counts), dtype=np.int64)
        first = 0
        for numbers, counts in self._filled():
            part = slice(first, first := first + len(counts))
            totals[part] = np.add.reduceat(numbers, _starts(counts))
        run = np.repeat(np.arange(len(self.run_lengths)), self.run_lengths)
        begin, end = np.full(len(self.run_lengths), np.iinfo(np.int64).max), np.zeros_like(self.run_lengths)
        np.minimum.at(begin, run, self.starts)
        np.maximum.at(end, run, self.starts + totals)
        spans = np.where(end > begin, end - begin, 1)
        each = np.maximum(1, np.rint(SLICES * spans / spans.sum())).astype(np.int64)
        return Slices(self.starts - begin[run], spans[run], each[run], _starts(each)[run], tuple(each))

    @cached_property
    def group_lengths(self) -> tuple[int, ...]:
        """Number of groups of each run: its slices of time, or its clusters."""
        return self.run_lengths if self.slices is None else self.slices.run_lengths

    @cached_property
    def group_counts(self) -> FloatArray:
        """Number of samples of each group."""
        (found,) = self.group_sums([lambda numbers: np.ones(len(numbers))])
        return found

    def group_sums(self, of: Sequence[Callable[[IntArray], npt.NDArray[np.generic]]]) -> list[FloatArray]:
        """Sums of each ``of(numbers)``, whole numbers themselves, over each group."""
        found = [np.zeros(sum(self.group_lengths)) for _ in of]
        first = 0
        for numbers, counts in self._filled():
            last = first + len(counts)
            if self.slices is not None:
                places = self.slices.places(numbers, counts, slice(first, last))
                for own, each in zip(found, of, strict=True):
                    own += np.bincount(places, weights=each(numbers), minlength=len(own))
            else:
                for own, each in zip(found, of, strict=True):
                    own[first:last] = np.add.reduceat(each(numbers), _starts(counts), dtype=np.float64)
            first = last
        return found

    def influence_of_mean(self) -> Runs:
        """The influence of each group on the mean of all samples, in the samples' unit."""
        (sums,) = self.group_sums([lambda numbers: numbers])
        counts = self.group_counts
        errors = (sums / self.per_unit - self.moments.mean * counts) * (len(counts) / len(self))
        return self.by_run(errors, self.group_lengths)

    def in_the_middle(self, of_groups: FloatArray) -> float:
        """How many times as much per sample the middle half of the time has, at least 1: a run begins and
        ends in an idle system. 1 where no instants are known."""
        if self.slices is None:
            return 1.0
        values, counts = (self.by_run(of, self.group_lengths) for of in (of_groups, self.group_counts))
        inner, held = (sum(float(middle(run).sum()) for run in runs) for runs in (values, counts))
        whole = float(of_groups.sum())
        return max(1.0, inner / held * len(self) / whole) if held > 0 and whole > 0 else 1.0

    def percentile_worths(self, qs: Sequence[float]) -> list[GroupWorth]:
        """The effective number of independent samples for each of these percentiles, from 1 to the number of
        samples n.

        p(1 - p) / Var(p), p the share of samples above the percentile as a ratio of sums over groups (slices
        of time where instants are known, else clusters), and its variance that of the linearised ratio
        Σ (above_i - p · count_i) / n, with the groups' long-run dependence. A cluster is one event of a high
        percentile, and few of them tell how these come together; so they are taken to be half as dependent as
        at the median. Slices of time show it.
        """
        n, timed = len(self), self.slices is not None
        margin = min(50.0, 100.0 * _FEWEST_BEYOND / n)
        rare = [min(max(q, margin), 100.0 - margin) for q in (50.0, *qs)]
        look_up(self.ordered, (*percentile_ranks(n, rare), n - 1))
        above = self.group_sums([self._above(ordered_percentile(self.ordered, q)) for q in rare])
        median = self._worth(above[0], tested=False)
        found = []
        for q, own in zip(qs, above[1:], strict=True):
            worth = self._worth(own, tested=q <= 50 and not timed)
            worth = worth if q <= 50 or timed else worth.at_least_as_dependent(n, median)
            found.append(GroupWorth(worth, self.in_the_middle(own)))
        return found

    def _above(self, threshold: float) -> Callable[[IntArray], npt.NDArray[np.bool_]]:
        # With ties nothing may lie above the percentile; then reaching it is the event.
        compared = np.greater if self.ordered[-1] > threshold else np.greater_equal
        return lambda numbers: compared(numbers / self.per_unit, threshold)

    def _worth(self, above: FloatArray, *, tested: bool) -> Worth:
        n, groups = len(self), len(above)
        share = float(above.sum()) / n
        errors = self.by_run(above - share * self.group_counts, self.group_lengths)
        of = spread(errors, tested=tested)
        if of is None:
            # Too few groups for more than their plain spread.
            variance = float(np.mean(np.square(pooled(errors)))) / max(1, groups - 1)
            worth = Worth(float(n), float(max(1, groups - 1)))
        else:
            variance, worth = of.error**2, Worth.of_spread(of)._replace(samples=float(n))
        if variance == 0.0:
            return worth
        samples = share * (1 - share) * (n / groups) ** 2 / variance
        return worth._replace(samples=min(float(n), max(1.0, samples)))

    def _filled(self) -> Iterator[tuple[IntArray, IntArray]]:
        return ((numbers, counts) for numbers, counts in self.numbers() if len(counts))


def _starts(counts: IntArray) -> IntArray:
    return np.asarray(np.cumsum(counts) - counts, dtype=np.int64)
