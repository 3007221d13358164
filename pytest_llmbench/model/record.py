"""The table of what is recorded of a request, and a request as measured, a line of ``records/*.jsonl``; with
its outcome, the phase of the run that it belongs to, and the source of its token counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Generic, TypeVar


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


Whole = TypeVar("Whole")
"""A number that every request has: a count from 0."""
Instant = TypeVar("Instant")
"""Nanoseconds of our CLOCK_MONOTONIC."""
Number = TypeVar("Number")
"""A count, a number, or a time in nanoseconds."""
Text = TypeVar("Text")
Words = TypeVar("Words")
"""A text that not every request has."""
PhaseOf = TypeVar("PhaseOf")
SourceOf = TypeVar("SourceOf")
OutcomeOf = TypeVar("OutcomeOf")
Several = TypeVar("Several")
"""Several numbers for each request."""
_UNKNOWN: Any = None
_EMPTY: Any = ""
_ZERO: Any = 0
_NONE: Any = ()
_NO_SOURCE: Any = TokenSource.NONE
_CANCELLED: Any = Outcome.CANCELLED


@dataclass(slots=True)
class RequestColumns(Generic[Whole, Instant, Number, Text, Words, PhaseOf, SourceOf, OutcomeOf, Several]):
    """The table of what is recorded of requests. Each column stands here and nowhere else.

    The type variable of a column says what it holds. :class:`RequestRecord` puts in the types of one request,
    ``model.records.Records`` those of arrays; other modules make their lists of columns by :func:`of_kind`.
    Names say the unit: ``_ns`` nanoseconds, ``_tokens`` tokens, all else is a plain number.
    What was not observed, or did not happen, is ``None`` in a row and ``MISSING`` in an array, never zero.

    ``chunk_ns[i]`` and ``chunk_tokens[i]`` describe the i-th **content chunk**: one wire event that carries
    output (text, reasoning or tokens). Role-only, usage-only and finish-only events are not in them.
    The four first-token instants differ in what they take for a token (AMB-29): TTFT runs
    to ``first_content_ns``; the others are kept so that the figure can be matched with any other tool.
    """

    index: Whole
    """Number of the request in the whole sequence of its load, from 0."""
    request_id: Text
    """The id that is sent as the header ``x-request-id``."""
    phase: PhaseOf
    """``probe``, ``warmup`` or ``measure``."""
    class_label: Text = _EMPTY
    """Class of a mixed workload that the request belongs to."""
    scheduled_ns: Instant = _UNKNOWN
    """Planned arrival (open loop), or the instant at which the slot became free (closed loop)."""
    dispatched_ns: Instant = _UNKNOWN
    """The instant at which the generator started on the request."""
    submitted_ns: Instant = _UNKNOWN
    """The instant at which the last byte of the HTTP request was handed to the socket (appendix B,
    B.1)."""
    first_byte_ns: Instant = _UNKNOWN
    """First byte of the response."""
    first_event_ns: Instant = _UNKNOWN
    """First parsed event of any kind."""
    first_nonempty_ns: Instant = _UNKNOWN
    """First event with output of any kind, whitespace and reasoning included."""
    first_reasoning_ns: Instant = _UNKNOWN
    """First event with reasoning."""
    first_content_ns: Instant = _UNKNOWN
    """First event with visible, non-whitespace content: T_first."""
    last_content_ns: Instant = _UNKNOWN
    """Last content chunk: T_last, not the end-of-stream marker."""
    finished_ns: Instant = _UNKNOWN
    """End of the response, or the instant at which we gave up."""
    input_tokens: Number = _UNKNOWN
    """Prompt tokens, as the server counts them; else our own count."""
    output_tokens: Number = _UNKNOWN
    """Tokens of the reply, reasoning included; ``token_source`` says who counted them."""
    requested_input_tokens: Number = _UNKNOWN
    """Planned length of the prompt."""
    requested_max_tokens: Number = _UNKNOWN
    """The limit of output tokens that was sent."""
    cached_tokens: Number = _UNKNOWN
    """Prompt tokens that the server took from its cache, reported by it."""
    reasoning_tokens: Number = _UNKNOWN
    """Output tokens that are reasoning."""
    http_status: Number = _UNKNOWN
    """Status of the response."""
    coalesced_chunks: Whole = _ZERO
    """Number of content chunks that shared a socket read with an earlier one: the gaps before them are not
    known."""
    unresolved_chunks: Whole = _ZERO
    """Number of those that came together because we read late. Such a chunk, unless the last of its read, may
    have arrived earlier, down to the read before it."""
    first_content_early_ns: Whole = _ZERO
    """Nanoseconds by which ``first_content_ns`` may be too late for that reason."""
    stale_retries: Whole = _ZERO
    """How often a kept connection had been closed by the server before a byte of this request came; a new one
    was used."""
    unshown_tokens: Whole = _ZERO
    """Number of output tokens, counted by the server, in excess of the bytes of text that came: a token has
    at least one."""
    shared_prefix_tokens: Number = _UNKNOWN
    """Planned length of the shared prefix with which the prompt begins; 0 without one, None where it is not
    known."""
    prefix_id: Number = _UNKNOWN
    """Number of that prefix: requests with the same one share it."""
    session: Number = _UNKNOWN
    """Number of its session. ``None``, here and in the next two, for a request that belongs to no session."""
    turn: Number = _UNKNOWN
    """Number of the turn in its session, from 1."""
    session_turns: Number = _UNKNOWN
    """Planned number of turns of its session."""
    queue_wait_ns: Number = _UNKNOWN
    """Time from acceptance to first scheduling, reported by the server. ``None``, here and in the next
    five, where it does not report it."""
    prefill_ns: Number = _UNKNOWN
    """Time from first scheduling to the first token, reported by the server."""
    generation_ns: Number = _UNKNOWN
    """The time of generation by which the server divides its tokens for a rate, reported by it."""
    model_load_ns: Number = _UNKNOWN
    """How long the request waited for the model to be loaded, reported by the server; some milliseconds where
    it was loaded already."""
    preemptions: Number = _UNKNOWN
    """How often the request lost its place in the batch, reported by the server."""
    preempted_tokens: Number = _UNKNOWN
    """Number of tokens whose cached state these preemptions discarded, reported by the server."""
    thinking_end_ns: Instant = _UNKNOWN
    """End of the reasoning that precedes the first visible content (``metrics/reasoning.py``)."""
    last_reasoning_ns: Instant = _UNKNOWN
    """Last event with reasoning; after ``first_content_ns`` in a reply that reasons between its answers."""
    critical_evictions: Number = _UNKNOWN
    """How often the request lost its place in the batch in its output phase, reported by the server."""
    draft_tokens: Number = _UNKNOWN
    """Number of tokens that speculative decoding guessed for it, reported by the server."""
    accepted_draft_tokens: Number = _UNKNOWN
    """Number of these that were accepted, reported by the server."""
    cut_after_ns: Number = _UNKNOWN
    """Planned time from submission after which its user cuts it; ``None``: the user waits."""
    reasoning_token_source: SourceOf = _NO_SOURCE
    """The source of ``reasoning_tokens``."""
    thinking_end_reason: Words = _UNKNOWN
    """Why its reasoning ended, in the server's words."""
    token_source: SourceOf = _NO_SOURCE
    """The source of ``output_tokens`` (:class:`TokenSource`)."""
    outcome: OutcomeOf = _CANCELLED
    """How the request ended (:class:`Outcome`)."""
    error: Words = _UNKNOWN
    """What failed, in words."""
    finish_reason: Words = _UNKNOWN
    """Why the reply ended, in the server's words."""
    schema_check: Words = _UNKNOWN
    """``valid``, or how the reply breaks the structure that was asked for (``model/reply_checks.py``).
    ``None``: none that could be sent was asked for, or the request did not end ``ok``."""
    answer_check: Words = _UNKNOWN
    """``right``, or what is wrong with the answer (``model/reply_checks.py``). ``None``: no answer was
    expected."""
    end_before_cut: Words = _UNKNOWN
    """Outcome of the reply if it came before the cut: ``ok``, or how it failed. ``None``: the reply was cut,
    or no cut was planned."""
    answered_by: Words = _UNKNOWN
    """The model that the reply says it is of, where that is another than the one asked for."""
    contradiction: Words = _UNKNOWN
    """Which of the server's token counts cannot be, by the reply itself, in words."""
    chunk_ns: Several = _NONE
    """The instant of each content chunk."""
    chunk_tokens: Several = _NONE
    """Tokens of each content chunk; empty when no attribution is possible."""
    server_token_ns: Several = _NONE
    """The instants of the output tokens, reported by the server, on its own clock."""


@dataclass(slots=True)
class RequestRecord(
    RequestColumns[int, int | None, int | None, str, str | None, Phase, TokenSource, Outcome, Sequence[int]]
):
    """One request, with what only a row tells."""

    attribution: str = "none"
    """How ``chunk_tokens`` was found: ``exact``, ``apportioned`` (the total spread over the chunks) or
    ``none``."""
    server_timings: dict[str, float] = field(default_factory=dict)
    """Timing figures the server itself put into the stream, under the server's own names."""


def of_kind(*kinds: TypeVar) -> tuple[str, ...]:
    """The names of the columns of these kinds, in their order."""
    names = {kind.__name__ for kind in kinds}
    return tuple(column.name for column in fields(RequestColumns) if column.type in names)


OnRecord = Callable[[RequestRecord], None]
"""Called with each record of a load as soon as it has been made, so that a killed run keeps what it
measured."""
