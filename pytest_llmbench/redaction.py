"""Secrets and unprintable characters out of everything that leaves: terminal, files, reports, messages.

A key can come back from a server inside an error text, in a URL or in a header dump; a list of suspicious
key names would miss that. So each known secret is looked for itself, in every spelling in which text travels:
plain, percent-encoded, JSON, Unicode and HTML escapes, also mixed, and base64 (also inside a longer base64
text, as in ``Authorization: Basic``); and what is left of it where a text was cut off.

Secrets belong to the process: whoever reads one tells :func:`keep_secret`, and :func:`outward` is asked
wherever text leaves. So no way out can forget a secret that another part of the session has read.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

REDACTED = "[redacted]"
SHORTEST_SECRET = 6
"""Shorter ones (``none``, ``EMPTY``, ``x``: placeholders that local servers are given) are no secrets, and
taking them out would tear holes into ordinary words."""

_SECRET_PARAMETER = re.compile(
    r"(?i)key|token|secret|password|passwd|signature|credential|auth|\bsig\b|\bcode\b"
)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""What moves a cursor, ends a line unseen, changes colours or direction, cannot be encoded, is not of XML."""
_COMMAND = re.compile(r"(?:^|(?<=[\r\n]))([^\S\r\n]*):(?=:.*::)|#(?=#\w*\[)")
"""What a runner takes for a command in the output of a step: ``::name …::`` at the beginning of a line
(GitHub Actions), ``##[name]`` anywhere (its older form), ``##vso[`` (Azure Pipelines), ``##teamcity[``."""
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_CUT = re.compile("…|$")


class Redactor:
    """Replaces known secrets in text and in nested JSON values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {stripped for secret in secrets if len(stripped := secret.strip()) >= SHORTEST_SECRET}
        # Longest first, or a secret that contains another one would leave its tail behind.
        self._secrets = sorted(found, key=lambda secret: (-len(secret), secret))
        forms = {form for secret in self._secrets for form in _base64_forms(secret)}
        # Names of headers and of types are put into lower case on their way, and a key in them with them.
        patterns = [f"(?i:{''.join(map(_spellings, secret))})" for secret in self._secrets]
        patterns += [re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form))]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return self._pattern is not None

    def text(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._without_stumps(self._pattern.sub(REDACTED, text))

    def _without_stumps(self, text: str) -> str:
        """Text is cut for display, at its end or before an ellipsis, and a secret with it."""
        for cut in reversed([match.start() for match in _CUT.finditer(text)]):
            # No more than the longest secret: a long text may be cut in many places.
            before = text[max(0, cut - len(self._secrets[0])) : cut].lower()
            for secret in map(str.lower, self._secrets):
                longest = range(len(secret) - 1, SHORTEST_SECRET - 1, -1)
                kept = next((n for n in longest if before.endswith(secret[:n])), 0)
                if kept:
                    text = f"{text[: cut - kept]}{REDACTED}{text[cut:]}"
                    break
        return text

    def value(self, value: Any) -> Any:
        """A copy of a JSON value with every string redacted, mapping keys included."""
        return value if self._pattern is None else _each_text(value, self.text)


_KNOWN: set[str] = set()


def keep_secret(*values: str) -> None:
    """Keep these values secret: from now on none of them leaves this process in a text."""
    _KNOWN.update(values)
    _redactor.cache_clear()


def keep_secrets_of(url: str) -> None:
    """User name, password and secret query parameters of a URL, as written and as meant."""
    try:
        parts = urlsplit(url)
        given = [parts.password or parts.username or ""]
    except ValueError:
        return
    if not parts.netloc:  # ``replay:fast?kv_us_per_token=…`` names no server, and no secret
        return
    given += [value for name, value in parse_qsl(parts.query) if _SECRET_PARAMETER.search(name)]
    keep_secret(*(form for value in given if value for form in (value, unquote(value))))


@contextmanager
def forgetting() -> Iterator[None]:
    """What is learned inside is forgotten after it: for tests, which share a process."""
    before = set(_KNOWN)
    try:
        yield
    finally:
        _KNOWN.clear()
        keep_secret(*before)


@lru_cache(maxsize=1)
def _redactor() -> Redactor:
    return Redactor(_KNOWN)


def known_secrets() -> Redactor:
    """The redactor of all secrets of this process so far."""
    return _redactor()


def outward(text: str) -> str:
    """``text`` as it may leave: without any known secret, and printable (line breaks and tabs stay)."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", _redactor().text(text))


def terminal_text(text: str) -> str:
    """``text`` as it may be printed: :func:`outward`, and no line of it is a command to a CI system.

    Always, not only where such a system is known to listen: output of a container reaches it all the same.
    """
    return _COMMAND.sub(lambda found: f"{found[1]}: " if found[1] is not None else "# ", outward(text))


def outward_value(value: Any) -> Any:
    """A copy of a JSON value with every string as :func:`outward` gives it, mapping keys included."""
    return _each_text(value, outward)


def _each_text(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_each_text(key, change): _each_text(entry, change) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(entry, change) for entry in value]
    return value


def _spellings(sign: str) -> str:
    """A pattern for one character as it is, or escaped in any of the usual ways."""
    code = ord(sign)
    percent = "".join(f"%{byte:02x}" for byte in sign.encode("utf-8", "surrogatepass"))
    forms = [rf"\\*{re.escape(sign)}", percent]
    units = [code] if code < 0x10000 else _surrogates(code)
    forms.append(r"\\+" + r"\\+".join(f"u{unit:04x}" for unit in units))
    forms.append(rf"&#(?:0*{code}|x0*{code:x});?")
    if code < 0x100:
        forms.append(rf"\\+x{code:02x}")
    if sign in _ENTITIES:
        forms.append(f"&{_ENTITIES[sign]};")
    if sign == " ":
        forms.append(r"\+")
    return f"(?:{'|'.join(forms)})"


def _surrogates(code: int) -> list[int]:
    high, low = divmod(code - 0x10000, 0x400)
    return [0xD800 + high, 0xDC00 + low]


def _base64_forms(secret: str) -> set[str]:
    """The characters of a base64 text that depend on the secret alone, for each of its three alignments."""
    raw = secret.encode("utf-8", "surrogatepass")
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
