"""How far a plan has got."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """A look at a running plan. ``ok`` and ``failed`` count records made, so they trail the wire a little."""

    submitted: int
    ok: int
    failed: int
    in_flight: int
    planned: int
    elapsed_s: float
    """The seconds since the start of the schedule; 0 while connections are being opened."""
    still_s: float | None = None
    """The seconds since something came in on a response under way; None where none is, or nobody asks."""
