"""One request as measured: the row that becomes one line of ``records/*.jsonl``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_llmbench.model.outcome import Outcome, Phase, TokenSource


@dataclass(slots=True)
class RequestRecord:
    """Instants are CLOCK_MONOTONIC nanoseconds; ``None`` means that it did not happen or is not known.

    ``chunk_ns[i]`` and ``chunk_tokens[i]`` describe the i-th **content chunk**: one wire event that carries
    output (text, reasoning or tokens). Role-only, usage-only and finish-only events are not in them.
    The four first-token instants differ in what they take for a token (METHODOLOGY §10, AMB-29): TTFT runs
    to ``first_content_ns``; the others are kept so that the figure can be matched with any other tool.
    """

    index: int
    request_id: str
    phase: Phase
    class_label: str = ""

    scheduled_ns: int | None = None
    """Planned arrival (open loop) or the instant the slot became free (closed loop)."""
    dispatched_ns: int | None = None
    """The generator starts on the request."""
    submitted_ns: int | None = None
    """The last byte of the HTTP request has been handed to the socket (METHODOLOGY §14, B.1)."""
    first_byte_ns: int | None = None
    first_event_ns: int | None = None
    """First parsed event of any kind."""
    first_nonempty_ns: int | None = None
    """First event with output of any kind, whitespace and reasoning included."""
    first_reasoning_ns: int | None = None
    first_content_ns: int | None = None
    """First event with visible, non-whitespace content: T_first."""
    chunk_ns: Sequence[int] = ()
    chunk_tokens: Sequence[int] = ()
    """Tokens of each content chunk; empty when no attribution is possible."""
    last_content_ns: int | None = None
    """Last content chunk: T_last, not the end-of-stream marker."""
    finished_ns: int | None = None
    """End of the response, or the instant we gave up."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    token_source: TokenSource = TokenSource.NONE
    attribution: str = "none"
    """The attribution of ``chunk_tokens``: ``exact``, ``apportioned`` (the total spread over the chunks) or
    ``none``."""
    requested_input_tokens: int | None = None
    requested_max_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    reasoning_token_source: TokenSource = TokenSource.NONE
    shared_prefix_tokens: int | None = None
    """Length of the shared prefix the prompt begins with, as planned; 0 without one."""
    prefix_id: int | None = None
    session: int | None = None
    """The number of its session; ``None`` for a request that belongs to none, so below."""
    turn: int | None = None
    """The number of the turn in its session, from 1."""
    session_turns: int | None = None
    """The turns that its session was to have."""

    outcome: Outcome = Outcome.CANCELLED
    http_status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    schema_check: str | None = None
    """``valid``, or how the reply breaks the form that the request asked for (``model/structured.py``).
    ``None``: it asked for none that could be sent, or did not end ``ok``."""

    coalesced_chunks: int = 0
    """Content chunks that shared a socket read with an earlier one: their spacing is not resolvable."""
    unresolved_chunks: int = 0
    """The number of those that ran together since we read late: a chunk before the last of its read may have
    come earlier, down to the read before it."""
    first_content_early_ns: int = 0
    """The time by which ``first_content_ns`` may be too late for that reason."""
    stale_retries: int = 0
    """Kept connections that the server had closed before a byte of this request came; a new one was taken."""
    server_timings: dict[str, float] = field(default_factory=dict)
    """Timing figures the server itself put into the stream, under the server's own names."""
    queue_wait_ns: int | None = None
    """The time, told by the server, from acceptance to first scheduling. ``None`` where the server does not
    say; so below."""
    prefill_ns: int | None = None
    """The time, told by the server, from first scheduling to the first token."""
    model_load_ns: int | None = None
    """The time, told by the server, that the request waited until the model was loaded; some milliseconds
    where it was there already."""
    preemptions: int | None = None
    """The number of times, told by the server, that the request lost its place in the batch."""
    preempted_tokens: int | None = None
    """The tokens, told by the server, whose cached state was discarded by those preemptions."""
    server_token_ns: Sequence[int] = ()
    """The instants of the output tokens, told by the server, on the server's clock."""

    thinking_end_ns: int | None = None
    """The end of the reasoning that comes before the first visible content (``metrics/reasoning.py``)."""
    last_reasoning_ns: int | None = None
    """Last event with reasoning; after ``first_content_ns`` in a reply that reasons between its answers."""
    thinking_end_reason: str | None = None
    """Why its reasoning ended, in the server's words. ``None`` where the server does not say; so below."""
    critical_evictions: int | None = None
    """The number of times, told by the server, that the request lost its place in the batch in its output
    phase."""

    cut_after_ns: int | None = None
    """The time from submission after which its user was to cut it, as planned; ``None``: the user waits."""
    end_before_cut: str | None = None
    """The outcome that its reply had before that: ``ok``, or how it failed. ``None``: it was cut, or nobody
    was to cut it."""


OnRecord = Callable[[RequestRecord], None]
"""Is given each record of a load as soon as it has been made, so that a killed run keeps what it measured."""
