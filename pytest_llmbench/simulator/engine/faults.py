"""What can go wrong with a reply, how often and when. Pure: decisions only, the server carries them out."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.model.structured import StructuredOutput

if TYPE_CHECKING:
    from pytest_llmbench.simulator.engine.structured_replies import StructuredAnswer

FaultKind = Literal[
    "http_error",
    "rate_limit",
    "overloaded",
    "in_band_error",
    "reset",
    "half_close",
    "truncate",
    "stall",
    "drip",
    "malformed_json",
    "invalid_utf8",
    "huge_line",
    "crash",
    "buffering",
]

REFUSALS: frozenset[FaultKind] = frozenset({"http_error", "rate_limit", "overloaded"})
"""Answered with a status instead of a reply."""
TRANSPORT_FAULTS: frozenset[FaultKind] = frozenset({"reset", "half_close", "crash"})
"""Need a hand on the connection itself."""
WHOLE_REPLY_FAULTS: frozenset[FaultKind] = frozenset({"drip", "buffering"})
"""Change how the whole reply travels, from its first byte."""

_PER_REQUEST = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """The requests that suffer, and what they suffer.

    Deterministic by seed and the request's number of arrival.
    """

    fault: tuple[FaultKind, ...] = ()
    """What goes wrong: http_error, rate_limit (429), overloaded (503), in_band_error, reset, half_close,
    truncate, stall, drip, malformed_json, invalid_utf8, huge_line, crash, buffering; several, separated by
    commas, are drawn in turn."""
    fault_rate: float = 1.0
    """Share of the requests that suffer, 0 to 1."""
    fault_from: int = 0
    """Requests that are spared at first."""
    fault_count: int = 0
    """Faults after which all is well again; 0: no end."""
    fault_after_tokens: int = 2
    """Tokens that are given before a fault in mid-stream."""
    fault_status: int = 500
    """Status of http_error, 400 to 599."""
    retry_after_s: float = 1.0
    """Retry-After of rate_limit and overloaded, and of a full queue (max_waiting)."""
    full_status: int = 503
    """Status of what a full queue turns away, 429 or 503."""
    stall_ms: float = 60_000.0
    """How long a stall lasts before the reply goes on."""
    drip_ms: float = 5.0
    """Pause of drip between two pieces of 16 bytes."""
    huge_line_mib: float = 17.0
    """Length of the line of huge_line."""
    schema_fault_rate: float = 0.0
    """Share of the replies to requests for structured output that break their schema, 0 to 1."""

    def mistakes(self) -> list[str]:
        """What is impossible about these values."""
        found = []
        if not 0.0 <= self.fault_rate <= 1.0:
            found.append(f"fault_rate is {self.fault_rate:g}; it has to be from 0 to 1")
        if not 0.0 <= self.schema_fault_rate <= 1.0:
            found.append(f"schema_fault_rate is {self.schema_fault_rate:g}; it has to be from 0 to 1")
        if not 400 <= self.fault_status <= 599:
            found.append(f"fault_status is {self.fault_status}; it has to be from 400 to 599")
        if self.full_status not in (429, 503):
            found.append(f"full_status is {self.full_status}; it has to be 429 or 503")
        for name in ("fault_from", "fault_count", "fault_after_tokens"):
            if getattr(self, name) < 0:
                found.append(f"{name} is {getattr(self, name)}; it has to be 0 or more")
        for name in ("retry_after_s", "stall_ms", "drip_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                found.append(f"{name} is {value:g}; it has to be 0 or more")
        if not 0.0 < self.huge_line_mib <= 256.0:
            found.append(f"huge_line_mib is {self.huge_line_mib:g}; it has to be above 0 and at most 256")
        return found


class FaultSchedule:
    """Says for each request, in order of arrival, what happens to it."""

    def __init__(self, options: FaultOptions, seed: int) -> None:
        self.options = options
        self._seed = seed
        self._asked = self._structured = 0
        self.given = 0
        """Faults so far."""

    def next(self) -> FaultKind | None:
        """The fate of the next request. Its draw does not depend on what befell the ones before it."""
        number = self._asked
        self._asked += 1
        options = self.options
        if not options.fault or number < options.fault_from:
            return None
        if options.fault_count and self.given >= options.fault_count:
            return None
        draw = random.Random(self._seed * _PER_REQUEST + number)
        if draw.random() >= options.fault_rate:
            return None
        self.given += 1
        return draw.choice(options.fault)

    def answer(self, asked: StructuredOutput) -> StructuredAnswer:
        """The answer to the next request for structured output, broken or not."""
        # Imported here: few loads ask for a form.
        from pytest_llmbench.simulator.engine.structured_replies import StructuredAnswer, breaks_of

        number = self._structured
        self._structured += 1
        draw = random.Random(f"schemas {self._seed} {number}")
        possible = breaks_of(asked, number) if draw.random() < self.options.schema_fault_rate else []
        return StructuredAnswer(asked, number, draw.choice(possible) if possible else "")
