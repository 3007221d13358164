"""``records/*.jsonl``: one line per request, written as the request ends.

The first line is the header: the wall-clock anchor of the monotonic stamps and what the file belongs to. The
measuring loop only encodes a line and appends it to a list; a thread of its own takes the list to the disk
every second. So a slow disk never delays a time stamp, and a killed run keeps all but its last second.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import orjson

from pytest_llmbench.errors import StoreError
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.outcome import Outcome, Phase, TokenSource
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.store.instants import iso_utc
from pytest_llmbench.store.plain import plain
from pytest_llmbench.store.redaction import Redactor

RECORDS_SCHEMA = "pytest-llmbench/records/1.1"
_READ = ("pytest-llmbench/records/1.0", RECORDS_SCHEMA)
"""1.0 lacks some fields of a line; they take their defaults."""

_FIRST_FIELDS = (
    "index", "request_id", "phase", "class_label", "scheduled_ns", "dispatched_ns", "submitted_ns",
    "first_byte_ns", "first_event_ns", "first_content_ns", "chunk_ns", "chunk_tokens", "last_content_ns",
    "finished_ns", "input_tokens", "output_tokens", "token_source", "requested_max_tokens", "outcome",
    "http_status", "error", "finish_reason",
)  # fmt: skip
_FIELDS = (*_FIRST_FIELDS, *(f.name for f in fields(RequestRecord) if f.name not in _FIRST_FIELDS))
_TEXTS = frozenset({"request_id", "class_label", "error", "finish_reason", "server_timings"})
"""Fields that can hold what a server or an author wrote, and with it a secret."""
_TOO_SHORT = "the file has no header line"
_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY


@dataclass(frozen=True, slots=True)
class RecordsHeader:
    """What the records belong to."""

    anchor: ClockAnchor
    nodeid: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The load in JSON values, for people and for tools that replay."""

    def line(self) -> dict[str, Any]:
        anchor = {
            "monotonic_ns": self.anchor.monotonic_ns,
            "wall_ns": self.anchor.wall_ns,
            "wall": iso_utc(self.anchor.wall_ns),
        }
        return {"anchor": anchor, "schema": RECORDS_SCHEMA, "nodeid": self.nodeid, "plan": plain(self.plan)}


