"""What requests waited for a slot, told by their order, and how much longer they may wait in truth.

A system of many slots near saturation waits seldom and long. The noise of service hides that: latencies look
independent, and a quiet stretch looks calm. The stamps tell more than the latencies:

- **Slots.** Requests are taken in the order they were sent, so whoever was sent before one that is being
  served is being served too. A request that ends is served at least the shortest latency seen before that; so
  many requests sent before it were under way then, and it itself: at least so many slots there are
  (:func:`slots_at_work`). Requests that pass each other at will show as many slots as requests, and none
  waits.
- **Waits.** Who finds k under way at c slots has k + 1 - c places before its turn, each of them as long as
  the mean gap between sends (Little 1961). Counted from the lower quartile, so that a closed loop, which
  always has the same number waiting, has no queue that comes and goes.
- **Visits.** While all slots are busy, the number under way falls by θ for each request sent, give or take
  σ: a queue lasts about σ²/θ² requests, half the relaxation time of a walk with that drift. m busy arrivals
  are v = m θ²/σ² visits to the queue. The drift is known to 1/√v of itself, so the mean wait h, which goes
  with 1/θ, may be h / (1 - z/√v).

So waits may be longer by h · f, f = 2 a / (1 - a), a = z/√v, twice since the share of time that is busy
is known no better; without limit for a ≥ 1. But a queue much longer than the noise of the mean,
s = z σ_x / √n, does not hide behind it: a rise is at most 6 (h h s)^(1/3). The weights were chosen by
simulation (docs/reference/statistics.md). Latencies with a wait in them rise by all of it: where their slope
over the waits is less than 1 even at its upper end, waits count for so much less. Where waits explain the
latencies, these show the queue themselves: the rise shrinks with the share r² of variance that is explained,
as 1 - 2 r².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.stats.dependence import SHORTEST_SERIES
from pytest_llmbench.stats.growth import IntArray, in_flight_at
from pytest_llmbench.stats.runs import FloatArray, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import normal_quantile

_QUIET = 25.0
"""The percentile that waits are counted from."""
_FEWEST_BUSY = 5
_DRIFT_AND_SHARE = 2.0
_NOISE = 6.0
_SHOWN = 0.5
"""The share of variance from which on latencies need no help."""
_MOST = 16.0
"""The longest that waits are drawn out where nothing else limits it, as a multiple."""
_USUAL = 0.95
_AT_ONCE = 64


class Drains(NamedTuple):
    """How much the number under way fell from one request sent in a full system to the next."""

    arrivals: int
    total: float
    squares: float

    @property
    def visits(self) -> float:
        """v = m θ²/σ²; 0 where too few were sent, or the number under way does not fall."""
        if self.arrivals < _FEWEST_BUSY:
            return 0.0
        drift = self.total / self.arrivals
        variance = self.squares / self.arrivals - drift**2
        if drift <= 0 or variance <= 0:
            return 0.0
        return self.arrivals * drift**2 / variance


class _Slope(NamedTuple):
    """Of samples over what they waited, by least squares."""

    value: float
    explained: float
    """r²: the share of their variance."""
    error: float

    def believed(self, level: float) -> float:
        """The most of waits that the samples may have in them, from 0 to 1: the upper end of their slope."""
        return min(1.0, max(0.0, self.value + normal_quantile(level) * self.error))


class Backlog(NamedTuple):
    """Of the samples of one run or of several."""

    waits: Runs
    """What each sample waited beyond the lower quartile, in its unit."""
    visits: float
    """Visits to the queue that the runs are worth."""

    def stretch(self, level: float) -> float:
        """f: how much longer waits may be, as a multiple of what was seen; ∞ for "as long as they like"."""
        relative = math.inf
        if self.visits > 0:
            relative = normal_quantile(min(level, _USUAL)) / math.sqrt(self.visits)
        return _DRIFT_AND_SHARE * relative / (1 - relative) if relative < 1 else math.inf

    def rise(self, samples: Samples, level: float = 0.95) -> float:
        """How much higher the mean of the samples may be for a queue that noise hides, in their unit; 0 for
        none. ValueError where the samples are not those of the waits."""
        runs = as_runs(samples)
        if [len(run) for run in runs] != [len(run) for run in self.waits]:
            raise ValueError("each sample needs its wait")
        every = pooled(runs)
        slope = self._slope(every)
        if len(every) < SHORTEST_SERIES or slope is None:
            return 0.0
        shown = 1 - slope.explained / _SHOWN
        if slope.value <= 0 or shown <= 0:
            return 0.0
        height = float(pooled(self.waits).mean()) * slope.believed(level)
        noise = normal_quantile(level) * float(every.std()) / math.sqrt(len(every))
        hidden = _NOISE * math.cbrt(height * height * noise)
        return shown * min(self.stretch(level) * height, hidden)

    def _slope(self, every: FloatArray) -> _Slope | None:
        """Of the samples over their waits; None where either does not vary."""
        waits = pooled(self.waits)
        own, variance = float(waits.var()), float(every.var())
        if own == 0.0 or variance == 0.0:
            return None
        value = float(np.mean((waits - waits.mean()) * (every - every.mean()))) / own
        explained = value**2 * own / variance
        return _Slope(value, explained, math.sqrt(max(0.0, 1 - explained) * variance / own / len(every)))

    def lengthened(self, samples: Samples, rise: float) -> Runs:
        """The samples, had they waited longer by so much in the mean, each in proportion."""
        height = float(pooled(self.waits).mean())
        runs = as_runs(samples)
        if rise == 0.0 or height == 0.0:
            return runs
        return tuple(run + rise / height * waits for run, waits in zip(runs, self.waits, strict=True))

    def drawn_out(self, samples: Samples, level: float = 0.95) -> Runs:
        """The samples with waits as much longer as they may be, 17 times at most."""
        slope = self._slope(pooled(as_runs(samples)))
        most = 0.0 if slope is None else min(self.stretch(level), _MOST) * slope.believed(level)
        return self.lengthened(samples, most * float(pooled(self.waits).mean()))

    def scaled(self, factor: float) -> Backlog:
        return self._replace(waits=tuple(waits * factor for waits in self.waits))


class SlotQueue(NamedTuple):
    """One run: the requests under way of a system with that many slots, taken in the order sent."""

    starts_ns: IntArray
    """Ascending, as those that never began are left out."""
    ends_ns: IntArray
    """In the same order; of one that has not ended later than all."""
    slots: int

    @classmethod
    def of(cls, starts_ns: IntArray, ends_ns: IntArray, served: npt.NDArray[np.bool_]) -> SlotQueue:
        """``served``: those that ended well. Others were under way too, and tell nothing of slots. Negative
        starts and ends as in :func:`~pytest_llmbench.stats.growth.in_flight_steps`."""
        order = np.argsort(starts_ns, kind="stable")
        order = order[starts_ns[order] >= 0]
        starts, ends = starts_ns[order], ends_ns[order]
        well = served[order] & (ends >= 0)
        ends = np.where(ends >= 0, ends, np.iinfo(np.int64).max)
        return cls(starts, ends, slots_at_work(starts[well], ends[well]))

    def waits_ms(self, instants_ns: IntArray) -> FloatArray:
        """Of requests sent at these instants, beyond the lower quartile of all."""
        if len(self.starts_ns) < 2:
            return np.zeros(len(instants_ns))
        gap_ms = float(self.starts_ns[-1] - self.starts_ns[0]) / 1e6 / (len(self.starts_ns) - 1)
        every, own = (
            np.maximum(in_flight_at(at, self.starts_ns, self.ends_ns) + 1 - self.slots, 0.0)
            for at in (self.starts_ns, instants_ns)
        )
        return np.asarray(np.maximum(own - np.percentile(every, _QUIET), 0.0) * gap_ms)

    @property
    def drains(self) -> Drains:
        ended = np.searchsorted(np.sort(self.ends_ns), self.starts_ns, side="right")
        after = np.arange(1, len(ended) + 1) - ended
        fallen = (after[:-1] - after[1:] + 1)[after[:-1] > self.slots].astype(np.float64)
        return Drains(len(fallen), float((fallen - 1).sum()), float(np.square(fallen - 1).sum()))


def backlog(queues: Sequence[SlotQueue], instants_ns: Sequence[IntArray]) -> Backlog:
    """Of requests sent at these instants, those of one run after the other."""
    totals = [sum(parts) for parts in zip(*(queue.drains for queue in queues), strict=True)]
    drains = Drains(int(totals[0]), *totals[1:]) if totals else Drains(0, 0.0, 0.0)
    waits = tuple(queue.waits_ms(at) for queue, at in zip(queues, instants_ns, strict=True) if len(at))
    return Backlog(waits, drains.visits)


def slots_at_work(starts: IntArray, ends: IntArray) -> int:
    """The most requests that must have been served at once, if they are taken in the order sent; at least 1.

    ``starts``: ascending; ``ends``: of the same requests.
    """
    if not len(starts):
        return 1
    shortest = int((ends - starts).min())
    return 1 + int(_earlier_above(ends, ends - shortest).max())


def _earlier_above(ends: IntArray, at: IntArray) -> IntArray:
    """How many earlier requests end after each instant: #{i < j: ends_i > at_j}, by merging."""
    n, ordered = len(ends), np.sort(ends)
    size = 1 << max(n - 1, 1).bit_length()
    # Ranks, so that one search serves all blocks. What fills up the last block ends before everything.
    ranks, least = np.full((2, size), -1)
    ranks[:n] = np.searchsorted(ordered, ends, side="right")
    least[:n] = np.searchsorted(ordered, at, side="right")
    found = np.zeros(size, dtype=np.int64)
    width = min(_AT_ONCE, size)
    blocks, limits, counts = (each.reshape(-1, width) for each in (ranks, least, found))
    for step in range(1, width):
        counts[:, step:] += blocks[:, :-step] > limits[:, step:]
    while width < size:
        left = np.sort(ranks.reshape(-1, 2 * width)[:, :width], axis=1)
        right = least.reshape(-1, 2 * width)[:, width:]
        offsets = (n + 2) * np.arange(len(left))[:, None]
        below = np.searchsorted((left + offsets).ravel(), (right + offsets).ravel(), side="right")
        ahead = width * (1 + np.arange(len(left)))[:, None]
        found.reshape(-1, 2 * width)[:, width:] += ahead - below.reshape(right.shape)
        width *= 2
    return found[:n]
