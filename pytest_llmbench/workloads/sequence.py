"""Request sequences: drawn once and remembered, and their identity, the SHA-256 of their compact JSON
text.

A session asks for many slices of the same sequence: every level of a sweep, every window of a search, every
digest of them. Drawing each from the first request on would cost more than the load itself, so the sequence
of a workload and a seed is kept and drawn further on demand.

Prompts as text are decoded from token ids, and counted again to find the resulting length. Random ids do not
survive the way through text: pieces of UTF-8 characters become replacement characters, and neighbouring
tokens merge differently. So requested and realised lengths differ and both are reported (AMB-32); nothing is
mended in secret, since the draft fixes the ids.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import orjson

from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.stream import streamed

CACHED_TOKENS = 32_000_000
"""Most input tokens that are kept of all sequences together (128 MB as ids); those asked for last are
kept."""
_LEAST_WEIGHT = 256
"""Least number of tokens that a request counts as: it is an object too, and very short ones would be
millions."""
AT_ONCE = 64
"""How many requests are drawn together if a slice is only gone through: long prompts are a megabyte each."""

Stretch = tuple[int, int, int]
"""Part of a sequence: its seed, the number of the first request, and the number of requests."""

_DIGESTS = 2048
"""Number of digests that are remembered, a few hundred bytes each."""


def drawn(workload: Workload, first: int, count: int, seed: int) -> Sequence[PlannedRequest]:
    """Requests ``first`` to ``first + count - 1`` of the workload's sequence: the slice
    ``workload.requests(first + count, seed)[first:]``, remembered.

    May be called from several threads; the one that finds the sequence in use draws its own.
    """
    if not _is_hashable(workload):  # nothing to remember it by
        return streamed(workload).requests(first + count, seed)[first:]
    found = _sequences.of(workload, seed).read(first, count)
    _sequences.forget_needless()
    return found


def passing(workload: Workload, first: int, count: int, seed: int) -> Iterator[PlannedRequest]:
    """:func:`drawn` for going through once: of a long slice only a part exists at any time."""
    source = streamed(workload)
    if not source.endless:
        yield from drawn(workload, first, count, seed)
        return
    if not _is_hashable(workload):  # nothing to remember it by: a part would be drawn from the beginning
        yield from islice(source.stream(seed), first, first + count)
        return
    for start in range(first, first + count, AT_ONCE):
        yield from drawn(workload, start, min(AT_ONCE, first + count - start), seed)


def forget_drawn() -> None:
    """Forget all remembered requests, but not their digests: whatever is asked for is drawn again."""
    _sequences.clear()


def drawn_sha256(workload: Workload, first: int, count: int, seed: int) -> str:
    """The :func:`sequence_sha256` of :func:`drawn`, remembered."""
    return stretches_sha256(workload, [(seed, first, count)])


def slices_sha256(workload: Workload, slices: Sequence[tuple[int, int]], seed: int) -> str:
    """The :func:`sequence_sha256` of several slices (first, count) of a sequence, one after the other."""
    return stretches_sha256(workload, [(seed, first, count) for first, count in slices])


def stretches_sha256(workload: Workload, stretches: Sequence[Stretch]) -> str:
    """The :func:`sequence_sha256` of stretches of several sequences, one after the other."""
    if not _is_hashable(workload):
        return sequence_sha256(_all_of(workload, stretches))
    whole = tuple(stretches)
    digest, known = _digests.longest(workload, whole)
    if known < len(whole):
        for request in _all_of(workload, whole[known:]):
            digest.add(request)
        _digests.remember(workload, whole, digest)
    return digest.hexdigest()


def sequence_json(requests: Iterable[PlannedRequest]) -> str:
    """``[[limit,[id,id,…]],…]`` without spaces (appendix A.1.4).

    A request without token ids shows its text instead, as a JSON string. A turn of a session is
    ``[limit,[session,number,turns,[wait_for],pause_ns,kept],[id,…]]``, with the ids after those that it has
    in common with the turn it goes on from: the whole of every prompt would be quadratic in the turns. One
    that asks for structured output has ``[tools,schema]``, two strings, after that; of messages with roles,
    ``[tools,messages]`` as OpenAI's chat API takes them stands in place of the ids; one with an expected
    answer has ``[answer,scorer]`` after that; one that its user is to cut ends with the nanoseconds after
    which. A turn that reads live answers has ``[turns]`` after ``kept``,
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
    """Computes :func:`sequence_sha256` of requests that come one at a time."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(b"[")
        self._separator = b""

    def add(self, request: PlannedRequest) -> None:
        self.add_json(_request_json(request))

    def add_json(self, told: bytes) -> None:
        """Add a request whose JSON text is known, as :meth:`add` does."""
        self._digest.update(self._separator)
        self._digest.update(told)
        self._separator = b","

    def copy(self) -> SequenceDigest:
        """A copy that can be continued separately."""
        other = SequenceDigest()
        other._digest, other._separator = self._digest.copy(), self._separator
        return other

    def hexdigest(self) -> str:
        whole = self._digest.copy()
        whole.update(b"]")
        return whole.hexdigest()


def begin_loads() -> None:
    """Begin a test: its loads follow none of those before."""
    _digests.latest.clear()


def follow_known(workload: Workload, load: Stretch) -> None:
    """Note a load of the test that another test measured before: those after it follow it all the same."""
    if _is_hashable(workload):
        _digests.follow(workload, load)


class LoadDigest:
    """Computes the digest of what a load takes of a sequence from number ``first`` on, as it is taken.

    A test states one digest of all its loads, one after the other. So where a load follows those before it
    in the test (``follows``, which a warm-up does not), their digest goes on beside its own, and neither is
    worked out anew when somebody asks for it.
    """

    def __init__(self, workload: Workload, seed: int, first: int, *, follows: bool) -> None:
        self._workload, self._follows = workload, follows and _is_hashable(workload)
        self._seed, self._first, self._count = seed, first, 0
        self._own = SequenceDigest()
        self._all = _digests.before(workload, (seed, first, 0)) if self._follows else None

    def add(self, request: PlannedRequest) -> None:
        told = _request_json(request)
        self._own.add_json(told)
        if self._all is not None:
            self._all.add_json(told)
        self._count += 1

    def end(self) -> str:
        """End the load; returns its own digest. All digests are remembered."""
        if self._count and _is_hashable(self._workload):
            load = self._seed, self._first, self._count
            _digests.remember(self._workload, (load,), self._own)
            if self._follows:
                _digests.follow(self._workload, load, self._all)
        return self._own.hexdigest()


class _Digests:
    """Remembers digests of stretches, which others can continue. Each step on the table is one that no other
    thread can come between."""

    def __init__(self) -> None:
        self._known: dict[tuple[Workload, tuple[Stretch, ...]], SequenceDigest] = {}
        self.latest: dict[Workload, tuple[Stretch, ...]] = {}
        """Workload → the stretches of its loads so far, which others may follow."""

    def remember(self, workload: Workload, stretches: tuple[Stretch, ...], digest: SequenceDigest) -> None:
        self._known[workload, stretches] = digest
        if len(self._known) > _DIGESTS:
            for oldest in list(self._known)[: len(self._known) - 3 * _DIGESTS // 4]:
                self._known.pop(oldest, None)

    def before(self, workload: Workload, load: Stretch) -> SequenceDigest | None:
        """The digest of all loads before this one, if it follows them; else None."""
        before = self.latest.get(workload)
        if not before or _with(before, load) is None:
            return None
        digest, known = self.longest(workload, before)
        return digest if known == len(before) else None

    def follow(self, workload: Workload, load: Stretch, digest: SequenceDigest | None = None) -> None:
        """Note the end of a load. ``digest``: that of all loads so far; None if it is not known."""
        together = _with(self.latest.get(workload, ()), load)
        if together is not None and digest is not None:
            self.remember(workload, together, digest)
        self.latest[workload] = together if together and (workload, together) in self._known else (load,)

    def longest(self, workload: Workload, stretches: tuple[Stretch, ...]) -> tuple[SequenceDigest, int]:
        """The digest of as many of the first stretches as are known, and how many these are."""
        for known in range(len(stretches), 0, -1):
            digest = self._known.get((workload, stretches[:known]))
            if digest is not None:
                return digest.copy(), known
        return SequenceDigest(), 0


def _with(before: tuple[Stretch, ...], load: Stretch) -> tuple[Stretch, ...] | None:
    """The stretches of the loads before and of this one, if it continues them, in their sequence or with
    another from its beginning; else None."""
    seed, first, count = load
    if before and (seed, first) == (before[-1][0], sum(before[-1][1:])):
        return (*before[:-1], (seed, before[-1][1], before[-1][2] + count))
    if first == 0 and all(seed != own for own, _, _ in before):
        return (*before, load)
    return None


_digests = _Digests()


@dataclass(slots=True)
class _CachedSequence:
    """The drawn requests of a sequence from number ``start`` on, and the stream to go on with."""

    source: Iterator[PlannedRequest]
    start: int = 0
    kept: list[PlannedRequest] = field(default_factory=list)
    tokens: int = 0

    def draw_up_to(self, end: int, first: int) -> None:
        """Draw on to request ``end``; requests before ``first`` are dropped if too many are kept."""
        while self.start + len(self.kept) < end:
            fresh = list(islice(self.source, min(256, end - self.start - len(self.kept))))
            if not fresh:
                return
            self.kept += fresh
            self.tokens += sum(map(_weight, fresh))
            self.drop(first)

    def drop(self, before: int) -> None:
        """Drop requests before number ``before``, as many as needed to keep no more than the cap."""
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
        self._workload = streamed(workload)
        self._seed = seed
        self._cached: list[_CachedSequence | None] = [None]
        self.tokens = 0
        """Number of tokens kept, as they count against the cap."""

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
            after, self.tokens = cached, cached.tokens
        finally:
            self._cached.append(after)
        return found

    def _drawn_on(self, cached: _CachedSequence | None, first: int, count: int) -> _CachedSequence:
        """The kept sequence with the wanted requests drawn; a new one if it began after them."""
        if cached is None or cached.start > first:
            return self._fresh(first, count)
        if self._workload.endless:
            cached.draw_up_to(first + count, first)
        elif cached.start + len(cached.kept) < first + count:
            return self._fresh(first, count)
        return cached

    def _fresh(self, first: int, count: int) -> _CachedSequence:
        if self._workload.endless:
            cached = _CachedSequence(self._workload.stream(self._seed))
            cached.draw_up_to(first + count, first)
            return cached
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


class _Sequences:
    """The remembered sequences. If they have more tokens than the cap, those asked for least recently are
    forgotten. For threads see :class:`_Digests`."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Workload, int], _SequenceCache] = {}

    def of(self, workload: Workload, seed: int) -> _SequenceCache:
        key = workload, seed
        found = self._kept.pop(key, None) or _SequenceCache(workload, seed)
        self._kept[key] = found  # the last
        return found

    def forget_needless(self) -> None:
        tokens = [(key, each.tokens) for key, each in list(self._kept.items())]
        excess = sum(own for _, own in tokens) - CACHED_TOKENS
        for key, own in tokens[:-1]:
            if excess <= 0:
                return
            self._kept.pop(key, None)
            excess -= own

    def clear(self) -> None:
        self._kept.clear()


