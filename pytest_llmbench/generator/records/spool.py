"""Ended requests of a worker on their way to the coordinator: a file that one writes and the other follows.

The worker's loop only packs a record and appends it to a list; a thread takes the list to the file now and
then. So the coordinator's records file grows while load is running, a worker that is killed leaves behind
what had ended, and no message is sent for a request.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
import threading
from collections.abc import Iterator
from dataclasses import fields
from io import FileIO
from operator import attrgetter
from pathlib import Path

from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource

FLUSH_S = 0.25
_BATCH_BYTES = 128 * 1024
"""The bytes read at a time, some 400 short records: as objects they take ten times that."""

_LENGTH = struct.Struct("<I")
_NAMES = [field.name for field in fields(RequestRecord)]
_values = attrgetter(*_NAMES)
_KINDS = tuple(
    (_NAMES.index(name), tuple(kind), {member: code for code, member in enumerate(kind)})
    for name, kind in (
        ("phase", Phase),
        ("token_source", TokenSource),
        ("reasoning_token_source", TokenSource),
        ("outcome", Outcome),
    )
)
"""Members of enumerations go as numbers: whole, they cost more to pack than all the rest."""


class SpoolWriter:
    """Writes the records of one plan. To be closed."""

    def __init__(self, path: Path, *, flush_s: float = FLUSH_S) -> None:
        self.path = path
        self._file = FileIO(path, "w")
        self._writing = threading.Lock()
        self._flush_s = flush_s
        self._waiting: list[bytes] = []
        self._closing = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._flush_until_closed, name="llmbench-spool", daemon=True)
        self._thread.start()

    def write(self, record: RequestRecord) -> None:
        """Does not touch the disk. Raises OSError once the disk has failed: then records are being lost."""
        if self._failure is not None:
            raise self._failure
        values = list(_values(record))
        for place, _, codes in _KINDS:
            values[place] = codes[values[place]]
        packed = pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
        self._waiting.append(_LENGTH.pack(len(packed)) + packed)

    def flush(self) -> None:
        """Everything written so far is in the file then. Raises OSError where that failed."""
        if not self._closing.is_set():
            self._flush()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Everything is in the file then. Safe to call twice."""
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

    def _flush(self) -> None:
        with self._writing:
            # The loop may append in between: only what was seen is taken out.
            frames = self._waiting[:]
            del self._waiting[: len(frames)]
            rest = memoryview(b"".join(frames))
            while rest:
                rest = rest[self._file.write(rest) :]


class SpoolReader:
    """Follows a spool. Whoever writes it may be killed in the middle of a record, which is left out.

    ``batches`` holds no more than some thousand records at a time, however far the spool has gone ahead.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[RequestRecord]:
        """The records that were completed since the last call; none if there is no such file."""
        return [record for batch in self.batches() for record in batch]

    def batches(self, batch_bytes: int = _BATCH_BYTES) -> Iterator[list[RequestRecord]]:
        """The same, some at a time. What is left when the caller stops comes with the next call."""
        size = batch_bytes
        with contextlib.suppress(FileNotFoundError), FileIO(self._path) as file:
            while True:
                file.seek(self._at)
                data = file.read(size)
                records, used = _unpacked(data)
                self._at += used
                if records:
                    size = batch_bytes
                    yield records
                elif len(data) == size:  # one record is longer than that
                    size *= 2
                else:
                    return


def _unpacked(data: bytes) -> tuple[list[RequestRecord], int]:
    records = []
    at = 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + _LENGTH.size + length
        if end > len(data):
            break
        values = pickle.loads(data[at + _LENGTH.size : end])
        for place, members, _ in _KINDS:
            values[place] = members[values[place]]
        records.append(RequestRecord(*values))
        at = end
    return records, at
