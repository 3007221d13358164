"""The many shapes of an error object, made one short line; and whether a content policy wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

ERROR_TEXT_LIMIT = 300

_MESSAGE_KEYS = ("message", "msg", "detail", "error_message", "error", "reason", "title")
_LABEL_KEYS = ("type", "code", "error_type", "param")
_POLICY_CODES = frozenset(
    {
        "content_policy_violation",
        "content_policy",
        "content_filter",
        "contentpolicyviolationerror",
        "responsibleaipolicyviolation",
        "guardrail_intervened",
        "moderation_blocked",
        "policy_violation",
    }
)
# "Guardrail not found" is a mistake in a request, not a refusal: the word alone is not enough.
_ACTED = r"(?:violat|block|interven|trigger|reject|denied)"
_POLICY_MESSAGE = re.compile(
    r"content[ _-]?policy|contentpolicyviolation|content management policy|content[ _]filter(?:ed|ing)? "
    rf"|guardrail.{{0,80}}{_ACTED}|{_ACTED}.{{0,80}}guardrail|flagged (?:by|for) moderation",
    re.IGNORECASE | re.DOTALL,
)


def shorten(text: str, limit: int = ERROR_TEXT_LIMIT) -> str:
    """``text`` on one line of printable characters, at most ``limit`` of them."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def error_in(payload: Any) -> Any | None:
    """The error object inside a decoded JSON body or event, or ``None`` when it holds none.

    Known shapes: ``{"error": {…}}``, ``{"error": "text"}``, ``{"object": "error", …}``,
    ``{"type": "error", …}``, ``{"detail": …}``, ``{"errors": […]}``. An empty or null ``error`` is none.
    """
    if not isinstance(payload, Mapping):
        return None
    for key in ("error", "errors"):
        if payload.get(key):
            return payload if payload[key] is True else payload[key]
    if payload.get("object") == "error" or payload.get("type") == "error":
        return payload
    if payload.get("detail") and "choices" not in payload:
        return payload["detail"]
    return None


def error_text(error: Any) -> str:
    """One short line for an error object: its message, then type and code in brackets."""
    return shorten(_describe(error))


def is_policy_error(error: Any) -> bool:
    """Whether a content policy or guardrail refused: by codes, by guardrail fields, by the message."""
    if isinstance(error, str):
        return _POLICY_MESSAGE.search(error[:5000]) is not None
    if not isinstance(error, Mapping):
        return False
    codes = {str(value).lower() for value in _codes(error)}
    fields = error.get("provider_specific_fields")
    by_field = isinstance(fields, Mapping) and any(str(key).startswith("guardrail") for key in fields)
    return by_field or not codes.isdisjoint(_POLICY_CODES) or is_policy_error(_describe(error))


def _codes(error: Mapping[str, Any]) -> Iterator[Any]:
    inner = error.get("innererror")
    for source in (error, inner if isinstance(inner, Mapping) else {}):
        yield from (source[key] for key in ("code", "type", "error_type") if source.get(key) is not None)


def _describe(error: Any, depth: int = 0) -> str:
    if isinstance(error, str):
        return error
    if depth > 3:
        return ""
    if isinstance(error, list):
        return "; ".join(filter(None, (_describe(part, depth + 1) for part in error[:5])))
    if not isinstance(error, Mapping):
        return "" if error is None else str(error)
    messages = (_describe(error.get(key), depth + 1) for key in _MESSAGE_KEYS)
    message = next(filter(None, messages), "")
    labels = [f"{key} {error[key]}" for key in _LABEL_KEYS if _is_label(error.get(key))]
    if not message:
        return ", ".join(labels)
    return f"{message} ({', '.join(labels)})" if labels else message


def _is_label(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""
