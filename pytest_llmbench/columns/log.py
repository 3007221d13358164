"""The log that ended requests go to while a run goes on: in memory, and beyond a certain amount in a file."""

from __future__ import annotations

from pytest_llmbench.columns.block import Block, Vocabulary, block_of, joined, records_of
from pytest_llmbench.columns.block_file import BlockFile
from pytest_llmbench.columns.stored import merged
from pytest_llmbench.model.records import Records

MEMORY_BYTES = 32 * 1024 * 1024
"""The bytes of columns that are kept in memory. A run of 64 tokens per reply reaches them after some 25,000
requests."""


class RecordLog:
    """Takes the requests of a run in batches as they end and gives back Records in order of submission.

    A short run is kept in memory and comes back as ordinary Records, however it was cut into batches. To be
    closed, which leaves alone the Records that it gave.
    """

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        """``memory_bytes``: of columns in memory; :data:`MEMORY_BYTES` if not given."""
        self._memory_bytes = MEMORY_BYTES if memory_bytes is None else memory_bytes
        self._blocks: list[Block] = []
        self._held_bytes = 0
        self._vocabulary = Vocabulary()
        self._file: BlockFile | None = None
        self._requests = 0

    def __len__(self) -> int:
        return self._requests

    @property
    def spilled(self) -> bool:
        """A file has been begun."""
        return self._file is not None

    def extend(self, records: Records) -> None:
        """Requests that have ended, in any order."""
        block = block_of(records, self._vocabulary).in_order()
        self._requests += len(block)
        if self._file is not None:
            self._file.append(block)
            return
        self._blocks.append(block)
        self._held_bytes += block.nbytes
        if self._held_bytes > self._memory_bytes:
            self._spill()

    def records(self) -> Records:
        """All of them, in order of submission."""
        if self._file is not None:
            return merged([self._file])
        if not self._blocks:
            return Records.from_rows(())
        return records_of(joined(self._blocks).in_order(), self._vocabulary)

    def close(self) -> None:
        self._blocks.clear()
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        self._file = BlockFile()
        self._file.vocabulary = self._vocabulary
        for block in self._blocks:
            self._file.append(block)
        self._blocks.clear()
