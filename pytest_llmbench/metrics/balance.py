"""Whether a load is in balance: requests leave as fast as they arrive (section 5.2.3.1, saturation rule 2),
the throughput stays level (section 5.2.3.2), and the number in flight does not grow, which is a queue
(saturation rule 1). Also the tokens that all requests in flight keep in the memory of the SUT (section
5.5.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pytest_llmbench.metrics.chunking import chunk_owners, chunk_weights
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import Window, output_tokens_per_slice
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import BLOCK, MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.stationarity import (
    MOST_CHANGE,
    SEGMENTS,
    Growth,
    Steps,
    change_across,
    drift,
    gauge_steps,
    growth,
    in_flight_steps,
    is_growing,
    least_squares_slope,
    segment_means,
    time_under_way,
)

COMPLETION_SHARE = 0.9
_FIRST_REQUESTS = 5
_STUDENT = 3.182
"""Quantile of Student's t at 97.5 % for five slices, three degrees of freedom."""
TREND_SLICES = 200
"""Number of slices of the window, to tell a trend from noise."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The requests due to be completed in the window, and those that were completed."""

    due: int
    completed: int
    under_way: float
    """Mean number of requests in flight in an unloaded system at this rate."""

    @property
    def share(self) -> float:
        return self.completed / self.due

    @property
    def short(self) -> bool:
        """Whether the completions are below 90 % of what was due, and by more than chance: two requests more
        or less at either end of the window, or twice the standard deviation of those in flight."""
        chance = max(2.0, 2.0 * float(np.sqrt(self.under_way)))
        return self.share < COMPLETION_SHARE and self.due - self.completed > chance


def completion_balance(records: Records, window: Window) -> Balance | None:
    """Completions in the window against the requests that an unloaded system completes in it.

    A request completes a latency after it arrived, so what was sent last, and long replies before it, are
    missing at the end of the window without any overload. Each request is due at its arrival + TTFT + TPOT *
    its tokens after the first; both are medians of the requests sent in the ramp-up (of the first ones, if
    there are none), before a queue has formed. None when nothing was due.
    """
    if not records.judged.all():  # how long those take that their users cut is not the system's to say
        records = records.select(records.judged)
    latencies_ns = _unloaded_ns(records, window)
    if latencies_ns is None:
        return None
    sent = records.submitted_ns != MISSING
    due = int((sent & _inside(records.submitted_ns + latencies_ns, window)).sum())
    if due == 0:
        return None
    completed = int((_inside(records.finished_ns, window) & records.ok).sum())
    arrived = sent & _inside(records.submitted_ns, window)
    under_way = float(latencies_ns[arrived].sum()) / (window.end_ns - window.start_ns)
    return Balance(due, completed, under_way)


def _unloaded_ns(records: Records, window: Window) -> IntColumn | None:
    """The time that each request would take alone, in nanoseconds: the median start, and the median pace for
    its own length. None where nothing is known of it."""
    ended = (records.submitted_ns != MISSING) & (records.finished_ns != MISSING)
    if window.end_ns <= window.start_ns or not ended.any():
        return None
    sample = ended & (records.submitted_ns <= window.start_ns)
    if not sample.any():
        sample[np.flatnonzero(ended)[:_FIRST_REQUESTS]] = True
        sample &= ended
    known = np.where(records.output_tokens == MISSING, records.requested_max_tokens, records.output_tokens)
    gaps = np.maximum(known - 1, 0)
    lasted = records.finished_ns - records.submitted_ns
    streamed = sample & (records.first_content_ns != MISSING) & (gaps > 0)
    if not streamed.any():
        return np.full(len(records), round(float(np.median(lasted[sample]))), dtype=np.int64)
    start = (records.first_content_ns - records.submitted_ns)[streamed]
    pace = (lasted[streamed] - start) / gaps[streamed]
    return np.asarray(np.median(start) + np.median(pace) * gaps, dtype=np.int64)


def _inside(at_ns: IntColumn, window: Window) -> BoolColumn:
    return np.asarray((at_ns != MISSING) & (at_ns > window.start_ns) & (at_ns <= window.end_ns))


class Steadiness(NamedTuple):
    change: float
    """Least-squares slope over five slices, times their number, relative to the mean."""
    by_chance: bool
    """Whether noise explains the slope: there is no trend at the 95 % level. By Mann and Kendall's test in
    finer slices; where the replies are too long for these to be independent, by Student's t about the line
    through the five."""

    @property
    def level(self) -> bool:
        """Whether the throughput stays within 10 %, or strays no further than chance would take it."""
        return abs(self.change) <= MOST_CHANGE or self.by_chance


