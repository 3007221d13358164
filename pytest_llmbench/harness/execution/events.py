"""``events.jsonl.gz``: one line for each change of state of the session, of its loads and of their requests.

The lines of a load are made from its observation after its last reply, so nothing of it disturbs a stamp;
they are in the order of time, and appended to the file, which a killed session keeps. Instants are those of
the records, nanoseconds of CLOCK_MONOTONIC (in replay: of the virtual clock), so the file equals them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import orjson

from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.execution.loads import path_in
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.records import MISSING, OUTCOMES, IntColumn, Records
from pytest_llmbench.store.records_file import not_on_disk

EVENTS_SCHEMA: Final = "pytest-llmbench/events/1.0"
OF_REQUESTS: Final = {
    "request_due": "scheduled_ns",
    "request_issued": "dispatched_ns",
    "request_sent": "submitted_ns",
    "first_byte": "first_byte_ns",
    "first_event": "first_event_ns",
    "request_completed": "finished_ns",
}
"""Event of a request → the column with its instant. ``chunk`` is beside them, one for each content chunk."""
_ORDER = (*list(OF_REQUESTS)[:-1], "chunk", "request_completed")
"""The order of events of a request that have one instant."""

AT_ONCE: Final = 10_000
"""Most events that are held at a time: a long load has millions."""

Event = Mapping[str, Any]


class Observer(Protocol):
    def __call__(self, *, events: Sequence[Event]) -> object: ...


class EventLog:
    """Writes and shows the events of a session. ``path``: None where they are only shown; ``observers``: each
    is called with the events of a load in the order of time, :data:`AT_ONCE` at a time."""

    def __init__(self, path: Path | None, observers: Sequence[Observer]) -> None:
        self._path, self._observers = path, observers
        self._ended_ns: int | None = None
        """The end of the last load; None before the first."""
        self.findings: tuple[Finding, ...] = ()
        """The finding that events could not be written, if they could not."""

    def load(self, plan: LoadPlan, seen: Observation, nodeid: str) -> None:
        """Add a load that was sent."""
        about = {"test": nodeid, "load": plan.title}
        if self._ended_ns is None:
            anchor = {"at_ns": seen.started_ns, "wall_ns": seen.anchor.wall(seen.started_ns)}
            self._add([{"event": "session_started", **anchor, "schema": EVENTS_SCHEMA}])
        events = events_of(seen)
        while some := [{**each, **about} for each in islice(events, AT_ONCE)]:
            self._ended_ns = some[-1]["at_ns"]
            self._add(some)

    def end(self) -> None:
        """Add the end of the session; nothing where it had no load."""
        if self._ended_ns is not None:
            self._add([{"event": "session_ended", "at_ns": self._ended_ns}])

    def _add(self, events: Sequence[Event]) -> None:
        for observer in self._observers:
            observer(events=events)
        if self._path is None or self.findings:
            return
        # A member of its own each time: whatever comes later, what was written can be read.
        packed = gzip.compress(b"".join(orjson.dumps(each) + b"\n" for each in events), mtime=0)
        try:
            with self._path.open("ab") as file:
                file.write(packed)
        except OSError as error:
            why = StoreError(f"the events cannot be written: {error.strerror}", where=str(self._path))
            self.findings = (not_on_disk(why),)


def events_path(report: Path, worker: str | None) -> Path:
    """``events.jsonl.gz``, of a worker of pytest-xdist ``events-gw0.jsonl.gz``."""
    return path_in(report, "events", ".jsonl.gz", worker)


def events_of(seen: Observation) -> Iterator[dict[str, Any]]:
    """The events of a load in the order of time: ``load_started``, those of its requests, ``load_stopped``
    (nothing more is sent) and ``tracking_stopped`` (the last reply has come, or the drain is over)."""
    records = seen.records
    sent_ns = records.submitted_ns[records.submitted_ns != MISSING]
    stopped_ns = max(int(sent_ns.max()) if len(sent_ns) else seen.started_ns, seen.load_ended_ns or 0)
    rest = [
        {"event": "load_stopped", "at_ns": stopped_ns},
        {"event": "tracking_stopped", "at_ns": max(seen.ended_ns, stopped_ns)},
    ]
    wall_ns = seen.anchor.wall(seen.started_ns)
    yield {"event": "load_started", "at_ns": seen.started_ns, "wall_ns": wall_ns}
    for each in _of_requests(records):
        while rest and rest[0]["at_ns"] < each["at_ns"]:
            yield rest.pop(0)
        yield each
    yield from rest


def _of_requests(records: Records) -> Iterator[dict[str, Any]]:
    at_ns, rows, kinds = _columns(records)
    ended, order = _ORDER.index("request_completed"), np.lexsort((kinds, at_ns))
    for instant, row, kind in zip(at_ns[order], rows[order], kinds[order], strict=True):
        event = {"event": _ORDER[kind], "at_ns": int(instant), "request": records.request_id[row]}
        if kind == ended:
            event["outcome"] = str(OUTCOMES[records.outcome[row]])
        yield event


def _columns(records: Records) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Instant, row and place in :data:`_ORDER` of each event."""
    every = np.arange(len(records))
    at_ns, rows, kinds = [], [], []
    for event, column in OF_REQUESTS.items():
        instants = getattr(records, column)
        known = instants != MISSING
        at_ns.append(instants[known])
        rows.append(every[known])
        kinds.append(np.full(int(known.sum()), _ORDER.index(event)))
    at_ns.append(records.chunk_ns)
    rows.append(np.repeat(every, np.diff(records.chunk_offsets)))
    kinds.append(np.full(len(records.chunk_ns), _ORDER.index("chunk")))
    return np.concatenate(at_ns), np.concatenate(rows), np.concatenate(kinds)
