"""Request sequences: drawn once and remembered, and their identity, the SHA-256 of their compact JSON text.

A session asks for many slices of the same sequence: every level of a sweep, every window of a search, every
digest of them. Drawing each from the first request on would cost more than the load itself, so the sequence
of a workload and a seed is kept and drawn further on demand.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import islice
from typing import cast

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.workloads.stream import StreamedWorkload

CACHED_SEQUENCES = 4
"""Sequences that are remembered; of more, the one that was asked for least recently is forgotten."""
CACHED_TOKENS = 16_000_000
"""Input tokens kept of each (64 MB as ids): the last ones that were asked for."""
_LEAST_WEIGHT = 256
"""Tokens that a shorter request counts as: it is an object too, and very short ones would be millions."""
AT_ONCE = 64
"""Requests that are drawn together where a slice is only gone through: long prompts are a megabyte each."""

Stretch = tuple[int, int, int]
"""Part of a sequence: its seed, the first of its requests that is meant, and how many."""

_TABLE_SIZE = 100_256
_UNSIGNED = {kind: np.dtype(kind) for kind in "HIL"}
"""The type of each kind of array (type code) that the table is for."""
_DIGESTS = 512


def drawn(workload: Workload, first: int, count: int, seed: int) -> Sequence[PlannedRequest]:
    """Requests ``first`` to ``first + count - 1`` of the workload's sequence: the slice
    ``workload.requests(first + count, seed)[first:]``, remembered.

    May be called from several threads; the one that finds the sequence in use draws its own.
    """
    try:
        remembered = _remembered_sequence(cast(Hashable, workload), seed)
    except TypeError:  # unhashable: nothing to remember it by
        return workload.requests(first + count, seed)[first:]
    return remembered.read(first, count)


def passing(workload: Workload, first: int, count: int, seed: int) -> Iterator[PlannedRequest]:
    """:func:`drawn` for going through once: of a long slice never more than a part exists."""
    if not isinstance(workload, StreamedWorkload):
        yield from drawn(workload, first, count, seed)
        return
    if not _is_hashable(workload):  # nothing to remember it by: a part would be drawn from the beginning
        yield from islice(workload.stream(seed), first, first + count)
        return
    for start in range(first, first + count, AT_ONCE):
        yield from drawn(workload, start, min(AT_ONCE, first + count - start), seed)


def forget_drawn() -> None:
    """Forget all requests that are remembered, not their digests: whatever is asked for is drawn again."""
    _remembered_sequence.cache_clear()


def drawn_sha256(workload: Workload, first: int, count: int, seed: int) -> str:
    """:func:`sequence_sha256` of :func:`drawn`, remembered."""
    try:
        return _remembered_digest(cast(Hashable, workload), first, count, seed)
    except TypeError:
        return sequence_sha256(passing(workload, first, count, seed))


def slices_sha256(workload: Workload, slices: Sequence[tuple[int, int]], seed: int) -> str:
    """:func:`sequence_sha256` of several slices (first, count) of a sequence, one after the other."""
    if len(slices) == 1:
        return drawn_sha256(workload, *slices[0], seed)
    parts = tuple((first, count) for first, count in slices)
    try:
        return _remembered_slices(cast(Hashable, workload), parts, seed)
    except TypeError:
        return sequence_sha256(request for part in parts for request in passing(workload, *part, seed))


def stretches_sha256(workload: Workload, stretches: Sequence[Stretch]) -> str:
    """:func:`sequence_sha256` of stretches of several sequences, one after the other."""
    seeds = {seed for seed, _, _ in stretches}
    if len(seeds) == 1:
        return slices_sha256(workload, [(first, count) for _, first, count in stretches], *seeds)
    try:
        return _remembered_stretches(cast(Hashable, workload), tuple(stretches))
    except TypeError:
        return sequence_sha256(_all_of(workload, stretches))


def sequence_json(requests: Iterable[PlannedRequest]) -> str:
    """``[[limit,[id,id,…]],…]`` without spaces (METHODOLOGY §4.3).

    A request without token ids shows its text instead, as a JSON string. A turn of a session is
    ``[limit,[session,number,turns,[wait_for],pause_ns,kept],[id,…]]``, with the ids after those that it has
    in common with the turn it goes on from: the whole of every prompt would be quadratic in the turns. One
    that asks for structured output has ``[tools,schema]``, two strings, after that; of messages with roles,
    ``[tools,messages]`` as OpenAI's chat API takes them stands in place of the ids; one that its user is to
    cut ends with the nanoseconds after which. A turn that reads live answers has ``[turns]`` after ``kept``,
    the numbers of those, and recorded answers where they are to stand.
    """
    return f"[{','.join(_request_json(request).decode() for request in requests)}]"


def sequence_sha256(requests: Iterable[PlannedRequest]) -> str:
    """SHA-256 of :func:`sequence_json`, request by request, so that the whole text never exists."""
    digest = SequenceDigest()
    for request in requests:
        digest.add(request)
    return digest.hexdigest()


class SequenceDigest:
    """:func:`sequence_sha256` of requests that come one at a time."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(b"[")
        self._separator = b""

    def add(self, request: PlannedRequest) -> None:
        self._digest.update(self._separator + _request_json(request))
        self._separator = b","

    def hexdigest(self) -> str:
        whole = self._digest.copy()
        whole.update(b"]")
        return whole.hexdigest()


@dataclass(slots=True)
class _CachedSequence:
    """What has been drawn of a sequence: the requests from number ``start`` on, and where to go on."""

    source: Iterator[PlannedRequest]
    start: int = 0
    kept: list[PlannedRequest] = field(default_factory=list)
    tokens: int = 0

    def draw_up_to(self, end: int, first: int) -> None:
        """Draws on to request ``end``; what comes before ``first`` is dropped when too much is kept."""
        while self.start + len(self.kept) < end:
            fresh = list(islice(self.source, min(256, end - self.start - len(self.kept))))
            if not fresh:
                return
            self.kept += fresh
            self.tokens += sum(map(_weight, fresh))
            self.drop(first)

    def drop(self, before: int) -> None:
        """Forgets requests ahead of number ``before``, as many as it takes to keep no more than the cap."""
        dropped = 0
        while self.tokens > CACHED_TOKENS and self.start + dropped < before and dropped < len(self.kept):
            self.tokens -= _weight(self.kept[dropped])
            dropped += 1
        del self.kept[:dropped]
        self.start += dropped

    def slice(self, first: int, count: int) -> list[PlannedRequest]:
        return self.kept[max(0, first - self.start) : max(0, first + count - self.start)]


class _SequenceCache:
    """The remembered sequence of one workload and seed.

    What is kept is taken out while it is read, by ``list.pop``, which is atomic: of two threads one gets it,
    the other finds nothing and draws for itself. So no lock is needed, and none is held while drawing.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._seed = seed
        self._cached: list[_CachedSequence | None] = [None]

    def read(self, first: int, count: int) -> Sequence[PlannedRequest]:
        try:
            cached = self._cached.pop()
        except IndexError:
            return self._fresh(first, count).slice(first, count)
        after = None
        try:
            cached = self._drawn_on(cached, first, count)
            found = cached.slice(first, count)
            # Of a slice beyond the cap only the end is kept, and where to go on: that is asked for next.
            cached.drop(first + count)
            after = cached
        finally:
            self._cached.append(after)
        return found

    def _drawn_on(self, cached: _CachedSequence | None, first: int, count: int) -> _CachedSequence:
        """What is kept, with the wanted requests drawn; a fresh one where it began after them."""
        if cached is None or cached.start > first:
            return self._fresh(first, count)
        if isinstance(self._workload, StreamedWorkload):
            cached.draw_up_to(first + count, first)
        elif cached.start + len(cached.kept) < first + count:
            return self._fresh(first, count)
        return cached

    def _fresh(self, first: int, count: int) -> _CachedSequence:
        if isinstance(self._workload, StreamedWorkload):
            cached = _CachedSequence(self._workload.stream(self._seed))
            cached.draw_up_to(first + count, first)
            return cached
        # A foreign workload has no stream to go on with: its sequence is drawn as far as it is asked for.
        kept = list(self._workload.requests(first + count, self._seed))
        return _CachedSequence(iter(()), kept=kept, tokens=sum(map(_weight, kept)))


def _is_hashable(workload: Workload) -> bool:
    try:
        hash(workload)
    except TypeError:
        return False
    return True


def _weight(request: PlannedRequest) -> int:
    return max(request.input_tokens, _LEAST_WEIGHT)


@lru_cache(maxsize=CACHED_SEQUENCES)
def _remembered_sequence(workload: Workload, seed: int) -> _SequenceCache:
    return _SequenceCache(workload, seed)


@lru_cache(maxsize=_DIGESTS)
def _remembered_digest(workload: Workload, first: int, count: int, seed: int) -> str:
    return sequence_sha256(passing(workload, first, count, seed))


@lru_cache(maxsize=_DIGESTS)
def _remembered_slices(workload: Workload, slices: tuple[tuple[int, int], ...], seed: int) -> str:
    return sequence_sha256(request for part in slices for request in passing(workload, *part, seed))


@lru_cache(maxsize=_DIGESTS)
def _remembered_stretches(workload: Workload, stretches: tuple[Stretch, ...]) -> str:
    return sequence_sha256(_all_of(workload, stretches))


def _all_of(workload: Workload, stretches: Iterable[Stretch]) -> Iterator[PlannedRequest]:
    for seed, first, count in stretches:
        yield from passing(workload, first, count, seed)


def _request_json(request: PlannedRequest) -> bytes:
    told = _plain_json(request)
    if request.structured is not None:
        asked = [request.structured.tools, request.structured.schema]
        form = json.dumps(asked, separators=(",", ":")).encode()
        told = b"[%b,%b]" % (told[1:-1], form)
    if request.cut_after_ns is not None:
        told = b"[%b,%d]" % (told[1:-1], request.cut_after_ns)
    return told


def _plain_json(request: PlannedRequest) -> bytes:
    if request.turn is None or request.token_ids is None:
        return b"[%d,%b]" % (request.max_tokens, _prompt_json(request))
    turn = request.turn
    place = [turn.session, turn.number, turn.turns, turn.wait_for, turn.pause_ns, turn.kept_tokens]
    place += [turn.reads] if turn.reads else []
    told = json.dumps(place, separators=(",", ":")).encode()
    if request.messages is not None:
        return b"[%d,%b,%b]" % (request.max_tokens, told, request.messages.as_json().encode())
    return b"[%d,%b,%b]" % (request.max_tokens, told, _ids_json(request.token_ids[turn.kept_tokens :]))


def _prompt_json(request: PlannedRequest) -> bytes:
    if request.token_ids is None:
        return json.dumps(request.text).encode()
    return _ids_json(request.token_ids)


def _ids_json(ids: Sequence[int]) -> bytes:
    if not isinstance(ids, array | memoryview):
        return json.dumps(list(ids), separators=(",", ":")).encode()
    kind = ids.typecode if isinstance(ids, array) else ids.format
    try:
        # One row of the table per id, with the comma; the padding of shorter numbers is taken out afterwards.
        rows = _decimals().take(np.frombuffer(ids, dtype=_UNSIGNED[kind]))
    except (KeyError, IndexError):  # signed, or beyond the table
        return json.dumps(ids.tolist(), separators=(",", ":")).encode()
    return b"[%b]" % rows.tobytes().translate(None, b"\0")[:-1]


@cache
def _decimals() -> npt.NDArray[np.uint64]:
    """A number and its comma in eight bytes each, which as a whole are taken in half the time of as many
    bytes."""
    return np.array([b"%d," % number for number in range(_TABLE_SIZE)], dtype="S8").view(np.uint64)
