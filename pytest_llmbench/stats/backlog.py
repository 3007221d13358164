"""How long requests waited for a slot, told by their order, and how much longer they may wait in truth.

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
simulation (docs/reference/statistics.md).

- **Utilisation.** The slots were at work for ρ of the time, n requests tell it to ε = √((c_a² + c_s²) / n) of
  itself, c_a and c_s the coefficients of variation of gaps and services, so it may be ρ e^(z ε). At that
  a queue waits E[S] (c_a² + c_s²) / 2 · ρ^(√(2 (c + 1)) - 1) / (c (1 - ρ)) (Sakasegawa 1977, Annals of the
  Institute of Statistical Mathematics 29), from 1 on as long as it likes: a run of about two relaxation times
  cannot tell a busy system from an overloaded one. Waits may be as long as that says, if it is more. The
  median and the mean are then open above; of higher percentiles waits are drawn out 16 times at most, and of
  shares that nearly all keep not for this.

A run that was full all along may have been so by chance: at the other end of the drift its waits, all of
them, would be 1/(1 + a)² of what they were, and the lower end of the mean allows for it.

Latencies with a wait in them rise by all of it: where their slope over the waits is less than 1 even at its
upper end, waits count for so much less. Where it is certainly less than 1/2, or over the whole number under
way next to none, as for replies that take long and are all served at once, no request is in the way of
another, and utilisation tells of no queue. Where waits explain the latencies, these show the queue:
the rise shrinks with the share r² of variance that is explained, of the median as 1 - 2 r², of the mean as
1 - r⁴, and of higher percentiles, which few long waits make, as (1 - r²) (1 + 2 r²).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.stats.dependence import SHORTEST_SERIES
from pytest_llmbench.stats.runs import FloatArray, IntArray, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import normal_quantile
from pytest_llmbench.stats.stationarity import in_flight_at

_QUIET = 25.0
"""The percentile of the number under way from which waits are counted."""
FEWEST = 500
"""Fewest requests that tell the utilisation: with fewer every system might be overloaded."""
_FEWEST_BUSY = 5
_DRIFT_AND_SHARE = 2.0
_NOISE = 6.0
_SHOWN = 0.5
"""The explained share of variance from which on the median is not raised."""
_MOST = 16.0
"""The largest factor by which waits are drawn out where nothing else limits it."""
_USUAL = 0.95
_CERTAIN, _HALF, _HARDLY = 3.0, 0.5, 0.15
"""Numbers of standard errors below which a slope shows that there is no queue: the slope over waits below the
second number, or the slope over the whole number under way below the third."""
_EXPONENTIAL = 8.0
"""n times the variance of c_a² for n exponential gaps."""
_MOST_BURSTINESS = 1.5
_AT_ONCE = 64
_NEVER = np.iinfo(np.int64).max


class Drains(NamedTuple):
    """Sums over how far the number under way fell from one request sent in a full system to the next."""

    arrivals: int
    total: float
    squares: float

    @property
    def visits(self) -> float:
        """Visits to the queue, v = m θ²/σ²; 0 where too few requests were sent, or the number under way does
        not fall."""
        if self.arrivals < _FEWEST_BUSY:
            return 0.0
        drift = self.total / self.arrivals
        variance = self.squares / self.arrivals - drift**2
        if drift <= 0 or variance <= 0:
            return 0.0
        return self.arrivals * drift**2 / variance


class _Slope(NamedTuple):
    """A least-squares slope of samples over what they waited."""

    value: float
    explained: float
    """r²: the share of the samples' variance that the waits explain."""
    error: float

    def believed(self, level: float) -> float:
        """The largest share of the waits, from 0 to 1, that may be part of the samples: the upper end of
        their slope."""
        return min(1.0, max(0.0, self.value + normal_quantile(level) * self.error))

    def is_below(self, least: float) -> bool:
        """Whether the slope is certainly below ``least``."""
        return self.value + _CERTAIN * self.error < least


def _slope(samples: FloatArray, waits: FloatArray) -> _Slope | None:
    """The slope of the samples over their waits; None where either does not vary."""
    own, variance = float(waits.var()), float(samples.var())
    if own == 0.0 or variance == 0.0:
        return None
    value = float(np.mean((waits - waits.mean()) * (samples - samples.mean()))) / own
    explained = value**2 * own / variance
    return _Slope(value, explained, math.sqrt(max(0.0, 1 - explained) * variance / own / len(samples)))


