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
from contextlib import closing
from dataclasses import dataclass, field
from io import FileIO
from typing import Any, cast

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
_ID_BYTES = "request_id_bytes"
CODED = tuple(name for name in TEXTS if name != IDS)
ENTRIES: Mapping[str, tuple[str, ...]] = RAGGED | {IDS: (_ID_BYTES,)}
"""Columns that hold entries, by the column that counts these (under the name of the offsets, or of the
text)."""
COUNTED_BY = {name: counts for counts, names in ENTRIES.items() for name in names}
"""The reverse: columns with one number per entry. All others have one per request."""
TYPES: Mapping[str, np.dtype[Any]] = {
    **dict.fromkeys((*NUMBERS, *ENTRIES), np.dtype(np.int64)),
    **dict.fromkeys(CODED, np.dtype(np.int32)),
    **dict.fromkeys(KINDS, np.dtype(np.int8)),
    **dict.fromkeys(COUNTED_BY, np.dtype(np.int64)),
    _ID_BYTES: np.dtype(np.uint8),
}
"""All columns, and their types."""


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
    """Some requests."""

    columns: dict[str, Array]
    """The columns of ``TYPES``."""

    def __len__(self) -> int:
        return len(self.columns["index"])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.columns.values())

    def keys(self) -> IntColumn:
        return submission_keys(self.columns)

    def taken(self, order: IntColumn) -> Block:
        """The requests at these places, in this order."""
        places = {name: _entry_places(self.columns[name], order) for name in ENTRIES}
        return Block(
            {
                name: _picked(values, places[COUNTED_BY[name]] if name in COUNTED_BY else order)
                for name, values in self.columns.items()
            }
        )


def in_order(blocks: Sequence[Block]) -> Block:
    """Join blocks into a single one that is in order of submission. The parts lose their columns on the way,
    one after the other, so that little more memory is needed than theirs."""
    keys = np.concatenate([block.keys() for block in blocks])
    index = np.concatenate([block.columns["index"] for block in blocks])
    rising = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (index[1:] >= index[:-1]))
    if bool(rising.all()):
        return Block({name: _concatenated([block.columns.pop(name) for block in blocks]) for name in TYPES})
    order = np.lexsort((index, keys))
    places = {
        name: _entry_places(np.concatenate([block.columns[name] for block in blocks]), order)
        for name in ENTRIES
    }
    return Block(
        {
            name: _picked(
                _concatenated([block.columns.pop(name) for block in blocks]),
                places[COUNTED_BY[name]] if name in COUNTED_BY else order,
            )
            for name in TYPES
        }
    )


def _concatenated(parts: Sequence[Array]) -> Array:
    """The parts concatenated. Where all are views of one and the same number, which take no memory, the
    result is such a view too: so the token counts of replies with one token per chunk take no memory."""
    some = [part for part in parts if len(part)]
    if some and all(_is_constant(part) and part[0] == some[0][0] for part in some):
        return np.broadcast_to(some[0][0], sum(map(len, some)))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


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
    for name in TYPES:
        if name in CODED:
            columns[name] = vocabulary.codes(getattr(records, name))
        elif name in RAGGED:
            columns[name] = np.diff(getattr(records, name))
        elif name not in (IDS, _ID_BYTES):
            columns[name] = getattr(records, name)
    encoded = list(map(str.encode, records.request_id))
    columns[IDS] = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    columns[_ID_BYTES] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return Block(columns)


def records_of(block: Block, vocabulary: Vocabulary) -> Records:
    """The requests of a block as Records in memory, with texts as lists."""
    columns: dict[str, Any] = dict(block.columns)
    for name in CODED:
        columns[name] = list(CodedTexts(columns[name], vocabulary.texts))
    for name in ENTRIES:
        columns[name] = offsets_of(columns[name])
    columns[IDS] = list(PackedTexts(columns[IDS], columns.pop(_ID_BYTES)))
    return Records(**columns)


