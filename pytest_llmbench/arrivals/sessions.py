"""Which turns of sessions are due, and when: the one rule that load generator and replay go by.

A turn is due when the last of the turns that it waits for has ended, after its pause; one that waits for none
after the start of its session. A session whose turn did not end well is **cut off**: nothing more of it is
sent, since what follows would rest on an answer that nobody got; what is in flight goes on to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.arrivals.schedule import arrival_seed, schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.session import Turn


class Due(NamedTuple):
    """A turn that waits for nothing but time. Sorted by instant, then by place in the sequence."""

    at_ns: int
    place: int
    request: PlannedRequest
    session: int


class After(NamedTuple):
    """The consequences of a turn's end."""

    due: list[Due]
    over: bool
    """Whether the session is over: nothing of it is in flight, and nothing more will be sent."""
    cut: bool
    """Whether it was cut off: nothing more of it will be sent."""


@dataclass(slots=True)
class _Open:
    """The state of a session that is under way."""

    waiting: dict[int, PlannedRequest] = field(default_factory=dict)
    """Turns that are not due yet, by turn number."""
    missing: dict[int, int] = field(default_factory=dict)
    """Number of turns that a turn still waits for, by its number, where that is more than one."""
    waiters: dict[int, list[int]] = field(default_factory=dict)
    """Numbers of the turns that wait for a turn, by its number."""
    next_in_chain: dict[int, int] = field(default_factory=dict)
    """Number of the turn that follows a turn at once, by the latter's: the only one to wait for it, for it
    alone and without a pause."""
    pending: int = 0
    """Number of turns that are due, now or after a pause, and have not been taken."""
    in_flight: int = 0
    cut: bool = False

    @property
    def over(self) -> bool:
        return self.in_flight == 0 and (self.cut or not (self.pending or self.waiting))


class SessionFlow:
    """The sessions under way. It is told of starts and ends, and says which turns are due. It has no
    clock."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self.unsent = 0
        """Number of turns still to be sent, due or not; those of cut sessions are not counted."""

    def begin(self, session: Sequence[PlannedRequest], at_ns: int) -> list[Due]:
        """Start a session; returns its turns that wait for no other. ``session``: one item of
        :func:`sessions_of`."""
        opened = _Open()
        waiting, waiters, chain = opened.waiting, opened.waiters, opened.next_in_chain
        first = []
        for request in session:
            turn = turn_of(request)
            number = turn.number
            waiting[number] = request
            if not turn.wait_for:
                first.append(number)
            elif len(turn.wait_for) > 1:
                opened.missing[number] = len(turn.wait_for)
            for before in turn.wait_for:
                if before in waiters:
                    waiters[before].append(number)
                    chain.pop(before, None)
                else:
                    waiters[before] = [number]
                    if len(turn.wait_for) == 1 and not turn.pause_ns:
                        chain[before] = number
        self._open[turn_of(session[0]).session] = opened
        self.unsent += len(session)
        return [_due(opened, number, at_ns) for number in first]

    def take(self, session: int) -> bool:
        """Note that a due turn is sent now. False if its session was cut off in the meantime: then it is not
        sent."""
        opened = self._open.get(session)
        if opened is None or opened.cut:
            return False
        opened.pending -= 1
        opened.in_flight += 1
        self.unsent -= 1
        return True

    def take_next(self, turn: Turn) -> PlannedRequest | None:
        """The turn that follows at once a turn that was taken and has ended well; it counts as sent now.

        Most turns of most sessions are such, and this is all that is done for them. None where it is not so
        simple: tell :meth:`ended` of the end then.
        """
        opened = self._open[turn.session]
        number = opened.next_in_chain.get(turn.number)
        if number is None or opened.cut:
            return None
        self.unsent -= 1
        return opened.waiting.pop(number)

    def is_cut(self, session: int) -> bool:
        """Whether a session was cut off, so that :meth:`take` would return False."""
        opened = self._open.get(session)
        return opened is None or opened.cut

    def followers(self, request: PlannedRequest) -> list[PlannedRequest]:
        """The turns that wait for this one, and for none after it."""
        turn = turn_of(request)
        opened = self._open.get(turn.session)
        if opened is None:
            return []
        waiting = opened.waiting
        found = (waiting[number] for number in opened.waiters.get(turn.number, ()) if number in waiting)
        return [each for each in found if max(turn_of(each).wait_for) == turn.number]

    def cut(self, session: int) -> bool:
        """Cut off a session whose last reply turned out to be bad. True if that ends the session."""
        opened = self._open.get(session)
        if opened is None or opened.cut:
            return False
        self._cut(opened)
        if opened.over:
            del self._open[session]
        return opened.over

    def ended(self, turn: Turn, at_ns: int, *, ok: bool) -> After:
        """Note the end of a turn that was taken. Ends have to be told in their order."""
        opened = self._open[turn.session]
        opened.in_flight -= 1
        if not ok and not opened.cut:
            self._cut(opened)
        due = []
        if not opened.cut:
            missing = opened.missing
            for number in opened.waiters.get(turn.number, ()):
                left = missing.pop(number, 1) - 1
                if left:
                    missing[number] = left
                else:
                    due.append(_due(opened, number, at_ns))
        over = opened.over
        if over:
            del self._open[turn.session]
        return After(due, over, opened.cut)

    def _cut(self, opened: _Open) -> None:
        opened.cut = True
        self.unsent -= opened.pending + len(opened.waiting)


class _Answer(NamedTuple):
    """The server's answer to a turn."""

    text: str
    tokens: int


