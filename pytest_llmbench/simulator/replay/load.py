"""The load generator's part of a replay, as arithmetic: its delays, when what is sent, the client's
deadlines, and what a client makes of a fault.

The generator's end of the wire is a constant: a request is received ``submit_to_received_us`` after it was
submitted, and what the engine writes is read ``write_to_read_us`` later. Nothing is ever late.

What the engine says stands where later turns of a session read it. It generates lengths and has no words, so
these are random ones, the same each time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_llmbench.arrivals import Due, LiveAnswers, SessionFlow, sessions_of, starts_ns, turn_of
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.plan import Deadlines, LoadPlan
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.records import MISSING, IntColumn
from pytest_llmbench.model.request import PlannedRequest, Turn
from pytest_llmbench.simulator.engine.config import out_of_range, ranges_of
from pytest_llmbench.simulator.engine.faults import FaultKind, FaultOptions
from pytest_llmbench.simulator.replay.records import InFlight
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.readable import readable_ids, starting_with_a_word
from pytest_llmbench.workloads.sequence import LoadDigest, passing
from pytest_llmbench.workloads.stream import BulkRandom, derived_seed


@dataclass(frozen=True, slots=True)
class Delays:
    """Constant delays of client and network in microseconds, the same for every request."""

    submit_to_received_us: float = 25.0
    """Microseconds from the last byte of a request until the engine has read it."""
    write_to_read_us: float = 25.0
    """Microseconds from a write of the engine to the client's read."""

    def __post_init__(self) -> None:
        if mistakes := out_of_range(self, ranges_of(Delays, {})):
            raise SuiteError.from_mistakes(mistakes, where="replay")

    @property
    def to_engine_ns(self) -> int:
        return round(self.submit_to_received_us * 1000.0)

    @property
    def to_client_ns(self) -> int:
        return round(self.write_to_read_us * 1000.0)


class PlannedJobs:
    """The plan's jobs in order, to be taken one by one: requests, or sessions, each with the requests that
    are its turns. They are drawn as they are taken: a long plan has no room for all of them."""

    def __init__(self, plan: LoadPlan) -> None:
        requests = passing(plan.workload, plan.first, plan.most_requests, plan.seed)
        self._jobs: Iterator[Sequence[PlannedRequest]] = (
            sessions_of(requests) if plan.load.of_sessions else ((request,) for request in requests)
        )
        self._next = next(self._jobs, None)
        self.taken = 0
        """Number of requests that were taken."""
        self._digest = LoadDigest(plan.workload, plan.seed, plan.first, follows=plan.phase is Phase.MEASURE)

    @property
    def exhausted(self) -> bool:
        """Whether there are no more jobs; a workload of ours never ends before the plan does."""
        return self._next is None

    @property
    def first_session(self) -> int:
        """The number of the next session in the sequence; 0 where jobs are requests, or none is left."""
        turn = None if self._next is None else self._next[0].turn
        return 0 if turn is None else turn.session

    def take(self) -> Sequence[PlannedRequest]:
        """Take the next job; ask ``exhausted`` before."""
        job, self._next = self._next, next(self._jobs, None)
        assert job is not None
        for request in job:
            self._digest.add(request)
        self.taken += len(job)
        return job

    def sha256(self) -> str:
        """SHA-256 of the requests that were taken, in appendix A.1.4's format; of sessions that were cut off
        with all their turns. Ask for it when no more are taken."""
        return self._digest.end()


