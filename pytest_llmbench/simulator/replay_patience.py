"""How long the virtual client waits: the deadlines of a plan, looked at only when one may have run out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from pytest_llmbench.model.plan import Deadlines
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.simulator.replay_flight import Flight
from pytest_llmbench.simulator.replay_load import Delays

_NEVER_NS = 2**63 - 1


class Patience:
    """Requests by age. The headers are read as soon as a request is accepted; then silence is counted."""

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
        self._silent: deque[Flight] = deque()
        """Without a token, and some that have one by now; oldest first."""
        self._open: deque[Flight] = deque()
        self.look_ns = _NEVER_NS
        """No deadline runs out before this instant."""

    def watch(self, flight: Flight) -> None:
        """A request has been accepted, later than those before it."""
        silent, still_open = self._silent, self._open
        while silent and not _waits(silent[0]):  # of those that ended nothing is kept
            silent.popleft()
        while still_open and still_open[0].finished_ns != MISSING:
            still_open.popleft()
        silent.append(flight)
        still_open.append(flight)
        self.look_ns = min(self.look_ns, flight.submitted_ns + self._shortest_ns)

    def overdue(self, now_ns: int) -> Iterator[tuple[Flight, int, str]]:
        """Who has to be given up, since when, and why. Each is to be ended before the next is asked for."""
        for flight in _taken(self._silent, now_ns - self._silence_ns, _waits):
            yield flight, flight.submitted_ns + self._silence_ns, self.silence_text
        for flight in _taken(self._open, now_ns - self._total_ns, _is_open):
            yield flight, flight.submitted_ns + self._total_ns, self._total_text
        fronts = [queue[0].submitted_ns for queue in (self._silent, self._open) if queue]
        self.look_ns = min(fronts) + self._shortest_ns if fronts else _NEVER_NS

    def given_up_ns(self, flight: Flight) -> int | None:
        """When a reply was given up that was held back on its way; ``None`` if it came quickly enough."""
        read_ns = flight.read_ns
        if read_ns is None or len(read_ns) == 0:
            return None
        silent = np.flatnonzero(np.diff(read_ns) >= self._between_ns)
        return int(read_ns[silent[0]]) + self._between_ns if len(silent) else None

    def drain_is_over(self, now_ns: int, last_ns: int) -> bool:
        """``last_ns``: when the last flight was submitted."""
        return now_ns >= last_ns + self._drain_ns


def _taken(
    queue: deque[Flight], submitted_until_ns: int, concerned: Callable[[Flight], bool]
) -> Iterator[Flight]:
    """Take what is overdue from the front of ``queue``, dropping what is not concerned any more."""
    while queue:
        flight = queue[0]
        if concerned(flight):
            if flight.submitted_ns > submitted_until_ns:
                return
            yield flight
        queue.popleft()


def _is_open(flight: Flight) -> bool:
    return not flight.ended


def _waits(flight: Flight) -> bool:
    """Has no token yet. A later silence is a few steps long, and no deadline is that short."""
    return not flight.ended and flight.sequence is not None and flight.sequence.first_step is None


__all__ = ["Patience"]
