"""The load generator's part of a replay, as arithmetic: the arrival of requests, the client's deadlines, and
what a client makes of a fault.

The generator's end of the wire is a constant: a request is received ``submit_to_received_us`` after it was
submitted, and what the engine writes is read ``write_to_read_us`` later. Nothing is ever late.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pytest_llmbench.arrivals.schedule import arrival_seed, offsets_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.records import MISSING, IntColumn
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.engine.faults import FaultKind, FaultOptions
from pytest_llmbench.simulator.replay.records import InFlight
from pytest_llmbench.workloads.sequence import LoadDigest, drawn
from pytest_llmbench.workloads.stream import StreamedWorkload

if TYPE_CHECKING:
    from pytest_llmbench.simulator.replay.sessions import PlanSessions

AT_ONCE = 8192
"""Maximum number of requests that are drawn together."""
TOKENS_AT_ONCE = 8_000_000
"""Approximate maximum of their prompts' tokens (32 MB as ids): 8192 long prompts would be gigabytes."""
_FIRST = 64


class PlanRequests:
    """The plan's requests in order, to be taken one by one, and which of them were taken.

    They are drawn a slice at a time: a long plan has no room for all of them, and a closed loop with a
    duration may send ``plan.ceiling`` requests and mostly sends far fewer. Each further slice is as long as
    all before it, up to :data:`AT_ONCE` and about :data:`TOKENS_AT_ONCE`.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._most = plan.most_requests
        self._slice: Sequence[PlannedRequest] = ()
        self._slice_start = 0
        self._drawn = self._tokens = 0
        self.taken = 0
        self._digest = _digest_of(plan)
        self._draw(
            min(plan.requests, _FIRST) if isinstance(plan.workload, StreamedWorkload) else plan.requests
        )

    @property
    def exhausted(self) -> bool:
        """Whether there are no more requests; a workload of ours never ends before the plan does."""
        if self.taken < self._drawn:
            return False
        if self.taken < self._most:
            fitting = TOKENS_AT_ONCE * self.taken // max(self._tokens, 1)
            self._draw(min(max(self.taken, _FIRST), AT_ONCE, max(fitting, 1)))
        return self.taken >= self._drawn

    def __len__(self) -> int:
        """Maximum number of requests."""
        return self._most

    def take(self) -> PlannedRequest:
        """Take the next request; ask ``exhausted`` before."""
        request = self._slice[self.taken - self._slice_start]
        self.taken += 1
        self._digest.add(request)
        return request

    def sha256(self) -> str:
        """SHA-256 of the requests that were taken, in appendix A.1.4's format; ask for it when no more are
        taken."""
        return self._digest.end()

    def _draw(self, count: int) -> None:
        start, plan = self._drawn, self._plan
        count = min(count, self._most - start)
        self._slice, self._slice_start = drawn(plan.workload, plan.first + start, count, plan.seed), start
        self._drawn = start + len(self._slice)
        self._tokens += sum(request.input_tokens for request in self._slice)
        if len(self._slice) < count:
            self._most = self._drawn


def _digest_of(plan: LoadPlan) -> LoadDigest:
    return LoadDigest(plan.workload, plan.seed, plan.first, follows=plan.phase is Phase.MEASURE)


def planned_of(plan: LoadPlan) -> PlanRequests | PlanSessions:
    """The requests or sessions that the plan is to send."""
    if not plan.load.of_sessions:
        return PlanRequests(plan)
    from pytest_llmbench.simulator.replay.sessions import PlanSessions  # few loads are of sessions

    return PlanSessions(plan, _digest_of(plan))


_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Delays:
    """Constant delays of client and network in microseconds, the same for every request."""

    submit_to_received_us: float = 25.0
    """Microseconds from the last byte of a request until the engine has read it."""
    write_to_read_us: float = 25.0
    """Microseconds from a write of the engine to the client's read."""

    def __post_init__(self) -> None:
        for name in ("submit_to_received_us", "write_to_read_us"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise SuiteError(f"{name} is {value:g}; it has to be 0 or more", where="replay")

    @property
    def to_engine_ns(self) -> int:
        return round(self.submit_to_received_us * 1000.0)

    @property
    def to_client_ns(self) -> int:
        return round(self.write_to_read_us * 1000.0)


class Arrivals(Protocol):
    """Requests on their way to the engine, in the order in which they arrive."""

    def all_sent(self, now_ns: int) -> bool:
        """Whether nothing is left to be sent, now or after further ends."""

    def next_ns(self) -> int | None:
        """The instant at which the next request arrives; None while none is on its way."""

    def take(self) -> InFlight:
        """Take the next request, as a flight."""

    def ended(self, flight: InFlight) -> None:
        """Note that a request has ended, in whatever way."""

    def stop(self) -> None:
        """Send nothing more."""


class ScheduledArrivals:
    """Open loop: requests are sent by schedule, whatever becomes of earlier ones (section 4.2)."""

    def __init__(self, planned: PlanRequests, offsets_ns: IntColumn, start_ns: int, delays: Delays) -> None:
        self._planned = planned
        self._offsets_ns, self._start_ns = offsets_ns, start_ns
        self._due_ns: list[int] = []
        """Due instants of some requests from ``_slice`` on, as Python's numbers: a long plan has no room for
        all."""
        self._slice = 0
        self._to_engine_ns = delays.to_engine_ns
        self._next = 0
        self._end = len(planned)

    def all_sent(self, now_ns: int) -> bool:  # noqa: ARG002 - a closed loop needs it
        return self._next == self._end or self._planned.exhausted

    def next_ns(self) -> int | None:
        if self._next == self._end or self._planned.exhausted:
            return None
        return self._due() + self._to_engine_ns

    def take(self) -> InFlight:
        due_ns = self._due()
        flight = InFlight(self._planned.take(), due_ns, due_ns + self._to_engine_ns)
        self._next += 1
        return flight

    def stop(self) -> None:
        self._end = self._next

    def ended(self, flight: InFlight) -> None:
        """Do nothing: that is what makes the loop an open one."""

    def _due(self) -> int:
        place = self._next - self._slice
        if place >= len(self._due_ns):
            self._slice, place = self._next, 0
            own = self._offsets_ns[self._next : self._next + _AT_ONCE]
            self._due_ns = (own + self._start_ns).tolist()
        return self._due_ns[place]


class SlotArrivals:
    """Closed loop: ``concurrency`` requests in flight; the end of each, as the client sees it, sends the
    next.

    With ``last_ns`` a slot that is free from that instant on sends only while fewer than ``least`` were sent.
    """

    def __init__(
        self,
        planned: PlanRequests,
        concurrency: int,
        start_ns: int,
        delays: Delays,
        *,
        least: int = 0,
        last_ns: int | None = None,
    ) -> None:
        self._planned = planned
        self._to_engine_ns = delays.to_engine_ns
        self._least, self._last_ns = least, last_ns
        self._free_ns = [start_ns] * min(concurrency, len(planned))
        """Heap of the instants from which a slot is free: ends are reported step by step, but deadlines run
        out in between."""
        self._stopped = False

    def all_sent(self, now_ns: int) -> bool:
        if self._stopped or self._planned.exhausted:
            return True
        if self._last_ns is None or self._planned.taken < self._least:
            return False
        return now_ns >= self._last_ns and self.next_ns() is None

    def next_ns(self) -> int | None:
        if not self._free_ns or self._stopped or self._planned.exhausted:
            return None
        free_ns = self._free_ns[0]
        if self._last_ns is not None and free_ns >= self._last_ns and self._planned.taken >= self._least:
            return None
        return free_ns + self._to_engine_ns

    def take(self) -> InFlight:
        due_ns = heapq.heappop(self._free_ns)
        return InFlight(self._planned.take(), due_ns, due_ns + self._to_engine_ns)

    def stop(self) -> None:
        self._stopped = True

    def ended(self, flight: InFlight) -> None:
        heapq.heappush(self._free_ns, flight.finished_ns)


def arrivals_of(
    plan: LoadPlan, planned: PlanRequests | PlanSessions, start_ns: int, delays: Delays
) -> Arrivals:
    """The plan's load from ``start_ns`` on. Raises SuiteError for one that cannot be run."""
    load = plan.load
    if load.of_sessions:
        from pytest_llmbench.simulator.replay.sessions import PlanSessions, SessionArrivals

        assert isinstance(planned, PlanSessions)
        return SessionArrivals(planned, load, arrival_seed(plan.schedule_seed), start_ns, delays.to_engine_ns)
    assert isinstance(planned, PlanRequests)
    if isinstance(load, ClosedLoop):
        if load.concurrency < 1:
            raise SuiteError(f"concurrency is {load.concurrency}, least is 1", where=plan.label)
        if plan.duration_s is None:
            return SlotArrivals(planned, load.concurrency, start_ns, delays)
        last_ns = start_ns + round(plan.duration_s * 1e9)
        return SlotArrivals(planned, load.concurrency, start_ns, delays, least=plan.requests, last_ns=last_ns)
    return ScheduledArrivals(planned, offsets_ns(plan, load), start_ns, delays)


STRIKES: dict[FaultKind, tuple[Outcome, str]] = {
    "in_band_error": (Outcome.IN_BAND_ERROR, "an error inside the stream (a fault of the scenario)"),
    "reset": (Outcome.DISCONNECTED, "the connection was reset (a fault of the scenario)"),
    "half_close": (Outcome.DISCONNECTED, "the connection was closed (a fault of the scenario)"),
    "crash": (Outcome.DISCONNECTED, "the connection was reset (a fault of the scenario: crash)"),
    "truncate": (Outcome.TRUNCATED, "the stream ended without a terminal event (a fault of the scenario)"),
}
"""Faults that end a reply in mid-stream, with the outcome and the error that the client records."""
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
        self.silence_text = (
            f"the stream fell silent within {limits.between_chunks_s:g} s (between-chunks deadline)"
        )
        self._total_text = f"the response was not complete within {limits.total_s:g} s (total deadline)"
        self.drain_text = f"not complete {limits.drain_s:g} s after the last submission (drain deadline)"
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
        for flight in _taken(self._open, now_ns - self._total_ns, _is_open):
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


def _is_open(flight: InFlight) -> bool:
    return not flight.ended


def _waits(flight: InFlight) -> bool:
    """Whether the flight has no token yet. A later silence is a few steps long, and no deadline is that
    short."""
    sequence = flight.sequence
    if flight.finished_ns != MISSING or sequence is None:
        return False
    return sequence.first_step is None or sequence.hands_over
