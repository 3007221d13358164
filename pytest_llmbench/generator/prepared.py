"""Requests made ready for the wire before they are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_llmbench.arrivals import turn_of
from pytest_llmbench.model.reply_checks import ExpectedAnswer, StructuredOutput
from pytest_llmbench.model.request import PlannedRequest, Turn
from pytest_llmbench.wire.dialect import ResultsAsked

BUDGET_BYTES = 32 * 1024 * 1024
"""The most bytes that requests encoded ahead of need may take up."""
_OBJECT_BYTES = 1024
"""The bytes that a request takes up beside its texts, about."""
_BYTES_PER_TOKEN = 5
"""Assumed size in bytes of a token in a prompt that cannot be encoded yet."""


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
    model: str | None = None
    """The model that the request names; None: the one that is measured."""


def kept_prompt(text: str | None) -> bytes | None:
    """A prompt as UTF-8, lone surrogates included: as a text it takes twice the memory or more."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def prompt_of(request: PreparedRequest) -> str | None:
    """The prompt that was kept with a request."""
    return None if request.prompt is None else request.prompt.decode("utf-8", "surrogatepass")


Prepare = Callable[[PlannedRequest], PreparedRequest]
_Job = PlannedRequest | Sequence[PlannedRequest]


def weight(request: PreparedRequest) -> int:
    """The memory that a request takes up, in bytes."""
    return len(request.wire) + (0 if request.prompt is None else len(request.prompt)) + _OBJECT_BYTES


class PreparedJobs:
    """The jobs of a plan in order, their requests encoded ahead of need up to a budget of memory.

    A job is a request of its own, or the turns of a session. Plans that fit the budget are encoded whole
    before the run. For larger ones ``top_up``, called when a request has just left, goes on with the next
    job, and :meth:`keep` encodes a turn while the one that it waits for is under way. Of a request of its own
    only the encoded form is kept, and at most one job more than those encoded has been taken from ``jobs``.
    """

    def __init__(
        self,
        jobs: Iterator[_Job],
        prepare: Prepare,
        *,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self._jobs = jobs
        self._next: _Job | None = next(jobs, None)
        self._prepare = prepare
        self._room = budget_bytes
        self._ahead: deque[PreparedRequest | Sequence[PlannedRequest]] = deque()
        """Jobs that were taken from the plan and have not begun."""
        self._coming: deque[PlannedRequest] = deque()
        """Turns of these jobs that are not encoded yet."""
        self._ready: dict[int, PreparedRequest] = {}
        """Encoded turns by request index."""
        self._held: dict[int, int] = {}
        """Bytes of the budget that a turn takes up, by request index; turns that wait for live answers have
        some too."""
        self._places: dict[int, range] = {}
        """Session number → the request indices of its turns, for the sessions under way."""
        self.begun = 0
        """Total number of requests of the jobs that were begun."""
        while self.top_up():
            pass
        self.lacks = self._next is not None or bool(self._coming)
        """Whether there are requests that the budget had no room for."""

    @property
    def exhausted(self) -> bool:
        return self._next is None and not self._ahead

    @property
    def _first(self) -> Turn | None:
        """The first turn of the next session; None where there is no session."""
        following: PreparedRequest | _Job | None = self._ahead[0] if self._ahead else self._next
        if following is None or isinstance(following, PreparedRequest | PlannedRequest):
            return None
        return turn_of(following[0])

    @property
    def live(self) -> bool:
        """Whether the turns of the next session read live answers."""
        return self._first is not None and self._first.live

    @property
    def first_number(self) -> int:
        """The number of the next session in the sequence; 0 when there is none."""
        return 0 if self._first is None else self._first.session

    def take(self) -> PreparedRequest | Sequence[PlannedRequest]:
        """Take the next job: a request of its own, encoded, or the turns of a session. Ask ``exhausted``
        first."""
        taken: PreparedRequest | Sequence[PlannedRequest]
        taken = self._ahead.popleft() if self._ahead else self._off_plan()
        if isinstance(taken, PreparedRequest):
            self._room += weight(taken)
            self.begun += 1
            return taken
        if not self._ahead:
            self._coming.clear()  # its own: from now on they are encoded when they are needed
        self.begun += len(taken)
        self._places[turn_of(taken[0]).session] = range(taken[0].index, taken[-1].index + 1)
        return taken

    def drop(self) -> None:
        """Drop the jobs that have not been taken: they will not be sent."""
        self._ahead.clear()
        self._coming.clear()
        self._jobs, self._next = iter(()), None

    def keep(self, request: PlannedRequest) -> None:
        """Encode a turn of a session under way, if it is not encoded yet, even beyond the budget."""
        if request.index not in self._ready:
            prepared = self._ready[request.index] = self._prepare(request)
            self._hold(request, weight(prepared))

    def ready(self, request: PlannedRequest) -> PreparedRequest:
        """The encoded turn, to be sent now."""
        prepared = self._ready.pop(request.index, None)
        if self.lacks:
            self._room += self._held.pop(request.index, 0)
        return self._prepare(request) if prepared is None else prepared

    def finish(self, session: int) -> None:
        """Note that all turns of a session were sent."""
        self._places.pop(session, None)

    def forget(self, session: int) -> None:
        """Drop a session of which nothing more will be sent."""
        for index in self._places.pop(session, ()):
            self._ready.pop(index, None)
            self._room += self._held.pop(index, 0)

    def _hold(self, request: PlannedRequest, size: int) -> None:
        self._room += self._held.get(request.index, 0) - size
        self._held[request.index] = size

    def _off_plan(self) -> PreparedRequest | Sequence[PlannedRequest]:
        """The next job of the plan; a request of its own is encoded, and takes up room."""
        job, self._next = self._next, next(self._jobs, None)
        assert job is not None
        if not isinstance(job, PlannedRequest):
            return job
        prepared = self._prepare(job)
        self._room -= weight(prepared)
        return prepared

    def top_up(self) -> bool:
        """Encode one further request, or pass over one that waits for live answers; False where the budget or
        the plan is used up."""
        if self._room <= 0:
            return False
        if not self._coming:
            if self._next is None:
                return False
            job = self._off_plan()
            self._ahead.append(job)
            if isinstance(job, PreparedRequest):
                return True
            self._coming.extend(job)
        coming = self._coming.popleft()
        if coming.reads_answers:
            self._hold(coming, _BYTES_PER_TOKEN * coming.input_tokens)
        else:
            self.keep(coming)
        return True
