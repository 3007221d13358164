"""The sessions of a plan in virtual time: a session is begun as a whole, and its turns follow the ends of
earlier ones.

What the engine says stands where later turns read it. It generates lengths and has no words, so these are
random ones, the same each time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace

from pytest_llmbench.arrivals.sessions import (
    Due,
    LiveAnswers,
    SessionFlow,
    sessions_of,
    starts_ns,
    turn_of,
)
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.session import Turn
from pytest_llmbench.simulator.replay.records import InFlight
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.readable import readable_ids, starting_with_a_word
from pytest_llmbench.workloads.sequence import LoadDigest, passing
from pytest_llmbench.workloads.stream import derived_seed


class PlanSessions:
    """The plan's sessions in order, each with the requests that are its turns."""

    def __init__(self, plan: LoadPlan, digest: LoadDigest) -> None:
        self._sessions = sessions_of(passing(plan.workload, plan.first, plan.requests, plan.seed))
        self._next = next(self._sessions, None)
        self._digest = digest

    @property
    def exhausted(self) -> bool:
        return self._next is None

    @property
    def next_number(self) -> int:
        """The number of the next session in the sequence; ask ``exhausted`` before."""
        assert self._next is not None
        return turn_of(self._next[0]).session

    def take(self) -> tuple[PlannedRequest, ...]:
        """Take the next session; ask ``exhausted`` before."""
        taken, self._next = self._next, next(self._sessions, None)
        assert taken is not None
        for request in taken:
            self._digest.add(request)
        return taken

    def sha256(self) -> str:
        """SHA-256 of the sessions that were begun, those that were cut off with all their turns."""
        return self._digest.end()


class SessionArrivals:
    """Arrivals of sessions' turns: the start of a session is scheduled, or takes a slot that another has
    left; all that follows in it is caused by ends, as the client sees them."""

    def __init__(
        self, planned: PlanSessions, load: Load, seed: int, start_ns: int, to_engine_ns: int
    ) -> None:
        self._planned, self._load, self._start_ns = planned, load, start_ns
        self._flow, self._answers = SessionFlow(), LiveAnswers()
        self._due: list[Due] = []
        """Heap of the turns that are due."""
        self._to_engine_ns = to_engine_ns
        self._next_ns: int | None = None
        """Cached result of :meth:`next_ns`, which is asked at every step; known until something is sent or
        ends."""
        self._stopped = False
        self._starts_ns: Iterator[int] = iter(())
        self._next_start_ns: int | None = None
        if isinstance(load, ClosedLoop):
            for _ in range(load.concurrency):
                self._begin(start_ns)
        elif not planned.exhausted:
            self._starts_ns = starts_ns(load, planned.next_number, seed)
            self._next_start_ns = next(self._starts_ns)
        self._look()

    def all_sent(self, now_ns: int) -> bool:  # noqa: ARG002 - a closed loop of requests needs it
        return self._stopped or (self._planned.exhausted and not self._flow.unsent)

    def next_ns(self) -> int | None:
        return None if self._stopped else self._next_ns

    def _look(self) -> None:
        due = self._due
        while due and self._flow.is_cut(due[0].session):
            heapq.heappop(due)
        while (
            self._next_start_ns is not None
            and not self._planned.exhausted
            and (not due or self._start_ns + self._next_start_ns <= due[0].at_ns)
        ):
            self._begin(self._start_ns + self._next_start_ns)
            self._next_start_ns = next(self._starts_ns, None)
        self._next_ns = due[0].at_ns + self._to_engine_ns if due else None

    def take(self) -> InFlight:
        due = heapq.heappop(self._due)
        self._flow.take(due.session)
        self._look()
        planned = due.request
        if planned.reads_answers:
            planned = _with_ids(self._answers.asked(planned))
        return InFlight(planned, due.at_ns, due.at_ns + self._to_engine_ns)

    def stop(self) -> None:
        self._stopped = True

    def ended(self, flight: InFlight) -> None:
        ok = flight.outcome is Outcome.OK or flight.cut_ns is not None
        turn = turn_of(flight.planned)
        if turn.live:
            self._answers.note(turn, *_said(flight))
        after = self._flow.ended(turn, flight.finished_ns, ok=ok)
        for due in after.due:
            heapq.heappush(self._due, due)
        if after.over:
            self._answers.forget(turn.session)
        if after.over and self._load.in_flight is not None:
            self._begin(flight.finished_ns)
        self._look()

    def _begin(self, at_ns: int) -> None:
        if self._stopped or self._planned.exhausted:
            return
        for due in self._flow.begin(self._planned.take(), at_ns):
            heapq.heappush(self._due, due)


def _said(flight: InFlight) -> tuple[str, int]:
    """The visible answer to a turn that has ended, as far as its client had read it, and its number of
    tokens."""
    turn, tokens = flight.planned.turn, _visible_tokens(flight)
    assert turn is not None
    return _in_words(turn, tokens), tokens


def _with_ids(request: PlannedRequest) -> PlannedRequest:
    """A request whose messages have live answers, with the token ids that an engine would make of its
    texts."""
    from pytest_llmbench.workloads.trace_sessions import ids_of  # few sessions have live answers

    assert request.messages is not None
    ids = ids_of(request.messages)
    return replace(request, token_ids=ids, input_tokens=len(ids))


def _visible_tokens(flight: InFlight) -> int:
    sequence = flight.sequence
    if sequence is None:
        return 0
    read = flight.read_ns
    every = sequence.output_tokens - sequence.withheld_tokens if read is None else len(read)
    return max(0, every - sequence.think_tokens)


def _in_words(turn: Turn, tokens: int) -> str:
    if not tokens:
        return ""
    generator = BulkRandom(derived_seed(turn.session, f"answer to turn {turn.number}"))
    return reference_tokenizer().decode(starting_with_a_word(readable_ids(generator, tokens)).tolist())
