"""An upper end for a high percentile of latencies, by how busy the queue was in which they waited.

Ten of a thousand requests lie beyond P99, mostly those of one or two queues. How busy the slots were is told
by all thousand. So where the requests, taken in the order sent by c slots, are shown to be a queue of the
plainest kind, the queue says how long waits may be.

**Replay.** With the ends known, a request begins when it is sent or when fewer than c of the earlier ones
are left, whichever is later: W is what it waited, S how long it held its slot, Y = X - W what of its latency
is its own. c is the fewest slots that the ends allow, 1 + the most earlier requests that one passes; if they
do not fit, the slots seen (:func:`~pytest_llmbench.stats.backlog.slots_at_work`).

**Assumptions**, each of them tested; where one shows broken there is no such end:

- Y ≥ 0, without memory, and unrelated to the number under way (95 %). Other orders of service, several queues
  behind a router, and slots that slow each other down leave part of the queue in Y.
- Requests do not slow each other down, where times per token tell
  (:func:`~pytest_llmbench.stats.batching.slot_queue`): at half load Y hardly shows it.
- Gaps between sends without memory: no bursts.
- Services no more varied than exponential ones: c_s² at most 1 + z √(8/n), and that of the excesses over
  their P90 at most 1 + z / √m. Waits behind heavier ones have no exponential tail.
- Waits in the mean no longer than the load allows at its upper end.

**Bound.** U = S/E[S] - T/E[T], T the gaps, has the variance V = c_a² + c_s², so the load of the slots,
ρ = E[S] / c E[T], is known to ε = √(V/n) of itself. Waits of such a queue are longer than x with probability
p e^(-x/τ), p = ρ^(√(2 (c + 1)) - 1), τ = E[S] V / 2 c (1 - ρ) (Kingman 1961, Proceedings of the Cambridge
Philosophical Society 57; Sakasegawa 1977, Annals of the Institute of Statistical Mathematics 29), and
latencies than u in

    P(u) = mean over requests of [1 where Y > u, else p e^(-(u - Y)/τ)].

u₀ is where P(u) = 1 - q/100. Three things are not known, and each moves it: the load, at most ρ e^(z ε); V,
at most V e^(z · its relative error); and P itself, a mean of n figures from 0 to 1, so that u must have P(u)
so small that the upper limit of Clopper and Pearson's for it is 1 - q/100. The distances add by their squares
(Zou and Donner 2008, Statistics in Medicine 27), and the end lies at least where it would be for independent
latencies. Open from ρ e^(z ε) = 1 on.

Only for percentiles from P99 on: nearer to the median the shape of the law, which is an approximation, counts
for more than what n requests leave open. How often it holds: docs/reference/coverage.md.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.backlog import Backlog, Occupancy, SlotQueue, fewest_slots
from pytest_llmbench.stats.dependence import SHORTEST_SERIES, memory
from pytest_llmbench.stats.percentiles import ordered_percentile_interval
from pytest_llmbench.stats.runs import FloatArray, IntArray, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import normal_quantile
from pytest_llmbench.stats.stationarity import in_flight_at

LOWEST = 99.0
"""The lowest percentile that can have such an end."""
BY_LOAD = "above by the load of its queue"
"""The words for it in the method of an estimate."""
_USUAL = 0.95
_EXPONENTIAL = 8.0
"""n times the variance of c_s² for n exponential services."""
_TAIL, _FEWEST_EXCESSES = 90.0, 20
_CONSTANT = 0.01
"""Relative variation below which a quantity counts as constant: the rest is due to stamps, each of which ends
one request and begins the next."""
_STEPS = 40


class Replay(NamedTuple):
    """A run replayed as a queue that takes requests in the order sent, in milliseconds. The first requests,
    as many as there are slots, are left out: earlier ones may have been in their way."""

    slots: int
    own: FloatArray
    """Y, the latency without the wait, of the samples."""
    under_way: FloatArray
    """The number under way when each sample was sent."""
    waits: FloatArray
    """The waits of all requests, in the order sent."""
    services: FloatArray
    gaps: FloatArray
    """The gaps between sends, one fewer than requests."""


def replayed(samples: FloatArray, queue: SlotQueue, sent_ns: IntArray, slots: int) -> Replay:
    """The replay of a run. ``sent_ns``: when the requests of the samples, some of those of the queue, were
    sent."""
    begun = _begun_ns(queue, slots)
    waits = (begun - queue.starts_ns) / 1e6
    in_order = np.array_equal(queue.starts_ns, sent_ns)
    places = np.arange(len(sent_ns)) if in_order else np.searchsorted(queue.starts_ns, sent_ns)
    known = places >= slots
    return Replay(
        slots,
        own=samples[known] - waits[places[known]],
        under_way=in_flight_at(sent_ns[known], queue.starts_ns, queue.ends_ns),
        waits=waits[slots:],
        services=(queue.ends_ns - begun)[slots:] / 1e6,
        gaps=np.diff(queue.starts_ns[slots:]) / 1e6,
    )


def _begun_ns(queue: SlotQueue, slots: int) -> IntArray:
    """Instants at which the requests begin: when one is sent, or when the slots-th last of the earlier ones
    ends."""
    ends, begun = queue.ends_ns.tolist(), queue.starts_ns.copy()
    latest = ends[:slots]
    heapq.heapify(latest)
    for place in range(slots, len(ends)):
        if latest[0] > begun[place]:
            begun[place] = latest[0]
        heapq.heappushpop(latest, ends[place])
    return begun


@dataclass(frozen=True)
class KnownQueue:
    """A queue whose requests break none of the assumptions."""

    samples: FloatArray
    """The samples in ascending order."""
    own: FloatArray
    """Y, the latency without the wait, of nearly as many requests."""
    load: Occupancy
    around: FloatArray
    """U, the difference of services and gaps in units of their means."""

    def upper(self, q: float, level: float) -> float | None:
        """Upper end of the q-th percentile, in the samples' unit; ``None``: open."""
        n, z = len(self.own), normal_quantile(level)
        independent = ordered_percentile_interval(self.samples, q, level=level).upper
        busiest = self.load.utilisation * math.exp(z * self.load.error)
        if q < LOWEST or independent is None or busiest >= 1:
            return None
        beyond = 1 - q / 100
        least = _limited(beyond, n, level)
        if self.load.waited > self.load.mean_wait(busiest) or least <= 0:
            return None
        squares = np.square(self.around)
        varied = math.exp(z * float(squares.std()) / math.sqrt(len(squares)) / float(squares.mean()))
        usual = self._reached(self.load.utilisation, 1.0, beyond)
        away = (
            self._reached(busiest, 1.0, beyond) - usual,
            self._reached(self.load.utilisation, varied, beyond) - usual,
            self._reached(self.load.utilisation, 1.0, least) - usual,
        )
        return max(independent, usual + math.hypot(*away))

    def _reached(self, utilisation: float, varied: float, share: float) -> float:
        """The u with P(u) = share, at this utilisation and with ``varied`` times V; by bisection."""
        waiting = self.load.share_waiting(utilisation)
        longer = varied * self.load.scale / self.load.slots / (1 - utilisation)
        low = float(np.quantile(self.own, 1 - share, method="lower"))
        high = float(self.own.max()) + longer * math.log(1 / share)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            left = middle - self.own
            beyond = np.where(left < 0, 1.0, waiting * np.exp(-np.maximum(left, 0.0) / longer))
            low, high = (middle, high) if float(beyond.mean()) > share else (low, middle)
        return high


