"""One instant on two clocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """One instant read on both clocks, so that monotonic stamps can be exported as wall-clock time."""

    monotonic_ns: int
    wall_ns: int
    """Nanoseconds since the Unix epoch."""

    def wall(self, monotonic_ns: int) -> int:
        return self.wall_ns + (monotonic_ns - self.monotonic_ns)
