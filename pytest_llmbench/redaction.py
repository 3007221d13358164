"""Removes secrets and unprintable characters from everything that leaves: terminal, files, reports,
messages.

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
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

REDACTED = "[redacted]"
SHORTEST_SECRET = 6
"""Fewest characters of a secret. Shorter ones (``none``, ``EMPTY``, ``x``: placeholders that local servers
are given) are not secret, and taking them out would tear holes into ordinary words."""

_SECRET_PARAMETER = re.compile(
    r"(?i)key|token|secret|password|passwd|signature|credential|auth|\bsig\b|\bcode\b"
)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that move a cursor, end a line unseen, change colours or direction, cannot be encoded, or are
not allowed in XML."""
_COMMAND = re.compile(r"(?:^|(?<=[\r\n]))([^\S\r\n]*):(?=:.*::)|#(?=#\w*\[)")
"""Text that a CI runner takes for a command in the output of a step: ``::name …::`` at the beginning of a
line (GitHub Actions), ``##[name]`` anywhere (its older form), ``##vso[`` (Azure Pipelines),
``##teamcity[``."""
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_NAMED = {name: sign for sign, name in _ENTITIES.items()}
_CUT = re.compile(r"…|\.\.\.|$")
_ESCAPED = re.compile(
    r"(?is)\\+u(?P<u>[0-9a-f]{4})|\\+x(?P<x>[0-9a-f]{2})|%(?P<percent>[0-9a-f]{2})"
    r"|&#(?P<decimal>\d{1,7});?|&#x(?P<hex>[0-9a-f]{1,6});?|&(?P<name>amp|lt|gt|quot|apos);|\\+(?P<sign>.)|."
)
_ESCAPE_BEGUN = re.compile(r"(?i)(?:\\+(?:u[0-9a-f]{0,3}|x[0-9a-f]?)?|%[0-9a-f]?|&#?\w{0,8})\Z")
_LONGEST_ESCAPE = 8
"""Length of the longest escape of one character, ``&#x0041;``: how far a cut within one can be from its
ends."""
_NUMBERS = frozenset({int, float, bool, type(None)})
"""Types of values in which there is no text."""

_Reading = tuple[str, Sequence[int]]
"""A text in lower case without escapes, and the position in the original at which each character begins, and
the end."""