class RecordsWriter:
    """Writes the records of one test. Use as a context manager or call :meth:`close`.

    A disk that fails while load is running does not stop the measurement: the records live on in memory and
    in the report. It is :meth:`close` that raises the StoreError then, with the number of lines lost.
    """

    def __init__(
        self,
        path: Path,
        header: RecordsHeader,
        *,
        redactor: Redactor | None = None,
        flush_interval_s: float = 1.0,
    ) -> None:
        self.path = path
        self._redactor = redactor or Redactor()
        self._interval_s = flush_interval_s
        self._waiting: list[bytes] = []
        self._closing = threading.Event()
        self._failure: OSError | None = None
        self._lost = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(path, "w")
            self._write_out([_encode(self._redactor.value(header.line()))])
        except OSError as error:
            raise self._error(error, "cannot write the records") from error
        self._thread = threading.Thread(target=self._flush_until_closed, name="llmbench-records", daemon=True)
        self._thread.start()

    def write(self, record: RequestRecord, label: str = "") -> None:
        """Takes one ended request; ``label`` is that of its LoadPlan. Does not touch the disk."""
        line = {name: getattr(record, name) for name in _FIELDS}
        line["label"] = label
        for name in _TEXTS:
            line[name] = self._redactor.value(line[name])
        self._waiting.append(_encode(line))

    def close(self) -> None:
        """Writes what is left and closes the file. Raises StoreError if any line was lost."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._file.close()
        if self._failure is not None:
            raise self._error(self._failure, f"{self._lost} records could not be written") from self._failure

    def _flush_until_closed(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        # The loop may append in between: only what was seen is taken out.
        lines = self._waiting[:]
        del self._waiting[: len(lines)]
        if not lines:
            return
        if self._failure is None:
            try:
                self._write_out(lines)
            except OSError as error:
                self._failure = error
        if self._failure is not None:
            self._lost += len(lines)

    def _write_out(self, lines: list[bytes]) -> None:
        rest = memoryview(b"".join(lines))
        while rest:
            rest = rest[self._file.write(rest) :]

    def _error(self, error: OSError, what: str) -> StoreError:
        return StoreError(
            f"{what}: {error.strerror or error}",
            where=str(self.path),
            remedy="check that the report directory is writable and has space left",
        )

    def __enter__(self) -> RecordsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StoreError as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # what ended the run comes first


def _encode(line: Mapping[str, Any]) -> bytes:
    try:
        # Records are written while load is running: a third of what the standard library takes.
        return orjson.dumps(line, default=_numpy_as_list, option=_OPTIONS)
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs in a server's message
        return json.dumps(line, separators=(",", ":"), default=_numpy_as_list).encode() + b"\n"


def _numpy_as_list(value: object) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


@dataclass(frozen=True, slots=True)
class RecordsFile:
    """A records file as read back."""

    header: Mapping[str, Any]
    anchor: ClockAnchor
    rows: tuple[RequestRecord, ...]
    labels: tuple[str, ...]
    """The LoadPlan label of each row."""
    dropped: str | None
    """What was left out at the end of a file whose writer was killed; None for a whole file."""

    def records(self, phase: Phase | None = None) -> Records:
        """The rows as columns; with ``phase`` only those of that part of the run."""
        return Records.from_rows(row for row in self.rows if phase is None or row.phase is phase)


def read_records(path: Path) -> RecordsFile:
    """Reads a records file into rows; ``records_reader`` reads long ones.

    A cut last line is left out and told in ``dropped``; other damage raises.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise StoreError(
            f"cannot read the records: {error.strerror or error}", where=str(path), remedy="check the path"
        ) from error
    if not lines:
        raise damaged(_TOO_SHORT, path)
    header = header_of(lines[0], path)
    rows: list[tuple[RequestRecord, str]] = []
    dropped = None
    for number, line in enumerate(lines[1:], start=2):
        try:
            rows.append(row_of(line))
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise damaged(f"line {number} is no record: {error}", path) from error
            dropped = cut_off(number, line)
    anchor = ClockAnchor(header["anchor"]["monotonic_ns"], header["anchor"]["wall_ns"])
    return RecordsFile(
        header, anchor, tuple(row for row, _ in rows), tuple(label for _, label in rows), dropped
    )


def header_of(line: bytes, path: Path) -> dict[str, Any]:
    """The first line of a records file. Raises StoreError."""
    try:
        header = json.loads(line)
        schema = header["schema"]
        clocks = {name: int(header["anchor"][name]) for name in ("monotonic_ns", "wall_ns")}
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(_TOO_SHORT, path) from error
    if schema not in _READ:
        raise StoreError(
            f"the records are in {schema!r}, this version reads {' and '.join(_READ)}",
            where=str(path),
            remedy="read them with the version of pytest-llmbench that wrote them",
        )
    header["anchor"] |= clocks
    return dict(header)


def cut_off(number: int, line: bytes) -> str:
    """How a last line is told that was not written to its end."""
    return f"the last line ({number}) was cut off after {len(line)} bytes: one request is missing"


def row_of(line: bytes) -> tuple[RequestRecord, str]:
    """A line and its label. Raises ValueError, KeyError or TypeError for what is none."""
    # An empty list is the default of its field; in the file it is there for readers of other languages.
    values = {name: value for name, value in json.loads(line).items() if value != []}
    label = values.pop("label")
    values["phase"] = Phase(values["phase"])
    values["outcome"] = Outcome(values["outcome"])
    values["token_source"] = TokenSource(values["token_source"])
    return RequestRecord(**values), label


def damaged(what: str, path: Path) -> StoreError:
    return StoreError(what, where=str(path), remedy="it is no records file, or a damaged one; measure again")


__all__ = [
    "RECORDS_SCHEMA", "RecordsFile", "RecordsHeader", "RecordsWriter", "cut_off", "damaged", "header_of",
    "read_records", "row_of",
]  # fmt: skip
