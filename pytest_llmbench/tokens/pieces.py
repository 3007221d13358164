"""The bytes of many tokens at once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np


class Pieces:
    """The bytes of each ordinary id of an encoding, in arrays."""

    def __init__(self, whole: bytes, lengths: array[int]) -> None:
        """``whole``: the bytes of all ids one after another; ``lengths``: how many each has, one or more."""
        self._bytes = np.frombuffer(whole, dtype=np.uint8)
        self._lengths = np.frombuffer(lengths, dtype=np.intc)
        self._ends = np.cumsum(self._lengths, dtype=np.int32)

    def joined(self, prompts: Sequence[Sequence[int]]) -> tuple[bytes, list[int]] | None:
        """The bytes of all ids of ``prompts``, and the positions at which each begins, then the last one's
        end. ``None``: an id is not ordinary.

        From a byte to the next it is a step of one, but at the beginning of each token: so all places are the
        sums of steps.
        """
        ids = np.concatenate([np.empty(0, np.uint32), *map(np.asarray, prompts)]).astype(np.int64, copy=False)
        if ids.size and (ids.min() < 0 or ids.max() >= len(self._lengths)):
            return None
        lengths, last = self._lengths[ids], self._ends[ids]
        ends = np.cumsum(lengths)
        steps = np.ones(int(ends[-1]) if len(ends) else 0, dtype=np.int32)
        begins = last - lengths
        steps[ends[:-1]] = begins[1:] - last[:-1] + 1
        steps[:1] = begins[:1]
        # Each place is within the array: "clip" only spares looking whether it is.
        whole = self._bytes.take(np.cumsum(steps), mode="clip").tobytes()
        return whole, np.concatenate(([0], ends))[np.cumsum([0, *map(len, prompts)])].tolist()
