"""The base of our workloads: an endless stream of requests from a seed, and seeds for its parts."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.bulk_random import BulkRandom

Rewording = Callable[[BulkRandom, PlannedRequest, int], "array[int]"]
"""Draws so many ids for a piece of a request: its shared prefix, or what comes after it."""


class StreamedWorkload(ABC):
    """A workload that is an endless stream, so that a longer sequence continues a shorter one."""

    __slots__ = ()

    @property
    def where(self) -> str:
        """Name of the workload in errors."""
        return f"workload {self.name!r}"  # type: ignore[attr-defined]

    @property
    def standard(self) -> bool:
        return False

    @property
    def draws_anew(self) -> bool:
        """Whether another seed gives other prompts, without end. A data set has no others."""
        return False

    def rewording(self) -> Rewording | None:
        """How other ids of the same length are drawn for a request; None where texts are what they are."""
        return None

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        """The first ``count`` requests of the sequence of ``seed``."""
        return list(islice(self.stream(seed), count))

    def stream(self, seed: int) -> Iterator[PlannedRequest]:
        """The requests of ``seed``, one after the other, without end.

        Raises SuiteError for a seed that is not a whole number, or is negative.
        """
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            # Python's generator ignores the sign: seed -42 would quietly repeat the sequence of 42.
            raise SuiteError(f"the seed is {seed!r}: give a whole number, not negative", where=self.where)
        return self._stream(seed)

    @abstractmethod
    def _stream(self, seed: int) -> Iterator[PlannedRequest]: ...

    @abstractmethod
    def specification(self) -> Mapping[str, Any]: ...


def draws_anew(workload: Workload) -> bool:
    """Whether prompts of two seeds are never the same; False for a foreign workload, of which it is not
    known."""
    return isinstance(getattr(workload, "draws_anew", None), bool) and bool(workload.draws_anew)  # type: ignore[attr-defined]


def rewording_of(workload: Workload) -> Rewording | None:
    """:meth:`StreamedWorkload.rewording`; None for a foreign workload."""
    return workload.rewording() if isinstance(workload, StreamedWorkload) else None


def stream_of(workload: Workload, seed: int) -> Iterator[PlannedRequest]:
    """The requests of any workload, one after the other; a foreign one is drawn again in doubling lengths."""
    if isinstance(workload, StreamedWorkload):
        yield from workload.stream(seed)
        return
    given, length = 0, 64
    while True:
        more = foreign_requests(workload, length, seed)[given:]
        if not more:
            return
        yield from more
        given, length = given + len(more), length * 2


def foreign_requests(workload: Workload, count: int, seed: int) -> Sequence[PlannedRequest]:
    """The first ``count`` requests of a workload that is not ours.

    Raises SuiteError for one that says of itself what cannot be: digest, length and sharing are those of its
    ids, and at most endpoints its text is sent.
    """
    found = workload.requests(count, seed)
    heads: dict[int, Sequence[int]] = {}
    for request in found:
        wrong = _contradiction(request, heads)
        if wrong is not None:
            raise SuiteError(
                f"request {request.index} {wrong}",
                where=f"workload {workload.name!r}",
                remedy="give ids or a text, with input_tokens and shared_prefix_tokens counted of it",
            )
    return found


_MOST_PER_CHARACTER, _SPECIAL_TOKENS = 4, 16
"""Bytes of a character, each a token at most; and the few tokens of a template or a beginning."""


def _contradiction(request: PlannedRequest, heads: dict[int, Sequence[int]]) -> str | None:
    """What a request says of itself that cannot be. ``heads``: the shared prefixes so far, by number."""
    ids, text, shared = request.token_ids, request.text, request.shared_prefix_tokens
    if request.turn is not None or request.messages is not None:
        return None
    if shared > request.input_tokens:
        return f"shares {shared} tokens and has {request.input_tokens}"
    if ids is None:
        characters = len(text or "")
        if request.input_tokens <= _MOST_PER_CHARACTER * characters + _SPECIAL_TOKENS:
            return None
        return f"has {request.input_tokens} tokens in a text of {characters} characters"
    if len(ids) != request.input_tokens:
        return f"has {len(ids)} token ids, and input_tokens is {request.input_tokens}"
    if text is not None and not _spells(ids, text):
        return "has a text that its token ids do not spell in cl100k_base"
    if request.prefix_id is None:
        return None
    head = heads.setdefault(request.prefix_id, ids[:shared])
    both = min(len(head), shared)
    return (
        None if list(head[:both]) == list(ids[:both]) else f"does not begin with prefix {request.prefix_id}"
    )


def _spells(ids: Sequence[int], text: str) -> bool:
    try:
        return reference_tokenizer().decode(ids) == text
    except SuiteError:  # ids of another vocabulary
        return False


def single_requests(workload: Workload, seed: int) -> Iterator[PlannedRequest]:
    """:func:`stream_of` a workload that is made into another one. Turns of sessions become single requests,
    since what is changed about them is not what their session was made of."""
    for request in stream_of(workload, seed):
        yield request if request.turn is None else replace(request, turn=None, messages=None)


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for one part of a workload, fixed by ``seed``: 8 bytes of SHA-256 of ``"seed/purpose"``."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def part_seed(seed: int, part: str) -> int:
    """The seed of the part of a measurement with this name: the first 4 bytes of SHA-256 of ``"seed/part"``,
    as a number. Without a name, the seed itself."""
    return derived_seed(seed, part) >> 32 if part else seed
