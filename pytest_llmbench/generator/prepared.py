"""Requests made ready for the wire before they are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_llmbench.model.request import PlannedRequest

_BUDGET_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request as bytes, with what its record will say about the plan."""

    request_id: str
    wire: bytes
    index: int
    max_tokens: int
    input_tokens: int
    """Length asked for."""
    sent_tokens: int | None = None
    """Length as sent, where the prompt goes as token ids."""
    prompt: str | None = None
    """The prompt, kept only to be counted if the server does not say how long it was."""
    class_label: str = ""
    shared_prefix_tokens: int = 0
    prefix_id: int | None = None


class PreparedRequests:
    """The requests of a plan in order, encoded ahead of need up to a budget of memory.

    Plans that fit the budget are encoded whole before the run. For larger ones ``top_up``, called when a
    request has just left, keeps the encoding off the way of the next.
    """

    def __init__(
        self,
        planned: Sequence[PlannedRequest],
        prepare: Callable[[PlannedRequest], PreparedRequest],
        *,
        budget_bytes: int = _BUDGET_BYTES,
    ) -> None:
        self._prepare = prepare
        self._room = budget_bytes
        self._rest = deque(planned)
        self._ready: deque[PreparedRequest] = deque()
        self.top_up(len(planned))

    def __len__(self) -> int:
        """Requests not taken yet."""
        return len(self._ready) + len(self._rest)

    def take(self) -> PreparedRequest:
        """The next request. Raises IndexError when there is none."""
        if not self._ready:
            return self._prepare(self._rest.popleft())
        request = self._ready.popleft()
        self._room += len(request.wire)
        return request

    def drop(self) -> None:
        """Forget what has not been taken: it will not be sent."""
        self._ready.clear()
        self._rest.clear()

    def top_up(self, at_most: int = 1) -> None:
        """Encode up to ``at_most`` further requests, as far as the budget goes."""
        while at_most > 0 and self._rest and self._room > 0:
            request = self._prepare(self._rest.popleft())
            self._room -= len(request.wire)
            self._ready.append(request)
            at_most -= 1


__all__ = ["PreparedRequest", "PreparedRequests"]
