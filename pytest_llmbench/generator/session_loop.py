"""Sessions on the event loop: they start by a schedule or by slots; turns follow the ends before them.

A turn is due at an absolute instant, the end of the last turn that it waits for plus its pause, as the
transport saw that end. Whether a reply was a good one is known when it has been decoded, a moment later; a
session whose reply turns out bad is cut off then, and a turn without a pause may be under way by that time.

A turn that reads live answers cannot be made before these have been decoded. It is due at the same instant;
what it takes the generator to read them and to make the prompt is lateness of its own.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus

from pytest_llmbench.arrivals.sessions import Due, LiveAnswers, SessionFlow, turn_of
from pytest_llmbench.generator.dispatcher import Dispatcher
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.loops import Pacer
from pytest_llmbench.generator.prepared import BUDGET_BYTES, PreparedRequest, weight
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.session import Turn
from pytest_llmbench.timing.clock import Clock

_AT_ONCE = 16
_ERRORS_FROM = int(HTTPStatus.BAD_REQUEST)
"""An integer, since looking up a member of an enumeration costs a function call in Python at every end."""
_BYTES_PER_TOKEN = 5
"""Assumed size in bytes of a token in a prompt that cannot be encoded yet."""

Prepare = Callable[[PlannedRequest], PreparedRequest]


class SessionSupply:
    """The sessions of a plan in order, their turns encoded ahead of need up to a budget of memory.

    Plans that fit the budget are encoded whole before the run. For larger ones ``top_up``, called when a turn
    has just left, goes on with the next session, and :meth:`keep` encodes a turn while the one that it waits
    for is under way.
    """

    def __init__(
        self,
        sessions: Iterator[Sequence[PlannedRequest]],
        prepare: Prepare,
        *,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self._sessions = sessions
        self._next = next(sessions, None)
        self._prepare = prepare
        self._room = budget_bytes
        self._ahead: deque[Sequence[PlannedRequest]] = deque()
        """Sessions that were taken from the plan and have not begun."""
        self._coming: deque[PlannedRequest] = deque()
        """Turns of these sessions that are not encoded yet."""
        self._ready: dict[int, PreparedRequest] = {}
        """Encoded turns by request index."""
        self._held: dict[int, int] = {}
        """Bytes of the budget that a turn takes up, by request index; turns that wait for live answers have
        some too."""
        self._places: dict[int, range] = {}
        """Session number → the request indices of its turns, for the sessions under way."""
        self.begun = 0
        """Total number of turns of the sessions that were begun."""
        while self.top_up():
            pass
        self.lacks = self._next is not None or bool(self._coming)
        """Whether there are turns that the budget had no room for."""

    @property
    def exhausted(self) -> bool:
        return self._next is None and not self._ahead

    @property
    def live(self) -> bool:
        """Whether the turns of the next session read live answers."""
        following = self._ahead[0] if self._ahead else self._next
        return following is not None and turn_of(following[0]).live

    @property
    def first_number(self) -> int:
        """The number of the next session in the sequence; 0 when there is none."""
        following = self._ahead[0] if self._ahead else self._next
        return 0 if following is None else turn_of(following[0]).session

    def take(self) -> Sequence[PlannedRequest]:
        """Take the next session; ask ``exhausted`` first."""
        if self._ahead:
            taken = self._ahead.popleft()
            if not self._ahead:
                self._coming.clear()  # its own: from now on they are encoded when they are needed
        else:
            assert self._next is not None
            taken, self._next = self._next, next(self._sessions, None)
        self.begun += len(taken)
        self._places[turn_of(taken[0]).session] = range(taken[0].index, taken[-1].index + 1)
        return taken

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

    def top_up(self) -> bool:
        """Encode one further turn, or pass over one that waits for live answers; False where the budget or
        the plan is used up."""
        if self._room <= 0:
            return False
        if not self._coming:
            if self._next is None:
                return False
            self._ahead.append(self._next)
            self._coming.extend(self._next)
            self._next = next(self._sessions, None)
        coming = self._coming.popleft()
        if coming.reads_answers:
            self._hold(coming, _BYTES_PER_TOKEN * coming.input_tokens)
        else:
            self.keep(coming)
        return True


class SessionLoop:
    """Runs one load of sessions: decides what is due, what to encode ahead, and what follows from each
    end."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        supply: SessionSupply,
        pacer: Pacer,
        clock: Clock,
        start_ns: int,
        *,
        slots: int = 0,
        starts_ns: Iterator[int],
        answers: LiveAnswers | None = None,
    ) -> None:
        """``slots``: how many sessions run at once; 0: they start at ``starts_ns``, in nanoseconds from
        ``start_ns``. ``answers``: the live answers that turns read; None where they read none."""
        self._dispatcher, self._supply = dispatcher, supply
        self._pacer, self._clock, self._start_ns = pacer, clock, start_ns
        self._slots, self._starts_ns = slots, starts_ns
        self._flow, self._answers = SessionFlow(), answers
        self._due: list[Due] = []
        """Turns that are due, now or later, as a heap."""
        self._read: dict[int, PlannedRequest] = {}
        """Requests in flight whose answers later turns read, by index."""
        self._changed = asyncio.Event()
        self._sleeper: asyncio.Task[None] | None = None
        self._until_ns = self._last_start_ns = start_ns
        """The instant that the loop sleeps until; in an open loop, the start of the last session that was
        begun."""

    async def run(self) -> int:
        """Send every turn when it is due. Returns when nothing more will be sent, while the last turns are
        still in flight. Raises BehindScheduleError as :meth:`Pacer.until` does."""
        self._dispatcher.then, self._dispatcher.decoded = self._ended, self._decoded
        for _ in range(self._slots or 1):
            self._begin_next(self._start_ns)
        try:
            while self._flow.unsent or not self._supply.exhausted:
                self._changed.clear()
                until_ns = self._next_ns()
                if until_ns is None:
                    await self._changed.wait()
                elif until_ns <= self._clock.monotonic_ns():
                    await self._pacer.until(until_ns)
                    self._send_due(until_ns)
                elif await self._waited(until_ns):
                    self._send_due(until_ns)
        finally:
            self._dispatcher.then = self._dispatcher.decoded = None
            if self._sleeper is not None:
                self._sleeper.cancel()
        return self._clock.monotonic_ns()

    def _next_ns(self) -> int | None:
        """The next instant at which there is something to do; None while everything waits for ends."""
        due_ns = self._due[0].at_ns if self._due else None
        if self._slots or self._supply.exhausted:
            return due_ns
        return self._last_start_ns if due_ns is None else min(due_ns, self._last_start_ns)

    async def _waited(self, instant_ns: int) -> bool:
        """Wait for an instant; False if something else became due in the meantime."""
        self._until_ns = instant_ns
        sleeper = self._sleeper = asyncio.ensure_future(self._pacer.until(instant_ns))
        await asyncio.wait((sleeper,))
        self._sleeper = None
        if sleeper.cancelled():
            return False
        sleeper.result()
        return True

    def _send_due(self, now_ns: int) -> None:
        """Send the turns that are due together, a few at a time: reads are stamped in between."""
        for _ in range(_AT_ONCE):
            if not self._due or self._due[0].at_ns > now_ns:
                break
            self._send(heapq.heappop(self._due))
        if not self._slots and self._last_start_ns <= now_ns:
            self._begin_next(self._start_ns)

    def _send(self, due: Due) -> None:
        if not self._flow.take(due.session):
            return
        if self._answers is not None:
            self._read[due.place] = due.request
        self._dispatcher.dispatch(self._supply.ready(due.request), due.at_ns)
        if self._supply.lacks:
            self._prepare_ahead(due.request)

    def _prepare_ahead(self, sent: PlannedRequest) -> None:
        """Encode what follows a turn that has just left: there is time for it now."""
        for follower in self._flow.followers(sent):
            if not follower.reads_answers:
                self._supply.keep(follower)
        self._supply.top_up()

    def _begin_next(self, at_ns: int, now_ns: int = -1) -> None:
        """Begin a session: in an open loop ahead of its start, so that its first turn is encoded by then.

        ``now_ns``: turns that are due by then are sent; by default all wait for the loop.
        """
        if self._supply.exhausted:
            return
        if not self._slots:
            at_ns = self._last_start_ns = at_ns + next(self._starts_ns)
        self._take_up(self._flow.begin(self._supply.take(), at_ns), now_ns)

    def _take_up(self, turns: Iterable[Due], now_ns: int) -> None:
        """Send the turns that are due now, as a closed loop replaces a request; put the others on the
        heap."""
        for due in turns:
            if due.at_ns <= now_ns:
                self._send(due)
            else:
                self._supply.keep(due.request)
                heapq.heappush(self._due, due)

    def _ended(self, exchange: Exchange) -> None:
        if self._answers is not None:
            return  # what follows is made of what it said, which is not read yet
        sent = exchange.request
        well = exchange.end is End.COMPLETE and (exchange.status or 0) < _ERRORS_FROM
        well |= sent.cut_after_ns is not None  # nobody waits for the rest of it
        turn = sent.turn
        assert turn is not None
        following = self._flow.take_next(turn) if well else None
        if following is None:
            self._go_on(turn, exchange.finished_ns, ok=well)
            return
        self._dispatcher.dispatch(self._supply.ready(following), exchange.finished_ns)
        if self._supply.lacks:
            self._prepare_ahead(following)
        if not self._flow.unsent:
            self._look_again()

    def _go_on(self, turn: Turn, ended_ns: int, *, ok: bool) -> None:
        """Act on the end of a turn: send what is due, and begin or drop sessions."""
        after = self._flow.ended(turn, ended_ns, ok=ok)
        self._take_up(after.due, ended_ns)
        if after.cut:
            self._supply.forget(turn.session)
        elif after.over:
            self._supply.finish(turn.session)
        if self._answers is not None and (after.over or after.cut):
            self._answers.forget(turn.session)
        if after.over and self._slots:
            self._begin_next(ended_ns, ended_ns)
        self._look_again()

    def _heard(self, answers: LiveAnswers, request: PlannedRequest, record: RequestRecord) -> None:
        """Act on a decoded reply that later turns read."""
        answers.note_heard(request, (record.output_tokens or 0) - (record.reasoning_tokens or 0))
        assert record.finished_ns is not None
        ok = record.outcome in (Outcome.OK, Outcome.CUT_BY_USER)
        self._go_on(turn_of(request), record.finished_ns, ok=ok)

    def _decoded(self, record: RequestRecord) -> None:
        """Act on a decoded reply. A bad one cuts off its session, if anything of that is left to be sent."""
        if self._answers is None and record.outcome is Outcome.OK:
            return
        if self._answers is not None and (request := self._read.pop(record.index, None)) is not None:
            if self._dispatcher.halted is None and self._dispatcher.closed is None:
                self._heard(self._answers, request, record)
            return
        if record.outcome in (Outcome.OK, Outcome.CUT_BY_USER) or record.session is None:
            return
        if self._flow.cut(record.session) and self._slots:
            now_ns = self._clock.monotonic_ns()
            self._begin_next(now_ns, now_ns)
        self._supply.forget(record.session)
        self._look_again()

    def _look_again(self) -> None:
        """Wake the loop if something is due earlier than it sleeps until, or if nothing more will be."""
        if self._slots and not self._due and self._flow.unsent:
            return  # everything waits for ends, as sessions without pauses do
        goes_on = self._flow.unsent > 0 or not self._supply.exhausted
        next_ns = self._next_ns() if goes_on else None
        if goes_on and next_ns is None:
            return  # everything waits for ends
        self._changed.set()
        if self._sleeper is not None and (next_ns is None or next_ns < self._until_ns):
            self._sleeper.cancel()
