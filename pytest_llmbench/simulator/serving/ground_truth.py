"""Ground truth: what really happened to each request, as the server observed it, and the energy that it took.
Measurements from outside are checked against it."""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_llmbench.simulator.engine.power import EnergyCurve

Clock = Callable[[], int]
"""Returns the instant, in nanoseconds."""
TRACE_LIMIT = 8192
"""Maximum number of instants kept in each list of one traced request."""


@dataclass(slots=True)
class GroundTruth:
    """The ground truth of one request. Instants are CLOCK_MONOTONIC nanoseconds, comparable with a client's
    on this machine.

    They never run backwards: received ≤ queued ≤ admitted ≤ first token ≤ first write ≤ last write; with
    prefill and decode apart, prefilled ≤ transfer begun ≤ transfer ended lie between the admission and the
    first token. The true TTFT is ``first_visible_ns - received_ns``. ``None``: did not come to pass, because
    the client went away before. Delays put in by a fault (stall, drip, buffering) come after the writes that
    are noted here.
    """

    request_id: str
    """The ``x-request-id`` header, or an id made by the server."""
    received_ns: int
    """Instant at which the read that brought the last byte of the request returned."""
    prompt_tokens: int
    replica: int = 0
    """Number of the engine that accepted it; 0 where there is one."""
    queued_ns: int | None = None
    """Instant of entry into the engine's queue, after the prompt's tokens have been counted."""
    admitted_ns: int | None = None
    """Start of the step that took it out of the queue and began its prefill."""
    decode_replica: int | None = None
    """Number of the engine that decodes it, with prefill and decode apart; ``replica`` computed its prompt.
    None elsewhere."""
    prefilled_ns: int | None = None
    """End of the step that completed its prompt, with prefill and decode apart."""
    transfer_begun_ns: int | None = None
    """Start of the transfer of its KV cache, with prefill and decode apart: the engine that decodes has
    blocks for it."""
    transfer_ended_ns: int | None = None
    """End of the transfer of its KV cache, with prefill and decode apart."""
    first_token_ns: int | None = None
    """End of the step that completed its prompt and gave its first token."""
    last_token_ns: int | None = None
    """End of the step that gave its last token."""
    first_write_ns: int | None = None
    """Instant just before the first chunk with a token was written (for an unstreamed reply: before its body
    was)."""
    first_visible_ns: int | None = None
    """Instant just before the first chunk with visible text that is not white space was written."""
    thinking_end_ns: int | None = None
    """Instant just before the last chunk with a thought was written; tags of inline reasoning are thoughts to
    the engine."""
    last_write_ns: int | None = None
    """Instant just before the last content chunk was written."""
    generates: bool = True
    """Whether it generates tokens; False: it was prefill alone, so the step of ``first_token_ns`` gave no
    token."""
    output_tokens: int = 0
    """Number of tokens given, reasoning included."""
    reasoning_tokens: int = 0
    cached_tokens: int | None = None
    """Number of prompt tokens found in the prefix cache; ``None``: the engine has none."""
    preemptions: int = 0
    """Number of times it was preempted."""
    lost_tokens: int = 0
    """Number of tokens in the KV cache that these preemptions discarded."""
    drafted: int = 0
    """Number of tokens that were guessed for it, with speculative decoding."""
    accepted: int = 0
    """Number of ``drafted`` that were accepted and given."""
    critical_evictions: int | None = None
    """Number of times it was preempted while it answered; ``None``: the scheduler does not tell phases
    apart."""
    think_reason: str | None = None
    """Why its thoughts ended: converged, overthinking or hard_cap; None: it had none, or was cut while it
    thought."""
    finish_reason: str | None = None
    schema_check: str | None = None
    """Result of checking the whole reply against its schema: ``valid``, or how it breaks it. ``None``: no
    structured output was asked for."""
    answer_check: str | None = None
    """Whether the whole reply answers the question rightly: ``right``, ``wrong`` or ``cut_by_limit``.
    ``None``: no question was seen."""
    aborted: bool = False
    """Whether the connection was closed before the reply was complete, by the client or by the fault."""
    fault: str | None = None
    """The fault that was injected into its reply; None: none."""
    token_ns: list[int] | None = None
    """Instants at which each token left the engine, if the scenario says ``trace``; at most 8192."""
    write_ns: list[int] | None = None
    """Instants of the writes, if the scenario says ``trace``; at most 8192."""

    @property
    def held_by(self) -> int:
        """Number of the engine that has it now."""
        return self.replica if self.decode_replica is None else self.decode_replica

    def note_token(self, now_ns: int) -> None:
        """Note that a token has left the engine."""
        self.last_token_ns = now_ns
        if self.token_ns is not None and len(self.token_ns) < TRACE_LIMIT:
            self.token_ns.append(now_ns)

    def note_write(self, now_ns: int) -> None:
        """Note that something is about to be written."""
        if self.write_ns is not None and len(self.write_ns) < TRACE_LIMIT:
            self.write_ns.append(now_ns)

    def note_content(self, now_ns: int, *, visible: bool, thought: bool = False) -> None:
        """Note that a content chunk is about to be written, and whether text that is not white space, or a
        thought, is in it."""
        self.last_write_ns = now_ns
        if self.first_write_ns is None:
            self.first_write_ns = now_ns
        if self.first_visible_ns is None and visible:
            self.first_visible_ns = now_ns
        if thought:
            self.thinking_end_ns = now_ns

    def usage(self) -> dict[str, Any]:
        """OpenAI's ``usage`` object. Cached tokens are left out where the engine has no prefix cache."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        if self.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens / steps that gave them, the first one too; None without tokens."""
        return self.output_tokens / (self.output_tokens - self.accepted) if self.output_tokens else None

    def timings(self) -> dict[str, float | str]:
        """The engine's own figures for the client, as far as they are known: ``timings`` in the reply."""
        found: dict[str, float | str] = {}
        if self.think_reason is not None:
            found["think_reason"] = self.think_reason
        if self.critical_evictions is not None:
            found["critical_evictions"] = self.critical_evictions
        if self.queued_ns is not None and self.admitted_ns is not None:
            found["queue_ms"] = (self.admitted_ns - self.queued_ns) / 1e6
        if self.admitted_ns is not None and self.first_token_ns is not None:
            found["prompt_ms"] = (self.first_token_ns - self.admitted_ns) / 1e6
        if self.drafted:
            found |= {"draft_n": self.drafted, "draft_n_accepted": self.accepted}
        return found | {"preemptions": self.preemptions, "preempted_tokens": self.lost_tokens}


