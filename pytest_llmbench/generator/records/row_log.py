"""The records of a plan while it runs: the last ones in memory, what came before them in a spool.

A short run never touches it. Of a long one each further record is packed as it comes and the oldest in memory
goes, so that the cost is spread evenly and memory does not follow the length of the run.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from pathlib import Path

from pytest_llmbench.columns import RecordLog
from pytest_llmbench.generator.records.spool import SpoolReader, SpoolWriter
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.own_folder import own_folder

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
            self._spool().write(oldest)

    def records(self) -> Records:
        """All records that were kept as columns, in order of submission. To be called once."""
        if self._own is None:
            return Records.from_rows(self._recent)
        self._own.flush()
        log = RecordLog()
        try:
            for columns in SpoolReader(self._own.path).columns():
                log.extend(Records.from_columns(columns))
            log.extend(Records.from_rows(self._recent))
            return log.records()
        finally:
            log.close()

    def close(self) -> None:
        self._recent.clear()
        if self._own is not None:
            self._own.close()
            self._own.path.unlink(missing_ok=True)
            self._own = None

    def _spool(self) -> SpoolWriter:
        if self._own is None:
            descriptor, path = tempfile.mkstemp(dir=own_folder(), suffix=".spool")
            os.close(descriptor)
            self._own = SpoolWriter(Path(path))
        return self._own


def _weight(record: RequestRecord) -> int:
    return _ROW_BYTES + _ENTRY_BYTES * (len(record.chunk_ns) + len(record.server_token_ns))
