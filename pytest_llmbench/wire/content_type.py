"""Whether a successful answer is a stream, and what it is if not."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pytest_llmbench.model.record import Outcome
from pytest_llmbench.wire.error_replies import (
    beginning,
    error_in,
    error_text,
    header,
    is_policy_error,
    shorten,
)

_CONTENT_TYPES = {
    "sse": ("text/event-stream",),
    "ndjson": ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines"),
    "grpc": ("application/grpc",),
    "json": ("application/json",),
}
"""Framing → content types, the usual one first. Systems in process write events too."""

_REPLIES = frozenset({"choices", "output", "content", "done", "meta_info", "generated_text", "text_output"})
"""Keys of a reply in one piece; each dialect has one of them."""


def is_stream(headers: Mapping[str, str], protocol: str = "sse") -> bool:
    """Whether the content type is that of the framing. Parameters such as a charset do not matter, nor does a
    suffix after a plus (``application/grpc+proto``)."""
    content_type = header(headers, "content-type") or ""
    return content_type.partition(";")[0].partition("+")[0].strip().lower() in _content_types(protocol)


def classify_unstreamed(
    headers: Mapping[str, str], body: bytes, protocol: str = "sse"
) -> tuple[Outcome, str]:
    """Outcome and reason for an answer with status 2xx that is not a stream of this framing.

    ``undecodable`` for a whole completion and for anything else without event stream framing: no instant of
    a token can be taken from it. An error object sent with a success status is ``in_band_error`` (or
    ``refused``); an empty body is ``empty``.
    """
    content_type, wanted = header(headers, "content-type") or "no content type", _content_types(protocol)[0]
    if not body.strip():
        return Outcome.EMPTY, "the reply has an empty body"
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        start = shorten(beginning(body.decode("utf-8", errors="replace"), 200), 80)
        return Outcome.UNDECODABLE, shorten(f"the reply is {content_type}, not {wanted}: {start}")
    error = error_in(payload)
    if error is not None:
        outcome = Outcome.REFUSED if is_policy_error(error) else Outcome.IN_BAND_ERROR
        return outcome, error_text(error)
    whole = isinstance(payload, dict) and not _REPLIES.isdisjoint(payload)
    answer = "with a whole completion" if whole else "with JSON that is no completion"
    return Outcome.UNDECODABLE, (
        f"the endpoint answered without streaming: {shorten(content_type, 80)} {answer}, not {wanted}"
    )


def _content_types(protocol: str) -> tuple[str, ...]:
    return _CONTENT_TYPES.get(protocol, _CONTENT_TYPES["sse"])
