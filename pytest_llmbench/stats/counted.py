"""Order statistics of more whole numbers than memory has room for: exact, by counting them in passes.

The first pass counts the numbers in cells 4096 wide. A wanted rank lies in one cell, and the next pass
counts what that cell holds number by number. Made for nanoseconds: two passes up to 4.3 s. What lies beyond,
or below zero, is in the last or the first cell, which are as wide as they have to be and take another pass
for every 4096-fold. Memory: 8 MiB for the cells and 32 KiB for each cell that wanted ranks lie in, however
many numbers there are.

Small whole numbers are counted as they are: their percentiles are exact too, whatever the number of samples.
And the empirical distribution function, thinned for drawing, of samples counted or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pytest_llmbench.stats.percentiles import Ordered
from pytest_llmbench.stats.runs import IntArray


def percentiles_of_counts(counts: npt.NDArray[np.int64], qs: Sequence[float]) -> list[float]:
    """Type 7 percentiles of a sample that has the number i ``counts[i]`` times, at least one of them."""
    reached = np.cumsum(counts)
    n = int(reached[-1]) if len(reached) else 0
    if n == 0:
        raise ValueError("no samples, no percentile")

    def at(rank: int) -> float:
        return float(np.searchsorted(reached, rank, side="right"))

    found = []
    for q in qs:
        rank = (n - 1) * q / 100
        low = math.floor(rank)
        below = at(low)
        found.append(below if rank == low else below + (rank - low) * (at(low + 1) - below))
    return found


def summed_counts(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The counts of both samples added up."""
    total = np.zeros(max(len(one), len(other)), dtype=np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


Passes = Callable[[], Iterable[IntArray]]
"""Returns all numbers, block by block; the same ones at each call."""

_CELL_BITS = 12
_CELLS = 1 << 20
_PARTS = 1 << _CELL_BITS
"""Number of parts into which a cell is divided at once."""
_RANKS_AT_ONCE = 512
_SPARSE = 64
"""The factor by which numbers are fewer than places where they are sorted, not counted place by place:
short blocks would take as long as all places do."""


@dataclass(frozen=True)
class _Division:
    """The division of some places of the pass before into :data:`_PARTS` places each."""

    slots: npt.NDArray[np.int32]
    """The number of each place of the pass before among the divided ones, -1 for the others."""
    starts: IntArray
    shifts: IntArray

    def places(self, numbers: IntArray, before: IntArray) -> tuple[IntArray, IntArray]:
        """The numbers that lie in divided places, and where they lie now."""
        slots = self.slots[before]
        inside = slots >= 0
        numbers, slots = numbers[inside], slots[inside]
        return numbers, slots * np.int64(_PARTS) + ((numbers - self.starts[slots]) >> self.shifts[slots])


@dataclass
class _Wanted:
    """Ranks whose numbers are being looked for, one entry each."""

    ranks: IntArray
    places: IntArray
    within: IntArray
    """Rank among the numbers of its place."""
    starts: IntArray
    spans: IntArray
    """Width of the place, which holds the whole numbers [start, start + span)."""

    def taken(self, chosen: npt.NDArray[np.bool_]) -> _Wanted:
        return _Wanted(*(values[chosen] for values in vars(self).values()))


class CountedOrder:
    """Whole numbers in ascending order, found by counting: ``order[rank]`` is a number divided by
    ``per_unit``.

    Ask for many ranks at once by :meth:`look_up`; each that was not asked for there takes passes of its own.
    """

    def __init__(self, passes: Passes, length: int, *, per_unit: float = 1.0) -> None:
        self._passes = passes
        self._length = length
        self._per_unit = per_unit
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rank: int) -> float:
        place = rank + self._length if rank < 0 else rank
        if not 0 <= place < self._length:
            raise IndexError(f"there is no rank {rank} among {self._length} numbers")
        if place not in self._known:
            self.look_up((place,))
        return self._known[place] / self._per_unit

    def look_up(self, ranks: Iterable[int]) -> None:
        """Find the numbers of these ranks, from 0, all in the same passes."""
        unknown = sorted({rank for rank in map(int, ranks) if rank not in self._known})
        for first in range(0, len(unknown), _RANKS_AT_ONCE):
            self._find(np.array(unknown[first : first + _RANKS_AT_ONCE], dtype=np.int64))

    def _find(self, ranks: IntArray) -> None:
        wanted = self._in_cells(ranks)
        size, divisions = _CELLS, list[_Division]()
        while True:
            single = wanted.spans == 1
            found = wanted.taken(single)
            self._known.update(zip(found.ranks.tolist(), found.starts.tolist(), strict=True))
            if single.all():
                return
            wanted = wanted.taken(~single)
            places, first = np.unique(wanted.places, return_index=True)
            slots = np.full(size, -1, dtype=np.int32)
            slots[places] = np.arange(len(places), dtype=np.int32)
            shifts = [max(0, (span - 1).bit_length() - _CELL_BITS) for span in wanted.spans[first].tolist()]
            divisions.append(_Division(slots, wanted.starts[first], np.array(shifts, dtype=np.int64)))
            size = len(divisions[-1].starts) * _PARTS
            wanted = _divided(wanted, divisions[-1], self._counts(divisions, size))

    @cached_property
    def _cells(self) -> tuple[IntArray, int, int]:
        """How many numbers each cell and all before it hold, the smallest number and the largest."""
        counts = np.zeros(_CELLS, dtype=np.int64)
        least, most = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        for numbers in self._blocks():
            _count(_cell_of(numbers), counts)
            least, most = min(least, int(numbers.min())), max(most, int(numbers.max()))
        return np.cumsum(counts, out=counts), least, most

    def _in_cells(self, ranks: IntArray) -> _Wanted:
        reached, least, most = self._cells
        cells = np.searchsorted(reached, ranks, side="right").astype(np.int64)
        starts = np.where(cells == 0, min(least, 0), cells << _CELL_BITS)
        ends = np.where(cells == _CELLS - 1, most + 1, (cells + 1) << _CELL_BITS)
        before = np.where(cells == 0, 0, reached[cells - 1])
        return _Wanted(ranks, cells, ranks - before, starts, ends - starts)

    def _counts(self, divisions: list[_Division], size: int) -> IntArray:
        counts = np.zeros(size, dtype=np.int64)
        for block in self._blocks():
            numbers, places = block, _cell_of(block)
            for division in divisions:
                numbers, places = division.places(numbers, places)
            _count(places, counts)
        return counts

    def _blocks(self) -> Iterator[IntArray]:
        return (numbers for numbers in self._passes() if len(numbers))