_sequences = _Sequences()


def _all_of(workload: Workload, stretches: Iterable[Stretch]) -> Iterator[PlannedRequest]:
    for seed, first, count in stretches:
        yield from passing(workload, first, count, seed)


def _request_json(request: PlannedRequest) -> bytes:
    told = _plain_json(request)
    if request.structured is not None:
        asked = [request.structured.tools, request.structured.schema]
        form = json.dumps(asked, separators=(",", ":")).encode()
        told = b"[%b,%b]" % (told[1:-1], form)
    if request.expected is not None:
        answer = json.dumps([request.expected.answer, request.expected.scorer], separators=(",", ":"))
        told = b"[%b,%b]" % (told[1:-1], answer.encode())
    if request.media:
        from pytest_llmbench.model.messages import media_json  # few loads have them

        pieces = json.dumps(media_json(request.media), separators=(",", ":")).encode()
        told = b"[%b,%b]" % (told[1:-1], pieces)
    if request.cut_after_ns is not None:
        told = b"[%b,%d]" % (told[1:-1], request.cut_after_ns)
    return told


def _plain_json(request: PlannedRequest) -> bytes:
    turn, ids, messages = request.turn, request.token_ids, request.messages
    if messages is not None:
        prompt = messages.as_json().encode()
    elif ids is not None:
        prompt = _ids_json(ids if turn is None else ids[turn.kept_tokens :])
    else:
        return b"[%d,%b]" % (request.max_tokens, json.dumps(request.text).encode())
    if turn is None:
        return b"[%d,%b]" % (request.max_tokens, prompt)
    place = [turn.session, turn.number, turn.turns, turn.wait_for, turn.pause_ns, turn.kept_tokens]
    place += [turn.reads] if turn.reads else []
    told = json.dumps(place, separators=(",", ":")).encode()
    return b"[%d,%b,%b]" % (request.max_tokens, told, prompt)


