"""Requests made ready for the wire before they are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_llmbench.model.answers import ExpectedAnswer
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.session import Turn
from pytest_llmbench.model.structured import StructuredOutput
from pytest_llmbench.wire.dialect import ResultsAsked

BUDGET_BYTES = 32 * 1024 * 1024
"""The most bytes that requests encoded ahead of need may take up."""
_OBJECT_BYTES = 1024
"""The bytes that a request takes up beside its texts, about."""


@dataclass(slots=True)  # not frozen: many are made while load is running, and that would double the time
class PreparedRequest:
    """A request as bytes, with what its record will say about the plan. Not to be changed."""

    request_id: str
    wire: bytes
    index: int
    max_tokens: int
    input_tokens: int
    """The planned input length in tokens."""
    sent_tokens: int | None = None
    """Number of token ids that are sent; None where the prompt goes as text."""
    prompt: bytes | None = None
    """The prompt by :func:`kept_prompt`, to be counted if the server does not report its length; None: it is
    not kept."""
    class_label: str = ""
    shared_prefix_tokens: int | None = 0
    """Tokens that the prompt shares with an earlier one; None where it holds live answers, since then that is
    not known."""
    prefix_id: int | None = None
    turn: Turn | None = None
    structured: StructuredOutput | None = None
    """The output structure that was asked for; None for none, and for a dialect that cannot ask."""
    results_asked: ResultsAsked | None = None
    """The vectors or scores that the request asks for; None where it asks for tokens."""
    cut_after_ns: int | None = None
    """The time from submission, in nanoseconds, after which the user cuts the request; None: the user
    waits."""
    expected: ExpectedAnswer | None = None


def kept_prompt(text: str | None) -> bytes | None:
    """A prompt as UTF-8, lone surrogates included: as a text it takes twice the memory or more."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def prompt_of(request: PreparedRequest) -> str | None:
    """The prompt that was kept with a request."""
    return None if request.prompt is None else request.prompt.decode("utf-8", "surrogatepass")


class PreparedRequests:
    """The requests of a plan in order, encoded ahead of need up to a budget of memory.

    Plans that fit the budget are encoded whole before the run. For larger ones ``top_up``, called when a
    request has just left, keeps the encoding off the way of the next. What is not encoded has not been taken
    from ``planned`` either, which gives ``count`` requests, each within microseconds.
    """

    def __init__(
        self,
        planned: Iterable[PlannedRequest],
        count: int,
        prepare: Callable[[PlannedRequest], PreparedRequest],
        *,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self._prepare = prepare
        self._room = budget_bytes
        self._planned = iter(planned)
        self.left = self._rest = count
        """Requests not taken yet; and how many of them are not encoded either."""
        self._ready: deque[tuple[PreparedRequest, int]] = deque()
        """Encoded requests, each with its size in bytes."""
        self.top_up(count)

    def __len__(self) -> int:
        return self.left

    def take(self) -> PreparedRequest:
        """The next request. Raises IndexError when there is none."""
        if not self.left:
            raise IndexError("all requests have been taken")
        self.left -= 1
        if not self._ready:
            return self._encoded()
        request, size = self._ready.popleft()
        self._room += size
        return request

    def drop(self) -> None:
        """Drop the requests that have not been taken: they will not be sent."""
        self._ready.clear()
        self.left = self._rest = 0
        self._planned = iter(())

    def top_up(self, at_most: int = 1) -> None:
        """Encode up to ``at_most`` further requests, as far as the budget goes."""
        while at_most > 0 and self._rest and self._room > 0:
            request = self._encoded()
            size = weight(request)
            self._room -= size
            self._ready.append((request, size))
            at_most -= 1

    def _encoded(self) -> PreparedRequest:
        self._rest -= 1
        return self._prepare(next(self._planned))


def weight(request: PreparedRequest) -> int:
    """The memory that a request takes up, in bytes."""
    return len(request.wire) + (0 if request.prompt is None else len(request.prompt)) + _OBJECT_BYTES