class Arrivals:
    """Requests on their way to the engine, in the order in which they arrive.

    In a closed loop with a duration a slot that is free from the end of it on sends only while fewer requests
    than the plan's were sent.
    """

    def __init__(self, plan: LoadPlan, jobs: PlannedJobs, start_ns: int, to_engine_ns: int) -> None:
        """``start_ns``: the start of the load. ``to_engine_ns``: the time from the submission of a request
        until the engine has it."""
        self._jobs, self._to_engine_ns = jobs, to_engine_ns
        self._of_sessions, slots = plan.load.of_sessions, plan.load.in_flight
        self._closed, self._start_ns = slots is not None, start_ns
        self._flow, self._answers = SessionFlow(), LiveAnswers()
        self._due: list[Due] = []
        """Heap of the turns that are due."""
        timed_s = plan.duration_s if self._closed else None
        self._last_ns = None if timed_s is None else start_ns + round(timed_s * 1e9)
        self._least = plan.requests
        self._stopped = False
        self._schedule = starts_ns(plan, jobs.first_session)
        self._free_ns = [start_ns] * min(slots or 0, plan.most_requests)
        """Heap of the instants at which a job may start: of a closed loop those from which a slot is free,
        since ends are reported step by step, but deadlines run out in between; of an open loop the next
        one."""
        capped = plan.load.most_in_flight
        self._places_ns = None if capped is None else [start_ns] * capped
        """Heap of the instants from which the places under a cap of an open loop are free; None: no cap."""
        self._schedule_next()
        self._next_ns: int | None = None
        """Cached result of :meth:`next_ns`, which is asked at every step; known until something is sent or
        ends."""
        self._look()

    def all_sent(self, now_ns: int) -> bool:
        """Whether nothing is left to be sent, now or after further ends."""
        if self._stopped or self._jobs.exhausted:
            return self._stopped or not self._flow.unsent
        if self._last_ns is None or self._jobs.taken < self._least:
            return False
        return now_ns >= self._last_ns and self._next_ns is None

    def next_ns(self) -> int | None:
        """The instant at which the next request arrives; None while none is on its way."""
        return None if self._stopped else self._next_ns

    def take(self) -> InFlight:
        """Take the next request, as a flight."""
        if not self._of_sessions:
            due_ns = heapq.heappop(self._free_ns)
            if self._places_ns is not None:
                due_ns = max(due_ns, heapq.heappop(self._places_ns))
            (request,) = self._jobs.take()
            self._schedule_next()
        else:
            due_ns, _, request, session = heapq.heappop(self._due)
            self._flow.take(session)
        self._look()
        if self._of_sessions and request.reads_answers:
            from pytest_llmbench.workloads.trace_sessions import ids_of  # few sessions have live answers

            request = self._answers.asked(request)
            assert request.messages is not None
            ids = ids_of(request.messages)
            request = replace(request, token_ids=ids, input_tokens=len(ids))
        return InFlight(request, due_ns, due_ns + self._to_engine_ns)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def ended(self, flight: InFlight) -> None:
        """Note that a request has ended, in whatever way, as its client sees it."""
        over = True
        if self._of_sessions:
            ok = flight.outcome is Outcome.OK or flight.cut_ns is not None
            turn = turn_of(flight.planned)
            if turn.live:
                self._answers.note(turn, *_visible_answer(flight, turn))
            after = self._flow.ended(turn, flight.finished_ns, ok=ok)
            for due in after.due:
                heapq.heappush(self._due, due)
            if over := after.over:
                self._answers.forget(turn.session)
        elif self._places_ns is not None:
            heapq.heappush(self._places_ns, flight.finished_ns)
        elif not self._closed:
            return
        if over and self._closed:
            heapq.heappush(self._free_ns, flight.finished_ns)
        self._look()

    def _schedule_next(self) -> None:
        for start_ns in self._schedule:
            self._free_ns.append(self._start_ns + start_ns)
            return

    def _look(self) -> None:
        """Begin the sessions that may start, and find the next request."""
        if not self._of_sessions:
            start_ns = self._next_start_ns()
            self._next_ns = None if start_ns is None else start_ns + self._to_engine_ns
            return
        due = self._due
        while due and self._flow.is_cut(due[0].session):
            heapq.heappop(due)
        while (start_ns := self._next_start_ns()) is not None and (
            self._closed or not due or start_ns <= due[0].at_ns
        ):
            heapq.heappop(self._free_ns)
            self._schedule_next()
            if not self._stopped:
                for turn in self._flow.begin(self._jobs.take(), start_ns):
                    heapq.heappush(due, turn)
        self._next_ns = due[0].at_ns + self._to_engine_ns if due else None

    def _next_start_ns(self) -> int | None:
        if not self._free_ns or self._jobs.exhausted:
            return None
        start_ns = self._free_ns[0]
        if self._places_ns is not None:
            return max(start_ns, self._places_ns[0]) if self._places_ns else None
        if self._last_ns is not None and start_ns >= self._last_ns and self._jobs.taken >= self._least:
            return None
        return start_ns


def _visible_answer(flight: InFlight, turn: Turn) -> tuple[str, int]:
    """The visible answer to a turn that has ended, as far as its client had read it, and its number of
    tokens."""
    sequence, read = flight.sequence, flight.read_ns
    if sequence is None:
        return "", 0
    every = sequence.output_tokens - sequence.withheld_tokens if read is None else len(read)
    tokens = every - sequence.think_tokens
    if tokens <= 0:
        return "", 0
    generator = BulkRandom(derived_seed(turn.session, f"answer to turn {turn.number}"))
    words = starting_with_a_word(readable_ids(generator, tokens))
    return reference_tokenizer().decode(words.tolist()), tokens