class Work(NamedTuple):
    """How much of the slot-time of one run was used."""

    requests: int
    done_ns: float
    """Slot-time at work over all requests, in nanoseconds."""
    offered_ns: float
    """Slot-time available while the requests were sent, in nanoseconds."""
    waited_ns: float
    variation: float
    """c_a² + c_s², the squared coefficients of variation of gaps and services."""
    slots: float
    of_gaps: float
    """c_a²."""

    @property
    def burstiness(self) -> float:
        """c_a, from 1 to 1.5; 1 where gaps are not certainly more varied than Poisson's."""
        if self.of_gaps <= 1 + _CERTAIN * math.sqrt(_EXPONENTIAL / self.requests):
            return 1.0
        return min(_MOST_BURSTINESS, math.sqrt(self.of_gaps))


class Occupancy(NamedTuple):
    """How busy the slots were, in one run or several."""

    utilisation: float
    error: float
    """The relative standard error of the utilisation."""
    slots: float
    scale: float
    """E[S] (c_a² + c_s²) / 2, in the unit of the samples."""
    waited: float
    """The mean wait of all requests, in the unit of the samples."""

    @classmethod
    def of(cls, works: Sequence[Work]) -> Occupancy:
        requests = sum(work.requests for work in works)

        def mean(values: Iterable[float]) -> float:
            return math.fsum(map(mul, values, (work.requests for work in works))) / requests

        done_ns = math.fsum(work.done_ns for work in works)
        variation = mean(work.variation for work in works)
        return cls(
            utilisation=done_ns / math.fsum(work.offered_ns for work in works),
            error=math.sqrt(variation / requests),
            slots=mean(work.slots for work in works),
            scale=done_ns / requests / 1e6 * variation / 2,
            waited=math.fsum(work.waited_ns for work in works) / requests / 1e6,
        )

    def busiest(self, level: float) -> float:
        """The upper end of the utilisation."""
        return self.utilisation * math.exp(normal_quantile(min(level, _USUAL)) * self.error)

    def longest_wait(self, level: float) -> float:
        """The upper end of the mean wait, in the unit of the samples; ∞ where the slots may all be at
        work."""
        return self.mean_wait(self.busiest(level))

    def share_waiting(self, utilisation: float) -> float:
        """The share of requests that wait at this utilisation, by Sakasegawa's formula."""
        return float(min(1.0, utilisation) ** (math.sqrt(2 * (self.slots + 1)) - 1))

    def mean_wait(self, utilisation: float) -> float:
        """The mean wait of all requests at this utilisation, in the unit of the samples; ∞ from 1 on."""
        if utilisation >= 1:
            return math.inf
        return self.scale * self.share_waiting(utilisation) / (self.slots * (1 - utilisation))

    def longer(self, level: float) -> float:
        """How many times as many requests would tell the system from an overloaded one; at most 1 where these
        requests do, ∞ where they show an overloaded one."""
        if self.utilisation >= 1:
            return math.inf
        return (normal_quantile(min(level, _USUAL)) * self.error / math.log(self.utilisation)) ** 2

    @property
    def relaxation_times(self) -> float:
        """How many relaxation times of the queue the runs span: n / τ, τ = 2 (c_a² + c_s²) / ln² ρ requests
        for a ρ near 1; 0 for an overloaded system."""
        return 0.0 if self.utilisation >= 1 else (math.log(self.utilisation) / self.error) ** 2 / 2


class Rise(NamedTuple):
    """How much higher figures of samples may be because of a queue that noise hides, in the samples' unit; 0
    for none."""

    mean: float = 0.0
    """Rise of the mean; ∞: without limit."""
    median: float = 0.0
    """Rise of percentiles up to the median; ∞: without limit."""
    beyond: float = 0.0
    """Rise of the mean to be used for percentiles beyond the median, which long waits make."""
    share: float = 0.0
    """Rise of the mean to be used for a share that nearly all requests keep."""
    fall: float = 0.0
    """Amount by which the mean may be lower: a queue that never empties may be chance."""
    burstiness: float = 1.0
    """How many times as far crude ends are, since the requests came in bursts."""


NO_RISE = Rise()