class LiveAnswers:
    """The server's answers in the sessions under way, for later turns whose prompts contain them."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, _Answer]] = {}
        """Answers by session number and turn number."""
        self._texts: dict[int, tuple[str, float]] = {}
        """Text and share of each reply that is not noted yet, by request index."""

    def keep_text(self, index: int, text: str, share: float = 1.0) -> None:
        """Keep the text of the answer to request ``index`` until its record is there. ``share``: the text's
        part of the output tokens that the server will report; the rest belongs to tool calls, for example."""
        self._texts[index] = text, share

    def note_kept(self, request: PlannedRequest, tokens: int) -> None:
        """:meth:`note` the text of a reply that was kept, if any, now that its record is there. ``tokens``:
        those of the whole reply."""
        text, share = self._texts.pop(request.index, ("", 0.0))
        self.note(turn_of(request), text, round(share * max(0, tokens)))

    def note(self, turn: Turn, text: str, tokens: int) -> None:
        """Keep the answer to a turn. ``tokens``: those of ``text``, as the server counts them."""
        said = _sendable(text)
        answer = _Answer(said, tokens) if said.strip() else _Answer("", 0)
        self._of.setdefault(turn.session, {})[turn.number] = answer

    def asked(self, request: PlannedRequest) -> PlannedRequest:
        """The request with the live answers filled in and its input length adjusted; the request itself if it
        reads none.

        ``token_ids`` are still those with recorded answers. Of a turn that was not noted nothing was said.
        """
        turn, said = turn_of(request), request.messages
        if not turn.reads or said is None:
            return request
        own = self._of.get(turn.session, {})
        places = [message.live for message in said.messages if message.live is not None]
        recorded = sum(place.tokens for place in places)
        live = sum(own[number].tokens for number in turn.reads if number in own)
        answered = said.answered({number: answer.text for number, answer in own.items()})
        return replace(request, messages=answered, input_tokens=request.input_tokens - recorded + live)

    def forget(self, session: int) -> None:
        """Drop the answers of a session of which nothing more will be sent."""
        self._of.pop(session, None)


def _sendable(text: str) -> str:
    """The text without lone surrogates: a pair that came apart is joined, any other becomes a question
    mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return text.encode(errors="replace").decode()
    return text


def _due(opened: _Open, number: int, at_ns: int) -> Due:
    """A turn that waits for no other any more, with the instant at which it is due."""
    request = opened.waiting.pop(number)
    opened.pending += 1
    turn = turn_of(request)
    return Due(at_ns + turn.pause_ns, request.index, request, turn.session)


def turn_of(request: PlannedRequest) -> Turn:
    """The place of a request in its session. Raises SuiteError for one that has none."""
    if request.turn is None:
        raise SuiteError(
            f"request {request.index} belongs to no session",
            where="load of sessions",
            remedy="name a workload of sessions, for example workload='session:chat'",
        )
    return request.turn


_STARTS_AT_ONCE = 256
_NUMBERS_AT_ONCE = 512
"""How many instants become Python integers together while load is running: some microseconds."""


def starts_ns(plan: LoadPlan, first_session: int) -> Iterator[int]:
    """The starts of the plan's jobs, in nanoseconds from the start of the load; of a closed loop none.

    A plan that takes up a sequence in the middle takes up its schedule there too. ``first_session``: the
    number of its first session; only read where jobs are sessions. The starts of requests are drawn now, so
    that nothing is drawn while load is running; those of sessions, whose number nobody knows, as they are
    needed. A trace has as many as it has.
    """
    load, seed = plan.load, arrival_seed(plan.schedule_seed)
    if not isinstance(load, OpenLoop):
        return iter(())
    if load.of_sessions:
        return _session_starts_ns(load, first_session, seed)
    whole = schedule_ns(load, plan.first + plan.requests, seed)
    return _numbers(whole[plan.first :], int(whole[plan.first - 1]) if plan.first else 0)


def _session_starts_ns(load: OpenLoop, first: int, seed: int) -> Iterator[int]:
    given, base_ns = first, 0
    trace = load.arrival == "trace"
    while True:
        upto = len(load.offsets_ns) if trace else max(2 * given, given + _STARTS_AT_ONCE)
        whole = schedule_ns(load, upto, seed)
        if given == first and first:
            base_ns = int(whole[first - 1])
        yield from (whole[given:] - base_ns).tolist()
        if trace:
            return
        given = upto


def _numbers(instants_ns: npt.NDArray[np.int64], base_ns: int) -> Iterator[int]:
    """The numbers of an array, less ``base_ns``, as Python integers, without a list of all of them."""
    for first in range(0, len(instants_ns), _NUMBERS_AT_ONCE):
        yield from (instants_ns[first : first + _NUMBERS_AT_ONCE] - base_ns).tolist()


def sessions_of(requests: Iterable[PlannedRequest]) -> Iterator[tuple[PlannedRequest, ...]]:
    """The requests of a sequence, grouped by session. The last group may be short, where a budget cut the
    sequence.

    Raises SuiteError for a request of no session, and for a turn that waits for one that is not before it.
    """
    session: list[PlannedRequest] = []
    before: set[int] = set()
    for request in requests:
        turn = turn_of(request)
        if session and turn_of(session[0]).session != turn.session:
            yield tuple(session)
            session, before = [], set()
        if not before.issuperset(turn.wait_for):
            raise SuiteError(
                f"turn {turn.number} of session {turn.session} waits for a turn that does not come before it",
                where="load of sessions",
                remedy="begin with the first turn of a session; let turns come after those they wait for",
            )
        session.append(request)
        before.add(turn.number)
    if session:
        yield tuple(session)