@dataclass(frozen=True)
class Place:
    """The position of a block in the file, and what merging has to know before it reads the block."""

    first_key: int
    lengths: Mapping[str, int]
    """Lengths of all columns."""
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
        for name, values in block.columns.items():
            if len(values) and bool((values == values[0]).all()):
                constants[name] = int(values[0])
            elif len(values):
                starts[name] = self._end
                self._file.seek(self._end)
                write_all(self._file, values)
                self._end += values.nbytes
        lengths = {name: len(values) for name, values in block.columns.items()}
        self.places.append(Place(int(block.keys()[0]), lengths, starts, constants))

    def read(self, place: Place) -> Block:
        columns: dict[str, Array] = {}
        for name, kind in TYPES.items():
            length = place.lengths[name]
            if name in place.starts:
                self._file.seek(place.starts[name])
                columns[name] = np.frombuffer(self._read(length * kind.itemsize), dtype=kind)
            else:
                columns[name] = _constant(place.constants.get(name, 0), kind, length)
        return Block(columns)

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


def _constant(value: int, kind: np.dtype[Any], length: int) -> Array:
    """A column with the same number in every row, which takes no memory."""
    return np.broadcast_to(np.array(value, dtype=kind), (length,))


_ALIGNED = 4096


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
    with closing(BlockFile()) as file:
        for block in blocks:
            file.append(block_of(block, file.vocabulary))
        with closing(StoredWriter(file.places)) as writer:
            for place in file.places:
                writer.append(file.read(place))
            return writer.records(file.vocabulary.texts)


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
        self._lengths = {name: sum(place.lengths[name] for place in places) for name in TYPES}
        self._constants = _constants(places)
        self._starts: dict[str, int] = {}
        self._at: dict[str, int] = {}
        self._reached = dict.fromkeys(ENTRIES, 0)
        end = 0
        for name, length in self._lengths.items():
            counts = name in ENTRIES
            # Constant counts of nothing make constant offsets; other constant counts do not.
            if not length or (name in self._constants and not (counts and self._constants[name])):
                continue
            self._starts[name] = end
            # Offsets begin with 0, which the empty file has already.
            self._at[name] = end + counts * TYPES[name].itemsize
            end += -(-(length + counts) * TYPES[name].itemsize // _ALIGNED) * _ALIGNED
        self._file.truncate(max(end, _ALIGNED))

    def append(self, block: Block) -> None:
        for name, values in block.columns.items():
            if name in ENTRIES:
                ends = np.cumsum(values) + self._reached[name]
                if len(ends):
                    self._reached[name] = int(ends[-1])
                values = ends
            if name in self._starts:
                self._file.seek(self._at[name])
                self._at[name] += values.nbytes
                write_all(self._file, values)

    def records(self, texts: Sequence[str | None]) -> StoredRecords:
        """The stored records, once everything has been appended. ``texts``: those of the codes."""
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        columns: dict[str, Any] = {}
        for name, kind in TYPES.items():
            length = self._lengths[name] + (name in ENTRIES)
            if name in self._starts:
                columns[name] = np.frombuffer(mapped, dtype=kind, count=length, offset=self._starts[name])
            else:
                columns[name] = _constant(self._constants.get(name, 0), kind, length)
        for name in CODED:
            columns[name] = CodedTexts(columns[name], texts)
        columns[IDS] = PackedTexts(columns[IDS], columns.pop(_ID_BYTES))
        return StoredRecords.over(mapped, columns)

    def close(self) -> None:
        self._file.close()


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
    with closing(StoredWriter(places)) as writer:
        waiting: Block | None = None
        for position, place in enumerate(places):
            block = file.read(place)
            waiting = block if waiting is None else in_order([waiting, block])
            if position + 1 < len(places):
                waiting = _passed_on(waiting, places[position + 1].first_key, writer)
        if waiting is not None:
            writer.append(waiting)
        return writer.records(file.vocabulary.texts)


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
            self._file.append(in_order([block]))
            return
        self._blocks.append(block)
        self._held_bytes += block.nbytes
        if self._held_bytes > self._memory_bytes:
            self._file = BlockFile()
            self._file.vocabulary = self._vocabulary
            for held in self._blocks:
                self._file.append(in_order([held]))
            self._blocks.clear()

    def records(self) -> Records:
        """All requests added, in order of submission."""
        if self._file is not None:
            return merged(self._file)
        if not self._blocks:
            return Records.from_rows(())
        whole = in_order(self._blocks)
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
    with closing(RecordLog(memory_bytes=memory_bytes)) as log:
        for part in filled:
            for block in part.blocks(block_rows):
                log.extend(block)
        return log.records()
