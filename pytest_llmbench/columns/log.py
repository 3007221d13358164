"""The log that ended requests go to while a run goes on: in memory, and beyond a certain amount in a file
without a name, whose columns are mapped into memory; the file goes with them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_llmbench.columns.blocks import (
    CODED,
    ENTRIES,
    IDS,
    PER_ENTRY,
    PER_REQUEST,
    Block,
    BlockFile,
    Place,
    Vocabulary,
    block_of,
    joined,
    joined_in_order,
    records_of,
    temporary_file,
    write_all,
)
from pytest_llmbench.model.records import BLOCK, BLOCK_ENTRIES, BoolColumn, CodedTexts, PackedTexts, Records

_ALIGNED = 4096
_OFFSETS = np.dtype(np.int64)


class StoredRecords(Records):
    """Records that are read from a file; read-only, like all Records.

    What has been read of the file counts as memory of this process until :meth:`relax`, which :meth:`blocks`
    calls after each block. The system may take that memory back at any time.
    """

    _map: mmap.mmap

    @classmethod
    def over(cls, mapped: mmap.mmap, columns: Mapping[str, Any]) -> StoredRecords:
        records = cls(**columns)
        object.__setattr__(records, "_map", mapped)
        return records

    def relax(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def blocks(self, size: int = BLOCK, entries: int = BLOCK_ENTRIES) -> Iterator[Records]:
        for block in super().blocks(size, entries):
            yield block
            self.relax()

    def select(self, mask: BoolColumn) -> Records:
        mask = np.asarray(mask, dtype=bool)
        count = int(np.count_nonzero(mask))
        first = int(np.argmax(mask))
        if count <= BLOCK or bool(mask[first : first + count].all()):
            return super().select(mask)
        return stored(_chosen(self, mask))

    def _sharing(self, columns: dict[str, Any]) -> Records:
        return StoredRecords.over(self._map, columns)

    def _joined(self, parts: Sequence[Records]) -> Records:
        return stored(block for part in parts for block in part.blocks())

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("records in a file cannot be sent to another process; send their blocks")


def stored(blocks: Iterable[Records]) -> Records:
    """The requests of these blocks, one block after another, stored in a file of their own."""
    with BlockFile() as file:
        for block in blocks:
            file.append(block_of(block, file.vocabulary))
        writer = StoredWriter(file.places)
        try:
            for place in file.places:
                writer.append(file.read(place))
            return writer.records(file.vocabulary.texts)
        finally:
            writer.close()


def _chosen(records: Records, mask: BoolColumn) -> Iterator[Records]:
    first = 0
    for block in records.blocks():
        yield Records.select(block, mask[first : first + len(block)])
        first += len(block)


class StoredWriter:
    """Writes blocks in order of submission; their total sizes are known before."""

    def __init__(self, places: Sequence[Place]) -> None:
        """``places`` of all blocks that will be appended, in any order."""
        self._file = temporary_file()
        self._requests = sum(place.requests for place in places)
        self._entries = {name: sum(place.entries[name] for place in places) for name in PER_ENTRY}
        self._constants = _constants(places)
        self._starts: dict[str, int] = {}
        self._at: dict[str, int] = {}
        self._reached = dict.fromkeys(ENTRIES, 0)
        end = 0
        for name, size in self._sizes().items():
            self._starts[name] = self._at[name] = end
            end += -(-size // _ALIGNED) * _ALIGNED
        self._file.truncate(max(end, _ALIGNED))

    def append(self, block: Block) -> None:
        for name, values in (*block.columns.items(), *block.entries.items()):
            if name in ENTRIES:
                ends = np.cumsum(values) + self._reached[name]
                if len(ends):
                    self._reached[name] = int(ends[-1])
                values = ends
            if name in self._starts:
                self._put(name, np.ascontiguousarray(values))

    def records(self, texts: Sequence[str | None]) -> StoredRecords:
        """The stored records, once everything has been appended. ``texts``: those of the codes."""
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        columns: dict[str, Any] = {}
        for name, kind in PER_REQUEST.items():
            length = self._requests + (name in ENTRIES)
            columns[name] = self._column(mapped, name, _OFFSETS if name in ENTRIES else kind, length)
        for name, kind in PER_ENTRY.items():
            columns[name] = self._column(mapped, name, kind, self._entries[name])
        for name in CODED:
            columns[name] = CodedTexts(columns[name], texts)
        columns[IDS] = PackedTexts(columns[IDS], columns.pop(ENTRIES[IDS][0]))
        return StoredRecords.over(mapped, columns)

    def close(self) -> None:
        self._file.close()

    def _column(self, mapped: mmap.mmap, name: str, kind: Any, length: int) -> Any:
        if name in self._starts:
            return np.frombuffer(mapped, dtype=kind, count=length, offset=self._starts[name])
        return np.broadcast_to(np.array(self._constants.get(name, 0), dtype=kind), (length,))

    def _sizes(self) -> dict[str, int]:
        """Number of bytes of each column that has to be stored. Offsets begin with 0, which is there
        already."""
        lengths = dict.fromkeys(PER_REQUEST, self._requests) | dict(self._entries)
        sizes: dict[str, int] = {}
        for name, length in lengths.items():
            counts = name in ENTRIES
            # Constant counts of nothing make constant offsets; other constant counts do not.
            if not length or (name in self._constants and not (counts and self._constants[name])):
                continue
            kind = _OFFSETS if counts else np.dtype({**PER_REQUEST, **PER_ENTRY}[name])
            sizes[name] = (length + counts) * kind.itemsize
        return sizes

    def _put(self, name: str, values: Any) -> None:
        # The first offset is the 0 of the empty file.
        self._file.seek(self._at[name] + (_OFFSETS.itemsize if name in ENTRIES else 0))
        self._at[name] += values.nbytes
        write_all(self._file, values)


def _constants(places: Sequence[Place]) -> Mapping[str, int]:
    """Columns with the same number in every row of every block; those need no place in the file."""
    if not places:
        return {}
    found = dict(places[0].constants)
    for place in places[1:]:
        found = {name: value for name, value in found.items() if place.constants.get(name) == value}
    # An entry column that one block has nothing of is no constant of that block, and is stored then.
    return found


def merged(file: BlockFile) -> StoredRecords:
    """All requests of a file, in order of submission as ``Records.from_rows`` orders them.

    Blocks that are in order in themselves become Records that are in order as a whole, a block at a time:
    they are gone through by their first keys, and what a block holds is kept back until no later block can
    begin before it. So memory follows the overlap of the blocks, which is what was in flight at once, not
    their number.
    """
    places = sorted(file.places, key=lambda place: place.first_key)
    writer = StoredWriter(places)
    try:
        waiting: Block | None = None
        for position, place in enumerate(places):
            block = file.read(place)
            waiting = block if waiting is None else joined([waiting, block]).in_order()
            if position + 1 < len(places):
                waiting = _passed_on(waiting, places[position + 1].first_key, writer)
        if waiting is not None:
            writer.append(waiting)
        return writer.records(file.vocabulary.texts)
    finally:
        writer.close()


def _passed_on(waiting: Block, next_key: int, writer: StoredWriter) -> Block | None:
    """Write what comes before all that follows; returns the rest."""
    ready = int(np.searchsorted(waiting.keys(), next_key, side="left"))
    if ready == len(waiting):
        writer.append(waiting)
        return None
    places = np.arange(len(waiting), dtype=np.int64)
    if ready:
        writer.append(waiting.taken(places[:ready]))
        return waiting.taken(places[ready:])
    return waiting


MEMORY_BYTES = 32 * 1024 * 1024
"""Maximum number of bytes of columns kept in memory. A run of 64 tokens per reply reaches it after some
25,000 requests."""


class RecordLog:
    """Collects the requests of a run in batches as they end and gives back Records in order of submission.

    A short run is kept in memory and comes back as ordinary Records, however it was cut into batches. To be
    closed, which leaves alone the Records that it gave.
    """

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        """``memory_bytes``: maximum number of bytes of columns in memory; :data:`MEMORY_BYTES` if not
        given."""
        self._memory_bytes = MEMORY_BYTES if memory_bytes is None else memory_bytes
        self._blocks: list[Block] = []
        self._held_bytes = 0
        self._vocabulary = Vocabulary()
        self._file: BlockFile | None = None
        self._requests = 0

    def __len__(self) -> int:
        return self._requests

    def extend(self, records: Records) -> None:
        """Add requests that have ended, in any order."""
        block = block_of(records, self._vocabulary)
        self._requests += len(block)
        if self._file is not None:
            self._file.append(block.in_order())
            return
        self._blocks.append(block)
        self._held_bytes += block.nbytes
        if self._held_bytes > self._memory_bytes:
            self._spill()

    def records(self) -> Records:
        """All requests added, in order of submission."""
        if self._file is not None:
            return merged(self._file)
        if not self._blocks:
            return Records.from_rows(())
        whole = self._blocks[0].in_order() if len(self._blocks) == 1 else joined_in_order(self._blocks)
        self._blocks = [whole]
        return records_of(whole, self._vocabulary)

    def close(self) -> None:
        self._blocks.clear()
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        self._file = BlockFile()
        self._file.vocabulary = self._vocabulary
        for block in self._blocks:
            self._file.append(block.in_order())
        self._blocks.clear()


def together(
    parts: Sequence[Records], *, memory_bytes: int = MEMORY_BYTES, block_rows: int = BLOCK
) -> Records:
    """All requests of several workers, in order of submission. Each part is in order already."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else Records.from_rows(())
    log = RecordLog(memory_bytes=memory_bytes)
    try:
        for part in filled:
            for block in part.blocks(block_rows):
                log.extend(block)
        return log.records()
    finally:
        log.close()