class Backlog(NamedTuple):
    """The waits of the samples of one run or of several, and how well they are known."""

    waits: Runs
    """What each sample waited beyond the lower quartile, in the samples' unit."""
    visits: float
    """Number of visits to the queue that the runs are worth."""
    load: Occupancy | None = None
    """How busy the slots were; ``None`` for fewer than 500 requests, and where the number under way hardly
    varies."""
    in_flight: Runs = ()
    """How many were under way when each sample was sent, times the mean gap between sends."""
    queues: tuple[SlotQueue, ...] = ()
    """The requests of each run that has samples; empty where the unit is not ms."""
    sent_ns: tuple[IntArray, ...] = ()
    """The instant at which each sample was sent, in those runs."""
    burstiness: float = 1.0
    """That of the runs, the largest."""

    def stretch(self, level: float) -> float:
        """f: how much longer waits may be, as a multiple of what was seen; ∞: without limit."""
        relative = math.inf
        if self.visits > 0:
            relative = normal_quantile(min(level, _USUAL)) / math.sqrt(self.visits)
        return _DRIFT_AND_SHARE * relative / (1 - relative) if relative < 1 else math.inf

    def may_lengthen(self, samples: Samples) -> bool:
        """Whether the samples may contain waits. They would rise with the number under way; they do not where
        replies take long and all are served at once."""
        every = pooled(as_runs(samples))
        return self._may_lengthen(every, _slope(every, pooled(self.waits)))

    def _may_lengthen(self, every: FloatArray, over_waits: _Slope | None) -> bool:
        if over_waits is None or over_waits.is_below(_HALF):
            return False
        over_all = _slope(every, pooled(self.in_flight)) if self.in_flight else None
        return over_all is None or not over_all.is_below(_HARDLY)

    def rise(self, samples: Samples, level: float = 0.95) -> Rise:
        """How much higher the figures of these samples may be. ValueError where the samples are not those of
        the waits."""
        runs = as_runs(samples)
        if [len(run) for run in runs] != [len(run) for run in self.waits]:
            raise ValueError("each sample needs its wait")
        every = pooled(runs)
        slope = _slope(every, pooled(self.waits))
        if len(every) < SHORTEST_SERIES or slope is None:
            return NO_RISE
        seen, height = self._seen, self._seen * slope.believed(level)
        if height == 0.0:
            return NO_RISE
        noise = normal_quantile(level) * float(every.std()) / math.sqrt(len(every))
        hidden = min(self.stretch(level) * height, _NOISE * math.cbrt(height * height * noise))
        queue = self.load if self.load is not None and self._may_lengthen(every, slope) else None
        longest = 0.0 if queue is None else queue.longest_wait(level)
        longer = max(0.0, longest / seen - 1)
        mean, beyond = (max(hidden, height * times) for times in (longer, min(longer, _MOST)))
        explained = slope.explained
        shown = max(0.0, 1 - explained / _SHOWN)
        fall = 0.0 if queue is None else self._lost(level) * queue.waited * slope.believed(level)
        return Rise(
            # Not 0 · ∞.
            mean=(1 - explained) * (1 + explained) * mean if explained < 1 else 0.0,
            median=shown * mean if shown > 0 else 0.0,
            beyond=(1 - explained) * (1 + 2 * explained) * beyond,
            share=shown * hidden,
            fall=shown * fall,
            burstiness=self.burstiness,
        )

    def _lost(self, level: float) -> float:
        """The share of the waits that would vanish at the upper end of the drift: 1 - 1/(1 + a)²."""
        if self.visits == 0.0:
            return 1.0
        steeper = 1 + normal_quantile(min(level, _USUAL)) / math.sqrt(self.visits)
        return 1 - math.pow(steeper, -_DRIFT_AND_SHARE)

    @property
    def _seen(self) -> float:
        """The mean of the measured waits."""
        return float(pooled(self.waits).mean())

    def lengthened(self, samples: Samples, rise: float) -> Runs:
        """The samples as they would be if the mean wait were longer by ``rise``, each wait in proportion."""
        runs = as_runs(samples)
        if rise == 0.0 or self._seen == 0.0:
            return runs
        return tuple(run + rise / self._seen * waits for run, waits in zip(runs, self.waits, strict=True))

    def share_within(self, samples: Samples, limit: float, rise: float, level: float) -> float:
        """The least share of samples within a limit if the mean wait were longer by ``rise``: by each that
        waited in proportion, or by as many of all as wait at the upper end of the utilisation."""
        longer = float(np.mean(pooled(self.lengthened(samples, rise)) <= limit))
        if self.load is None or rise == 0.0:
            return longer
        # Where hardly any waited, nearly all that would wait did not.
        waiting = self.load.share_waiting(self.load.busiest(level))
        left = limit - pooled(as_runs(samples)) + pooled(self.waits)
        late = waiting * np.exp(-np.maximum(left, 0.0) * waiting / (self._seen + rise))
        return min(longer, float(np.mean(np.where(left < 0, 0.0, 1 - late))))

    def drawn_out(self, samples: Samples, level: float = 0.95) -> Runs:
        """The samples with waits drawn out as far as they may be, 17 times at most."""
        slope = _slope(pooled(as_runs(samples)), pooled(self.waits))
        most = 0.0 if slope is None else min(self.stretch(level), _MOST) * slope.believed(level)
        return self.lengthened(samples, most * self._seen)

    def scaled(self, factor: float) -> Backlog:
        load = self.load
        if load is not None:
            load = load._replace(scale=load.scale * factor, waited=load.waited * factor)
        waits, in_flight = (tuple(run * factor for run in runs) for runs in (self.waits, self.in_flight))
        return self._replace(waits=waits, load=load, in_flight=in_flight, queues=(), sent_ns=())

    def only(self, there: npt.NDArray[np.bool_]) -> Backlog:
        """The backlog of the chosen samples, all runs taken for one; of several runs the requests are left
        out."""
        waits, in_flight = (
            as_runs(pooled(runs)[there]) if runs else () for runs in (self.waits, self.in_flight)
        )
        if len(self.queues) != 1:
            return self._replace(waits=waits, in_flight=in_flight, queues=(), sent_ns=())
        return self._replace(waits=waits, in_flight=in_flight, sent_ns=(self.sent_ns[0][there],))