def steadiness(window: Window) -> Steadiness | None:
    """The steadiness of the output tokens in the window; None without output, or where a request lacks its
    count."""
    coarse = output_tokens_per_slice(window, SEGMENTS)
    change = None if coarse is None else change_across(coarse)
    if coarse is None or change is None:
        return None
    fine = output_tokens_per_slice(window, TREND_SLICES)
    trend = None if fine is None else drift(fine)
    if trend is not None:
        return Steadiness(change, not trend.drifting(most=0.0))
    slope, error = least_squares_slope(np.arange(SEGMENTS, dtype=np.float64), coarse)
    return Steadiness(change, abs(slope) <= _STUDENT * error)


_MEMORY_SLICES = 100
IN_FLIGHT, WAITING = "requests in flight", "server waiting gauge"
_FEWEST_READINGS = 5


@dataclass(frozen=True, slots=True)
class Queue:
    """The growth of a queue during the window, and which queue that is."""

    source: str
    growth: Growth


def queue_of(seen: Observation, window: Window) -> Queue | None:
    """The growth of the server's waiting gauge if it was read often enough, else of the requests in flight;
    None where neither can be had."""
    if window.end_ns <= window.start_ns:
        return None
    readings = None if seen.engine is None else seen.engine.gauge("waiting", window.start_ns, window.end_ns)
    if readings is not None and len(readings[0]) >= _FEWEST_READINGS:
        return Queue(WAITING, growth(gauge_steps(*readings), window.start_ns, window.end_ns))
    if seen.plan.load.request_rate is None:
        return None  # in a closed loop the number in flight is given, and no queue is seen in it
    return Queue(IN_FLIGHT, growth_in_flight(window))


def growth_in_flight(window: Window) -> Growth:
    """The growth of the number of requests in flight. Raises ValueError for an empty window."""
    records, start_ns, end_ns = window.records, window.start_ns, window.end_ns
    # Sorting the instants of a long run would need several times its memory; their sums are the same.
    if len(records) <= BLOCK:
        return growth(in_flight_steps(records.submitted_ns, records.finished_ns), start_ns, end_ns)
    spent_ns = np.zeros(SEGMENTS)
    for block in records.blocks():
        spent_ns += time_under_way(block.submitted_ns, block.finished_ns, start_ns, end_ns)
    means = tuple((spent_ns / ((end_ns - start_ns) / SEGMENTS)).tolist())
    return Growth(means, is_growing(means))


def tokens_in_flight(window: Window) -> Estimate:
    """Time-weighted mean over the window of Σ (input + output so far) of the requests under way.

    A request counts from its submission to its end, its output from the arrival of each chunk on. Failed ones
    count while they last. Undefined where an input length is missing.
    """
    sent = window.records.submitted_ns != MISSING
    if window.duration_s <= 0 or not sent.any():
        return Estimate.undefined(unit="tokens", method="no requests in the window")
    means = np.zeros(_MEMORY_SLICES)
    # What some requests keep and what others keep add up, so a long run needs no more room than a block.
    for block in window.records.blocks():
        own = block.select(block.submitted_ns != MISSING)
        inputs = np.where(own.input_tokens != MISSING, own.input_tokens, own.requested_input_tokens)
        if (inputs == MISSING).any():
            method, why = "a request has no input token count", Reason.NOT_MEASURABLE
            return Estimate.undefined(unit="tokens", method=method, n=int(sent.sum()), reason=why)
        means += segment_means(_steps(own, inputs), window.start_ns, window.end_ns, _MEMORY_SLICES)
    return distribution("tokens", means, unit="tokens")["tokens.mean"]


def _steps(records: Records, inputs: IntColumn) -> Steps:
    """The tokens that these requests keep in memory, as a step series."""
    owner = chunk_owners(records)
    weights = chunk_weights(records)
    streamed = np.bincount(owner, weights=weights, minlength=len(records))
    # Chunks without an attribution share the request's total alike.
    known = (records.output_tokens != MISSING) & (streamed > 0)
    per_weight = np.divide(records.output_tokens, streamed, out=np.ones(len(records)), where=known)
    tokens = weights * per_weight[owner]
    held = inputs + np.bincount(owner, weights=tokens, minlength=len(records))
    ended = records.finished_ns != MISSING
    instants = np.concatenate((records.submitted_ns, records.chunk_ns, records.finished_ns[ended]))
    changes = np.concatenate((inputs.astype(np.float64), tokens, -held[ended]))
    at_ns, places = np.unique(instants, return_inverse=True)
    return Steps(at_ns, np.cumsum(np.bincount(places, weights=changes, minlength=len(at_ns))), 0.0)
