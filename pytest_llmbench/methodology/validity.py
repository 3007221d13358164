"""Valid? The first of the three judgements: did the run measure the SUT, or our own shortcomings?

Each check gives one Finding. A voiding one that is not ok makes the run invalid: its numbers are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.model.judgement import Finding, Validity
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.model.records import MISSING, Records

SEND_LAG_FLOOR_MS = 10.0
"""METHODOLOGY §3, AMB-28: lag P99 above max(10 ms, 0.1 / rate) violates request isolation."""
ACHIEVED_RATE_SHARE = 0.95
LOOP_LAG_WARNING_MS = 10.0
CPU_WARNING_SHARE = 0.9
BUFFERED_CHUNKS = 8
"""Replies of at least this many chunks are looked at for buffering …"""
BUFFERED_SPREAD = 0.02
"""… and called buffered when first and last chunk lie within this share of the end-to-end latency."""
BUFFERED_VOID_SHARE = 0.5
CACHED_WARNING_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Budget:
    max_error_share: float = 0.01


def validity(seen: Sequence[Observation], budget: Budget) -> Validity:
    """All findings over the measured runs."""
    findings = [check(run) for run in seen for check in _PER_RUN]
    records = Records.concatenate([run.records for run in seen])
    findings += [
        _error_budget(records, budget),
        _buffering(records),
        _cache_state(records),
        _client_cpu(seen),
    ]
    return Validity(tuple(finding for finding in findings if finding is not None))


def _interrupted(run: Observation) -> Finding | None:
    if run.interrupted is None:
        return None
    message = (
        f"the run was cut short ({run.interrupted}) after {len(run.records)} of {run.plan.requests} requests"
    )
    return Finding("complete", ok=False, voids=True, message=message)


def _complete(run: Observation) -> Finding:
    missing = run.plan.requests - len(run.records)
    return Finding(
        "all_requests_recorded",
        ok=missing == 0,
        voids=True,
        message=f"{len(run.records)} of {run.plan.requests} planned requests have a record",
        value=len(run.records),
        limit=run.plan.requests,
    )


def _send_lag(run: Observation) -> Finding | None:
    lag = run.selfcheck.send_lag_p99_ns
    if not isinstance(run.plan.load, OpenLoop) or lag is None:
        return None
    limit = max(SEND_LAG_FLOOR_MS, 100.0 / run.plan.load.rate)
    ok = lag / 1e6 <= limit
    advice = "" if ok else ": the generator could not keep its schedule; lower the rate or free the CPU"
    return Finding(
        "send_lag",
        ok=ok,
        voids=True,
        message=f"sends were late by {lag / 1e6:.3f} ms at P99 (limit {limit:g} ms){advice}",
        value=lag / 1e6,
        limit=limit,
        unit="ms",
    )


def _growing_lag(run: Observation) -> Finding | None:
    first, last = run.selfcheck.send_lag_first_tenth_p50_ns, run.selfcheck.send_lag_last_tenth_p50_ns
    if first is None or last is None:
        return None
    ok = last <= 2 * first + 1_000_000
    return Finding(
        "send_lag_growth",
        ok=ok,
        voids=True,
        message=(
            f"median send lag {first / 1e6:.3f} ms in the first tenth, {last / 1e6:.3f} ms in the last"
            + ("" if ok else ": the generator fell behind; lower the rate or free the CPU")
        ),
        value=last / 1e6,
        limit=(2 * first + 1_000_000) / 1e6,
        unit="ms",
    )


def _achieved_rate(run: Observation) -> Finding | None:
    """Offered against achieved: the sends themselves, over the span that the schedule gave them."""
    if not isinstance(run.plan.load, OpenLoop):
        return None
    both = (run.records.submitted_ns != MISSING) & (run.records.scheduled_ns != MISSING)
    if int(both.sum()) < 2:
        return None
    planned = np.ptp(run.records.scheduled_ns[both])
    sent = np.ptp(run.records.submitted_ns[both])
    share = float(planned / sent) if sent > 0 else 1.0
    return Finding(
        "achieved_rate",
        ok=share >= ACHIEVED_RATE_SHARE,
        voids=True,
        message=f"requests left at {share:.1%} of the scheduled rate (limit {ACHIEVED_RATE_SHARE:.0%})",
        value=share,
        limit=ACHIEVED_RATE_SHARE,
        unit="ratio",
    )


def _loop_lag(run: Observation) -> Finding | None:
    lag = run.selfcheck.loop_lag_p99_ns
    if lag is None:
        return None
    ok = lag / 1e6 <= LOOP_LAG_WARNING_MS
    advice = "" if ok else ": something else held the measuring loop; time stamps may be late by as much"
    return Finding(
        "loop_lag",
        ok=ok,
        voids=False,
        message=f"the measuring loop was late by {lag / 1e6:.2f} ms at P99{advice}",
        value=lag / 1e6,
        limit=LOOP_LAG_WARNING_MS,
        unit="ms",
    )


def _drained(run: Observation) -> Finding:
    return Finding(
        "drained",
        ok=run.in_flight_at_end == 0,
        voids=False,
        message=f"{run.in_flight_at_end} requests still in flight after the drain",
        value=run.in_flight_at_end,
        limit=0,
    )


_PER_RUN: tuple[Callable[[Observation], Finding | None], ...] = (
    _interrupted,
    _complete,
    _send_lag,
    _growing_lag,
    _achieved_rate,
    _loop_lag,
    _drained,
)


def _error_budget(records: Records, budget: Budget) -> Finding:
    counts = records.counts()
    submitted = counts["submitted"]
    failed = submitted - counts[Outcome.OK]
    share = failed / submitted if submitted else 1.0
    ok = submitted > 0 and share <= budget.max_error_share
    kinds = ", ".join(
        f"{count} {name}" for name, count in counts.items() if name not in ("submitted", Outcome.OK) and count
    )
    first = next((error for error in records.error if error), None)
    detail = f" ({kinds}; first error: {first})" if failed and first else f" ({kinds})" if failed else ""
    return Finding(
        "error_budget",
        ok=ok,
        voids=True,
        message=f"{failed} of {submitted} requests failed, budget {budget.max_error_share:.1%}{detail}",
        value=share,
        limit=budget.max_error_share,
        unit="ratio",
    )


def _buffering(records: Records) -> Finding | None:
    """A proxy that holds chunks back makes TTFT equal to the end-to-end latency: no stream, no TTFT."""
    counts = np.diff(records.chunk_offsets)
    looked = records.ok & (counts >= BUFFERED_CHUNKS) & (records.first_content_ns != MISSING)
    if not looked.any():
        return None
    spread = (records.last_content_ns - records.first_content_ns)[looked]
    whole = (records.last_content_ns - records.submitted_ns)[looked]
    share = float(np.mean(spread <= BUFFERED_SPREAD * whole))
    ok = share <= BUFFERED_VOID_SHARE
    advice = "" if ok else ": something between here and the engine buffers the stream; switch it off"
    return Finding(
        "stream_fidelity",
        ok=ok,
        voids=True,
        message=f"{share:.1%} of the replies arrived all at once{advice}",
        value=share,
        limit=BUFFERED_VOID_SHARE,
        unit="ratio",
    )


def _cache_state(records: Records) -> Finding | None:
    known = (records.cached_tokens != MISSING) & (records.input_tokens > 0)
    if not known.any():
        return None
    share = float(records.cached_tokens[known].sum() / records.input_tokens[known].sum())
    return Finding(
        "prefix_cache_hits",
        ok=share <= CACHED_WARNING_SHARE,
        voids=False,
        message=f"the server took {share:.1%} of the input tokens from its prefix cache",
        value=share,
        limit=CACHED_WARNING_SHARE,
        unit="ratio",
    )


def _client_cpu(seen: Sequence[Observation]) -> Finding | None:
    shares = [run.selfcheck.cpu_share for run in seen if run.selfcheck.cpu_share is not None]
    if not shares:
        return None
    worst = max(shares)
    return Finding(
        "client_cpu",
        ok=worst <= CPU_WARNING_SHARE,
        voids=False,
        message=f"the measuring process used {worst:.0%} of a core",
        value=worst,
        limit=CPU_WARNING_SHARE,
        unit="ratio",
    )


__all__ = ["Budget", "validity"]
