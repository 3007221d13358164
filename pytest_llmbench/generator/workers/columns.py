"""Records as a file of columns, and the columns of several workers merged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from pytest_llmbench.model.records import MISSING, IntColumn, Records

_RAGGED = {
    "chunk_offsets": ("chunk_ns", "chunk_tokens"),
    "server_token_offsets": ("server_token_ns",),
}
_IN_RAGGED = {name for offsets, names in _RAGGED.items() for name in (offsets, *names)}


def write_columns(records: Records, path: Path) -> None:
    """One ``.npz`` file; columns of text go into it as JSON."""
    columns = {}
    for field in fields(Records):
        value = getattr(records, field.name)
        if not isinstance(value, np.ndarray):
            value = np.frombuffer(json.dumps(list(value)).encode(), dtype=np.uint8)
        columns[field.name] = value
    with path.open("wb") as file:
        np.savez(file, **columns)


def read_columns(path: Path) -> Records:
    """What :func:`write_columns` wrote."""
    empty = Records.from_rows(())
    columns: dict[str, Any] = {}
    with np.load(path, allow_pickle=False) as stored:
        for field in fields(Records):
            value = stored[field.name]
            is_text = not isinstance(getattr(empty, field.name), np.ndarray)
            columns[field.name] = json.loads(value.tobytes()) if is_text else value
    return Records(**columns)


def merged(parts: Sequence[Records]) -> Records:
    """All requests of several workers, ordered by submission, as ``Records.from_rows`` orders them.

    Each part is in order already; NumPy's stable sort merges such runs in one pass.
    """
    joined = Records.concatenate(parts)
    return joined if len(parts) < 2 else _reordered(joined, np.lexsort((joined.index, _instants(joined))))


def _instants(records: Records) -> IntColumn:
    """The instant that orders each request: submitted, else dispatched, else scheduled."""
    instants = np.where(records.dispatched_ns != MISSING, records.dispatched_ns, records.scheduled_ns)
    instants = np.where(records.submitted_ns != MISSING, records.submitted_ns, instants)
    found: IntColumn = np.where(instants != MISSING, instants, 0)
    return found


def _reordered(records: Records, order: IntColumn) -> Records:
    columns: dict[str, Any] = {}
    for field in fields(Records):
        if field.name in _IN_RAGGED:
            continue
        value = getattr(records, field.name)
        per_request = isinstance(value, np.ndarray)
        columns[field.name] = value[order] if per_request else [value[i] for i in order.tolist()]
    for offsets_name, names in _RAGGED.items():
        before = getattr(records, offsets_name)
        counts = np.diff(before)[order]
        after = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        entries = np.repeat(before[:-1][order] - after[:-1], counts) + np.arange(after[-1])
        columns[offsets_name] = after
        columns |= {name: getattr(records, name)[entries] for name in names}
    return Records(**columns)


__all__ = ["merged", "read_columns", "write_columns"]
