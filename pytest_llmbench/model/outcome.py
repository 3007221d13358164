"""The end of a request, the part of a run it belongs to, and the source of its token counts."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The end of one request. Only ``OK`` enters latency statistics; all others are counted and shown.

    ``OK`` (METHODOLOGY §10, AMB-46): a complete stream with at least one content token and a normal
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
    """Its user was to cut it, by plan. So it is load and no sample: neither a success nor a failure, also
    where the reply had ended before that (``RequestRecord.end_before_cut``)."""


NO_FAILURES = ("submitted", Outcome.OK, Outcome.CUT_BY_USER)
"""What ``Records.counts`` tells beside failures."""


def of_planned_cut(outcome: Outcome) -> tuple[Outcome, str | None]:
    """The outcome of a request that its user was to cut, and how its reply ended where that came first.

    ``outcome``: what it would be without the plan, ``CUT_BY_USER`` where the client went away. What we
    stopped ourselves stays ``CANCELLED``.
    """
    if outcome in (Outcome.CUT_BY_USER, Outcome.CANCELLED):
        return outcome, None
    return Outcome.CUT_BY_USER, str(outcome)


class Phase(StrEnum):
    """The part of a run a request belongs to (METHODOLOGY §6)."""

    PROBE = "probe"
    WARMUP = "warmup"
    MEASURE = "measure"


class TokenSource(StrEnum):
    """The source of ``output_tokens`` of a record. A count that nobody gave is missing, never assumed."""

    SERVER_USAGE = "server_usage"
    """The final usage object of the server."""
    CHUNK_USAGE = "chunk_usage"
    """Cumulative usage on every chunk: exact tokens per chunk."""
    REFERENCE_TOKENIZER = "reference_tokenizer"
    """The joined text counted with the declared reference tokenizer (cl100k_base)."""
    CHUNK_COUNT = "chunk_count"
    """One token per content chunk; only when neither usage nor a tokenizer is to be had."""
    NONE = "none"
    TOKENIZER_FILE = "tokenizer_file"  # last: columns hold places in this order
    """The joined text counted with the tokenizer of a local file, which the SUT file names."""


COUNTED_HERE = frozenset({TokenSource.REFERENCE_TOKENIZER, TokenSource.TOKENIZER_FILE})
"""Counts that we made of the text; they say nothing about what the server processed."""


LENGTH_FINISH = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
"""Finish reasons, under the names of several APIs, of a reply that ended at a limit of its length."""
