"""The offset of another machine's monotonic clock from ours, its error (section 4.7), and records shifted
by it.

A round trip brackets one reading of the other clock between two of ours, so

    offset = (sent + received) / 2 - theirs   [ns],   known to ± (received - sent) / 2.

The trip with the shortest way counts alone: delays only add to the others, and rarely alike in both
directions. Offsets are measured before a plan and after it, never while load is running; in between the
clocks are taken to part at a constant rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.columns import RecordLog
from pytest_llmbench.generator.workers.protocol import Done
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.record import Instant, RequestRecord, of_kind
from pytest_llmbench.model.records import MISSING, Records

Instants = npt.NDArray[np.int64]

WORST_ERROR_NS = 10_000_000
"""The draft's limit for clocks of different machines (4.7.2)."""
WORST_DRIFT_PPM = 1_000.0
"""Two clocks that are each slewed as fast as an NTP daemon may, in opposite directions. More is a jump."""
_GOOD_NS = 250_000
_FEWEST_TRIPS = 8
_MOST_TRIPS = 40


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One reading of the other clock, between two of ours."""

    sent_ns: int
    theirs_ns: int
    received_ns: int

    @property
    def rtt_ns(self) -> int:
        return self.received_ns - self.sent_ns


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset that has to be added to the other clock's readings."""

    offset_ns: int
    error_ns: int
    """The offset is within this of the truth: half the round trip."""
    at_ns: int
    """The instant of the reading, on our clock."""
    trips: int
    """Round trips made; 0 where both read one clock."""

    @classmethod
    def of(cls, trips: Sequence[RoundTrip]) -> ClockOffset:
        """The offset by the round trip with the shortest way."""
        best = min(trips, key=lambda trip: trip.rtt_ns)
        middle_ns = best.sent_ns + best.rtt_ns // 2
        return cls(middle_ns - best.theirs_ns, (best.rtt_ns + 1) // 2, middle_ns, len(trips))

    @classmethod
    def shared(cls, at_ns: int) -> ClockOffset:
        """The offset of one clock against itself."""
        return cls(0, 0, at_ns, 0)


@dataclass(frozen=True, slots=True)
class ClockLine:
    """The conversion of the other clock's instants to ours, from the offsets at two instants, linear between
    them."""

    start: ClockOffset
    end: ClockOffset

    @property
    def drift(self) -> float:
        """Change of the offset per nanosecond of our clock; 0 where nothing lies between the two."""
        apart_ns = self.end.at_ns - self.start.at_ns
        return (self.end.offset_ns - self.start.offset_ns) / apart_ns if apart_ns > 0 else 0.0

    @property
    def error_ns(self) -> int:
        """Bound of the error between the two offsets."""
        return max(self.start.error_ns, self.end.error_ns)

    @property
    def jumped(self) -> bool:
        """Whether the offset changed by more than any steady clocks' could, errors allowed for."""
        moved_ns = abs(self.end.offset_ns - self.start.offset_ns)
        apart_ns = max(0, self.end.at_ns - self.start.at_ns)
        return moved_ns > self.start.error_ns + self.end.error_ns + WORST_DRIFT_PPM * 1e-6 * apart_ns

    def since_start(self) -> ClockLine:
        """What is left to be added to instants that have the offset at the start already."""
        moved_ns = self.end.offset_ns - self.start.offset_ns
        return ClockLine(replace(self.start, offset_ns=0), replace(self.end, offset_ns=moved_ns))

    @property
    def same(self) -> bool:
        """Whether nothing has to be added."""
        return self.start.offset_ns == self.end.offset_ns == 0

    def ours(self, theirs_ns: int) -> int:
        """Our clock's reading at one instant of theirs."""
        since_ns = theirs_ns - (self.start.at_ns - self.start.offset_ns)
        return theirs_ns + self.start.offset_ns + round(self._rate * since_ns)

    def theirs(self, ours_ns: int) -> int:
        """The reading of their clock at one instant of ours."""
        return ours_ns - self.start.offset_ns - round(self.drift * (ours_ns - self.start.at_ns))

    def all_ours(self, theirs_ns: Instants) -> Instants:
        """Convert many instants as :meth:`ours` does one; what is ``MISSING`` stays so."""
        since_ns = theirs_ns - (self.start.at_ns - self.start.offset_ns)
        moved = theirs_ns + self.start.offset_ns + np.rint(self._rate * since_ns).astype(np.int64)
        found: Instants = np.where(theirs_ns == MISSING, MISSING, moved)
        return found

    @property
    def _rate(self) -> float:
        """Drift per nanosecond of their clock, which since the start has run for drift less than ours."""
        return self.drift / (1 - self.drift)

    def told(self) -> dict[str, Any]:
        """The entry for the report.

        Monotonic clocks count from the start of their machine, so offsets are large.
        """
        if self.same and not self.end.trips:
            return {"method": "one clock", "offset_ms": 0.0, "error_ms": 0.0}
        return {
            "method": "round trips",
            "offset_ms": self.start.offset_ns / 1e6,
            "offset_end_ms": self.end.offset_ns / 1e6,
            "error_ms": self.error_ns / 1e6,
            "drift_ppm": round(self.drift * 1e6, 3),
            "round_trips": self.start.trips + self.end.trips,
        }


def measured(read: Callable[[], int], now_ns: Callable[[], int] = time.monotonic_ns) -> ClockOffset:
    """Round trips to ``read``, the other clock, until one is short enough or there have been plenty."""
    trips: list[RoundTrip] = []
    while len(trips) < _MOST_TRIPS:
        sent_ns = now_ns()
        theirs_ns = read()
        trips.append(RoundTrip(sent_ns, theirs_ns, now_ns()))
        if len(trips) >= _FEWEST_TRIPS and min(trip.rtt_ns for trip in trips) <= 2 * _GOOD_NS:
            break
    return ClockOffset.of(trips)


def mistake_of(line: ClockLine, host: str) -> str | None:
    """Why instants of ``host`` cannot stand beside ours, if so."""
    if line.error_ns > WORST_ERROR_NS:
        return (
            f"the clock of {host} is known to ± {quantity(line.error_ns / 1e6, 'ms')} only, by "
            f"{line.start.trips + line.end.trips} round trips: 10 ms is the limit for clocks of different "
            "machines (4.7.2)"
        )
    if line.jumped:
        moved_ms = (line.end.offset_ns - line.start.offset_ns) / 1e6
        moved = ("+" if moved_ms > 0 else "") + quantity(moved_ms, "ms")
        return f"the clock of {host} moved by {moved} against ours under load; was it suspended?"
    return None


INSTANTS = (*of_kind(Instant), "chunk_ns")
"""The columns read from the worker's clock. The server's own (``server_token_ns``) and durations are not
among them."""
DONE_INSTANTS = ("started_ns", "ended_ns", "load_ended_ns", "decoded_ns")


def shifted_records(records: Records, line: ClockLine) -> Records:
    """Latencies change by the drift alone, a few parts in a million at most. Long runs a block at a time."""
    if line.same:
        return records
    with closing(RecordLog()) as log:
        for block in records.blocks():
            columns: dict[str, Any] = {field.name: getattr(block, field.name) for field in fields(Records)}
            log.extend(Records(**columns | {name: line.all_ours(columns[name]) for name in INSTANTS}))
        return log.records()


def shifted_record(record: RequestRecord, line: ClockLine) -> RequestRecord:
    # While load is running only one offset is known, and what is shifted then should cost little.
    steady_ns = line.start.offset_ns if line.start.offset_ns == line.end.offset_ns else None
    moved: dict[str, Any] = {}
    for name in INSTANTS:
        value = getattr(record, name)
        if name == "chunk_ns":
            moved[name] = (
                [line.ours(each) for each in value]
                if steady_ns is None
                else [each + steady_ns for each in value]
            )
        elif value is not None:
            moved[name] = line.ours(value) if steady_ns is None else value + steady_ns
    return replace(record, **moved)


def shifted_done(done: Done, line: ClockLine) -> Done:
    moved: dict[str, Any] = {
        name: line.ours(value) for name in DONE_INSTANTS if (value := getattr(done, name)) is not None
    }
    return replace(done, **moved)
