"""Flights that have ended become columns, some thousand at a time: a long replay does not hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_llmbench.columns.log import RecordLog
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.replay_chunks import Steps
from pytest_llmbench.simulator.replay_flight import Flight
from pytest_llmbench.simulator.replay_records import Recording, records_of, rows_of


class FlightLog:
    """The records of one plan."""

    def __init__(self, recording: Recording, on_record: Callable[[RequestRecord], None] | None) -> None:
        self._recording = recording
        self._on_record = on_record
        self._log = RecordLog()
        self._first: Records | None = None
        """All there is, as long as it came at once: most replays are short."""

    def keep(self, flights: Sequence[Flight], steps: Steps) -> Records:
        """Flights that have ended, as records; ``steps`` has all that their tokens came from."""
        records = records_of(flights, steps, self._recording)
        if self._first is None:
            self._first = records
        else:
            if not len(self._log):
                self._log.extend(self._first)
            self._log.extend(records)
        if self._on_record is not None:
            for row in rows_of(records):
                self._on_record(row)
        return records

    def records(self) -> Records:
        """Of all flights, in order of submission."""
        if self._first is not None and not len(self._log):
            return self._first
        found = self._log.records()
        self._log.close()
        return found


__all__ = ["FlightLog"]
