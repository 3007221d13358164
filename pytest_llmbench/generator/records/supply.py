"""A worker's share of the requests: it arrives packed, lies in a file, and is unpacked as it is needed.

So neither the coordinator nor the worker ever holds the requests of a plan, however many there are. A short
share never touches the disk; the file of a long one has no name and is gone with the worker, killed or not.
"""

from __future__ import annotations

import pickle
import struct
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import GeneratorError, StoreError
from pytest_llmbench.model.request import PlannedRequest

FRAME_LENGTH = struct.Struct("<I")
"""Header of each packed request: its length in bytes."""
MEMORY_BYTES = 8 * 1024 * 1024
"""The most bytes of a share that stay in memory; the rest goes to disk."""
_INSTANTS_AT_ONCE = 512
"""How many instants are read together while load is running: some microseconds."""

_READ_AT_ONCE = 32 * 1024
"""How many bytes of packed requests are read together while load is running."""


class Supply:
    """The part of a worker's share that has arrived. Filled first, then read, once. To be closed.

    A request costs some microseconds to read, so it may be done while load is running.
    """

    def __init__(self, directory: Path, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._directory = directory
        self._frames = _file(directory, memory_bytes)
        self._instants = _file(directory, memory_bytes)
        self._size = 0
        self._failure: OSError | None = None

    def add(self, frames: bytes, instants: bytes) -> None:
        """Add packed requests and instants. Does not raise: :meth:`check` tells of a full disk."""
        self._size += len(frames)
        if self._failure is not None:
            return
        try:
            self._frames.write(frames)
            self._instants.write(instants)
        except OSError as error:
            self._failure = error

    def check(self, size: int) -> None:
        """Check that ``size`` bytes have arrived.

        Raises GeneratorError if they have not, and StoreError where the disk has failed.
        """
        if self._failure is not None:
            raise StoreError(
                f"the requests of a long load cannot be kept: {self._failure.strerror or self._failure}",
                where=str(self._directory),
                remedy="free space there, or point TMPDIR to a directory with room: about 0.1 KiB and the "
                "prompt for each request",
            )
        if self._size != size:
            raise GeneratorError(f"of {size} bytes of requests {self._size} have arrived")

    def requests(self, count: int) -> Iterator[PlannedRequest]:
        """The first ``count`` requests, one at a time."""
        for frame in islice(self._each(), count):
            yield PlannedRequest(*pickle.loads(frame))

    def _each(self) -> Iterator[memoryview]:
        self._frames.seek(0)
        held, at = b"", 0
        while True:
            begin = at + FRAME_LENGTH.size
            size = FRAME_LENGTH.unpack_from(held, at)[0] if begin <= len(held) else 0
            if begin + size <= len(held):
                yield memoryview(held)[begin : begin + size]
                at = begin + size
            elif more := self._frames.read(max(_READ_AT_ONCE, begin + size - len(held))):
                held, at = held[at:] + more, 0
            else:
                return

    def instants_ns(self, count: int) -> Iterator[int]:
        """The instants at which the first ``count`` requests are due, in nanoseconds from the start."""
        self._instants.seek(0)
        for first in range(0, count, _INSTANTS_AT_ONCE):
            some: array[int] = array("q")
            some.frombytes(self._instants.read(some.itemsize * min(_INSTANTS_AT_ONCE, count - first)))
            yield from some

    def close(self) -> None:
        self._frames.close()
        self._instants.close()


def _file(directory: Path, memory_bytes: int) -> tempfile.SpooledTemporaryFile[bytes]:
    return tempfile.SpooledTemporaryFile(memory_bytes, prefix="llmbench-", dir=str(directory))


@dataclass
class DealtWorkload:
    """The workload of one worker: its requests, drawn already. They keep their numbers in the whole
    sequence.

    Cannot be hashed: nothing remembers it beyond its plan.
    """

    name: str
    size: int
    """The size of the packed requests in bytes."""
    mean_tokens: float
    """The mean of the output tokens that the requests of the whole plan ask for."""
    supply: Supply | None = None
    """The supply with the requests, at the worker; None elsewhere."""
    standard: bool = False

    def stocked(self, supply: Supply) -> DealtWorkload:
        """This workload with the requests that have arrived. Raises as :meth:`Supply.check` does."""
        supply.check(self.size)
        return replace(self, supply=supply)

    def stream(self, count: int) -> Iterator[PlannedRequest]:
        """The first ``count`` requests, each read when it is asked for."""
        return iter(()) if self.supply is None else self.supply.requests(count)

    def instants_ns(self, count: int) -> Iterator[int]:
        """The instants at which the requests of an open loop are due, in nanoseconds from the start."""
        return iter(()) if self.supply is None else self.supply.instants_ns(count)

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:  # noqa: ARG002 - drawn already
        return list(self.stream(count))

    def specification(self) -> Mapping[str, Any]:
        return {}