def look_up(ordered: Ordered, ranks: Iterable[int]) -> None:
    """Announce that these ranks will be asked for: where samples are counted, they are found together."""
    if isinstance(ordered, CountedOrder):
        ordered.look_up(ranks)


def _count(places: IntArray, counts: IntArray) -> None:
    if len(places) < len(counts) // _SPARSE:
        places, found = np.unique(places, return_counts=True)
        counts[places] += found
        return
    found = np.bincount(places)
    counts[: len(found)] += found


def _cell_of(numbers: IntArray) -> IntArray:
    cells: IntArray = np.clip(numbers >> _CELL_BITS, 0, _CELLS - 1)
    return cells


def _divided(wanted: _Wanted, division: _Division, counts: IntArray) -> _Wanted:
    """The wanted ranks after their places have been divided."""
    slots = division.slots[wanted.places].astype(np.int64)
    # Of one slot after the other; each begins where the numbers of the one before end.
    reached = np.cumsum(counts)
    before = reached[slots * _PARTS] - counts[slots * _PARTS]
    places = np.searchsorted(reached, before + wanted.within, side="right").astype(np.int64)
    within = before + wanted.within - (reached[places] - counts[places])
    widths = np.int64(1) << division.shifts[slots]
    starts = wanted.starts + (places - slots * _PARTS) * widths
    spans = np.minimum(widths, wanted.starts + wanted.spans - starts)
    return _Wanted(wanted.ranks, places, within, starts, spans)


MOST_POINTS = 500


def ecdf(samples: Ordered, most: int = MOST_POINTS) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(values, shares ≤ value), ascending, at most ``most`` points; both empty without samples.

    ``samples``: a vector in any order, or what is in ascending order already because it is only counted.
    The smallest and the largest sample are kept. Half of the points lie evenly over the ranks, half get
    denser towards the top, so that the last percent is drawn as finely as the rest.
    """
    n = len(samples)
    ranks = ecdf_ranks(n, most)
    ordered = np.sort(samples) if isinstance(samples, np.ndarray) else samples
    look_up(ordered, ranks)
    return tuple(float(ordered[rank]) for rank in ranks), tuple((rank + 1) / n for rank in ranks)


def ecdf_ranks(n: int, most: int = MOST_POINTS) -> list[int]:
    """The ranks, from 0, of the samples that are drawn."""
    if most < 2:
        raise ValueError(f"an empirical distribution needs at least 2 points, not {most}")
    if n <= most:
        return list(range(n))
    even = np.linspace(0, n - 1, most // 2)
    from_top = n - np.geomspace(1, n, most - most // 2)
    ranks: list[int] = np.unique(np.rint(np.concatenate((even, from_top))).astype(np.int64)).tolist()
    return ranks
