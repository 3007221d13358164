"""The slots of a closed loop between one request and the next: how long they stood empty on our account."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.model.plan import ClosedLoop, Load
from pytest_llmbench.model.records import MISSING, IntColumn, Records


def replacement_lags_ns(load: Load, records: Records) -> IntColumn:
    """Dispatched - due; due is when the request before it in the slot ended. None of an open loop, which has
    no slots."""
    if not isinstance(load, ClosedLoop):
        return np.empty(0, dtype=np.int64)
    known = (records.scheduled_ns != MISSING) & (records.dispatched_ns != MISSING)
    lags: IntColumn = np.maximum(records.dispatched_ns[known] - records.scheduled_ns[known], 0)
    return lags


def empty_slot_share(load: Load, records: Records) -> float:
    """Σ (dispatched - due) / Σ (end - due): of the slots' time, that in which they waited for us."""
    empty_ns = float(replacement_lags_ns(load, records).sum())
    due_ns, ended_ns = records.scheduled_ns, records.finished_ns
    known = (due_ns != MISSING) & (ended_ns > due_ns)
    took_ns = float((ended_ns - due_ns)[known].sum())
    return min(1.0, empty_ns / took_ns) if took_ns > 0 else 0.0
