"""What really happened to each request, as the server saw it: the oracle for measurements from outside."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class GroundTruth:
    """One request. Instants are CLOCK_MONOTONIC nanoseconds, comparable with a client's on this machine.

    They never run backwards: received ≤ admitted ≤ first token ≤ first write ≤ last write. The true TTFT is
    ``first_write_ns - received_ns``. ``None``: did not come to pass, because the client went away before.
    """

    request_id: str
    """The ``x-request-id`` header, or an id made by the server."""
    received_ns: int
    """The read that brought the last byte of the request has returned."""
    prompt_tokens: int
    admitted_ns: int | None = None
    """Start of the step that took it out of the queue."""
    first_token_ns: int | None = None
    """End of the step that completed its prompt."""
    first_write_ns: int | None = None
    """Just before the first content chunk was written (of an unstreamed reply: before its body was)."""
    last_write_ns: int | None = None
    """Just before the last content chunk was written."""
    output_tokens: int = 0
    """Tokens written."""
    finish_reason: str | None = None
    aborted: bool = False
    """The client closed the connection before the reply was complete."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GroundTruth:
        return cls(**value)


class GroundTruthLog:
    """The requests that have ended, oldest first; bounded, and what is dropped is counted.

    Kept as finished lines of JSON: bytes cost a tenth of the memory and nothing in garbage collection.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self._lines: deque[bytes] = deque(maxlen=capacity)
        self._ended = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def dropped(self) -> int:
        return self._ended - len(self._lines)

    def add(self, truth: GroundTruth) -> None:
        self._lines.append(json.dumps(asdict(truth), separators=(",", ":")).encode() + b"\n")
        self._ended += 1

    def json_lines(self) -> bytes:
        return b"".join(self._lines)


def parse_ground_truth(lines: str) -> list[GroundTruth]:
    """The requests in ``lines``, as :meth:`GroundTruthLog.json_lines` wrote them."""
    return [GroundTruth.from_json(json.loads(line)) for line in lines.splitlines()]


__all__ = ["GroundTruth", "GroundTruthLog", "parse_ground_truth"]
