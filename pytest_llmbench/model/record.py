"""The record of one request as measured, a line of ``records/*.jsonl``; with its outcome, the phase of the
run that it belongs to, and the source of its token counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended. Only ``OK`` enters latency statistics; all others are counted and shown.

    ``OK`` (AMB-46): a complete stream with at least one content token and a normal
    finish reason (stop or length). Every planned request has one outcome. None is retried. One that met a
    kept connection which the server had closed before a byte of it arrived is sent on a new one, and counted.
    """

    OK = "ok"
    HTTP_ERROR = "http_error"
    """A status of 400 or more, other than a rate limit."""
    RATE_LIMITED = "rate_limited"
    """429, or 503 with a ``Retry-After`` header or an overload message."""
    IN_BAND_ERROR = "in_band_error"
    """An error object inside a stream that began with status 200."""
    TRUNCATED = "truncated"
    """The stream ended without a terminal event or finish reason."""
    EMPTY = "empty"
    """The stream ended normally without a single content token."""
    REFUSED = "refused"
    """A safety system answered instead of the model (finish reason ``content_filter`` or a policy error)."""
    TIMEOUT = "timeout"
    """One of our deadlines ran out."""
    DISCONNECTED = "disconnected"
    """The connection could not be made, or was reset or closed before the response was complete."""
    UNDECODABLE = "undecodable"
    """Bytes that are not HTTP, or events that the dialect cannot read."""
    CANCELLED = "cancelled"
    """We stopped it ourselves: drain limit, session deadline or Ctrl-C."""
    CUT_BY_USER = "cut_by_user"  # last: columns hold places in this order
    """The user cut it, as planned. So it is load and no sample, neither a success nor a failure, even if the
    reply had ended before that (``RequestRecord.end_before_cut``)."""


MOST_FAILED_SHARE = 0.01
"""Largest share of failed requests of a run by default, and of one with a compliance class: a level of the
draft holds with at least 99 % of its requests complete (section 5.5.2)."""
NO_FAILURES = ("submitted", Outcome.OK, Outcome.CUT_BY_USER)
"""Keys of ``Records.counts`` that are no failures."""


def of_planned_cut(outcome: Outcome) -> tuple[Outcome, str | None]:
    """The outcome of a request that its user was to cut, and how its reply ended if that came first.

    ``outcome``: what it would be without the plan, ``CUT_BY_USER`` where the client went away. What we
    stopped ourselves stays ``CANCELLED``.
    """
    if outcome in (Outcome.CUT_BY_USER, Outcome.CANCELLED):
        return outcome, None
    return Outcome.CUT_BY_USER, str(outcome)


class Phase(StrEnum):
    """The part of a run a request belongs to (section 4.5)."""

    PROBE = "probe"
    WARMUP = "warmup"
    MEASURE = "measure"


class TokenSource(StrEnum):
    """The source of the ``output_tokens`` of a record. A count that nobody gave is missing, never assumed."""

    SERVER_USAGE = "server_usage"
    """The final usage object of the server."""
    CHUNK_USAGE = "chunk_usage"
    """Cumulative usage on every chunk: exact tokens per chunk."""
    REFERENCE_TOKENIZER = "reference_tokenizer"
    """Our count of the whole text with the declared reference tokenizer (cl100k_base)."""
    CHUNK_COUNT = "chunk_count"
    """One token per content chunk; only where there is neither usage nor a tokenizer."""
    NONE = "none"
    TOKENIZER_FILE = "tokenizer_file"  # last: columns hold places in this order
    """Our count of the whole text with the tokenizer of a local file that the SUT file names."""


COUNTED_HERE = frozenset({TokenSource.REFERENCE_TOKENIZER, TokenSource.TOKENIZER_FILE})
"""Sources that are our own counts of the text; they say nothing about what the server processed."""


LENGTH_FINISH = frozenset(
    {
        "length",
        "max_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "max_length",
        "max_completion_tokens",
        "model_length",
        "token_limit",
        "model_context_window_exceeded",
    }
)
"""Finish reasons, in the words of several APIs, of a reply that ended at a limit of its length."""
KNOWN_FINISH = LENGTH_FINISH | {
    "end of stream",
    "stop",
    "stopped",
    "tool_calls",
    "tool_call",
    "function_call",
    "tool_use",
    "eos",
    "eos_token",
    "eos_token_id",
    "stop_token",
    "stop_word",
    "stop_sequence",
    "end",
    "end_turn",
    "pause_turn",
    "complete",
    "completed",
    "done",
    "finished",
    "success",
    "normal",
}
"""Finish reasons of a reply that ended as it should, in the words of the APIs that are known."""


