"""Secrets out of everything that is written: by value, in each form in which they travel.

A key can come back from a server inside an error text, in a URL or in a header dump; a list of suspicious
key names would miss that. So each known secret is looked for itself, plainly and as it appears in URLs,
JSON strings, HTML and base64 (also inside a longer base64 text, as in ``Authorization: Basic``).
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit, urlunsplit

REDACTED = "[redacted]"
SHORTEST_SECRET = 6
"""Shorter ones (``none``, ``EMPTY``, ``x``: placeholders that local servers are given) are no secrets, and
taking them out would tear holes into ordinary words."""

_SECRET_PARAMETER = re.compile(
    r"(?i)key|token|secret|password|passwd|signature|credential|auth|\bsig\b|\bcode\b"
)


class Redactor:
    """Replaces known secrets in text and in nested JSON values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        # Longest first, or a secret that contains another one would leave its tail behind.
        pattern = "|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form)))
        self._pattern = re.compile(pattern) if pattern else None

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def value(self, value: Any) -> Any:
        """A copy of a JSON value with every string redacted, mapping keys included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(entry) for entry in value]
        return value


def _forms(secret: str) -> set[str]:
    stripped = secret.strip()
    if len(stripped) < SHORTEST_SECRET:
        return set()
    quoted = {quote(stripped, safe=""), quote(stripped), quote_plus(stripped)}
    lower_case = {re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in quoted}
    escaped = {
        json.dumps(stripped)[1:-1],
        json.dumps(stripped, ensure_ascii=False)[1:-1],
        html.escape(stripped),
    }
    return {stripped, repr(stripped)[1:-1]} | quoted | lower_case | escaped | _base64_forms(stripped)


def _base64_forms(secret: str) -> set[str]:
    """The characters of a base64 text that depend on the secret alone, for each of its three alignments."""
    raw = secret.encode()
    forms = set()
    for shift in range(3):
        bits = 8 * (shift + len(raw))
        first, last = -(-8 * shift // 6), bits // 6  # whole sextets that hold bits of the secret only
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(b"\0" * shift + raw).decode()[first:last])
    return {form for form in forms if len(form) >= SHORTEST_SECRET}


def without_credentials(url: str) -> str:
    """``url`` without user name and password, and without the values of query parameters that look secret."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL; nothing of it can be told apart
        return url
    if not parts.netloc:
        return url
    host = parts.netloc.rpartition("@")[2]
    pairs = [_parameter(pair) for pair in parts.query.split("&")] if parts.query else []
    return urlunsplit((parts.scheme, host, parts.path, "&".join(pairs), parts.fragment))


def _parameter(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}={REDACTED}" if equals and _SECRET_PARAMETER.search(name) else pair


__all__ = ["REDACTED", "SHORTEST_SECRET", "Redactor", "without_credentials"]
