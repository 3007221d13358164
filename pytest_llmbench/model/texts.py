"""Columns of text that do not hold one Python object per request: codes into a table, or packed bytes.

Both are read-only sequences and stand where a list of strings stands in short runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

_AT_ONCE = 65_536


class CodedTexts(Sequence[Any]):
    """Few different values, ``None`` among them: labels, errors, finish reasons."""

    __slots__ = ("codes", "table")

    def __init__(self, codes: npt.NDArray[np.int32], table: Sequence[str | None]) -> None:
        self.codes = codes
        self.table = tuple(table)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> CodedTexts: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return CodedTexts(self.codes[at], self.table)
        return self.table[self.codes[at]]

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self.codes), _AT_ONCE):
            yield from map(self.table.__getitem__, self.codes[first : first + _AT_ONCE].tolist())

    def take(self, places: npt.NDArray[np.int64]) -> CodedTexts:
        return CodedTexts(self.codes[places], self.table)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = np.array([*self.table, None], dtype=object)[:-1][self.codes]
        return values if dtype is None else values.astype(dtype, copy=False)


class PackedTexts(Sequence[str]):
    """Values that are all different: UTF-8, one after another; the i-th ends where the next begins."""

    __slots__ = ("data", "offsets")

    def __init__(self, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
        self.offsets = offsets
        self.data = data

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            first, last, step = at.indices(len(self))
            if step == 1:
                return PackedTexts(self.offsets[first : max(first, last) + 1], self.data)
            return [self[place] for place in range(first, last, step)]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError("there is no such request")
        return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _AT_ONCE):
            bounds = self.offsets[first : first + _AT_ONCE + 1]
            base = int(bounds[0])
            data = self.data[base : int(bounds[-1])].tobytes()
            ends = (bounds - base).tolist()
            yield from (data[start:end].decode() for start, end in pairwise(ends))

    def take(self, places: npt.NDArray[np.int64]) -> PackedTexts:
        starts, counts = self.offsets[:-1][places], np.diff(self.offsets)[places]
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        entries = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        return PackedTexts(offsets, self.data[entries])


Texts = CodedTexts | PackedTexts