def _limited(share: float, n: int, level: float) -> float:
    """The largest observed share of n whose upper limit by Clopper and Pearson is ``share``; 0 if there is
    none."""
    from scipy.special import betaincinv

    tail, low, high = (1 + level) / 2, 0.0, share
    for _ in range(_STEPS):
        middle = (low + high) / 2
        over = betaincinv(n * middle + 1, n * (1 - middle), tail) > share
        low, high = (low, middle) if over else (middle, high)
    return low


def known_queue(samples: Samples, backlog: Backlog | None) -> KnownQueue | None:
    """The queue in which the samples, latencies in ms of one run, waited; ``None`` where an assumption is
    broken, where requests are missing, and for several runs, which may differ. ``backlog``: that of the
    samples."""
    if backlog is None or backlog.load is None or len(backlog.queues) != 1:
        return None
    every, (queue,), (sent_ns,) = pooled(as_runs(samples)), backlog.queues, backlog.sent_ns
    if len(every) != len(sent_ns):
        raise ValueError("each sample needs when its request was sent")
    if not queue.is_complete or queue.is_slowed:
        return None
    fewest = fewest_slots(queue.ends_ns)
    for slots in sorted({fewest, max(fewest, queue.slots)}):
        replay = replayed(every, queue, sent_ns, slots)
        if _is_own(replay):
            return _of_plain(every, replay)
    return None


def _is_own(replay: Replay) -> bool:
    own, under_way = replay.own, replay.under_way
    if not len(own) or len(replay.gaps) < SHORTEST_SERIES or float(own.min()) < 0:
        return False
    if _is_constant(own):
        return True
    if memory(own) > 1:
        return False
    spread = float(under_way.std() * own.std())
    if spread == 0.0:
        return True
    related = float(np.mean((under_way - under_way.mean()) * (own - own.mean()))) / spread
    return abs(related) * math.sqrt(len(own)) <= normal_quantile(_USUAL)


def _is_constant(values: FloatArray) -> bool:
    return float(values.std()) <= _CONSTANT * float(values.mean())


def _of_plain(samples: FloatArray, replay: Replay) -> KnownQueue | None:
    services, gaps = replay.services, replay.gaps
    if memory(gaps) > 1 or _are_heavy(services):
        return None
    service, gap = float(services.mean()), float(gaps.mean())
    if min(service, gap) <= 0:
        return None
    around = services[:-1] / service - gaps / gap
    variation = float(around.var())
    load = Occupancy(
        utilisation=service / gap / replay.slots,
        error=math.sqrt(variation / len(around)),
        slots=replay.slots,
        scale=service * variation / 2,
        waited=float(replay.waits.mean()),
    )
    return KnownQueue(np.sort(samples), replay.own, load, around)


def _are_heavy(services: FloatArray) -> bool:
    """Whether services are more varied than exponential ones, as a whole or beyond P90."""
    if _is_constant(services):
        return False
    mean, z = float(services.mean()), normal_quantile(_USUAL)
    if float(services.var()) > (1 + z * math.sqrt(_EXPONENTIAL / len(services))) * mean**2:
        return True
    from_here = float(np.percentile(services, _TAIL))
    excesses = services[services > from_here] - from_here
    if len(excesses) < _FEWEST_EXCESSES:
        return False
    return float(excesses.std()) > (1 + z / math.sqrt(len(excesses))) * float(excesses.mean())