def _ids_json(ids: Sequence[int]) -> bytes:
    if isinstance(ids, array | memoryview) and len(ids):
        kind = ids.typecode if isinstance(ids, array) else ids.format
        return orjson.dumps(np.frombuffer(ids, dtype=_kind(kind)), option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps(list(ids), separators=(",", ":")).encode()


@cache
def _kind(code: str) -> np.dtype[Any]:
    """The NumPy type of the numbers in an array with this type code."""
    return np.dtype(code)


def text_of(request: PlannedRequest) -> str | None:
    """The text of a request, decoded from its ids if it has none yet; None if it has neither. Messages are
    rendered."""
    if request.messages is not None:
        return request.messages.rendered
    if request.text is not None or request.token_ids is None:
        return request.text
    # Asked for here, so that whoever has all texts already need not load a tokenizer.
    return reference_tokenizer().decode(request.token_ids)


def texts_of(requests: Sequence[PlannedRequest]) -> list[str | None]:
    """:func:`text_of` of each, in half of the time where there are many."""
    known = [each for each in map(_undecoded, requests) if each is not None]
    decoded = iter(reference_tokenizer().decode_each(known) if known else ())
    return [text_of(each) if _undecoded(each) is None else next(decoded) for each in requests]


def _undecoded(request: PlannedRequest) -> Sequence[int] | None:
    """The ids from which its text has to be decoded; None if it does not."""
    return request.token_ids if request.text is None and request.messages is None else None
