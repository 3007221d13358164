"""The measurements of several workers, merged into one Observation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from pytest_llmbench.generator.records.columns import merged
from pytest_llmbench.generator.workers.coordinator import Coordinator
from pytest_llmbench.generator.workers.protocol import Done
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import LoadPlan, SessionLoad
from pytest_llmbench.model.records import BLOCK, MISSING, IntColumn, Records
from pytest_llmbench.workloads.sequence import drawn_sha256, slices_sha256

_NEVER_NS = 2**63 - 1
_SUMMED = {
    "reads", "content_chunks", "coalesced_chunks", "unresolved_chunks", "connections_prewarmed",
    "connections_opened", "stale_retries", "gc_collections", "voluntary_switches", "involuntary_switches",
    "unstamped_reads", "distrusted_stamps", "moved_stamps",
}  # fmt: skip


def merged_observation(plan: LoadPlan, coordinator: Coordinator, anchor: ClockAnchor) -> Observation:
    """Records by submission; the self-check as :func:`merged_selfcheck` says; the rest of the whole load."""
    done = [part.done for part in coordinator.parts if part.done is not None]
    records = merged([part.records for part in coordinator.parts])
    start_ns = coordinator.start_ns
    if start_ns is None:  # it was over before it began
        start_ns = min((each.started_ns for each in done), default=time.monotonic_ns())
    own: dict[str, Any] = {"generator.workers": len(coordinator.parts)}
    facts = Facts(done[0].facts) if done else Facts()
    ends = [each.load_ended_ns for each in done if each.load_ended_ns is not None]
    return Observation(
        plan=plan,
        records=records,
        started_ns=start_ns,
        ended_ns=max((start_ns, *(each.ended_ns for each in done), *_known(records.finished_ns))),
        anchor=anchor,
        selfcheck=done[0].selfcheck
        if done and len(coordinator.parts) == 1
        else merged_selfcheck([each.selfcheck for each in done], records),
        in_flight_at_end=sum(each.in_flight_at_end for each in done),
        interrupted=coordinator.cause or _interrupted(done, coordinator.stopped),
        sequence_sha256=_digest(plan, _begun(plan, records)),
        facts=facts | Facts.of(Origin.GENERATOR, own, "load generator"),
        load_ended_ns=max(ends, default=start_ns) if plan.duration_s is not None else None,
        stopped=coordinator.stopped,
    )


def merged_selfcheck(checks: Sequence[SelfCheck], records: Records) -> SelfCheck:
    """Lags and CPU are those of the worst worker, so that a busy one is not lost among idle ones; the trend
    of the send lag is that of the worker whose lag grew most; counts are sums; requests in flight are
    counted in the merged records."""
    if not checks:
        return SelfCheck(peak_in_flight=peak_in_flight(records))
    values: dict[str, Any] = {}
    for field in fields(SelfCheck):
        known = [value for check in checks if (value := getattr(check, field.name)) is not None]
        values[field.name] = _together(field.name, known)
    worst = max(checks, key=_growth)
    values["send_lag_first_tenth_p50_ns"] = worst.send_lag_first_tenth_p50_ns
    values["send_lag_last_tenth_p50_ns"] = worst.send_lag_last_tenth_p50_ns
    values["peak_in_flight"] = peak_in_flight(records)
    return SelfCheck(**values)


def _together(name: str, known: Sequence[Any]) -> Any:
    if not known:
        return None
    if name in _SUMMED:
        return sum(known)
    if isinstance(known[0], int | float):
        return max(known)
    return "; ".join(dict.fromkeys(known)) if isinstance(known[0], str) else known[0]


def _growth(check: SelfCheck) -> float:
    first, last = check.send_lag_first_tenth_p50_ns, check.send_lag_last_tenth_p50_ns
    return -np.inf if first is None or last is None else last - first


def peak_in_flight(records: Records, block_rows: int = BLOCK) -> int:
    """The most requests that had been dispatched and had not ended, at any one instant."""
    peak = running = 0
    firsts = [int(_dispatched(block).min(initial=_NEVER_NS)) for block in records.blocks(block_rows)]
    later_ns = [*np.minimum.accumulate(firsts[::-1])[::-1].tolist()[1:], _NEVER_NS]
    instants, steps = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for block, next_ns in zip(records.blocks(block_rows), later_ns, strict=True):
        known = (block.dispatched_ns != MISSING) & (block.finished_ns != MISSING)
        count = int(np.count_nonzero(known))
        instants = np.concatenate((instants, block.finished_ns[known], block.dispatched_ns[known]))
        steps = np.concatenate((steps, np.repeat([-1, 1], count)))
        # Of an end and a dispatch at the same instant the end comes first, as in a slot.
        order = np.lexsort((steps, instants))
        instants, steps = instants[order], steps[order]
        # What no dispatch of a later block comes before is settled.
        settled = int(np.searchsorted(instants, next_ns, side="left"))
        level = running + np.cumsum(steps[:settled])
        if settled:
            peak, running = max(peak, int(level.max())), int(level[-1])
        instants, steps = instants[settled:], steps[settled:]
    return peak


def _dispatched(records: Records) -> IntColumn:
    known = (records.dispatched_ns != MISSING) & (records.finished_ns != MISSING)
    found: IntColumn = records.dispatched_ns[known]
    return found


def _known(instants: IntColumn) -> Iterable[int]:
    return [int(instants.max())] if len(instants) else []


def _interrupted(done: Sequence[Done], stopped: str | None) -> str | None:
    """What a worker says of itself, such as the session deadline; not what its coordinator told it."""
    reasons = [each.interrupted for each in done if each.interrupted is not None]
    return next((reason for reason in reasons if reason != stopped), None)


def _begun(plan: LoadPlan, records: Records) -> IntColumn:
    """Indices of the requests that were sent; of sessions those of all turns of each that was begun."""
    if not isinstance(plan.load, SessionLoad) or not len(records):
        return records.index
    firsts, rows = np.unique(records.index - (records.turn - 1), return_index=True)
    turns = records.session_turns[rows]
    every = np.concatenate(
        [np.arange(first, first + count) for first, count in zip(firsts, turns, strict=True)]
    )
    return np.asarray(every[every < plan.first + plan.requests], dtype=np.int64)


def _digest(plan: LoadPlan, index: IntColumn) -> str:
    """The digest of the requests that were sent, in the order of the sequence.

    They have gaps where a load ended early or by its time, and one worker had gone further than another.
    """
    sent = np.unique(index)
    if not len(sent) or int(sent[-1]) == plan.first + len(sent) - 1:
        return drawn_sha256(plan.workload, plan.first, len(sent), plan.seed)
    stretches = np.split(sent, np.flatnonzero(np.diff(sent) > 1) + 1)
    return slices_sha256(plan.workload, [(int(each[0]), len(each)) for each in stretches], plan.seed)
