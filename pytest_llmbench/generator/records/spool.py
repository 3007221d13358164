"""Ended requests of a worker on their way to the coordinator: a file that one writes and the other follows.

The worker's loop packs some records at a time and appends them to a list; a thread takes the list to the file
now and then. So the coordinator's records file grows while load is running, a worker that is killed leaves
behind what had ended, and no message is sent for a request.

Records that are packed together are packed field by field, and a field with the same value in all of them, as
most have, once: all in all that takes little more than half as long as one record after another.

Of a plan that runs the last records are in memory, what came before them in a spool: a short run never
touches it. Of a long one each further record is packed as it comes and the oldest in memory
goes, so that the cost is spread evenly and memory does not follow the length of the run.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import pickle
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from io import FileIO
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any

from pytest_llmbench.columns import RecordLog
from pytest_llmbench.model.record import RequestRecord, Several, of_kind
from pytest_llmbench.model.records import KINDS, Ragged, Records
from pytest_llmbench.own_folder import own_folder

FLUSH_S = 0.25
_TOGETHER = 16
"""Records that are packed together: some 30 µs of the loop's time."""
_BATCH_BYTES = 64 * 1024
"""The bytes read at a time, some 400 short records: as objects they take ten times that."""
COLUMN_BATCH_BYTES = 1024 * 1024
"""Number of bytes read at a time where columns are made of the records: making them takes half a millisecond,
however few there are."""

_LENGTH = struct.Struct("<I")
_PICKLED = b"\x80"
"""The first byte of a pickle, and of nothing that ``marshal`` writes."""
_NAMES = [field.name for field in fields(RequestRecord)]
_values = attrgetter(*_NAMES)
_KINDS = tuple(
    (_NAMES.index(name), members, {member: code for code, member in enumerate(members)})
    for name, members in KINDS.items()
)
"""Fields that hold members of an enumeration, which are written as numbers: place of the field, members,
their codes."""
_RAGGED = frozenset(of_kind(Several))
_TIMINGS = _NAMES.index("server_timings")
Column = Sequence[Any]
"""The values of a field; a single one where all are the same."""


class SpoolWriter:
    """Writes the records of one plan. To be closed."""

    def __init__(self, path: Path, *, flush_s: float = FLUSH_S) -> None:
        self.path = path
        self._file = FileIO(path, "w")
        self._writing, self._packing = threading.Lock(), threading.Lock()
        self._flush_s = flush_s
        self._rows: list[tuple[Any, ...]] = []
        """Records that are not packed yet, as tuples."""
        self._waiting: list[bytes] = []
        self._closing = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._flush_until_closed, name="llmbench-spool", daemon=True)
        self._thread.start()

    def write(self, record: RequestRecord) -> None:
        """Take a record, without touching the disk. Raises OSError once the disk has failed: then records are
        being lost."""
        if self._failure is not None:
            raise self._failure
        self._rows.append(_values(record))
        if len(self._rows) >= _TOGETHER:
            self._pack()

    def flush(self) -> None:
        """Write everything so far to the file. Raises OSError where that failed."""
        if not self._closing.is_set():
            self._flush()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Write everything to the file and close it. Safe to call twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._file.close()

    def _flush_until_closed(self) -> None:
        last = False
        while not last:
            last = self._closing.wait(self._flush_s)
            try:
                self._flush()
            except OSError as error:
                self._failure = error
                return

    def _pack(self) -> None:
        with self._packing:
            # The loop may append in between: only what was seen is taken out.
            rows = self._rows[:]
            del self._rows[: len(rows)]
            if not rows:
                return
            count = len(rows)
            columns = [
                values[:1] if values.count(values[0]) == count else values
                for values in zip(*rows, strict=True)
            ]
            for place, _, codes in _KINDS:
                columns[place] = tuple(map(codes.__getitem__, columns[place]))
            try:
                packed = marshal.dumps((count, columns))
            except ValueError:  # a value of a class of its own, such as a text that an author's workload gave
                packed = pickle.dumps((count, columns), pickle.HIGHEST_PROTOCOL)
            self._waiting.append(_LENGTH.pack(len(packed)) + packed)

    def _flush(self) -> None:
        self._pack()
        with self._writing:
            # Likewise.
            frames = self._waiting[:]
            del self._waiting[: len(frames)]
            rest = memoryview(b"".join(frames))
            while rest:
                rest = rest[self._file.write(rest) :]