@dataclass(slots=True)
class RequestRecord:
    """Instants are CLOCK_MONOTONIC nanoseconds; ``None`` means that it did not happen or is not known.

    ``chunk_ns[i]`` and ``chunk_tokens[i]`` describe the i-th **content chunk**: one wire event that carries
    output (text, reasoning or tokens). Role-only, usage-only and finish-only events are not in them.
    The four first-token instants differ in what they take for a token (AMB-29): TTFT runs
    to ``first_content_ns``; the others are kept so that the figure can be matched with any other tool.
    """

    index: int
    request_id: str
    phase: Phase
    class_label: str = ""

    scheduled_ns: int | None = None
    """Planned arrival (open loop), or the instant at which the slot became free (closed loop)."""
    dispatched_ns: int | None = None
    """The instant at which the generator started on the request."""
    submitted_ns: int | None = None
    """The instant at which the last byte of the HTTP request was handed to the socket (appendix B,
    B.1)."""
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
    """End of the response, or the instant at which we gave up."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    token_source: TokenSource = TokenSource.NONE
    attribution: str = "none"
    """How ``chunk_tokens`` was found: ``exact``, ``apportioned`` (the total spread over the chunks) or
    ``none``."""
    requested_input_tokens: int | None = None
    requested_max_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    reasoning_token_source: TokenSource = TokenSource.NONE
    shared_prefix_tokens: int | None = None
    """Planned length of the shared prefix with which the prompt begins; 0 without one, None where it is not
    known."""
    prefix_id: int | None = None
    session: int | None = None
    """Number of its session. ``None``, here and in the next two, for a request that belongs to no session."""
    turn: int | None = None
    """Number of the turn in its session, from 1."""
    session_turns: int | None = None
    """Planned number of turns of its session."""

    outcome: Outcome = Outcome.CANCELLED
    http_status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    schema_check: str | None = None
    """``valid``, or how the reply breaks the structure that was asked for (``model/structured.py``).
    ``None``: none that could be sent was asked for, or the request did not end ``ok``."""

    coalesced_chunks: int = 0
    """Number of content chunks that shared a socket read with an earlier one: the gaps before them are not
    known."""
    unresolved_chunks: int = 0
    """Number of those that came together because we read late. Such a chunk, unless the last of its read, may
    have arrived earlier, down to the read before it."""
    first_content_early_ns: int = 0
    """Nanoseconds by which ``first_content_ns`` may be too late for that reason."""
    stale_retries: int = 0
    """How often a kept connection had been closed by the server before a byte of this request came; a new one
    was used."""
    unshown_tokens: int = 0
    """Number of output tokens, counted by the server, in excess of the bytes of text that came: a token has
    at least one."""
    server_timings: dict[str, float] = field(default_factory=dict)
    """Timing figures the server itself put into the stream, under the server's own names."""
    queue_wait_ns: int | None = None
    """Time from acceptance to first scheduling, reported by the server. ``None``, here and below, where it
    does not report it."""
    prefill_ns: int | None = None
    """Time from first scheduling to the first token, reported by the server."""
    model_load_ns: int | None = None
    """How long the request waited for the model to be loaded, reported by the server; some milliseconds where
    it was loaded already."""
    preemptions: int | None = None
    """How often the request lost its place in the batch, reported by the server."""
    preempted_tokens: int | None = None
    """Number of tokens whose cached state these preemptions discarded, reported by the server."""
    server_token_ns: Sequence[int] = ()
    """The instants of the output tokens, reported by the server, on its own clock."""

    thinking_end_ns: int | None = None
    """End of the reasoning that precedes the first visible content (``metrics/reasoning.py``)."""
    last_reasoning_ns: int | None = None
    """Last event with reasoning; after ``first_content_ns`` in a reply that reasons between its answers."""
    thinking_end_reason: str | None = None
    """Why its reasoning ended, in the server's words. ``None``, here and below, where the server does not
    report it."""
    critical_evictions: int | None = None
    """How often the request lost its place in the batch in its output phase, reported by the server."""

    cut_after_ns: int | None = None
    """Planned time from submission after which its user cuts it; ``None``: the user waits."""
    end_before_cut: str | None = None
    """Outcome of the reply if it came before the cut: ``ok``, or how it failed. ``None``: the reply was cut,
    or no cut was planned."""
    answered_by: str | None = None
    """The model that the reply says it is of, where that is another than the one asked for."""
    contradiction: str | None = None
    """Which of the server's token counts cannot be, by the reply itself, in words."""


OnRecord = Callable[[RequestRecord], None]
"""Called with each record of a load as soon as it has been made, so that a killed run keeps what it
measured."""
