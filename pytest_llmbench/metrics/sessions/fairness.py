"""Fairness between classes of sessions: section 5.6.4 read with the session in place of the request.

Turns of one session depend on each other, so every figure here is made of one value for each session, in the
order in which they began. Only turns that ended ``ok`` enter; a session that was cut off shows in the
completion rate of its class.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from pytest_llmbench.metrics.differences import change
from pytest_llmbench.metrics.fairness import STARVATION_FACTOR, TAILS, WaitSource, jain_index_of
from pytest_llmbench.metrics.latency import per_request
from pytest_llmbench.metrics.ratios import share_estimate
from pytest_llmbench.metrics.sessions.turns import latencies, ranks
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import MISSING, BoolColumn, Records
from pytest_llmbench.stats.proportion import share_of
from pytest_llmbench.stats.runs import FloatArray

_NS_PER_MS = 1e6


class TurnWaits(NamedTuple):
    """The wait of each turn in ms, NaN for one that did not end well."""

    source: WaitSource
    ms: FloatArray


def of_class(records: Records, name: str) -> Records:
    """The turns of the sessions of a class."""
    labels = np.array(records.class_label, dtype=object)
    return records.select(np.asarray(labels == name, dtype=bool))


def turn_waits(records: Records) -> TurnWaits:
    """The server's queue wait if every turn that ended well has one, else TTFT for all (AMB-10)."""
    ok = records.ok
    if bool(ok.any()) and bool((records.queue_wait_ns[ok] != MISSING).all()):
        return TurnWaits("server queue wait", np.where(ok, records.queue_wait_ns / _NS_PER_MS, np.nan))
    return TurnWaits("TTFT", per_request("ttft", records))


def starved_sessions(records: Records, waits: FloatArray, *, level: float = 0.95) -> Estimate:
    """Share of the sessions of a class one of whose turns waited longer than five times the median wait of
    its turns. ``waits``: of each record."""
    known = ~np.isnan(waits)
    if not known.any():
        return Estimate.undefined(unit="ratio", method="no samples", level=level)
    own, held = records.select(known), waits[known]
    starved = np.zeros(int(ranks(own).max()) + 1)
    np.maximum.at(starved, ranks(own), (held > STARVATION_FACTOR * float(np.median(held))).astype(float))
    return share_estimate(share_of([starved], level=level), level, "no samples", ", whole sessions")


def ttft_inflation(mixed: Records, alone: Records) -> dict[str, Estimate]:
    """``ttft_inflation.p50``, ``.p95``, ``.p99`` of the turns of one class: TTFT in the mix / alone."""
    before, after = latencies([alone], "ttft", None), latencies([mixed], "ttft", None)
    return {f"ttft_inflation.{q}": change(before[f"ttft.{q}"], after[f"ttft.{q}"], "ratio") for q in TAILS}


def session_jain_index(records: Records, *, level: float = 0.95) -> Estimate:
    """J over Σ end-to-end latency / Σ output tokens of the turns of each session (AMB-09)."""
    return jain_index_of([latency_per_token_ms(records)], level=level)


def latency_per_token_ms(records: Records) -> FloatArray:
    """Σ end-to-end latency / Σ output tokens of each session, over its turns that have both."""
    ms = per_request("e2e", records)
    return _over_turns(records, ms, ~np.isnan(ms) & (records.output_tokens > 0), "tokens")


def mean_ttft_ms(records: Records) -> FloatArray:
    """Mean TTFT of the turns of each session: what the classes' mean slowdowns are made of."""
    ms = per_request("ttft", records)
    return _over_turns(records, ms, ~np.isnan(ms), "turns")


def _over_turns(
    records: Records, ms: FloatArray, held: BoolColumn, by: Literal["tokens", "turns"]
) -> FloatArray:
    own = records.select(held)
    if not len(own):
        return np.empty(0)
    rank = ranks(own)
    whole = np.bincount(rank, weights=own.output_tokens if by == "tokens" else None)
    return np.asarray(np.bincount(rank, weights=ms[held]) / whole, dtype=np.float64)
