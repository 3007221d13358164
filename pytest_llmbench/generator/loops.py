"""The load loop: jobs start by a schedule or by slots (section 4.2), and turns follow the ends before them.

Open: jobs start when the schedule says so, whatever became of earlier ones; it is absolute, so one late send
does not shift the next. With a cap a request that arrives while so many are in flight is due at the end that
makes place for it. Closed: a fixed number is in flight; each end, success or not, is replaced at once.

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus

from pytest_llmbench.arrivals import Due, LiveAnswers, SessionFlow, turn_of
from pytest_llmbench.generator.dispatcher import Dispatcher
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.prepared import PreparedJobs, PreparedRequest
from pytest_llmbench.model.numbers import quantity, trimmed
from pytest_llmbench.model.observation import BEHIND_SCHEDULE
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.request import PlannedRequest, Turn
from pytest_llmbench.timing import Alarm, Clock

_AT_ONCE = 16
_ERRORS_FROM = int(HTTPStatus.BAD_REQUEST)
"""An integer, since looking up a member of an enumeration costs a function call in Python at every end."""


class BehindScheduleError(Exception):
    """The schedule cannot be kept any more: this process stood still, or cannot send as fast as that."""


class Pacer:
    """Sleeps to shortly before the instant, then yields again and again, so that reads go on being stamped.

    Never spins: a spin in the thread that receives would add to every latency that it measures.
    """

    def __init__(self, clock: Clock, alarm: Alarm, *, most_behind_ns: int | None = None) -> None:
        self._clock = clock
        self._alarm = alarm
        self._most_behind_ns = most_behind_ns

    async def until(self, instant_ns: int) -> None:
        """Return at ``instant_ns`` or just after it. One that has passed costs one yield, so that catching up
        with a late schedule does not starve the reads. Raises BehindScheduleError for one that has passed by
        more than ``most_behind_ns``."""
        early = instant_ns - self._alarm.slack_ns
        if self._clock.monotonic_ns() < early:
            await self._alarm.sleep_until(early)
        await self._clock.sleep(0)
        while (now_ns := self._clock.monotonic_ns()) < instant_ns:
            await self._clock.sleep(0)
        limit_ns = self._most_behind_ns
        if limit_ns is not None and now_ns - instant_ns > limit_ns:
            raise BehindScheduleError(
                f"the load generator was {quantity((now_ns - instant_ns) / 1e9, 's')} {BEHIND_SCHEDULE}, "
                f"more than {trimmed(limit_ns / 1e9)} s: it stood still, or cannot send at this rate (free "
                "its cores, lower the rate, or give more --llm-workers)"
            )


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a closed loop of requests goes: at least ``requests``, and on until ``duration_s`` has passed.

    The requests that there are to send are its ceiling. One that fails at once is replaced at once, so a
    server that refuses everything is asked as fast as it refuses, but no longer and no more often than that.
    """

    requests: int
    duration_s: float


