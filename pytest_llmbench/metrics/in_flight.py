"""Tokens in flight: what all concurrent requests together keep in the memory of the SUT (section 5.5.4)."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.metrics.chunking import chunk_weights
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.stats.growth import Steps, segment_means

SLICES = 100


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
            method = "undefined: a request has no input token count"
            return Estimate.undefined(unit="tokens", method=method, level=level, n=int(sent.sum()))
        means += segment_means(_steps(own, inputs), window.start_ns, window.end_ns, SLICES)
    return distribution("tokens", means, unit="tokens", level=level)["tokens.mean"]


def _steps(records: Records, inputs: IntColumn) -> Steps:
    """Of the tokens that these requests keep."""
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


__all__ = ["SLICES", "tokens_in_flight"]
