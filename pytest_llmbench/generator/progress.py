"""The progress of a running plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot of a running plan. ``ok`` and ``failed`` count records made, so they trail the wire a
    little."""

    submitted: int
    ok: int
    failed: int
    in_flight: int
    planned: int
    elapsed_s: float
    """The seconds since the start of the schedule; 0 while connections are being opened."""
    still_s: float | None = None
    """Seconds since a part of a response under way last arrived; None where none is under way, or nobody
    asks."""
