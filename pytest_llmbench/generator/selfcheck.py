"""The self-check: what the generator reports about itself, from its records and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.generator.http.transport import Stamping
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.plan import Load
from pytest_llmbench.model.records import MISSING, Records, empty_slot_share, replacement_lags_ns


@dataclass(slots=True)
class Counters:
    """Counters of the generator while load was running."""

    loop_lags_ns: Sequence[int] = ()
    cpu_ns: int = 0
    wall_ns: int = 0
    reads: int = 0
    connections_prewarmed: int = 0
    connections_opened: int = 0
    gc_collections: int = 0
    peak_in_flight: int = 0
    clock: str = ""
    clock_resolution_ns: int | None = None
    event_loop: str = ""
    transport: str = ""
    stamping: Stamping = field(default_factory=Stamping)
    switches: tuple[int, int] | None = None
    """Context switches: voluntary, involuntary; None where the system does not count them."""
    waited_for_core_share: float | None = None
    stolen_share: float | None = None


def context_switches() -> tuple[int, int] | None:
    """Voluntary and involuntary context switches of this process so far; None where the system does not count
    them."""
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw, usage.ru_nivcsw


def switches_since(before: tuple[int, int] | None) -> tuple[int, int] | None:
    now = context_switches()
    return None if before is None or now is None else (now[0] - before[0], now[1] - before[1])


def self_check(load: Load, records: Records, counters: Counters) -> SelfCheck:
    """The self-check of a load. Where the records are kept elsewhere, what they tell comes by
    :func:`of_records` later.

    CPU is the process's (user + system), main thread and all; what waits for a due time yields to the loop
    and costs a little of it. Loop lag includes the loop timer's rounding of up to 1 ms.
    """
    loop_lags = np.asarray(counters.loop_lags_ns, dtype=np.int64)
    return SelfCheck(
        loop_lag_p99_ns=_percentile(loop_lags, 99),
        loop_lag_max_ns=_percentile(loop_lags, 100),
        cpu_share=counters.cpu_ns / counters.wall_ns if counters.wall_ns > 0 else None,
        reads=counters.reads,
        connections_prewarmed=counters.connections_prewarmed,
        connections_opened=counters.connections_opened,
        gc_collections=counters.gc_collections,
        peak_in_flight=counters.peak_in_flight,
        clock=counters.clock,
        clock_resolution_ns=counters.clock_resolution_ns,
        stamp_source=counters.stamping.source(counters.reads),
        event_loop=counters.event_loop,
        transport=counters.transport,
        voluntary_switches=None if counters.switches is None else counters.switches[0],
        involuntary_switches=None if counters.switches is None else counters.switches[1],
        **_of_stamping(counters.stamping),
        waited_for_core_share=counters.waited_for_core_share,
        stolen_share=counters.stolen_share,
        **of_records(load, records),
    )


def of_records(load: Load, records: Records) -> dict[str, Any]:
    """The fields of a self-check that the records tell. Send lags need a schedule: a closed loop of requests
    has none to be late against. A turn of a session is due when what it waits for has ended and its pause is
    over."""
    lags = _send_lags(records) if load.requests_in_flight is None else np.empty(0, dtype=np.int64)
    tenth = max(1, len(lags) // 10)
    return {
        "send_lag_p50_ns": _percentile(lags, 50),
        "send_lag_p99_ns": _percentile(lags, 99),
        "send_lag_max_ns": _percentile(lags, 100),
        "send_lag_first_tenth_p50_ns": _percentile(lags[:tenth], 50),
        "send_lag_last_tenth_p50_ns": _percentile(lags[-tenth:], 50),
        "content_chunks": len(records.chunk_ns),
        "coalesced_chunks": int(records.coalesced_chunks.clip(0).sum()),
        "stale_retries": int(records.stale_retries.clip(0).sum()),
        "unresolved_chunks": int(records.unresolved_chunks.clip(0).sum()),
        **_of_slots(load, records),
    }


def _of_stamping(stamping: Stamping) -> dict[str, Any]:
    return {
        "unstamped_reads": stamping.unstamped if stamping.kernel else 0,
        "distrusted_stamps": stamping.distrusted,
        "moved_stamps": stamping.too_early,
        "clock_steps": stamping.clock_steps,
    }


def _of_slots(load: Load, records: Records) -> dict[str, Any]:
    lags = replacement_lags_ns(load, records)
    return {
        "replacement_lag_p50_ns": _percentile(lags, 50),
        "replacement_lag_p99_ns": _percentile(lags, 99),
        "replacement_lag_max_ns": _percentile(lags, 100),
        "empty_slot_share": empty_slot_share(load, records) if len(lags) else None,
    }


def _send_lags(records: Records) -> npt.NDArray[np.int64]:
    """Send lags in nanoseconds, dispatched - scheduled, in the order of the schedule."""
    known = (records.scheduled_ns != MISSING) & (records.dispatched_ns != MISSING)
    order = np.argsort(records.scheduled_ns[known], kind="stable")
    lags: npt.NDArray[np.int64] = (records.dispatched_ns[known] - records.scheduled_ns[known])[order]
    return lags


def _percentile(values: npt.NDArray[np.int64], q: float) -> int | None:
    return round(float(np.percentile(values, q))) if len(values) else None
