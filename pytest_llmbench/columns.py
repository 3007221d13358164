"""Records that outgrow memory: the log that ended requests go to while a run goes on, as columns.

They are in memory, and beyond a certain amount in a file without a name, whose columns are mapped into
memory; the file goes with them. They come as blocks of plain arrays, appended as requests end and read back
one at a time.

Columns of text become numbers: labels, errors and finish reasons are codes of a vocabulary, request ids are
bytes. Ragged columns go with the number of their entries per request instead of offsets, so that requests can
be put in another order.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import StoreError
from pytest_llmbench.model.records import (
    BLOCK,
    BLOCK_ENTRIES,
    KINDS,
    NUMBERS,
    RAGGED,
    TEXTS,
    BoolColumn,
    CodedTexts,
    IntColumn,
    PackedTexts,
    Records,
    offsets_of,
    submission_keys,
)

Array = npt.NDArray[Any]

IDS = "request_id"
CODED = tuple(name for name in TEXTS if name != IDS)
ENTRIES: Mapping[str, tuple[str, ...]] = RAGGED | {IDS: ("request_id_bytes",)}
"""Columns that hold entries, by the column that counts these (under the name of the offsets, or of the
text)."""


PER_REQUEST: Mapping[str, npt.DTypeLike] = {
    **dict.fromkeys((*NUMBERS, *ENTRIES), np.dtype(np.int64)),
    **dict.fromkeys(CODED, np.dtype(np.int32)),
    **dict.fromkeys(KINDS, np.dtype(np.int8)),
}
"""Columns with one number per request, and their types."""
PER_ENTRY: Mapping[str, npt.DTypeLike] = {
    name: np.dtype(np.uint8 if counts == IDS else np.int64)
    for counts, names in ENTRIES.items()
    for name in names
}


@dataclass
class Vocabulary:
    """The distinct texts of coded columns, each with its code. New texts are added."""

    texts: list[str | None] = field(default_factory=list)
    _codes: dict[str | None, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._codes = {text: code for code, text in enumerate(self.texts)}

    def code(self, text: str | None) -> int:
        code = self._codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code

    def codes(self, texts: Sequence[str | None]) -> npt.NDArray[np.int32]:
        if isinstance(texts, CodedTexts):
            return self.recoding(texts.table)[texts.codes]
        found = {text: self.code(text) for text in dict.fromkeys(texts)}
        if len(found) == 1:
            return np.full(len(texts), next(iter(found.values())), dtype=np.int32)
        return np.fromiter(map(found.__getitem__, texts), dtype=np.int32, count=len(texts))

    def recoding(self, texts: Sequence[str | None]) -> npt.NDArray[np.int32]:
        """The code in this vocabulary of each code in another one with these texts."""
        return np.array([self.code(text) for text in texts], dtype=np.int32)


@dataclass(frozen=True)
class Block:
    """Columns of some requests, in order of submission."""

    columns: dict[str, Array]
    """The columns of ``PER_REQUEST``."""
    entries: dict[str, Array]
    """The columns of ``PER_ENTRY``."""

    def __len__(self) -> int:
        return len(self.columns["index"])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for table in (self.columns, self.entries) for array in table.values())

    def keys(self) -> IntColumn:
        return submission_keys(self.columns)

    def taken(self, order: IntColumn) -> Block:
        """The requests at these places, in this order."""
        columns = {name: values[order] for name, values in self.columns.items()}
        entries: dict[str, Array] = {}
        for counts_name, names in ENTRIES.items():
            places = _entry_places(self.columns[counts_name], order)
            entries |= {name: _picked(self.entries[name], places) for name in names}
        return Block(columns, entries)

    def in_order(self) -> Block:
        keys = self.keys()
        index = self.columns["index"]
        rising = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (index[1:] >= index[:-1]))
        return self if bool(rising.all()) else self.taken(np.lexsort((index, keys)))


def joined(blocks: Sequence[Block]) -> Block:
    """Join blocks, one after another, into a single block."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        {name: np.concatenate([block.columns[name] for block in blocks]) for name in PER_REQUEST},
        {name: _concatenated([block.entries[name] for block in blocks]) for name in PER_ENTRY},
    )


def joined_in_order(blocks: Sequence[Block]) -> Block:
    """Join blocks into a single one that is in order. The parts lose their columns on the way, one after the
    other, so that little more memory is needed than theirs."""
    keys = np.concatenate([block.keys() for block in blocks])
    order = np.lexsort((np.concatenate([block.columns["index"] for block in blocks]), keys))
    places = {
        name: _entry_places(np.concatenate([block.columns[name] for block in blocks]), order)
        for name in ENTRIES
    }
    return Block(
        {name: np.concatenate([block.columns.pop(name) for block in blocks])[order] for name in PER_REQUEST},
        {
            name: _picked(_concatenated([block.entries.pop(name) for block in blocks]), places[counts])
            for counts, names in ENTRIES.items()
            for name in names
        },
    )


def _concatenated(parts: Sequence[Array]) -> Array:
    """The parts concatenated. Where all are views of one and the same number, which take no memory, the
    result is such a view too: so the token counts of replies with one token per chunk take no memory."""
    some = [part for part in parts if len(part)]
    if some and all(_is_constant(part) and part[0] == some[0][0] for part in some):
        return np.broadcast_to(some[0][0], sum(map(len, some)))
    return np.concatenate(parts)