class SpoolReader:
    """Reads a spool while it is being written. The writer may be killed meanwhile: incomplete records are
    left out.

    What it gives at a time is no more than some thousand records, however far the spool has gone ahead.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def unread_bytes(self) -> int:
        """The bytes that have not been read yet; 0 if there is no such file."""
        with contextlib.suppress(FileNotFoundError):
            return self._path.stat().st_size - self._at
        return 0

    def read(self) -> list[RequestRecord]:
        """The records that were completed since the last call; none if there is no such file."""
        return [record for batch in self.batches() for record in batch]

    def batches(self, batch_bytes: int = _BATCH_BYTES) -> Iterator[list[RequestRecord]]:
        """The records in batches. What is left when the caller stops comes with the next call."""
        for frames in self._frames(batch_bytes):
            yield [record for count, columns in frames for record in _records(count, columns)]

    def columns(self, batch_bytes: int = COLUMN_BATCH_BYTES) -> Iterator[dict[str, Any]]:
        """The values of each field, as ``Records.from_columns`` takes them, in batches."""
        for frames in self._frames(batch_bytes):
            counts = [count for count, _ in frames]
            by_field = zip(*(columns for _, columns in frames), strict=True)
            yield {
                name: (_ragged if name in _RAGGED else _joined)(counts, parts)
                for name, parts in zip(_NAMES, by_field, strict=True)
            }

    def _frames(self, batch_bytes: int) -> Iterator[list[tuple[int, list[Column]]]]:
        """The groups of records that were packed together, as columns, each with its number of records."""
        size = batch_bytes
        with contextlib.suppress(FileNotFoundError), FileIO(self._path) as file:
            while True:
                file.seek(self._at)
                data = file.read(size)
                frames, used = _unpacked(data)
                self._at += used
                if frames:
                    size = batch_bytes
                    yield frames
                elif len(data) == size:  # what was packed together is longer than that
                    size *= 2
                else:
                    return


def _unpacked(data: bytes) -> tuple[list[tuple[int, list[Column]]], int]:
    unpacked = []
    at = 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + _LENGTH.size + length
        if end > len(data):
            break
        packed = data[at + _LENGTH.size : end]
        unpacked.append(pickle.loads(packed) if packed.startswith(_PICKLED) else marshal.loads(packed))
        at = end
    return unpacked, at


def _records(count: int, columns: list[Column]) -> Iterator[RequestRecord]:
    for place, members, _ in _KINDS:
        columns[place] = tuple(map(members.__getitem__, columns[place]))
    values = list(map(_whole, repeat(count), columns))
    values[_TIMINGS] = map(dict, values[_TIMINGS])  # each its own
    return map(RequestRecord, *values)


def _joined(counts: Sequence[int], columns: Sequence[Column]) -> list[Any]:
    """The values of one field over all groups: its column in each, and how many records each has."""
    return list(chain.from_iterable(map(_whole, counts, columns)))


def _ragged(counts: Sequence[int], columns: Sequence[Column]) -> Ragged:
    first = columns[0]
    if len(first) == 1 and columns.count(first) == len(columns):  # as tokens of a chunk mostly are
        return Ragged.of(first).times(sum(counts))
    return Ragged.of(_joined(counts, columns))


def _whole(count: int, column: Column) -> Iterable[Any]:
    return repeat(column[0], count) if len(column) == 1 else column


MEMORY_BYTES = 16 * 1024 * 1024
"""The bytes of records in memory, about: some 8000 of short replies."""
_ROW_BYTES = 1200
_ENTRY_BYTES = 48
"""Memory of one chunk in bytes: its stamp and its tokens, as Python integers in lists."""


class RowLog:
    """Takes records in the order in which requests end. To be closed."""

    def __init__(self, *, keeps: bool = True, memory_bytes: int = MEMORY_BYTES) -> None:
        """``keeps``: False where somebody else keeps the records, and they are only counted."""
        self._own: SpoolWriter | None = None
        self._keeps = keeps
        self._room = memory_bytes
        self._recent: deque[RequestRecord] = deque()
        self._count = 0
        self.last_finished_ns: int | None = None
        """The latest end of all requests; None before the first."""

    def __len__(self) -> int:
        return self._count

    def append(self, record: RequestRecord) -> None:
        self._count += 1
        ended_ns = record.finished_ns
        if ended_ns is not None and (self.last_finished_ns is None or ended_ns > self.last_finished_ns):
            self.last_finished_ns = ended_ns
        if not self._keeps:
            return
        self._recent.append(record)
        self._room -= _weight(record)
        while self._room < 0 and len(self._recent) > 1:
            oldest = self._recent.popleft()
            self._room += _weight(oldest)
            if self._own is None:
                descriptor, path = tempfile.mkstemp(dir=own_folder(), suffix=".spool")
                os.close(descriptor)
                self._own = SpoolWriter(Path(path))
            self._own.write(oldest)

    def records(self) -> Records:
        """All records that were kept as columns, in order of submission. To be called once."""
        if self._own is None:
            return Records.from_rows(self._recent)
        self._own.flush()
        with contextlib.closing(RecordLog()) as log:
            for columns in SpoolReader(self._own.path).columns():
                log.extend(Records.from_columns(columns))
            log.extend(Records.from_rows(self._recent))
            return log.records()

    def close(self) -> None:
        self._recent.clear()
        if self._own is not None:
            self._own.close()
            self._own.path.unlink(missing_ok=True)
            self._own = None


def _weight(record: RequestRecord) -> int:
    return _ROW_BYTES + _ENTRY_BYTES * (len(record.chunk_ns) + len(record.server_token_ns))
