"""Judge whether the measurement itself was good enough: what the stamps of the records say about our own
machine.

A load is void where they leave a figure more uncertain than a limit; below it the figures say by how much
(``uncertainty.py``). Percentiles count as far as the sample holds them: one request read late among fifty is
no P99.
"""

from __future__ import annotations

from pytest_llmbench.metrics.uncertainty import Leeway, Leeways, gap_leeways, ttft_leeways
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import empty_slot_share

SHARE = 0.1
"""The share of a latency by which it may be uncertain, or by the milliseconds of the run's ``HostLimits`` if
that is more."""
FEWEST_BEYOND = 3
"""Samples beyond a percentile from which on it is judged here."""
FULL_CORE_SHARE = 0.9
"""CPU of the measuring process above which it has too much to do by itself."""
LATE_READS, LATE_GAPS, EMPTY = "late_reads", "late_gaps", "empty_slots"
"""Names of the checks."""
_JUDGED = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def spoiled(run: Observation, *, gaps: bool = False) -> tuple[Finding, ...]:
    """What this machine spoiled, a finding each; ``gaps``: the test is about the time between tokens."""
    found = (late_reads(run), late_gaps(run) if gaps else None, empty_slots(run))
    return tuple(finding for finding in found if finding is not None and not finding.ok)


def late_reads(run: Observation) -> Finding | None:
    """The finding about late reads in TTFT. None where every instant of it is exact."""
    return _furthest(LATE_READS, "TTFT", ttft_leeways([run]), run)


def late_gaps(run: Observation) -> Finding | None:
    """The finding about late reads in the time between chunks; for tests that are about it."""
    return _furthest(LATE_GAPS, "time between chunks", gap_leeways([run]), run)


def _furthest(check: str, family: str, leeways: Leeways, run: Observation) -> Finding | None:
    """The finding about the percentile that is furthest beyond its limit, or nearest to it."""
    held = [
        (name, leeways[name])
        for name, q in _JUDGED.items()
        if name in leeways and leeways[name].n * (1 - q / 100) >= FEWEST_BEYOND
    ]
    if not held:
        return None
    name, leeway = max(held, key=lambda each: each[1].most / _limit_ms(run, each[1]))
    limit = _limit_ms(run, leeway)
    ok = leeway.most <= limit
    way = "high" if leeway.too_high_by >= leeway.too_low_by else "low"
    return Finding(
        check,
        ok=ok,
        voids=True,
        message=f"{family} {name.upper()} of {leeway.seen:.3g} ms may be {leeway.most:.3g} ms too {way} "
        f"(limit {limit:.3g} ms): {_why(run)}{'' if ok else f'; {_remedy(run)}'}",
        value=leeway.most,
        limit=limit,
        unit="ms",
    )


def empty_slots(run: Observation) -> Finding | None:
    """The finding about the empty slots of a closed loop; None where no slot stood empty."""
    share, lag_ns = empty_slot_share(run.plan.load, run.records), run.selfcheck.replacement_lag_p99_ns
    if not share:
        return None
    limit = run.host_limits.empty_slot_share
    ok = share <= limit
    late = "" if lag_ns is None else f", refilled {lag_ns / 1e6:.3g} ms late at P99"
    return Finding(
        EMPTY,
        ok=ok,
        voids=True,
        message=f"slots stood empty for {share:.2%} of their time{late} (limit {limit:.0%})"
        + ("" if ok else f": fewer requests were in flight than asked for; {_remedy(run)}"),
        value=share,
        limit=limit,
        unit="ratio",
    )


def _remedy(run: Observation) -> str:
    """What helps a generator that came late."""
    share = run.selfcheck.cpu_share
    full = share is not None and share > FULL_CORE_SHARE
    return "lower the load or give more --llm-workers" if full else "free its CPU"


def _why(run: Observation) -> str:
    chunks, late = len(run.records.chunk_ns), int(run.records.unresolved_chunks.clip(0).sum())
    if late:
        return f"{late / max(1, chunks):.2%} of the chunks were read late, together with later ones"
    return "reads are stamped when they are read, and the measuring loop was late"


def _limit_ms(run: Observation, leeway: Leeway) -> float:
    return max(run.host_limits.latency_ms, SHARE * leeway.seen)
