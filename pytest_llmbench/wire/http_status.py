"""What an HTTP status other than success means for a request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus

from pytest_llmbench.model.record import Outcome
from pytest_llmbench.wire.error_text import error_in, error_text, is_policy_error, shorten

_JSON_READ = 1024 * 1024
_PAGE_READ = 8 * 1024
"""Error bodies are read so far: some gateways send whole stack traces or pages."""
_OVERLOAD = re.compile(
    r"overload|too many|rate.?limit|throttl|at capacity|over capacity|capacity exceeded|queue|in-flight"
    r"|concurren|pending requests|no (?:available )?slot|(?:server is|currently|too) busy"
    r"|cannot accept (?:new|more) requests|backlog",
    re.IGNORECASE,
)
_UNAVAILABLE, _OVERLOADED = 503, 529
_NEVER_POLICY = frozenset({401, 404, 408, 429})
_MARKUP = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>", re.IGNORECASE | re.DOTALL)

_OVERLOAD_TYPES = frozenset({"overloaded_error", "rate_limit_error", "rate_limit_exceeded"})


def is_turned_away(error: object) -> bool:
    """Whether an error object says that its server takes no more requests just now.

    It has one of the statuses that :func:`classify_status` reads as ``rate_limited``, or a type that says so.
    vLLM answers 200 to some of the requests that its admission control turns away, with a stream of one such
    error.
    """
    if not isinstance(error, Mapping):
        return False
    told = [str(error.get(key)) for key in ("type", "code", "status", "status_code")]
    if not _OVERLOAD_TYPES.isdisjoint(told):
        return True
    statuses = [int(each) for each in told if re.fullmatch(r"[45]\d\d", each)]
    return any(_is_overload(each, error_text(error)) for each in statuses)


def _is_overload(status: int, text: str, retry_after: str | None = None) -> bool:
    if status == _UNAVAILABLE:
        return retry_after is not None or _OVERLOAD.search(text) is not None
    return status in (429, _OVERLOADED)


def classify_status(status: int, headers: Mapping[str, str], body: bytes) -> tuple[Outcome, str]:
    """Outcome and a one-line reason for a reply with a status that is not 2xx.

    ``rate_limited``: 429, 529 (Anthropic's word for overloaded), or 503 with ``Retry-After`` or an overload
    message. ``refused``: a 4xx whose body
    is that of a content policy or guardrail. Everything else is ``http_error``.
    """
    error, text = read_error_body(body)
    reason = _with_phrase(status) + (f": {text}" if text else ", empty body")
    if _is_overload(status, text, header(headers, "retry-after")):
        return Outcome.RATE_LIMITED, shorten(reason)
    if 400 <= status < 500 and status not in _NEVER_POLICY and is_policy_error(error):
        return Outcome.REFUSED, shorten(reason)
    return Outcome.HTTP_ERROR, shorten(reason)


def read_error_body(body: bytes) -> tuple[object, str]:
    """The error object of an error body and its text: JSON of any known shape, a page, or plain text."""
    text = body[:_JSON_READ].decode("utf-8", errors="replace").strip()
    try:
        payload = json.loads(text) if text else None
    except (ValueError, RecursionError):
        plain = shorten(_MARKUP.sub(" ", text[:_PAGE_READ]))
        return plain, plain
    found = error_in(payload)
    error = payload if found is None else found
    return error, error_text(error)


def header(headers: Mapping[str, str], name: str) -> str | None:
    """A header by its name in lower case, whatever the case it came in."""
    return next((value for key, value in headers.items() if key.lower() == name), None)


def _with_phrase(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"
