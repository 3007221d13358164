"""How well the server keeps its own schedule, so that nobody takes its lateness for the client's."""

from __future__ import annotations

from array import array
from typing import Any


class RecentValues:
    """The last ``capacity`` values, in nanoseconds."""

    def __init__(self, capacity: int = 16384) -> None:
        self._capacity = capacity
        self._values = array("q")
        self.count = 0

    def note(self, value: int) -> None:
        if self.count < self._capacity:
            self._values.append(value)
        else:
            self._values[self.count % self._capacity] = value
        self.count += 1

    def summary_us(self) -> dict[str, float | int | None]:
        """``n`` values, and their nearest-rank p50, p99 and max in microseconds; ``None`` of nothing."""
        ordered = sorted(self._values)
        n = len(ordered)
        return {
            "n": n,
            "p50": ordered[(n - 1) // 2] / 1000.0 if n else None,
            "p99": ordered[-(-99 * n // 100) - 1] / 1000.0 if n else None,
            "max": ordered[-1] / 1000.0 if n else None,
        }


class Pacing:
    """Counters of the engine's driver."""

    def __init__(self) -> None:
        self.steps = 0
        self.step_lateness = RecentValues()
        """Actual minus planned end of each step."""
        self.write_span = RecentValues()
        """From the end of a step to its last write: the server's own cost of handing out the tokens."""
        self.schedule_restarts = 0
        """Times the server fell so far behind that the schedule was given up and begun anew."""

    def summary(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "pacing_error_us": self.step_lateness.summary_us(),
            "write_span_us": self.write_span.summary_us(),
            "schedule_restarts": self.schedule_restarts,
        }


__all__ = ["Pacing", "RecentValues"]