class GroundTruthLog:
    """The ground truth of requests that have ended, oldest first; bounded in number and bytes, what is
    dropped is counted.

    Kept as finished lines of JSON: bytes cost a tenth of the memory and nothing in garbage collection.
    Nothing else of an engine grows with its requests, so this is what a long load adds to it.
    """

    def __init__(self, capacity: int = 65536, capacity_bytes: int = 16 * 2**20) -> None:
        self._lines: deque[bytes] = deque()
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        self._ended = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def dropped(self) -> int:
        return self._ended - len(self._lines)

    def add(self, truth: GroundTruth) -> None:
        line = json.dumps(asdict(truth), separators=(",", ":")).encode() + b"\n"
        self._lines.append(line)
        self._bytes += len(line)
        self._ended += 1
        while len(self._lines) > self._capacity or self._bytes > self._capacity_bytes:
            self._bytes -= len(self._lines.popleft())

    def json_lines(self) -> bytes:
        return b"".join(self._lines)


def parse_ground_truth(lines: str) -> list[GroundTruth]:
    """Parse ``lines`` as :meth:`GroundTruthLog.json_lines` wrote them."""
    return [GroundTruth(**json.loads(line)) for line in lines.splitlines()]


def energy_json(curves: Sequence[EnergyCurve]) -> bytes:
    """The energy that each engine has taken, as :func:`parse_energy` reads it."""
    columns = ({name: list(getattr(curve, name)) for name in _COLUMNS} for curve in curves)
    found = [{"idle_w": curve.idle_w, **own} for curve, own in zip(curves, columns, strict=True)]
    return json.dumps(found, separators=(",", ":")).encode()


def parse_energy(text: str) -> list[EnergyCurve]:
    """The curve of each engine: exact at any instant since its start."""
    return [
        EnergyCurve(each["idle_w"], *(array(kind, each[name]) for name, kind in _COLUMNS.items()))
        for each in json.loads(text)
    ]


_COLUMNS = {"at_ns": "q", "energy_j": "d", "busy_ns": "q"}
