"""``records/*.jsonl.gz``: one line per request, written as the request ends.

The first line is the header: the wall-clock anchor of the monotonic stamps and what the file belongs to. The
measuring loop only encodes a line and appends it to a list; a thread of its own packs the list and takes it
to the disk every second. So a slow disk delays no time stamp, and a killed run keeps all but its last second.
Only where the disk stands still until 32 MiB are waiting does writing wait, and that is told. Nothing is lost
by it.

The name of a file says how it is written: ``.gz`` is packed, ``.compact`` has compact lines
(``record_line``).

Reads ``records/*.jsonl.gz``, and unpacked files, to analyse a finished run again.

They become Records, in bounded memory. A test sends several plans: warm-up, probes, runs, levels;
:func:`read_runs` keeps apart what follows one another. The records are what the run itself had, number for
number, so every metric comes out the same to the last digit. What is not of single requests (start and end of
a load, readings of the engine) is not in this file.

Lines become columns some thousand at a time; beyond :data:`~pytest_llmbench.columns.MEMORY_BYTES` of
columns they go to a temporary file, which lives as long as the Records over it.
"""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from pytest_llmbench.columns import MEMORY_BYTES, RecordLog
from pytest_llmbench.errors import StoreError, shown
from pytest_llmbench.input_files import lines, open_file, parse_json
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import TEXTS, Records
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.redaction import known_secrets
from pytest_llmbench.store.objects import plain
from pytest_llmbench.store.record_line import (
    READ_SCHEMAS,
    RECORDS_SCHEMA,
    compact_line,
    compact_lines,
    encoded_line,
    row_reader,
    whole_line,
)
from pytest_llmbench.store.schema import iso_utc

_TEXTS = frozenset((*TEXTS, "id_prefix", "server_timings"))
"""Fields that can contain what a server or an author wrote, and so a secret."""
COMPACT = ".compact"
"""Mark in the name and in the header of a file with compact lines, which leave out what a reader can
derive."""
_GZIP = 16 + zlib.MAX_WBITS
_PACKING = {False: (1, zlib.Z_DEFAULT_STRATEGY), True: (4, zlib.Z_FILTERED)}
"""Level and strategy of compression, for whole (False) and for compact lines (True). From the fourth level on
repetition is looked for at each place, and the strategy takes none that is shorter than the digits it would
replace. That leaves little more than half of a compact line. Short as it is, it takes less time than a whole
one at the first level; a long one of a real server, whose gaps do not repeat, takes twice as much."""
_TOO_SHORT = "the file has no header line"
MOST_WAITING = 32 * 1024 * 1024
"""Most bytes of lines that may wait for the disk: 30,000 short replies, or 1200 of a thousand tokens."""
NOT_ON_DISK = "files_on_disk"
"""Name of the check that a file of a result is there and complete."""
_AT_ONCE = 1024 * 1024
"""How many bytes are joined and written together."""
_TOLD_FROM_S = 0.1
"""Shortest total wait for the disk, in seconds, that is reported."""