class SlotQueue(NamedTuple):
    """One run of a system that takes requests in the order sent: the requests under way in its slots."""

    starts_ns: IntArray
    """Starts of the requests in ascending order; those that never began are left out."""
    ends_ns: IntArray
    """Ends in the same order; for a request that has not ended, an instant later than all."""
    slots: int
    is_complete: bool = False
    """Whether all requests ended well, so that nothing else was in their way."""
    is_slowed: bool = False
    """Whether requests under way at the same time are known to slow each other down."""

    @classmethod
    def of(cls, starts_ns: IntArray, ends_ns: IntArray, served: npt.NDArray[np.bool_]) -> SlotQueue:
        """The queue of a run. ``served``: which requests ended well. Others were under way too, but tell
        nothing of slots. Negative starts and ends as in
        :func:`~pytest_llmbench.stats.stationarity.in_flight_steps`."""
        order = np.argsort(starts_ns, kind="stable")
        order = order[starts_ns[order] >= 0]
        starts, ends = starts_ns[order], ends_ns[order]
        well = served[order] & (ends >= 0)
        ends = np.where(ends >= 0, ends, _NEVER)
        return cls(starts, ends, slots_at_work(starts[well], ends[well]), bool(well.all()))

    def waits_ms(self, instants_ns: IntArray) -> FloatArray:
        """What requests sent at these instants waited beyond the lower quartile of all, in ms."""
        if len(self.starts_ns) < 2:
            return np.zeros(len(instants_ns))
        every, own = (
            np.maximum(in_flight_at(at, self.starts_ns, self.ends_ns) + 1 - self.slots, 0.0)
            for at in (self.starts_ns, instants_ns)
        )
        return np.asarray(np.maximum(own - np.percentile(every, _QUIET), 0.0) * self._gap_ms)

    def in_flight_ms(self, instants_ns: IntArray) -> FloatArray:
        """The number under way at these instants, times the mean gap between sends, in ms."""
        return np.asarray(in_flight_at(instants_ns, self.starts_ns, self.ends_ns) * self._gap_ms)

    @property
    def _gap_ms(self) -> float:
        n = len(self.starts_ns)
        return float(self.starts_ns[-1] - self.starts_ns[0]) / 1e6 / (n - 1) if n > 1 else 0.0

    @property
    def _after(self) -> IntArray:
        """The number under way after each request was sent."""
        ended = np.searchsorted(np.sort(self.ends_ns), self.starts_ns, side="right")
        return np.asarray(np.arange(1, len(ended) + 1) - ended)

    @property
    def drains(self) -> Drains:
        after = self._after
        fallen = (after[:-1] - after[1:] + 1)[after[:-1] > self.slots].astype(np.float64)
        return Drains(len(fallen), float((fallen - 1).sum()), float(np.square(fallen - 1).sum()))

    @property
    def work(self) -> Work | None:
        """The slot-time used; ``None`` for too few requests, and where the number under way hardly varies: in
        a closed loop, or where requests come and end by the clock, it is always that of the slots seen."""
        ended = self.ends_ns < _NEVER
        n, spent = len(self.starts_ns), int(np.count_nonzero(ended))
        if spent < SHORTEST_SERIES or self.starts_ns[0] == self.starts_ns[-1]:
            return None
        gaps = np.diff(self.starts_ns).astype(np.float64)
        of_gaps = float(gaps.var() / gaps.mean() ** 2)
        after = self._after
        # Of Poisson's arrivals it is 1.35 √mean, whatever the services.
        if np.subtract(*np.percentile(after, (75, 25))) < math.sqrt(max(0.0, float(after.mean()))) / 2:
            return None
        done_ns, waited_ns = self._slot_times_ns(int(self.ends_ns[ended].max()))
        latencies = (self.ends_ns - self.starts_ns)[ended] / 1e6
        waits = self.waits_ms(self.starts_ns)[ended]
        slope = _slope(latencies, waits)
        explained = 0.0 if slope is None else slope.explained
        of_services = (1 - explained) * float(latencies.var()) / (done_ns / n / 1e6) ** 2
        offered_ns = self.slots * float(gaps.mean()) * n
        return Work(n, done_ns, offered_ns, waited_ns, of_gaps + of_services, self.slots, of_gaps)

    def _slot_times_ns(self, last_ns: int) -> tuple[float, float]:
        """The slot-time at work and the time waited for slots, in nanoseconds. Requests that have not ended
        are under way until the last end."""
        ends_ns = np.maximum(np.minimum(self.ends_ns, last_ns), self.starts_ns)
        instants = np.concatenate((self.starts_ns, ends_ns))
        order = np.argsort(instants, kind="stable")
        under_way = np.cumsum(np.where(order < len(self.starts_ns), 1, -1))[:-1]
        spans = np.diff(instants[order])
        at_work = np.minimum(under_way, self.slots)
        return float(at_work @ spans), float((under_way - at_work) @ spans)


