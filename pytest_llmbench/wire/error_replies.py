"""Replies that are no stream: the outcome by their HTTP status or content type, the many shapes of an error
object as one short line, and whether a content policy wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from pytest_llmbench.model.record import Outcome

ERROR_TEXT_LIMIT = 300

_MESSAGE_KEYS = (
    "message", "msg", "detail", "error_message", "error_msg", "error_description", "errmsg", "status_msg",
    "error", "reason", "title",
)  # fmt: skip
_LABEL_KEYS = ("type", "code", "error_code", "errcode", "status_code", "error_type", "param")
_CODE_KEYS = ("code", "error_code", "errcode", "status_code")
_NO_FAILURE = ("", "0", "none", "ok", "success")
_WRAPPERS = ("base_resp", "header")
"""Keys under which some servers put a code and a message, of successes too."""
_REPLY_KEYS = frozenset(
    {"choices", "output", "content", "done", "meta_info", "generated_text", "text_output", "token", "delta"}
)
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


def beginning(text: str, most: int) -> str:
    """The first ``most`` characters, with the mark of a cut, by which a part of a key there is found."""
    return text if len(text) <= most else f"{text[:most]}…"


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object that a text is; ``None`` where it is anything else. Never raises."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def error_in(payload: Any) -> Any | None:
    """The error object inside a decoded JSON body or event, or ``None`` when it holds none.

    Known shapes: ``{"error": {…}}``, ``{"error": "text"}``, ``{"object": "error", …}``,
    ``{"type": "error", …}``, ``{"detail": …}``, ``{"errors": […]}``; a code that is no success beside a
    message, under any of their names, at the top or in ``base_resp``. An empty or null ``error`` is none.
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
    for source in (payload, *(payload.get(key) for key in _WRAPPERS)):
        if isinstance(source, Mapping) and _tells_of_failure(source, whole=source is payload):
            return source
    return None


def _tells_of_failure(source: Mapping[str, Any], *, whole: bool) -> bool:
    """Whether a code says that something failed and a message says what. ``whole``: it is the whole event or
    document, which is none of these if it holds a part of a reply."""
    if whole and not _REPLY_KEYS.isdisjoint(source):
        return False
    said = any(isinstance(source.get(key), str) and source[key] for key in _MESSAGE_KEYS)
    if not said:
        return False
    if source.get("success") is False or str(source.get("status")).lower() in ("error", "fail", "failed"):
        return True
    codes = [str(source[key]).strip().lower() for key in _CODE_KEYS if key in source]
    return any(code not in _NO_FAILURE and re.fullmatch(r"2\d\d", code) is None for code in codes)


def error_text(error: Any) -> str:
    """One short line for an error object: its message, then type and code in brackets."""
    return shorten(_describe(error))


def is_policy_error(error: Any) -> bool:
    """Whether a content policy or guardrail refused: by codes, by guardrail fields, by the message."""
    if isinstance(error, str):
        return _POLICY_MESSAGE.search(error[:5000]) is not None
    if not isinstance(error, Mapping):
        return False
    inner = error.get("innererror")
    codes = {
        str(source[key]).lower()
        for source in (error, inner if isinstance(inner, Mapping) else {})
        for key in ("code", "type", "error_type")
        if source.get(key) is not None
    }
    fields = error.get("provider_specific_fields")
    by_field = isinstance(fields, Mapping) and any(str(key).startswith("guardrail") for key in fields)
    return by_field or not codes.isdisjoint(_POLICY_CODES) or is_policy_error(_describe(error))


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
    told = {key: error[key] for key in _LABEL_KEYS if isinstance(error.get(key), str | int)}
    labels = [f"{key} {value}" for key, value in told.items() if value != "" and not isinstance(value, bool)]
    if not message:
        return ", ".join(labels)
    return f"{message} ({', '.join(labels)})" if labels else message


_JSON_READ = 1024 * 1024
_PAGE_READ = 8 * 1024
"""Bytes of an error body that are read: some gateways send whole stack traces or pages."""
_OVERLOAD = re.compile(
    r"overload|too many|rate.?limit|throttl|at capacity|over capacity|capacity exceeded|queue|in-flight"
    r"|concurren|pending requests|no (?:available )?slot|(?:server is|currently|too) busy"
    r"|cannot accept (?:new|more) requests|backlog",
    re.IGNORECASE,
)
_UNAVAILABLE, _OVERLOADED = 503, 529
_NEVER_POLICY = frozenset({401, 404, 408, 429})
_TAG = re.compile(r"<(?:(script|style)\b)?[^<>]*+>", re.IGNORECASE)
_CLOSING = {name: re.compile(rf"</{name}\s*+>", re.IGNORECASE) for name in ("script", "style")}

_OVERLOAD_TYPES = frozenset({"overloaded_error", "rate_limit_error", "rate_limit_exceeded"})


def _words_of(page: str) -> str:
    """A page without its tags, and without scripts and styles that have an end; behind one without an end the
    words may be what the server has to say."""
    words, at, closing = [], 0, dict(_CLOSING)
    while tag := _TAG.search(page, at):
        words.append(page[at : tag.start()])
        name = (tag[1] or "").lower()
        end = closing[name].search(page, tag.end()) if name in closing else None
        if end is None:
            closing.pop(name, None)  # looked for once: time in proportion to the page
        at = (end or tag).end()
    return " ".join([*words, page[at:]])


def is_turned_away(error: object) -> bool:
    """Whether an error object says that its server takes no more requests at the moment.

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
    phrase = ""
    with suppress(ValueError):
        phrase = f" {HTTPStatus(status).phrase}"
    reason = f"HTTP {status}{phrase}" + (f": {text}" if text else ", empty body")
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
        plain = shorten(_words_of(beginning(text, _PAGE_READ)))
        return plain, plain
    found = error_in(payload)
    error = payload if found is None else found
    return error, error_text(error)


def header(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header by its name in lower case, whatever case it came in; None if there is none."""
    return next((value for key, value in headers.items() if key.lower() == name), None)


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
    answer = "with a whole completion" if whole else "with JSON that is not a completion"
    return Outcome.UNDECODABLE, (
        f"the endpoint answered without streaming: {shorten(content_type, 80)} {answer}, not {wanted}"
    )


def _content_types(protocol: str) -> tuple[str, ...]:
    return _CONTENT_TYPES.get(protocol, _CONTENT_TYPES["sse"])