@dataclass(frozen=True, slots=True)
class RecordsHeader:
    """The header of a records file: what the records belong to."""

    anchor: ClockAnchor
    nodeid: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The load as JSON values, for people and for tools that replay it."""

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
        """Bytes of the lines that wait or are being written."""
        self._held_up_s = 0.0
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._closing = False
        self._failure: OSError | None = None
        self._lost = 0
        self._compact = COMPACT in path.suffixes
        level, strategy = _PACKING[self._compact]
        packed = path.suffix == ".gz"
        self._packer = zlib.compressobj(level, wbits=_GZIP, strategy=strategy) if packed else None
        first = header.line() | ({"compact": True} if self._compact else {})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(path, "w")
            self._write_out([encoded_line(self._redactor.value(first))])
        except OSError as error:
            raise self._error(error, "cannot write the records") from error
        self._thread = threading.Thread(target=self._flush_until_closed, name="llmbench-records", daemon=True)
        self._thread.start()

    def write(self, record: RequestRecord, label: str = "") -> None:
        """Write one ended request; ``label`` is that of its LoadPlan. The disk is left to a thread of its
        own, and waited for only if it is too far behind."""
        self._hand_over([self._encoded((compact_line if self._compact else whole_line)(record, label))])

    def write_columns(self, records: Records, label: str = "") -> bool:
        """:meth:`write` each of these if the file has compact lines; else False, and nothing is written. All
        chunks have the attribution ``exact``, and there are no server timings."""
        if self._compact:
            for lines in compact_lines(records, label):
                self._hand_over(list(map(self._encoded, lines)))
        return self._compact

    def _encoded(self, line: dict[str, Any]) -> bytes:
        if self._redactor:
            for name in _TEXTS.intersection(line):
                line[name] = self._redactor.value(line[name])
        return encoded_line(line)

    def _hand_over(self, lines: Sequence[bytes]) -> None:
        with self._lock:  # itself: through the condition it takes four times as long
            if self._held_bytes > self._most_waiting:
                began = time.monotonic()
                self._change.wait_for(lambda: self._held_bytes <= self._most_waiting)
                self._held_up_s += time.monotonic() - began
            self._waiting += lines
            self._held_bytes += sum(map(len, lines))
            if self._much_waits():
                self._change.notify_all()

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on the writing for the reader of the result."""
        if self._held_up_s < _TOLD_FROM_S:
            return ()
        waited = Amount(self._held_up_s, "s")
        return (Note.of("slow_disk", file=self.path.name, waited=waited),)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The finding that a closed file is incomplete, if it is.

        It voids nothing, since no figure is made of the file.
        """
        return () if self._failure is None else (not_on_disk(self._not_written(self._failure)),)

    def close(self) -> None:
        """Write what is left and close the file. Raises StoreError if any line was lost."""
        with self._change:
            if self._closing:
                return
            self._closing = True
            self._change.notify_all()
        self._thread.join()
        with self._file:
            if self._packer is not None and self._failure is None:
                try:
                    self._to_disk(self._packer.flush(zlib.Z_FINISH))
                except OSError as error:  # no line is lost
                    self._failure = error
        if self._failure is not None:
            raise self._not_written(self._failure) from self._failure

    def _much_waits(self) -> bool:
        """Whether so much is waiting that it must not wait for the rest of the second."""
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


def not_on_disk(error: StoreError) -> Finding:
    """The finding for a result whose file could not be written."""
    return Finding.of(NOT_ON_DISK, error=" ".join(str(error).split()))


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


def header_of(line: bytes, path: Path) -> dict[str, Any]:
    """Parse the first line of a records file. Raises StoreError."""
    try:
        header = parse_json(line)
        schema = header["schema"]
        clocks = {name: int(header["anchor"][name]) for name in ("monotonic_ns", "wall_ns")}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise damaged(_TOO_SHORT, path) from error
    if schema not in READ_SCHEMAS:
        raise StoreError(
            f"the records are in {shown(schema)}, this version reads {', '.join(READ_SCHEMAS)}",
            where=str(path),
            remedy="read them with the version of pytest-llmbench that wrote them",
        )
    header["anchor"] |= clocks
    return dict(header)


def cut_off(number: int, line: bytes) -> str:
    """The message on a last line that was not written completely."""
    return f"the last line ({number}) was cut off after {len(line)} bytes: one request is missing"


def damaged(what: str, path: Path) -> StoreError:
    return StoreError(what, where=str(path), remedy="it is not a records file, or is damaged; measure again")


ROWS = 4096
"""Maximum number of lines that are rows at once."""
ENTRIES = 1_000_000
"""Maximum number of entries of such rows, in chunks and server instants."""


@dataclass(frozen=True)
class StoredRun:
    """The records of one plan, as far as labels tell plans apart."""

    label: str
    records: Records


@dataclass(frozen=True)
class StoredRuns:
    """The runs in a records file."""

    header: Mapping[str, Any]
    runs: tuple[StoredRun, ...]
    """The runs in order; a run goes as far as the label stays the same."""
    dropped: str | None
    """What was left out at the end of a file whose writer was killed; None for a complete file."""


def read_runs(path: Path) -> StoredRuns:
    """The runs of a file in order. Raises StoreError for what is no records file, and for damage that is not
    a cut end."""
    lines = _Lines(path)
    runs: list[StoredRun] = []
    filling, current = _Filling(), ""
    with _of_their_kinds(path):
        for label, row in lines.rows():
            if len(filling) and label != current:
                runs.append(StoredRun(current, filling.records()))
                filling = _Filling()
            current = label
            filling.append(row)
        if len(filling):
            runs.append(StoredRun(current, filling.records()))
    return StoredRuns(lines.header, tuple(runs), lines.dropped)


@contextmanager
def _of_their_kinds(path: Path) -> Iterator[None]:
    """Turn errors from wrong types in a line into a StoreError: a line that is JSON may hold a text where a
    number belongs, or a number too large for its column."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise damaged(f"a record has a value of the wrong type: {error}", path) from error