def backlog(queues: Sequence[SlotQueue], instants_ns: Sequence[IntArray]) -> Backlog:
    """The backlog of requests sent at these instants, given run by run."""
    totals = [sum(parts) for parts in zip(*(queue.drains for queue in queues), strict=True)]
    drains = Drains(int(totals[0]), *totals[1:]) if totals else Drains(0, 0.0, 0.0)
    sent = [(queue, at) for queue, at in zip(queues, instants_ns, strict=True) if len(at)]
    waits = tuple(queue.waits_ms(at) for queue, at in sent)
    in_flight = tuple(queue.in_flight_ms(at) for queue, at in sent)
    works = [work for work in (queue.work for queue in queues) if work is not None]
    load = Occupancy.of(works) if sum(work.requests for work in works) >= FEWEST else None
    of_samples = tuple(queue for queue, _ in sent)
    sent_ns, bursty = tuple(at for _, at in sent), max((work.burstiness for work in works), default=1.0)
    return Backlog(waits, drains.visits, load, in_flight, of_samples, sent_ns, bursty)


def slots_at_work(starts: IntArray, ends: IntArray) -> int:
    """The most requests that must have been served at once, if they are taken in the order sent; at least 1.

    ``starts``: ascending; ``ends``: of the same requests.
    """
    if not len(starts):
        return 1
    shortest = int((ends - starts).min())
    return 1 + int(_earlier_above(ends, ends - shortest).max())


def fewest_slots(ends: IntArray) -> int:
    """The fewest slots that can have served requests, taken in the order sent, with these ends: 1 + the most
    earlier ones that one passes. No request may be: 1."""
    return 1 + int(_earlier_above(ends, ends).max()) if len(ends) else 1


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