def _picked(values: Array, places: IntColumn) -> Array:
    """The values at these places, of which there are no more than values."""
    return values[: len(places)] if _is_constant(values) else values[places]


def _is_constant(values: Array) -> bool:
    """Whether the array is a view of a single number, repeated without taking memory."""
    return values.strides == (0,)


def _entry_places(counts: Array, order: IntColumn) -> IntColumn:
    """The indices that put entries in order when the requests are reordered. ``counts``: entries of each
    request; ``order``: the new order of the requests."""
    taken = counts[order]
    ends = np.cumsum(taken)
    starts = (np.cumsum(counts) - counts)[order]
    total = int(ends[-1]) if len(ends) else 0
    places: IntColumn = np.repeat(starts - (ends - taken), taken) + np.arange(total, dtype=np.int64)
    return places


def block_of(records: Records, vocabulary: Vocabulary) -> Block:
    """The requests as arrays, in their order."""
    columns: dict[str, Array] = {}
    for name in PER_REQUEST:
        if name in CODED:
            columns[name] = vocabulary.codes(getattr(records, name))
        elif name in RAGGED:
            columns[name] = np.diff(getattr(records, name))
        elif name != IDS:
            columns[name] = getattr(records, name)
    encoded = list(map(str.encode, records.request_id))
    counts = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    columns[IDS], ids = counts, np.frombuffer(b"".join(encoded), dtype=np.uint8)
    entries = {name: getattr(records, name) for names in RAGGED.values() for name in names}
    return Block(columns, entries | {ENTRIES[IDS][0]: ids})


def records_of(block: Block, vocabulary: Vocabulary) -> Records:
    """The requests of a block as Records in memory, with texts as lists."""
    columns: dict[str, Any] = {}
    for name in PER_REQUEST:
        values = block.columns[name]
        if name in CODED:
            columns[name] = list(CodedTexts(values, vocabulary.texts))
        elif name in RAGGED:
            columns[name] = offsets_of(values)
        elif name == IDS:
            columns[name] = list(PackedTexts(offsets_of(values), block.entries[ENTRIES[IDS][0]]))
        else:
            columns[name] = values
    columns |= {name: block.entries[name] for names in RAGGED.values() for name in names}
    return Records(**columns)


_TYPES = {**PER_REQUEST, **PER_ENTRY}


@dataclass(frozen=True)
class Place:
    """The position of a block in the file, and what merging has to know before it reads the block."""

    requests: int
    first_key: int
    entries: Mapping[str, int]
    """Lengths of the columns of ``PER_ENTRY``."""
    starts: Mapping[str, int]
    """Byte at which a column begins; constant columns are not stored."""
    constants: Mapping[str, int]
    """Value of each column that has the same one in every row."""


def temporary_file() -> FileIO:
    """Create a temporary file without a name, in ``TMPDIR``.

    It disappears together with the process that holds it, even if that process is killed. Raises StoreError
    where no file can be made.
    """
    try:
        return tempfile.TemporaryFile(prefix="llmbench-", buffering=0)
    except OSError as error:
        raise _failed(error) from error


def write_all(file: FileIO, values: Array) -> None:
    """Write all values to the file. Raises StoreError when the disk is full."""
    rest = memoryview(cast(Any, np.ascontiguousarray(values))).cast("B")
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise _failed(error) from error


def _failed(error: OSError) -> StoreError:
    return StoreError(
        f"the records of a long run cannot be kept: {error.strerror or error}",
        where=tempfile.gettempdir(),
        remedy="free space there, or point TMPDIR to a directory with room: about 1 KiB for each request",
    )


class BlockFile:
    """A temporary file of blocks, each in order in itself, whatever their order among each other. To be
    closed."""

    def __init__(self) -> None:
        self._file = temporary_file()
        weakref.finalize(self, self._file.close)
        self._end = 0
        self.places: list[Place] = []
        self.vocabulary = Vocabulary()

    def append(self, block: Block) -> None:
        """Append a block. It has to be in order; its codes are those of ``vocabulary``."""
        if not len(block):
            return
        starts: dict[str, int] = {}
        constants: dict[str, int] = {}
        for name, values in (*block.columns.items(), *block.entries.items()):
            if len(values) and bool((values == values[0]).all()):
                constants[name] = int(values[0])
            elif len(values):
                starts[name] = self._end
                self._file.seek(self._end)
                write_all(self._file, values)
                self._end += values.nbytes
        entries = {name: len(block.entries[name]) for name in PER_ENTRY}
        self.places.append(Place(len(block), int(block.keys()[0]), entries, starts, constants))

    def read(self, place: Place) -> Block:
        known = place.constants

        def column(name: str, length: int) -> Any:
            if name in known or not length:
                return np.broadcast_to(np.array(known.get(name, 0), dtype=_TYPES[name]), (length,))
            self._file.seek(place.starts[name])
            return np.frombuffer(self._read(length * np.dtype(_TYPES[name]).itemsize), dtype=_TYPES[name])

        return Block(
            {name: column(name, place.requests) for name in PER_REQUEST},
            {name: column(name, place.entries[name]) for name in PER_ENTRY},
        )

    def close(self) -> None:
        self._file.close()

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        rest = memoryview(data)
        while rest:
            count = self._file.readinto(rest)
            if not count:
                raise OSError("a file of columns is shorter than it says")
            rest = rest[count:]
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
            self._file = BlockFile()
            self._file.vocabulary = self._vocabulary
            for held in self._blocks:
                self._file.append(held.in_order())
            self._blocks.clear()

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
