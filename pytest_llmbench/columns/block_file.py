"""Blocks of requests in a file: appended as requests end, read back one block at a time."""

from __future__ import annotations

import json
import struct
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from pytest_llmbench.columns.block import PER_ENTRY, PER_REQUEST, Array, Block, Vocabulary
from pytest_llmbench.errors import StoreError

_TRAILER = struct.Struct("<Q")
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
    """Blocks that are in order in themselves, whatever their order among each other. To be closed.

    Without a path the file is a temporary one.
    """

    def __init__(self, path: Path | None = None, *, existing: bool = False) -> None:
        if path is None:
            self._file = temporary_file()
        else:
            self._file = path.open("rb" if existing else "w+b", buffering=0)
        weakref.finalize(self, self._file.close)
        self._end = 0
        self.places: list[Place] = []
        self.vocabulary = Vocabulary()

    @classmethod
    def opened(cls, path: Path) -> Self:
        """A file that was sealed, by another process perhaps."""
        file = cls(path, existing=True)
        size = file._file.seek(0, 2)
        file._file.seek(size - _TRAILER.size)
        (length,) = _TRAILER.unpack(file._file.read(_TRAILER.size))
        file._file.seek(size - _TRAILER.size - length)
        told = json.loads(file._read(length))
        file.vocabulary = Vocabulary(told["texts"])
        file.places = [Place(**place) for place in told["places"]]
        return file

    def append(self, block: Block) -> None:
        """``block`` has to be in order; its codes are those of ``vocabulary``."""
        if not len(block):
            return
        starts: dict[str, int] = {}
        constants: dict[str, int] = {}
        for name, values in (*block.columns.items(), *block.entries.items()):
            if len(values) and bool((values == values[0]).all()):
                constants[name] = int(values[0])
            elif len(values):
                starts[name] = self._end
                self._write(values)
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

    def seal(self) -> None:
        """Write down where the blocks are, for :meth:`opened`."""
        told = {"texts": self.vocabulary.texts, "places": [vars(place) for place in self.places]}
        packed = json.dumps(told).encode()
        self._write(np.frombuffer(packed + _TRAILER.pack(len(packed)), dtype=np.uint8))

    def close(self) -> None:
        self._file.close()

    def _write(self, values: Array) -> None:
        self._file.seek(self._end)
        write_all(self._file, values)
        self._end += values.nbytes

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
