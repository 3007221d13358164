"""How busy a server is whose requests slow each other down, told by what it does with all slots at work.

Slot-time at work tells too low a load of it: with all slots at work each request takes longer. So the time
per output token, t, is regressed on the mean number k under way meanwhile and on the number f of first
outputs of others per token, t = a + b' k + d f, weighted by tokens: each prompt takes d from all under way.
While a load begins k is small and f is not, at its end it is the other way round, so without f the slope of
a short load is too small. What takes long for other reasons meets more first outputs per token, but not more
per second: their rate is the instrument of f (two-stage least squares). With k under way throughout, each of
them begins once in the N tokens of a reply, f = k / N, so t = a + b k with b = b' + d / N. Where d is not
there for certain, f is left out. With all c slots at work a request of N tokens takes
S = p + (N - 1)(a + b c), p the time to its first token without a wait (P10 of the requests that find a free
slot), and requests at rate λ take λ S / c of the slots. c is what the engine says, or the most that were
under way.

A run may see nothing of a queue that is seldom there and long when it is. With k under way requests are
served at k / S(k) a second, S(k) = p + (N - 1)(a + b k), and where all share the server how many there are
depends on S alone, not on its distribution (Kelly 1979, Reversibility and Stochastic Networks, section 3.3):
P(k) ∝ Π λ S(j) / j, j = 1 … k. Beyond c it falls by ρ = λ S(c) / c each, so a request waits with probability
P(k ≥ c), and then for an exponential time of mean S(c) / c (1 - ρ). The mean of N is known to c_s / √n of
itself, c_s its coefficient of variation: S is taken at 1.02 (1 + 2 c_s / √n) of the estimate. The 2 % are for
engines that do not quite share: without them ``fast`` at 80 % load passes P99 of TTFT at its truth in 35 % of
sessions of 1,000 requests, with them in 3 % (``bench_stationary.py``). Only where the engine says its slots.

A load begins and ends idle. While its first and its last replies are made, for a mean reply's time W each,
about half as many are under way as in its middle, so over a span D of sends its requests meet fewer others by
W / D, and latencies are lower than those of a lasting load by about the share ρ W / D, ρ the load of a server
whose requests slow each other down: measured, by 0.5 to 1.5 of it (docs/reference/statistics.md). A load that
is shorter than two or three replies only fills the system, and tells neither ρ nor whether requests slow each
other down: then 1.25 W / D are taken, and 2 at most.

A queue at load ρ relaxes within τ = 2 (c_a² + c_s²) / ln² ρ requests, c_a and c_s the coefficients of
variation of the gaps between sends and of N. In fewer than ten of them a run may be a calm stretch, and its
higher percentiles know nothing of the queue: docs/reference/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.estimate import Estimate, EstimateKind
from pytest_llmbench.model.plan import Load, Quantity
from pytest_llmbench.model.records import BLOCK, MISSING, IntColumn, Records
from pytest_llmbench.stats.backlog import FEWEST, SlotQueue
from pytest_llmbench.stats.latencies import Ends
from pytest_llmbench.stats.percentiles import PERCENTILES
from pytest_llmbench.stats.runs import FloatArray, IntArray
from pytest_llmbench.stats.spectral import normal_quantile

ENOUGH = 10.0
"""The relaxation times that a run has to span for an upper end of a higher percentile."""
_CERTAIN = 3.0
"""Standard errors by which the slope is above 0 where requests slow each other down."""
_LEAST = 0.01
"""The least share of its time per token by which a request is slower with the most under way."""
_OWN = 10.0
"""The percentile of the time to the first token of requests that find a free slot."""
_LEAST_LEVEL = 0.98
"""The two-sided level of the lower end of a load."""
_REACH = 2 / 3
_APART = 1e-6
_FEWEST = 40
_CAREFUL, _ERRORS = 1.02, 2.0
"""Factor of the load, and standard errors of the mean length in what the wait for a slot may be. At 80 % load
the ``fast`` preset passes limits on P99 at the truth too often without the 2 %, and decides none twice away
with 6 % (benchmarks/bench_stationary.py)."""
_MOST_SLOTS = 65_536
_RAMP = 0.4
"""W / D from which a load only fills the system."""
_FILLING = 1.25
"""Factor of W / D that latencies of such a load may be too low by: 0.4 to 1.0 of it was missing."""
_MOST_SHORTFALL = 2.0

TO_THE_END = frozenset({"e2e", "e2e_scheduled", "latency", "latency_scheduled"})
"""Families whose latency goes on to the end of the reply."""
TO_FIRST_OUTPUT = frozenset(
    {
        "ttft", "ttft_scheduled", "ttft_any", "ttft_first_event", "ttfo", "ttft_reasoning", "ttft_queue_wait",
        "ttft_outside",
    }
)  # fmt: skip
"""Families whose latency ends with the first output, and may hold a wait for a slot."""
SLOWED = TO_FIRST_OUTPUT | TO_THE_END | {"tpot", "itl"}
"""Families of latencies that grow with the number of requests under way."""
GOODPUT = frozenset({"goodput_share", "goodput", "output_token_goodput"})
_MOST_TIMES = 16
"""The largest factor by which more requests are recommended."""
_RAREST = 1e-6


class SlotWait(NamedTuple):
    """How many requests of a lasting load wait for a slot, and for how long."""

    share: float
    mean_ms: float
    """The mean wait of those that wait; infinite for a queue that grows."""
    unseen: float
    """The share of all requests by which more wait than found all slots taken in this run; 0 at least."""

    @classmethod
    def of(cls, work: FloatArray, rate: float, seen: float) -> SlotWait:
        """``work``: λ S(k) for k from 1 to the number of slots. ``seen``: the share of the requests of a run
        that found all slots taken."""
        slots = len(work)
        load = float(work[-1]) / slots
        if load >= 1:
            return cls(1.0, math.inf, 1 - seen)
        relative = np.concatenate(([0.0], np.cumsum(np.log(work / np.arange(1, slots + 1)))))
        states = np.exp(relative - relative.max())
        all_taken = float(states[-1]) / (1 - load)
        share = all_taken / (float(states[:-1].sum()) + all_taken)
        return cls(share, 1000 * load / rate / (1 - load), max(0.0, share - seen))

    def longer_than(self, time_ms: float) -> float:
        """The probability that a wait is longer."""
        return 1.0 if math.isinf(self.mean_ms) else math.exp(-time_ms / self.mean_ms)

    def percentile_ms(self, q: float) -> float:
        """The q-th percentile of the wait of all requests."""
        rarer = self.share / (1 - q / 100)
        return self.mean_ms * math.log(rarer) if rarer > 1 else 0.0


class FullLoad(NamedTuple):
    """The load of a server by its speed with all slots at work."""

    load: float
    slots: int
    requests: int
    relaxation_times: float
    """How many relaxation times of the queue the requests span; 0 for an overloaded server."""
    wait: SlotWait | None = None
    """The wait for a slot; None where the engine does not say its slots."""
    error: float = 0.0
    """The relative standard error of the load, by those of the mean number of tokens and of the pace."""
    in_reach: bool = False
    """Whether the requests took at least two thirds of the slots that the engine says, and no more."""

    @property
    def least(self) -> float:
        """The lower end of the load, by a normal quantile (one-sided, 99 %)."""
        return self.load * math.exp(-normal_quantile(_LEAST_LEVEL) * self.error)


class Pace(NamedTuple):
    """The time per output token of requests that slow each other down, in seconds: ``least`` + k ``slope``
    with k under way."""

    least: float
    slope: float
    mean: float
    """The mean over all tokens."""
    most: int
    """The most requests under way."""
    error: float = 0.0
    """The standard error of the slope."""

    def with_under_way(self, count: int) -> FloatArray:
        """The time per token with 1 to ``count`` under way, in seconds."""
        per_token = self.least + self.slope * np.arange(1, count + 1)
        return np.asarray(np.maximum(per_token, _LEAST * self.mean))


def pace(sent_ns: IntArray, first_ns: IntArray, ended_ns: IntArray, tokens: IntArray) -> Pace | None:
    """The pace of one run; ``None`` where requests do not show that they slow each other down. ``sent_ns``:
    ascending, of requests that ended well."""
    n = len(sent_ns)
    if n < _FEWEST or sent_ns[0] == sent_ns[-1]:
        return None
    under_way, most = _mean_under_way(first_ns - sent_ns[0], ended_ns - sent_ns[0])
    several = (tokens >= 2) & (ended_ns > first_ns)
    if np.count_nonzero(several) < _FEWEST:
        return None
    took_s, later = (ended_ns - first_ns)[several] / 1e9, (tokens[several] - 1).astype(np.float64)
    per_token_s = took_s / later
    mean_s = float(np.average(per_token_s, weights=later))
    firsts = np.sort(first_ns)
    others = (np.searchsorted(firsts, ended_ns, "right") - np.searchsorted(firsts, first_ns, "right"))[
        several
    ]
    columns = np.stack((under_way[several], others / later))
    instruments = np.stack((under_way[several], others / took_s))
    each_under_way = np.array([1.0, 1 / float(tokens.mean())])
    for used in (2, 1):
        found = _slopes(per_token_s, columns[:used], instruments[:used], later)
        if found is None:
            continue
        slopes, errors = found
        if used == 2 and slopes[1] <= _CERTAIN * math.hypot(*errors[1]):
            continue
        slope, error = float(each_under_way[:used] @ slopes), math.hypot(*(each_under_way[:used] @ errors))
        if slope > max(_CERTAIN * error, _LEAST * mean_s / most):
            least_s = mean_s - float(slopes @ np.average(columns[:used], axis=1, weights=later))
            return Pace(least_s, slope, mean_s, most, error)
    return None


def _slopes(
    values: FloatArray, columns: FloatArray, instruments: FloatArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """The slopes of the values over the columns, a row each, and what the error of each value adds to them;
    ``None`` where the instruments do not tell the columns apart."""
    columns, instruments = (
        each - np.average(each, axis=1, weights=weights)[:, np.newaxis] for each in (columns, instruments)
    )
    crossed = (instruments * weights) @ columns.T
    sizes = np.sqrt((instruments**2 @ weights)[:, np.newaxis] * (columns**2 @ weights))
    if not sizes.all() or abs(np.linalg.det(crossed / sizes)) < _APART:
        return None
    gains = np.linalg.solve(crossed, instruments * weights)
    around = values - np.average(values, weights=weights)
    slopes = gains @ around
    return slopes, gains * (around - slopes @ columns)


def full_load(
    sent_ns: IntArray,
    first_ns: IntArray,
    ended_ns: IntArray,
    tokens: IntArray,
    rate: float,
    slots: int | None,
) -> FullLoad | None:
    """The load of one run at ``rate`` requests per second; ``None`` where it has no :func:`pace`. ``slots``:
    how many are at work at most; None where that is not known."""
    per_token = pace(sent_ns, first_ns, ended_ns, tokens)
    if per_token is None:
        return None
    n, full = len(sent_ns), per_token.most if slots is None else max(slots, per_token.most)
    there = np.arange(n) - np.searchsorted(np.sort(ended_ns), sent_ns, "right")
    to_first = first_ns - sent_ns
    free = to_first[there < full]
    own_s = float(np.percentile(free, _OWN) if len(free) else to_first.min()) / 1e9
    times_s = own_s + (float(tokens.mean()) - 1) * per_token.with_under_way(min(full, _MOST_SLOTS))
    load = rate * float(times_s[-1]) / len(times_s)
    gaps = np.diff(sent_ns).astype(np.float64)
    varied = float(gaps.var() / gaps.mean() ** 2 + tokens.var() / tokens.mean() ** 2)
    if load >= 1:
        times = 0.0
    else:  # nothing that varies, no queue
        times = math.inf if varied == 0.0 or load <= 0 else n * math.log(load) ** 2 / (2 * varied)
    wait, error, in_reach = None, float(tokens.std() / tokens.mean()) / math.sqrt(n), False
    if slots is not None:
        wait = SlotWait.of(
            rate * _CAREFUL * (1 + _ERRORS * error) * times_s, rate, float(np.mean(there >= full))
        )
        in_reach = _REACH * slots <= per_token.most <= slots
    of_pace = (float(tokens.mean()) - 1) * full * per_token.error / float(times_s[-1])
    return FullLoad(load, full, n, times, wait, math.hypot(error, of_pace), in_reach)


def shortfall(loads: Sequence[FullLoad], idle: float) -> float:
    """The share by which latencies of runs may be lower than those of a lasting load. ``loads``: of the runs,
    empty where they are not known. ``idle``: W / D, the mean time of a reply over that of sending."""
    if idle > _RAMP:
        return min(_FILLING * idle, _MOST_SHORTFALL)
    return idle * min(1.0, max((each.load for each in loads), default=0.0))


def _mean_under_way(starts: IntArray, ends: IntArray) -> tuple[FloatArray, int]:
    """For each of the requests [start, end) the mean number under way from its start to its end; and the
    most."""
    instants = np.sort(np.concatenate((starts, ends)))
    begun, ended = np.sort(starts), np.sort(ends)
    count = np.searchsorted(begun, instants, "right") - np.searchsorted(ended, instants, "right")
    area = np.concatenate(([0.0], np.cumsum(count[:-1] * np.diff(instants) / 1e9)))
    spans = np.interp(ends, instants, area) - np.interp(starts, instants, area)
    return spans / np.maximum((ends - starts) / 1e9, 1e-9), int(count.max())


def offered_rate(load: Load, due_ns: IntColumn) -> float | None:
    """The rate of an open loop, per second: that which was asked for, of a trace that of the instants at
    which its requests were due. None for a load that waits for replies, and of stages, which have many."""
    if load.stages:
        return None
    return load.request_rate if load.request_rate is None or not load.is_trace else rate_of(due_ns)


def rate_of(instants_ns: IntColumn) -> float | None:
    """The mean rate of instants, per second; None for fewer than two, and where they are one."""
    took_ns = int(np.ptp(instants_ns)) if len(instants_ns) > 1 else 0
    return (len(instants_ns) - 1) * 1e9 / took_ns if took_ns else None


def slot_queue(run: Records | Ends) -> SlotQueue:
    """The requests of a run in the slots of its server, and whether they slow each other down there."""
    stamps = _stamps_and_tokens(run)
    slowed = stamps is not None and pace(*stamps) is not None
    return SlotQueue.of(run.submitted_ns, run.finished_ns, run.ok)._replace(is_slowed=slowed)


def load_at_full_slots(run: Records | Ends, slots: int | None, rate: float) -> FullLoad | None:
    """The load of a server whose requests slow each other down; ``None`` where they do not, and where that is
    not known. ``slots``: the most that it has at work; None where it does not say."""
    stamps = _stamps_and_tokens(run)
    return None if stamps is None else full_load(*stamps, rate, slots)


def _stamps_and_tokens(run: Records | Ends) -> tuple[IntArray, IntArray, IntArray, IntArray] | None:
    """When the requests that ended well were sent, in that order, when their first output came and when they
    ended, and their tokens; ``None`` for a run of more than a block."""
    known = run.ok & (run.first_content_ns != MISSING) & (run.output_tokens != MISSING)
    if len(known) > BLOCK or not known.any():
        return None
    there = np.flatnonzero(known)[np.argsort(run.submitted_ns[known], kind="stable")]
    return (
        run.submitted_ns[there],
        run.first_content_ns[there],
        run.finished_ns[there],
        run.output_tokens[there],
    )


def idle_share(run: Records | Ends) -> float:
    """W / D of a run: the mean time of its replies over the time of sending; 0 of fewer than two requests."""
    sent_ns = run.submitted_ns[run.submitted_ns != MISSING]
    took_ns = (run.finished_ns - run.submitted_ns)[run.ok]
    if len(sent_ns) < 2 or not len(took_ns) or sent_ns.max() == sent_ns.min():
        return 0.0
    return float(took_ns.mean()) / float(sent_ns.max() - sent_ns.min())


def as_lasting(
    metrics: Mapping[str, Estimate],
    runs: Sequence[tuple[Records | Ends, int | None]],
    rate: float,
    limits_ms: Sequence[tuple[Quantity, float]],
) -> dict[str, Estimate]:
    """The metrics of runs of one open loop, each with the slots of its server, as those of a lasting load:
    :func:`as_busy`."""
    loads = [load for run in runs if (load := load_at_full_slots(*run, rate)) is not None]
    idle = max((idle_share(run) for run, _ in runs), default=0.0)
    return as_busy(metrics, loads if len(loads) == len(runs) else [], limits_ms, idle)


def as_busy(
    metrics: Mapping[str, Estimate],
    loads: Sequence[FullLoad],
    limits_ms: Sequence[tuple[Quantity, float]],
    idle: float,
) -> dict[str, Estimate]:
    """The metrics of runs at these loads, empty where one is not known. Upper ends of latencies allow for the
    idle beginning and end of the runs, and for waits that the runs may not have seen; so do the lower ends of
    goodput. Where the runs span fewer than ten relaxation times, ends are open that a queue might move: the
    upper ones of means and of percentiles beyond the median, the lower ones of goodput.

    ``limits_ms``: those of a good request. ``idle``: the largest W / D of the runs (:func:`idle_share`).
    """
    families = TO_FIRST_OUTPUT | TO_THE_END
    waiting = [(family, limit_ms) for family, limit_ms in limits_ms if family in families]
    less = shortfall(loads, idle)
    lasting = {name: _as_of_a_lasting_load(name, metrics, loads, waiting, less) for name in metrics}
    requests, times = sum(each.requests for each in loads), sum(each.relaxation_times for each in loads)
    if requests < FEWEST or times >= ENOUGH:
        return lasting
    moved = families | (GOODPUT if waiting else frozenset())
    longer = min(ENOUGH / times, _MOST_TIMES) if times > 0 else _MOST_TIMES
    return {
        name: _opened(metric, longer)
        if family_of(name) in moved and not name.endswith((".p50", ".min", ".max"))
        else metric
        for name, metric in lasting.items()
    }


def _as_of_a_lasting_load(
    name: str,
    metrics: Mapping[str, Estimate],
    loads: Sequence[FullLoad],
    limits_ms: Sequence[tuple[str, float]],
    less: float,
) -> Estimate:
    metric, family = metrics[name], family_of(name)
    waits = [each.wait for each in loads if each.wait is not None]
    wait = max(waits, key=lambda each: each.share) if len(waits) == len(loads) > 0 else None
    if family in GOODPUT and metric.lower is not None and wait is not None:
        lost = max((wait.unseen * wait.longer_than(limit_ms) for _, limit_ms in limits_ms), default=0.0)
        return replace(metric, lower=metric.lower * (1 - lost))
    if family not in SLOWED or metric.upper is None or metric.point is None:
        return metric
    lower_by = less / 2 if family in TO_FIRST_OUTPUT else less
    level = metric.point if metric.kind is EstimateKind.CRUDE else metric.upper
    upper = metric.upper + level * lower_by
    if wait is not None and family in TO_FIRST_OUTPUT | TO_THE_END:
        upper = _with_wait(upper, name, metrics, wait)
    return replace(metric, upper=upper if math.isfinite(upper) else None)


def _with_wait(upper: float, name: str, metrics: Mapping[str, Estimate], wait: SlotWait) -> float:
    """An upper end of latencies of which more may wait for a slot than did. A percentile is then a rarer one
    of those seen, and no nearer than its wait above what 90 % keep without one."""
    stem, _, statistic = name.rpartition(".")
    if statistic == "mean":
        return upper + wait.unseen * wait.mean_ms
    q = PERCENTILES.get(statistic)
    named = {at: metrics[each] for label, at in PERCENTILES.items() if (each := f"{stem}.{label}") in metrics}
    points = {at: each.point for at, each in named.items() if each.point is not None}
    if q is None or q not in points:
        return upper
    beyond = [-math.log1p(-at / 100) for at in points]
    rarer = -math.log(max(1 - q / 100 - wait.unseen, _RAREST))
    upper += float(np.interp(rarer, beyond, list(points.values()))) - points[q]
    longest = wait.percentile_ms(q)
    return max(upper, points.get(90.0, points[q]) + longest) if longest > 0 else upper


def family_of(name: str) -> str:
    return name.partition("[")[0].partition(".")[0]


def _opened(metric: Estimate, longer: float) -> Estimate:
    required = math.ceil(longer * metric.n)
    if metric.unit == "ms":
        return replace(metric, upper=None, n_required=required, kind=EstimateKind.SAMPLE)
    return replace(metric, lower=None, n_required=required, kind=EstimateKind.SAMPLE)
