"""The base of our workloads: an endless stream of requests from a seed, and seeds for its parts.

Their numbers come from Python's own random generator, bit for bit, drawn many at once. A synthetic workload
of 10,000 requests takes 3.2 million ``randint`` calls, seconds of start-up. The draft's sequence is defined
by those calls, so no other generator will do; but ``randint`` on a span below 2**32 is known arithmetic on
the 32-bit words of the Mersenne Twister: take the top bits of a word, as many as the span has, and take the
next word if the value is beyond the span. That is done here on whole arrays of words, which NumPy's generator
makes from the same state.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import ANSWERS, Answers, PlannedRequest, Session, Workload
from pytest_llmbench.tokens import reference_tokenizer

_WORD_BITS = 32
_FIRST_BLOCK, _LARGEST_BLOCK = 1 << 11, 1 << 14
"""Fewest words that are made at a time: few for whoever draws little, and twice as many each time. The
sequence of words does not depend on it."""
_NEAR = 8
"""Number of words that are looked at one by one."""


@dataclass(slots=True)
class _Inside:
    """The words in the buffer whose top bits are below a span."""

    values: npt.NDArray[np.uint32]
    """The top bits of these words."""
    places: memoryview
    """The positions of these words; a memoryview is read one by one in half the time that an array takes."""
    cursor: int = 0
    """Index of the first of them after the last draw."""

    def first_from(self, place: int) -> int:
        """Index of the first of them at or after this position, which is mostly a few words after the last
        draw."""
        near = self.cursor + _NEAR
        if near < len(self.places) and self.places[near] >= place:
            return bisect_left(self.places, place, self.cursor, near)
        return bisect_left(self.places, place, self.cursor)


class BulkRandom(random.Random):
    """``random.Random(seed)`` with the method :meth:`randints`. Every other method gives the same results.

    All of ``random.Random`` rests on ``random()`` and ``getrandbits()``; both take their words from one
    buffer here, so single draws and bulk draws mix in any order. The state cannot be saved or restored.
    """

    def seed(self, a: Any = None, version: int = 2) -> None:
        super().seed(a, version)
        self._twister: np.random.Generator | None = None
        """NumPy's generator in the state of Python's, made once a large block is wanted: it gives words in a
        third of the time, but making it takes as long as 20,000 words do. None until then."""
        self._words: npt.NDArray[np.uint32] = np.empty(0, dtype=np.uint32)
        self._single = self._words.data
        """The words as a memoryview, which is read one by one in half the time."""
        self._next = 0
        self._block = _FIRST_BLOCK
        self._inside: dict[int, _Inside] = {}

    def randints(self, low: int, high: int, count: int) -> array[int]:
        """The results of ``count`` calls of ``randint(low, high)``; 0 <= ``low`` <= ``high`` < 2**32 - 1.

        Returned as an array of unsigned ints (type code ``I``).
        """
        return array("I", self.integers(low, high, count).tobytes())

    def integers(self, low: int, high: int, count: int) -> npt.NDArray[np.uint32]:
        """:meth:`randints` as a NumPy array, which must not be changed."""
        span = high - low + 1
        if not (0 <= low <= high < 2**_WORD_BITS - 1):
            raise ValueError(f"randints draws between 0 and 2**32 - 2, not from {low} to {high}")
        parts: list[npt.NDArray[np.uint32]] = []
        while count > 0:
            if self._next >= len(self._words):
                self._peek(1)
            inside = self._inside.get(span) or self._found(span)
            first = inside.first_from(self._next)
            some = inside.values[first : first + count]
            parts.append(some + np.uint32(low) if low else some)
            count -= len(some)
            inside.cursor = first + len(some)
            self._next = len(self._words) if count else inside.places[inside.cursor - 1] + 1
        return parts[0] if len(parts) == 1 else np.concatenate((*parts, self._words[:0]))

    def _found(self, span: int) -> _Inside:
        """The words of the buffer below a span. Found once for all draws: long prompts of one distribution
        follow one another."""
        tops = self._words >> np.uint32(_WORD_BITS - span.bit_length())
        places = np.flatnonzero(tops < np.uint32(span))
        found = self._inside[span] = _Inside(tops[places], places.data)
        return found

    def random(self) -> float:
        """A float in [0, 1) with 53 bits, from two words."""
        first = self._next
        if first + 2 > len(self._words):
            self._peek(2)
            first = self._next
        self._next = first + 2
        return ((self._single[first] >> 5) * 2**26 + (self._single[first + 1] >> 6)) / 2**53

    def getrandbits(self, k: int, /) -> int:
        """An integer with ``k`` random bits, from ceil(k / 32) words, the least significant first."""
        if k < 0:
            raise ValueError("number of bits must be non-negative")
        value = 0
        for shift in range(0, k, _WORD_BITS):
            value |= (self._take() >> max(0, _WORD_BITS - (k - shift))) << shift
        return value

    def getstate(self) -> NoReturn:
        raise NotImplementedError("BulkRandom reads ahead; draw from a fresh one with the same seed instead")

    def setstate(self, state: Any) -> NoReturn:
        raise NotImplementedError("BulkRandom reads ahead; draw from a fresh one with the same seed instead")

    def randint(self, a: int, b: int) -> int:
        """An integer from ``a`` to ``b``, from the same words as in ``random.Random``, in a quarter of the
        time."""
        span = b - a + 1
        if not 0 < span < 2**_WORD_BITS:
            return super().randint(a, b)
        unused = _WORD_BITS - span.bit_length()
        while True:
            if self._next >= len(self._words):
                self._peek(1)
            value = self._single[self._next] >> unused
            self._next += 1
            if value < span:
                return a + value

    def _take(self) -> int:
        if self._next >= len(self._words):
            self._peek(1)
        word: int = self._single[self._next]
        self._next += 1
        return word

    def _peek(self, count: int) -> npt.NDArray[np.uint32]:
        """The next ``count`` words, without consuming them."""
        end = self._next + count
        if end > len(self._words):
            fresh = self._drawn(max(end - len(self._words), self._block))
            self._block = min(2 * self._block, _LARGEST_BLOCK)
            self._words = np.concatenate((self._words[self._next :], fresh))
            self._single = self._words.data
            self._next, end = 0, count
            self._inside.clear()
        return self._words[self._next : end]

    def _drawn(self, count: int) -> npt.NDArray[np.uint32]:
        """``count`` words from the generator."""
        if self._twister is None:
            if count < _LARGEST_BLOCK:
                drawn = super().getrandbits(_WORD_BITS * count).to_bytes(4 * count, "little")
                return np.frombuffer(drawn, dtype="<u4").astype(np.uint32, copy=False)
            _, internal, _ = super().getstate()
            twister = np.random.MT19937(0)
            key = np.array(internal[:-1], dtype=np.uint32)
            twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": internal[-1]}}
            self._twister = np.random.Generator(twister)
        # Over the whole span of a word the generator gives its words as they are, without a draw more.
        return self._twister.integers(0, 2**_WORD_BITS, count, dtype=np.uint32)


Unit = Literal["request", "session"]

Rewording = Callable[[BulkRandom, PlannedRequest, int], "array[int]"]
"""Draws so many ids for a piece of a request: its shared prefix, or what comes after it."""


class StreamedWorkload(ABC):
    """A workload that is an endless stream, so that a longer sequence continues a shorter one. Its properties
    say what callers need to know; by default it has single requests and texts that are what they are."""

    __slots__ = ()

    if TYPE_CHECKING:  # else dataclasses would take the property as the default of their field

        @property
        def name(self) -> str: ...

    @property
    def where(self) -> str:
        """Name of the workload in errors."""
        return f"workload {self.name!r}"

    @property
    def standard(self) -> bool:
        return False

    @property
    def endless(self) -> bool:
        """Whether its sequence can be drawn on; if not, it is drawn from the beginning, as far as wanted."""
        return True

    @property
    def sources(self) -> Sequence[Workload]:
        """The workloads that it is made of by declared changes."""
        return ()

    @property
    def draws_anew(self) -> bool:
        """Whether another seed gives other prompts, without end. A data set has no others."""
        return False

    @property
    def lengths_seed(self) -> int | None:
        """The seed of the list of lengths that it has; None where lengths are drawn with the rest."""
        return None

    def with_lengths_of(self, seed: int) -> Workload:  # noqa: ARG002 - for those that can be drawn anew
        """The workload with the lengths that it draws with ``seed``, whatever the seed of a load; unchanged
        where its prompts cannot be drawn anew: a data set, a trace and sessions have texts of their own."""
        return self

    def rewording(self) -> Rewording | None:
        """How other ids of the same length are drawn for a request; None where texts are what they are."""
        return None

    def shared_prefixes(self, seed: int) -> Sequence[int]:  # noqa: ARG002 - for those that know them
        """Lengths of its shared prefixes in tokens; index k belongs to ``prefix_id`` k. Empty where they are
        not known before drawing."""
        return ()

    @property
    def offsets_ns(self) -> Sequence[int]:
        """Recorded instants at which its jobs start, in nanoseconds; empty without any."""
        return ()

    @property
    def labels(self) -> Sequence[str]:
        """The class labels of its requests; empty where it has no classes."""
        return ()

    @property
    def unit(self) -> Unit:
        """What a job is: one request, or a session, whose turns come one after the other, by number."""
        return "request"

    def shapes(self, seed: int) -> Iterator[Session]:  # noqa: ARG002 - for those that have sessions
        """The sessions of the sequence of ``seed``, in order, without their content; none where its requests
        are single."""
        return iter(())

    def request_count(self, jobs: int, seed: int, first: int = 0) -> int:
        """Number of requests in ``jobs`` jobs, from number ``first`` on: of sessions, that of their turns."""
        if self.unit == "request":
            return jobs
        return sum(len(session.turns) for session in islice(self.shapes(seed), first, first + jobs))

    @property
    def shared_tokens(self) -> int:
        """Length of the beginning that the prompts of all its sessions have, in tokens."""
        return 0

    @property
    def answers(self) -> Answers:
        """Which answers enter the history of its sessions."""
        return "recorded"

    @property
    def rewords_sessions(self) -> bool:
        """Whether it has :meth:`reworded`."""
        return False

    def reworded(self, numbers: Sequence[int], seed: int, words_seed: int) -> Iterator[PlannedRequest]:
        """The sessions ``numbers`` (ascending) of the sequence of ``seed``, in the words of another seed: of
        equal shape, and no prompt in common. Sessions and requests are numbered from 0."""
        raise NotImplementedError

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


def streamed(workload: Workload) -> StreamedWorkload:
    """The workload with the interface of :class:`StreamedWorkload`, also one of the user's own class."""
    return workload if isinstance(workload, StreamedWorkload) else ForeignWorkload(workload)