DELAYS: frozenset[FaultKind] = frozenset({"stall", "buffering"})
"""Faults that only hold chunks back."""


def delayed(read_ns: IntColumn, kind: FaultKind, options: FaultOptions) -> IntColumn:
    """The instants at which the chunks of a reply are read if its stream stalls or goes through a buffering
    proxy."""
    if kind == "buffering":
        return np.full_like(read_ns, read_ns[-1])
    after = min(options.fault_after_tokens, len(read_ns))
    since_ns = read_ns[max(after - 1, 0)]
    late = np.maximum(read_ns[after:], since_ns + round(options.stall_ms * 1e6))
    return np.concatenate((read_ns[:after], late))


_NEVER_NS = 2**63 - 1


class ClientDeadlines:
    """The client's deadlines for requests by age. The headers are read as soon as a request is accepted; then
    silence is counted."""

    def __init__(self, limits: Deadlines, delays: Delays) -> None:
        self._silence_ns = round(limits.between_chunks_s * 1e9) + delays.to_engine_ns + delays.to_client_ns
        self._total_ns, self._drain_ns = round(limits.total_s * 1e9), round(limits.drain_s * 1e9)
        self._between_ns = round(limits.between_chunks_s * 1e9)
        self._shortest_ns = min(self._silence_ns, self._total_ns, self._drain_ns)
        silence, total, drain = (
            f"{trimmed(each)} s" for each in (limits.between_chunks_s, limits.total_s, limits.drain_s)
        )
        self.silence_text = f"the stream fell silent within {silence} (between-chunks deadline)"
        self._total_text = f"the response was not complete within {total} (total deadline)"
        self.drain_text = f"not complete {drain} after the last submission (drain deadline)"
        self._silent: deque[InFlight] = deque()
        """Requests without a token, and some that have one by now; oldest first."""
        self._open: deque[InFlight] = deque()
        self.look_ns = _NEVER_NS
        """Instant before which no deadline runs out."""

    def watch(self, flight: InFlight) -> None:
        """Watch a request that has been accepted later than those before it."""
        silent, still_open = self._silent, self._open
        while silent and not _waits(silent[0]):  # of those that ended nothing is kept
            silent.popleft()
        while still_open and still_open[0].finished_ns != MISSING:
            still_open.popleft()
        silent.append(flight)
        still_open.append(flight)
        look_ns = flight.submitted_ns + self._shortest_ns
        if look_ns < self.look_ns:
            self.look_ns = look_ns

    def overdue(self, now_ns: int) -> Iterator[tuple[InFlight, int, str]]:
        """The requests that have to be given up, each with the instant of the deadline and the reason.

        Each is to be ended before the next is asked for.
        """
        for flight in _taken(self._silent, now_ns - self._silence_ns, _waits):
            yield flight, flight.submitted_ns + self._silence_ns, self.silence_text
        for flight in _taken(self._open, now_ns - self._total_ns, lambda flight: not flight.ended):
            yield flight, flight.submitted_ns + self._total_ns, self._total_text
        fronts = [queue[0].submitted_ns for queue in (self._silent, self._open) if queue]
        self.look_ns = min(fronts) + self._shortest_ns if fronts else _NEVER_NS

    def given_up_ns(self, flight: InFlight) -> int | None:
        """Instant at which a reply that was held back on its way was given up; ``None`` if it came quickly
        enough."""
        read_ns = flight.read_ns
        if read_ns is None or len(read_ns) == 0 or read_ns[-1] - read_ns[0] < self._between_ns:
            return None
        silent = np.flatnonzero(np.diff(read_ns) >= self._between_ns)
        return int(read_ns[silent[0]]) + self._between_ns if len(silent) else None

    def drain_is_over(self, now_ns: int, last_ns: int) -> bool:
        """Whether the time for draining is over. ``last_ns``: when the last flight was submitted."""
        return now_ns >= last_ns + self._drain_ns


def _taken(
    queue: deque[InFlight], submitted_until_ns: int, concerned: Callable[[InFlight], bool]
) -> Iterator[InFlight]:
    """Take what is overdue from the front of ``queue``, and drop the flights that are no longer
    ``concerned``."""
    while queue:
        flight = queue[0]
        if concerned(flight):
            if flight.submitted_ns > submitted_until_ns:
                return
            yield flight
        queue.popleft()


def _waits(flight: InFlight) -> bool:
    """Whether the flight has no token yet. A later silence is a few steps long, and no deadline is that
    short."""
    sequence = flight.sequence
    if flight.finished_ns != MISSING or sequence is None:
        return False
    return sequence.first_step is None or sequence.hands_over