class JobLoop:
    """Runs one load: decides which jobs start and which turns are due, what to encode ahead, and what follows
    from each end.

    A request of its own goes a short way: what has to be known of a session's turns is not asked for it.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        supply: PreparedJobs,
        pacer: Pacer,
        clock: Clock,
        start_ns: int,
        *,
        slots: int = 0,
        starts_ns: Iterator[int],
        most_in_flight: int | None = None,
        of_sessions: bool = False,
        extent: Extent | None = None,
        answers: LiveAnswers | None = None,
    ) -> None:
        """``slots``: how many jobs run at once; 0: they start at ``starts_ns``, in nanoseconds from
        ``start_ns``. ``most_in_flight``: the cap of an open loop. ``extent``: None: all jobs are begun.
        ``answers``: the live answers that turns read; None where they read none."""
        self._dispatcher, self._supply = dispatcher, supply
        self._pacer, self._clock, self._start_ns = pacer, clock, start_ns
        self._slots, self._starts_ns, self._of_sessions = slots, starts_ns, of_sessions
        self._extent = extent
        self._last_ns = start_ns + round(extent.duration_s * 1e9) if extent is not None else 0
        """The instant from which on no more is sent than the extent asks for."""
        self._ended_ns: int | None = None
        self._flow, self._answers = SessionFlow(), answers
        self._free_ns = None if most_in_flight is None else deque([start_ns] * most_in_flight)
        """The instants from which the free places under the cap are free, the first one first; None: there is
        no cap."""
        self._waiting: PreparedRequest | None = None
        """The next request of an open loop of requests."""
        self._due: list[Due] = []
        """Turns that are due, now or later, as a heap."""
        self._read: dict[int, PlannedRequest] = {}
        """Requests in flight whose answers later turns read, by index."""
        self._changed = asyncio.Event()
        self._sleeper: asyncio.Task[None] | None = None
        self._until_ns = self._last_start_ns = start_ns
        """The instant that the loop sleeps until; in an open loop, the start of the last job that was
        begun."""

    async def run(self) -> int:
        """Send every request when it is due. Returns when no more will be sent, while the last ones are still
        in flight, with the instant of that: the end of the duration, or the last submission where that had to
        come later or nothing is left to send. Raises BehindScheduleError as :meth:`Pacer.until` does."""
        if self._of_sessions:
            self._dispatcher.then, self._dispatcher.decoded = self._ended, self._decoded
        elif self._slots:
            self._dispatcher.then = self._replace
        elif self._free_ns is not None:
            self._dispatcher.then = self._free
        timer = None
        if self._extent is not None:
            ahead_s = max(0, self._last_ns - self._clock.monotonic_ns()) / 1e9
            timer = asyncio.get_running_loop().call_later(ahead_s, self._ring)
        try:
            if not self._slots:
                self._begin_next(self._start_ns)
            for slot in range(self._slots):
                self._begin_next(self._start_ns, self._start_ns)
                if slot % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)  # lets the first answers be read
            while (alone := self._waiting) is not None:  # nothing else can become due in the meantime
                due_ns = self._last_start_ns
                if (free_ns := self._free_ns) is not None:
                    while not free_ns:
                        self._changed.clear()
                        await self._changed.wait()
                    due_ns = max(due_ns, free_ns.popleft())
                await self._pacer.until(due_ns)
                self._waiting = None
                self._send_alone(alone, due_ns)
                self._begin_next(self._start_ns)
            while self._goes_on:
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
            self._supply.drop()
            if self._sleeper is not None:
                self._sleeper.cancel()
            if timer is not None:
                timer.cancel()
        return self._clock.monotonic_ns() if self._ended_ns is None else self._ended_ns

    @property
    def _goes_on(self) -> bool:
        return self._flow.unsent > 0 or not self._supply.exhausted

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

    def _send_alone(self, request: PreparedRequest, due_ns: int) -> None:
        self._dispatcher.dispatch(request, due_ns)
        if self._supply.lacks:
            self._supply.top_up()
        now_ns = self._clock.monotonic_ns()
        if self._supply.exhausted or self._is_enough(now_ns):
            self._finish(now_ns)

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
        """Begin a job: in an open loop ahead of its start, so that its first request is encoded by then.

        ``now_ns``: what is due by then is sent; by default all waits for the loop.
        """
        if self._supply.exhausted:
            return
        if self._is_enough(at_ns):
            self._finish(self._last_ns)
            return
        if not self._slots:
            at_ns = self._last_start_ns = at_ns + next(self._starts_ns)
        job = self._supply.take()
        if not isinstance(job, PreparedRequest):
            self._take_up(self._flow.begin(job, at_ns), now_ns)
        elif at_ns > now_ns:
            self._waiting = job
        else:
            self._send_alone(job, at_ns)

    def _replace(self, ended: Exchange) -> None:
        """Send the next request in the slot of one that has ended: it is due at that instant."""
        self._begin_next(ended.finished_ns, ended.finished_ns)

    def _free(self, ended: Exchange) -> None:
        assert self._free_ns is not None
        self._free_ns.append(ended.finished_ns)
        self._changed.set()

    def _ring(self) -> None:
        if self._is_enough(self._last_ns):
            self._finish(self._last_ns)

    def _is_enough(self, at_ns: int) -> bool:
        extent = self._extent
        return extent is not None and at_ns >= self._last_ns and self._dispatcher.submitted >= extent.requests

    def _finish(self, at_ns: int) -> None:
        if self._ended_ns is None:
            self._ended_ns = at_ns
            self._supply.drop()
            self._changed.set()

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

    def _decoded(self, record: RequestRecord) -> None:
        """Act on a decoded reply. A bad one cuts off its session, if anything of that is left to be sent."""
        if self._answers is None and record.outcome is Outcome.OK:
            return
        if self._answers is not None and (request := self._read.pop(record.index, None)) is not None:
            if self._dispatcher.halted is None and self._dispatcher.closed is None:
                self._answers.note_kept(request, (record.output_tokens or 0) - (record.reasoning_tokens or 0))
                assert record.finished_ns is not None
                ok = record.outcome in (Outcome.OK, Outcome.CUT_BY_USER)
                self._go_on(turn_of(request), record.finished_ns, ok=ok)
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
        goes_on = self._goes_on
        next_ns = self._next_ns() if goes_on else None
        if goes_on and next_ns is None:
            return  # everything waits for ends
        self._changed.set()
        if self._sleeper is not None and (next_ns is None or next_ns < self._until_ns):
            self._sleeper.cancel()