@dataclass(frozen=True, slots=True)
class ForeignWorkload(StreamedWorkload):
    """A workload of the user's own class with the whole interface: what the class does not define is not
    known of it."""

    base: Workload

    def _own(self, method: str) -> Any:
        """The method of the user's class; None for the default of a workload of ours to which it hands on
        (``__getattr__``), which says nothing of the user's class."""
        found = getattr(self.base, method, None)
        default = getattr(StreamedWorkload, method)
        return None if getattr(found, "__func__", None) is default else found

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def standard(self) -> bool:
        return self.base.standard

    @property
    def endless(self) -> bool:
        return False

    @property
    def draws_anew(self) -> bool:
        return getattr(self.base, "draws_anew", False) is True

    @property
    def lengths_seed(self) -> int | None:
        found = getattr(self.base, "lengths_seed", None)
        return found if isinstance(found, int) else None

    def with_lengths_of(self, seed: int) -> Workload:
        relisted: Callable[[int], Workload] | None = self._own("with_lengths_of")
        return self.base if relisted is None else relisted(seed)

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        known: Callable[[int], Sequence[int]] | None = self._own("shared_prefixes")
        return () if known is None else known(seed)

    @property
    def offsets_ns(self) -> Sequence[int]:
        return getattr(self.base, "offsets_ns", ())

    @property
    def unit(self) -> Unit:
        both = callable(self._own("shapes")) and hasattr(self.base, "shared_tokens")
        return "session" if both else "request"

    def shapes(self, seed: int) -> Iterator[Session]:
        return self.base.shapes(seed) if self.unit == "session" else iter(())  # type: ignore[attr-defined]

    @property
    def shared_tokens(self) -> int:
        return getattr(self.base, "shared_tokens", 0)

    @property
    def answers(self) -> Answers:
        told = getattr(self.base, "answers", None)
        return told if told in ANSWERS else "recorded"

    @property
    def rewords_sessions(self) -> bool:
        return self.unit == "session" and self._own("reworded") is not None

    def reworded(self, numbers: Sequence[int], seed: int, words_seed: int) -> Iterator[PlannedRequest]:
        return self.base.reworded(numbers, seed, words_seed)  # type: ignore[attr-defined, no-any-return]

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        """The first ``count`` requests. Raises SuiteError for one that says of itself what cannot be: digest,
        length and sharing are those of its ids, and at most endpoints its text is sent."""
        found = self.base.requests(count, seed)
        heads: dict[int, Sequence[int]] = {}
        for request in found:
            wrong = _contradiction(request, heads)
            if wrong is not None:
                raise SuiteError(
                    f"request {request.index} {wrong}",
                    where=self.where,
                    remedy="give ids or a text, with input_tokens and shared_prefix_tokens counted of it",
                )
        return found

    def stream(self, seed: int) -> Iterator[PlannedRequest]:
        return self._stream(seed)  # whether its seeds are numbers is for the user to say

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        """Its sequence is drawn again in doubling lengths."""
        given, length = 0, 64
        while more := self.requests(length, seed)[given:]:
            yield from more
            given, length = given + len(more), length * 2

    def specification(self) -> Mapping[str, Any]:
        return self.base.specification()


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
    """The stream of a workload that is made into another one. Turns of sessions become single requests, since
    what is changed about them is not what their session was made of."""
    for request in streamed(workload).stream(seed):
        yield request if request.turn is None else replace(request, turn=None, messages=None)


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for one part of a workload, fixed by ``seed``: 8 bytes of SHA-256 of ``"seed/purpose"``."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def part_seed(seed: int, part: str) -> int:
    """The seed of the part of a measurement with this name: the first 4 bytes of SHA-256 of ``"seed/part"``,
    as a number. Without a name, the seed itself."""
    return derived_seed(seed, part) >> 32 if part else seed
