"""The records of a plan while it runs: the last ones in memory, what came before them in a spool.

A short run never touches it. Of a long one each further record is packed as it comes and the oldest in memory
goes, so that the cost is spread evenly and memory does not follow the length of the run.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from pathlib import Path

from pytest_llmbench.columns.own_folder import own_folder
from pytest_llmbench.generator.records.columns import spooled_records
from pytest_llmbench.generator.records.spool import SpoolReader, SpoolWriter
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records

MEMORY_BYTES = 16 * 1024 * 1024
"""The bytes of records in memory, about: some 8000 of short replies."""
_ROW_BYTES = 1200
_FORGOTTEN_AT_ONCE = 3
_ENTRY_BYTES = 48
"""Memory of one chunk in bytes: its stamp and its tokens, as Python integers in lists."""


class RowLog:
    """Takes records in the order in which requests end. To be closed."""

    def __init__(self, spool: SpoolWriter | None = None, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """``spool``: the file to which the owner writes each record anyway; None: records beyond the memory
        go to a file of our own."""
        self._shared = spool
        self._own: SpoolWriter | None = None
        self._room = memory_bytes
        self._recent: deque[RequestRecord] = deque()
        self._count = 0
        self._forgets = False
        """Whether all records are read from the shared spool at the end: those in memory are dropped, a few
        at a time."""
        self.last_finished_ns: int | None = None
        """The latest end of all requests; None before the first."""

    def __len__(self) -> int:
        return self._count

    def append(self, record: RequestRecord) -> None:
        self._count += 1
        ended_ns = record.finished_ns
        if ended_ns is not None and (self.last_finished_ns is None or ended_ns > self.last_finished_ns):
            self.last_finished_ns = ended_ns
        if self._forgets:
            for _ in range(min(_FORGOTTEN_AT_ONCE, len(self._recent))):
                self._recent.popleft()
            return
        self._recent.append(record)
        self._room -= _weight(record)
        while self._room < 0 and len(self._recent) > 1:
            if self._shared is not None:
                self._forgets = True
                return
            oldest = self._recent.popleft()
            self._room += _weight(oldest)
            self._spool_of_ours().write(oldest)

    def records(self) -> Records:
        """All records as columns, in order of submission. To be called once."""
        if self._count == len(self._recent):
            return Records.from_rows(self._recent)
        spool = self._shared or self._spool_of_ours()
        spool.flush()
        if spool is self._shared:
            self._recent.clear()  # they are in there too
        return spooled_records(SpoolReader(spool.path), self._recent)

    def close(self) -> None:
        self._recent.clear()
        if self._own is not None:
            self._own.close()
            self._own.path.unlink(missing_ok=True)
            self._own = None

    def _spool_of_ours(self) -> SpoolWriter:
        if self._own is None:
            descriptor, path = tempfile.mkstemp(dir=own_folder(), suffix=".spool")
            os.close(descriptor)
            self._own = SpoolWriter(Path(path))
        return self._own


def _weight(record: RequestRecord) -> int:
    return _ROW_BYTES + _ENTRY_BYTES * (len(record.chunk_ns) + len(record.server_token_ns))
