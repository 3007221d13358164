"""What a worker measured by its machine's clock, on the coordinator's."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pytest_llmbench.columns.log import RecordLog
from pytest_llmbench.generator.ray.clocks import ClockLine
from pytest_llmbench.generator.workers.protocol import Done
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records

INSTANTS = (
    "scheduled_ns", "dispatched_ns", "submitted_ns", "first_byte_ns", "first_event_ns", "first_nonempty_ns",
    "first_reasoning_ns", "first_content_ns", "last_content_ns", "finished_ns", "chunk_ns",
)  # fmt: skip
"""Read from the worker's clock. The server's own (``server_token_ns``) and durations are not among them."""
DONE_INSTANTS = ("started_ns", "ended_ns", "load_ended_ns", "decoded_ns")


def shifted_records(records: Records, line: ClockLine) -> Records:
    """Latencies change by the drift alone, a few parts in a million at most. Long runs a block at a time."""
    if line.same:
        return records
    log = RecordLog()
    try:
        for block in records.blocks():
            columns: dict[str, Any] = {field.name: getattr(block, field.name) for field in fields(Records)}
            log.extend(Records(**columns | {name: line.all_ours(columns[name]) for name in INSTANTS}))
        return log.records()
    finally:
        log.close()


def shifted_record(record: RequestRecord, line: ClockLine) -> RequestRecord:
    # While load is running only one offset is known, and what is shifted then should cost little.
    steady_ns = line.start.offset_ns if line.start.offset_ns == line.end.offset_ns else None
    moved: dict[str, Any] = {}
    for name in INSTANTS:
        value = getattr(record, name)
        if name == "chunk_ns":
            moved[name] = (
                [line.ours(each) for each in value]
                if steady_ns is None
                else [each + steady_ns for each in value]
            )
        elif value is not None:
            moved[name] = line.ours(value) if steady_ns is None else value + steady_ns
    return replace(record, **moved)


def shifted_done(done: Done, line: ClockLine) -> Done:
    moved: dict[str, Any] = {
        name: line.ours(value) for name in DONE_INSTANTS if (value := getattr(done, name)) is not None
    }
    return replace(done, **moved)


__all__ = ["DONE_INSTANTS", "INSTANTS", "shifted_done", "shifted_record", "shifted_records"]
