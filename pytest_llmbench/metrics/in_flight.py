"""What is in flight: requests, whose growing number is a queue (saturation rule 1), and the
tokens that all of them together keep in the memory of the SUT (section 5.5.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_llmbench.metrics.chunking import chunk_weights
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import BLOCK, MISSING, IntColumn, Records
from pytest_llmbench.stats.growth import (
    SEGMENTS,
    Growth,
    Steps,
    gauge_steps,
    growth,
    in_flight_steps,
    is_growing,
    segment_means,
    time_under_way,
)

SLICES = 100
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


def tokens_in_flight(window: Window, *, level: float = 0.95) -> Estimate:
    """Time-weighted mean over the window of Σ (input + output so far) of the requests under way.

    A request counts from its submission to its end, its output from the arrival of each chunk on. Failed ones
    count while they last. Undefined where an input length is missing.
    """
    sent = window.records.submitted_ns != MISSING
    if window.duration_s <= 0 or not sent.any():
        return Estimate.undefined(unit="tokens", method="no requests in the window", level=level)
    means = np.zeros(SLICES)
    # What some requests keep and what others keep add up, so a long run needs no more room than a block.
    for block in window.records.blocks():
        own = block.select(block.submitted_ns != MISSING)
        inputs = np.where(own.input_tokens != MISSING, own.input_tokens, own.requested_input_tokens)
        if (inputs == MISSING).any():
            method, why = "a request has no input token count", Reason.NOT_MEASURABLE
            return Estimate.undefined(
                unit="tokens", method=method, level=level, n=int(sent.sum()), reason=why
            )
        means += segment_means(_steps(own, inputs), window.start_ns, window.end_ns, SLICES)
    return distribution("tokens", means, unit="tokens", level=level)["tokens.mean"]


def _steps(records: Records, inputs: IntColumn) -> Steps:
    """The tokens that these requests keep in memory, as a step series."""
    owner = np.repeat(np.arange(len(records)), np.diff(records.chunk_offsets))
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