class Redactor:
    """Replaces known secrets in text and in nested JSON values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {stripped for secret in secrets if len(stripped := secret.strip()) >= SHORTEST_SECRET}
        # Longest first, or a secret that contains another one would leave its tail behind.
        self._secrets = sorted(found, key=lambda secret: (-len(secret), secret))
        forms = {form for secret in self._secrets for form in _base64_forms(secret)}
        # Names of headers and of types are put into lower case on their way, and a key in them with them.
        patterns = [f"(?i:{''.join(map(_spellings, secret))})" for secret in self._secrets]
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        patterns += map(re.escape, self._forms)
        whole = (*map(str.lower, self._secrets), *self._forms)
        self._edges = {edge for one in whole for edge in (one[:SHORTEST_SECRET], one[-SHORTEST_SECRET:])}
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return self._pattern is not None

    def text(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._without_stumps(self._pattern.sub(REDACTED, text))

    def _without_stumps(self, text: str) -> str:
        """The text without the rest of a secret, or of an escape of one, at a cut: texts are cut for display
        at the end or at an ellipsis."""
        # No more than the longest secret can be: a long text may be cut in many places.
        most = _LONGEST_ESCAPE * (len(self._secrets[0]) + 1)
        if not any(map(self._may_hold_a_part, _around_cuts(text, most))):
            return text
        for cut in reversed(list(_CUT.finditer(text))):
            first, last = cut.span()
            if first < last and (after := self._end_of_one(text[last : last + most])):
                text = f"{text[:last]}{REDACTED}{text[last + after :]}"
            if before := self._beginning_of_one(text[max(0, first - most) : first]):
                text = f"{text[: first - before]}{REDACTED}{text[first:]}"
        return text

    def _may_hold_a_part(self, text: str) -> bool:
        plain = _unescaped(text)[0]
        return any(edge in plain or edge in text for edge in self._edges)

    def _beginning_of_one(self, text: str) -> int:
        """How many characters at the end of ``text`` are the beginning of a secret."""
        for secret, (plain, at) in self._readings(text, _ESCAPE_BEGUN.sub("", text)):
            for first in _places(plain, secret[:SHORTEST_SECRET]):
                if secret.startswith(plain[first:]):
                    return len(text) - at[first]
        return 0

    def _end_of_one(self, text: str) -> int:
        """How many characters at the beginning of ``text`` are the end of a secret."""
        for secret, (plain, at) in self._readings(text):
            for last in (first + SHORTEST_SECRET for first in _places(plain, secret[-SHORTEST_SECRET:])):
                # What is left of an escape that was cut through stands before it.
                skipped = range(min(bisect_left(at, _LONGEST_ESCAPE), last - SHORTEST_SECRET + 1))
                if any(secret.endswith(plain[n:last]) for n in skipped):
                    return at[last]
        return 0

    def _readings(self, *texts: str) -> Iterator[tuple[str, _Reading]]:
        """Each secret with each reading of the texts in which a part of it may be left."""
        for text in dict.fromkeys(texts):
            reading = _unescaped(text)
            yield from ((secret.lower(), reading) for secret in self._secrets)
            yield from ((form, (text, range(len(text) + 1))) for form in self._forms)

    def value(self, value: Any) -> Any:
        """A copy of a JSON value with every string redacted, mapping keys included."""
        return value if self._pattern is None else _each_text(value, self.text)


_KNOWN: set[str] = set()


def keep_secret(*values: str) -> None:
    """Keep these values secret: from now on none of them leaves this process in a text."""
    if not _KNOWN.issuperset(values):
        _KNOWN.update(values)
        _redactor.cache_clear()


def keep_secrets_of(url: str) -> None:
    """Keep the user name, password and secret query parameters of a URL secret, as written and decoded."""
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
    """Forget at the end of the block what was learned inside: for tests, which share a process."""
    before = set(_KNOWN)
    try:
        yield
    finally:
        if before != _KNOWN:
            _KNOWN.clear()
            _KNOWN.update(before)
            _redactor.cache_clear()


@lru_cache(maxsize=1)
def _redactor() -> Redactor:
    return Redactor(_KNOWN)


def known_secrets() -> Redactor:
    """The redactor of all secrets of this process so far."""
    return _redactor()


def outward(text: str) -> str:
    """``text`` as it may leave: without any known secret, and printable (line breaks and tabs stay)."""
    clean = _redactor().text(text)
    return clean if clean.isprintable() else _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", clean)


def terminal_text(text: str) -> str:
    """``text`` as it may be printed: :func:`outward`, and no line of it is a command to a CI system.

    Always, not only where such a system is known to listen: output of a container reaches it all the same.
    """
    return _COMMAND.sub(lambda found: f"{found[1]}: " if found[1] is not None else "# ", outward(text))


def outward_value(value: Any) -> Any:
    """A copy of a JSON value with every string as :func:`outward` gives it, mapping keys included."""
    return _each_text(value, outward)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The value with each of its texts changed. Each is changed once: keys and words recur in the thousands
    of a report."""
    return _changed(value, cache(change))


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    # A report is mostly keys and numbers: neither costs a call of its own.
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict | Mapping):
        return {
            change(key) if isinstance(key, str) else key: (
                entry if type(entry) in _NUMBERS else _changed(entry, change)
            )
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [entry if type(entry) in _NUMBERS else _changed(entry, change) for entry in value]
    return value


def _around_cuts(text: str, most: int) -> Iterator[str]:
    """The parts of ``text`` that lie at most that many characters from a cut, which is all of a short one."""
    begin = end = 0
    for cut in _CUT.finditer(text):
        if cut.start() - most > end:
            yield text[begin:end]
            begin = cut.start() - most
        end = cut.end() + most
    yield text[begin:end]


def _unescaped(text: str) -> _Reading:
    """``text`` in lower case with its escapes undone, and the position at which each of its characters began,
    and the end."""
    if not any(sign in text for sign in "\\%&") and len(lower := text.lower()) == len(text):
        return lower, range(len(text) + 1)
    found = list(_ESCAPED.finditer(text))
    plain = "".join(map(_meant, found))
    return plain, [*(one.start() for one in found), len(text)]


def _meant(found: re.Match[str]) -> str:
    """The character, in lower case, that an escape stands for, or that is there itself."""
    kind, text = found.lastgroup, found[0]
    if kind in ("u", "x", "percent", "hex"):
        code = int(found[kind], 16)
    elif kind == "decimal":
        code = int(found[kind])
    else:
        code = ord(_NAMED[found[kind].lower()] if kind == "name" else text[-1])
    sign = chr(code) if code <= sys.maxunicode else text[-1]
    return lower if len(lower := sign.lower()) == 1 else sign


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _spellings(sign: str) -> str:
    """A regular expression for one character as it is, or escaped in any of the usual ways."""
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
    """For each of its three alignments the characters of a base64 text that depend on the secret alone."""
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
