"""``records/*.jsonl.gz``: one line per request, written as the request ends.

The first line is the header: the wall-clock anchor of the monotonic stamps and what the file belongs to. The
measuring loop only encodes a line and appends it to a list; a thread of its own packs the list and takes it
to the disk every second. So a slow disk delays no time stamp, and a killed run keeps all but its last second.
Only where the disk stands still until 32 MiB are waiting does writing wait, and that is told. Nothing is lost
by it.

The name of a file says how it is written: ``.gz`` is packed, ``.compact`` leaves out of a line what a reader
finds by itself.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from io import FileIO
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import orjson

from pytest_llmbench.errors import StoreError
from pytest_llmbench.input_files import parse_json
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.redaction import known_secrets
from pytest_llmbench.store.objects import plain
from pytest_llmbench.store.schema import iso_utc

RECORDS_SCHEMA = "pytest-llmbench/records/1.6"
_READ = (*(f"pytest-llmbench/records/1.{minor}" for minor in range(6)), RECORDS_SCHEMA)
"""Earlier ones lack some fields of a line; they take their defaults."""

_FIRST_FIELDS = (
    "index", "request_id", "phase", "class_label", "scheduled_ns", "dispatched_ns", "submitted_ns",
    "first_byte_ns", "first_event_ns", "first_content_ns", "chunk_ns", "chunk_tokens", "last_content_ns",
    "finished_ns", "input_tokens", "output_tokens", "token_source", "requested_max_tokens", "outcome",
    "http_status", "error", "finish_reason",
)  # fmt: skip
_FIELDS = (*_FIRST_FIELDS, *(f.name for f in fields(RequestRecord) if f.name not in _FIRST_FIELDS))
_values = attrgetter(*_FIELDS)
_TEXTS = frozenset(
    {"request_id", "class_label", "error", "finish_reason", "thinking_end_reason", "server_timings"}
)
"""Fields that can hold what a server or an author wrote, and with it a secret."""
_DEFAULTS = {
    "label": "",
    "server_timings": {},
    **{f.name: f.default for f in fields(RequestRecord) if f.default is not MISSING},
}
"""What a reader takes for a field that a line does not have."""
_FIRST_CHUNK = ("first_byte_ns", "first_event_ns", "first_nonempty_ns", "first_content_ns")
"""Where a compact line leaves them out, and there are chunks, each is the instant of the first of them."""
_NONE = object()
COMPACT = ".compact"
"""In the name of a file, and in its header: lines leave out what a reader finds by itself."""
_GZIP = 16 + zlib.MAX_WBITS
_PACKING = 1
"""The level of compression: 4 µs a line. The best level leaves a fifth less, for 20."""
_TOO_SHORT = "the file has no header line"
MOST_WAITING = 32 * 1024 * 1024
"""Bytes of lines that may wait for the disk: 30,000 short replies, or 1200 of a thousand tokens."""
NOT_ON_DISK = "files_on_disk"
"""Check of the finding that a file of a result is missing or not whole."""
_AT_ONCE = 1024 * 1024
"""Bytes that are joined and written together."""
_TOLD_FROM_S = 0.1
"""A shorter wait for the disk is no news."""


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
    in the report. It is :meth:`close` that raises the StoreError then, with the number of lines lost. As a
    context manager it raises nothing for it: the result is worth more than its records, and gets
    :attr:`findings`.

    A disk that stands still makes :meth:`write` wait once ``most_waiting`` bytes are held; :attr:`notes` says
    for how long. With worker processes that holds up the thread that collects what they have measured, and
    they keep it in files meanwhile. Where the requests are sent in this process, it holds up the sending and
    the reading too, which the lag of the loop shows.
    """

    def __init__(
        self,
        path: Path,
        header: RecordsHeader,
        *,
        flush_interval_s: float = 1.0,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self.path = path
        self._redactor = known_secrets()
        self._interval_s = flush_interval_s
        self._most_waiting = most_waiting
        self._waiting: list[bytes] = []
        self._held_bytes = 0
        """The bytes of what waits and what is being written."""
        self._held_up_s = 0.0
        self._change = threading.Condition()
        self._closing = False
        self._failure: OSError | None = None
        self._lost = 0
        self._compact = COMPACT in path.suffixes
        self._packer = zlib.compressobj(_PACKING, wbits=_GZIP) if path.suffix == ".gz" else None
        first = header.line() | ({"compact": True} if self._compact else {})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(path, "w")
            self._write_out([_encode(self._redactor.value(first))])
        except OSError as error:
            raise self._error(error, "cannot write the records") from error
        self._thread = threading.Thread(target=self._flush_until_closed, name="llmbench-records", daemon=True)
        self._thread.start()

    def write(self, record: RequestRecord, label: str = "") -> None:
        """Takes one ended request; ``label`` is that of its LoadPlan. Leaves the disk to a thread of its own,
        and waits for it only where it is too far behind."""
        line = dict(zip(_FIELDS, _values(record), strict=True))
        line["label"] = label
        if self._redactor:
            for name in _TEXTS:
                line[name] = self._redactor.value(line[name])
        encoded = _encode(_without_the_obvious(line) if self._compact else line)
        with self._change:
            if self._held_bytes > self._most_waiting:
                self._wait_for_room()
            self._waiting.append(encoded)
            self._held_bytes += len(encoded)
            if self._much_waits():
                self._change.notify_all()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the result has to know of the writing."""
        if self._held_up_s < _TOLD_FROM_S:
            return ()
        return (
            f"the disk under {self.path.name} could not keep up with the records, and what collects them "
            f"waited {self._held_up_s:.1f} s for it; none is lost",
        )

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The finding about a closed file that is not whole.

        It voids nothing, since no figure is made of the file.
        """
        return () if self._failure is None else (not_on_disk(self._not_written(self._failure)),)

    def close(self) -> None:
        """Writes what is left and closes the file. Raises StoreError if any line was lost."""
        with self._change:
            if self._closing:
                return
            self._closing = True
            self._change.notify_all()
        self._thread.join()
        self._end_file()
        if self._failure is not None:
            raise self._not_written(self._failure) from self._failure

    def _wait_for_room(self) -> None:
        began = time.monotonic()
        self._change.wait_for(lambda: self._held_bytes <= self._most_waiting)
        self._held_up_s += time.monotonic() - began

    def _much_waits(self) -> bool:
        """Whether so much waits that it must not be left for the rest of the second."""
        return self._held_bytes > min(_AT_ONCE, self._most_waiting // 2)

    def _flush_until_closed(self) -> None:
        closing = False
        while not closing:
            with self._change:
                self._change.wait_for(lambda: self._closing or self._much_waits(), self._interval_s)
                lines, self._waiting = self._waiting, []
                closing = self._closing
            for some in _portions(lines):
                self._write_unless_failed(some)

    def _write_unless_failed(self, lines: list[bytes]) -> None:
        if self._failure is None:
            try:
                self._write_out(lines)
            except OSError as error:
                self._failure = error
        if self._failure is not None:
            self._lost += len(lines)
        with self._change:
            self._held_bytes -= sum(map(len, lines))
            self._change.notify_all()

    def _write_out(self, lines: list[bytes]) -> None:
        whole = b"".join(lines)
        if self._packer is not None:  # so that all of it can be read, whatever becomes of the file
            whole = self._packer.compress(whole) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        self._to_disk(whole)

    def _to_disk(self, whole: bytes) -> None:
        rest = memoryview(whole)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _end_file(self) -> None:
        with self._file:
            if self._packer is not None and self._failure is None:
                try:
                    self._to_disk(self._packer.flush(zlib.Z_FINISH))
                except OSError as error:  # no line is lost
                    self._failure = error

    def _not_written(self, error: OSError) -> StoreError:
        return self._error(error, f"{self._lost} records could not be written")

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
            if error is not None:
                error.add_note(str(failure))  # what ended the run comes first


def _without_the_obvious(line: dict[str, Any]) -> dict[str, Any]:
    """A line without fields that have their default, and without instants that are those of a chunk."""
    known = _by_the_chunks(line["chunk_ns"])
    return {
        name: value
        for name, value in line.items()
        if not _is(value, known[name] if name in known else _DEFAULTS.get(name, _NONE))
    }


def _is(value: Any, expected: Any) -> bool:
    if expected == ():
        return len(value) == 0
    return value is expected or (type(value) is type(expected) and value == expected)


def not_on_disk(error: StoreError) -> Finding:
    """What a result is told of a file beside it that could not be written."""
    return Finding(NOT_ON_DISK, ok=False, voids=False, message=" ".join(str(error).split()))


def _portions(lines: list[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line)
        if size >= _AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _encode(line: Mapping[str, Any]) -> bytes:
    try:
        # Records are written while load is running: a third of what the standard library takes. The line end
        # is added here: as an option of orjson it would make each line keep the 16 KiB it was written into.
        return orjson.dumps(line, default=_numpy_as_list, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs in a server's message
        return json.dumps(line, separators=(",", ":"), default=_numpy_as_list).encode() + b"\n"


def _numpy_as_list(value: object) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def header_of(line: bytes, path: Path) -> dict[str, Any]:
    """The first line of a records file. Raises StoreError."""
    try:
        header = parse_json(line)
        schema = header["schema"]
        clocks = {name: int(header["anchor"][name]) for name in ("monotonic_ns", "wall_ns")}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise damaged(_TOO_SHORT, path) from error
    if schema not in _READ:
        raise StoreError(
            f"the records are in {schema!r}, this version reads {', '.join(_READ)}",
            where=str(path),
            remedy="read them with the version of pytest-llmbench that wrote them",
        )
    header["anchor"] |= clocks
    return dict(header)


def cut_off(number: int, line: bytes) -> str:
    """How a last line is told that was not written to its end."""
    return f"the last line ({number}) was cut off after {len(line)} bytes: one request is missing"


def row_of(line: bytes, *, compact: bool = False) -> tuple[RequestRecord, str]:
    """A line and its label; ``compact``: of a file of such lines.

    Raises ValueError, KeyError or TypeError for what is none.
    """
    # An empty list is the default of its field; in the file it is there for readers of other languages.
    given = parse_json(line)
    if not isinstance(given, dict):
        raise TypeError(f"a JSON {type(given).__name__} where an object is expected")
    values = {name: value for name, value in given.items() if value != []}
    if compact:
        values = _with_the_obvious(values)
    label = values.pop("label")
    values["phase"] = Phase(values["phase"])
    values["outcome"] = Outcome(values["outcome"])
    values["token_source"] = TokenSource(values["token_source"])
    if "reasoning_token_source" in values:
        values["reasoning_token_source"] = TokenSource(values["reasoning_token_source"])
    return RequestRecord(**values), label


def _with_the_obvious(values: dict[str, Any]) -> dict[str, Any]:
    kinds = {name: _DEFAULTS[name] for name in ("outcome", "token_source")}
    return {"label": "", **kinds, **_by_the_chunks(values.get("chunk_ns", ())), **values}


def _by_the_chunks(chunk_ns: Sequence[int]) -> dict[str, int]:
    """What the instants of the chunks say of other fields, in most replies."""
    if not len(chunk_ns):
        return {}
    return dict.fromkeys(_FIRST_CHUNK, int(chunk_ns[0])) | {"last_content_ns": int(chunk_ns[-1])}


def damaged(what: str, path: Path) -> StoreError:
    return StoreError(what, where=str(path), remedy="it is no records file, or a damaged one; measure again")