@dataclass
class _Filling:
    """Collects rows into columns."""

    log: RecordLog = field(default_factory=lambda: RecordLog(memory_bytes=MEMORY_BYTES))
    rows: list[RequestRecord] = field(default_factory=list)
    entries: int = 0

    def __len__(self) -> int:
        return len(self.log) + len(self.rows)

    def append(self, row: RequestRecord) -> None:
        self.rows.append(row)
        self.entries += len(row.chunk_ns) + len(row.server_token_ns)
        if len(self.rows) >= ROWS or self.entries >= ENTRIES:
            self._flush()

    def records(self) -> Records:
        """All records; nothing can be appended after that."""
        self._flush()
        found = self.log.records()
        self.log.close()
        return found

    def _flush(self) -> None:
        self.log.extend(Records.from_rows(self.rows))
        self.rows, self.entries = [], 0


class RecordsLines(Iterator[bytes]):
    """The lines of a records file, unpacked if it is gzipped, up to where it was cut off."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._path = path
        packed = path.suffix == ".gz"
        self._file = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        self._lines = lines(self._file)
        self.cut = False
        """Whether a gzipped file has no end. Known once all lines have been read."""

    def __next__(self) -> bytes:
        try:
            return next(self._lines)
        except EOFError:
            self.cut = True
            raise StopIteration from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise damaged(f"it cannot be decompressed: {error}", self._path) from error


@contextmanager
def records_lines(path: Path) -> Iterator[RecordsLines]:
    """Open a records file; gives its lines, the header first. Raises OSError, and StoreError for a damaged
    one."""
    with open_file(path) as file:
        yield RecordsLines(file, path)


class _Lines:
    """The lines of a file; ``header`` and ``dropped`` are known once all have been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.header: Mapping[str, Any] = {}
        self.dropped: str | None = None

    def rows(self) -> Iterator[tuple[str, RequestRecord]]:
        try:
            with records_lines(self._path) as each:
                self.header = header_of(next(each, b""), self._path)
                row_of = row_reader(self.header)
                bad: tuple[int, bytes, Exception] | None = None
                for number, line in enumerate(each, start=2):
                    if bad is not None:
                        raise damaged(f"line {bad[0]} is not a record: {bad[2]}", self._path) from bad[2]
                    try:
                        row, label = row_of(line)
                    except (ValueError, KeyError, TypeError) as error:
                        bad = number, line, error
                        continue
                    yield label, row
                if bad is not None:
                    self.dropped = cut_off(bad[0], bad[1])
                elif each.cut:
                    self.dropped = (
                        "the file has no end: its writer was killed, and later requests are missing"
                    )
        except OSError as error:
            raise StoreError(
                f"cannot read the records: {error.strerror or error}",
                where=str(self._path),
                remedy="check the path",
            ) from error
