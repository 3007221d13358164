"""Removes secrets and unprintable characters from everything that leaves: terminal, files, reports,
messages.

A key can come back from a server inside an error text, in a URL or in a header dump; a list of suspicious
key names would miss that. So each known secret is looked for itself, in every spelling in which text travels:
plain, percent-encoded, JSON, Unicode and HTML escapes, also mixed and up to three times over; in hexadecimal
digits and in base64 (also inside a longer base64 text, as in ``Authorization: Basic``, and twice); broken by
white space, characters that nobody sees, and tags; and what is left of it where a text was cut off. What is
not looked for is in SECURITY.md.

All of it takes time in proportion to the text, whatever is in it: a text is read a fixed number of times, and
searched for a fixed number of words.

Secrets belong to the process: whoever reads one tells :func:`keep_secret`, and :func:`outward` is asked
wherever text leaves. So no way out can forget a secret that another part of the session has read.
"""

from __future__ import annotations

import base64
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

REDACTED = "[redacted]"
SHORTEST_SECRET = 6
"""Fewest characters of a secret. Shorter ones (``none``, ``EMPTY``, ``x``: placeholders that local servers
are given) are not secret, and taking them out would tear holes into ordinary words. So many at a cut are
taken for a part of one, too."""
_PART = 12
"""Fewest characters at either end of a secret that are taken out wherever they stand: whoever cut the text
may have left no mark of it, or one of their own."""

_SECRET_PARAMETER = re.compile(
    r"(?i)key|token|secret|password|passwd|signature|credential|auth|\bsig\b|\bcode\b"
)
_SECRET_OF_PROGRAM = re.compile(r"(?i)key(?!s|file)|token(?!s|iz)|secret|password|credential")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that move a cursor, end a line unseen, change colours or direction, cannot be encoded, or are
not allowed in XML."""
_COMMAND = re.compile(r"(?:^|(?<=[\r\n]))([^\S\r\n]*+):(?=:[^\r\n]*::)|#(?=#\w*\[)")
"""Text that a CI runner takes for a command in the output of a step: ``::name …::`` at the beginning of a
line (GitHub Actions), ``##[name]`` anywhere (its older form), ``##vso[`` (Azure Pipelines),
``##teamcity[``."""
_CUT = re.compile(
    r"…|\.\.\.\.*+|\*\*\*\**+|(?i:[(\[<{]\s?(?:truncated|cut|clipped|snip|omitted|\d{1,9} more))"
)
"""The mark of a cut: ours, and those that servers write."""
_IGNORED = re.compile(
    r"[\s\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffd\U000e0000-\U000e0fff]++"
)
"""White space, and characters of which a reader sees nothing."""
_TAG = re.compile(r"<[^<>]{0,99}>")
_ENTITIES = {
    "amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "sol": "/", "plus": "+", "equals": "=",
    "hyphen": "-", "dash": "-", "lowbar": "_", "period": ".", "colon": ":", "nbsp": "\xa0",
}  # fmt: skip
_ESCAPED = re.compile(
    r"(?is)\\++(?:u\{0{0,7}(?P<braced>[0-9a-f]{1,6})\}|(?-i:U)00(?P<long>[0-9a-f]{6})|u(?P<u>[0-9a-f]{4})"
    r"|x(?P<x>[0-9a-f]{2})|(?P<octal>[0-3][0-7]{2})|(?P<sign>.))?"
    r"|%(?:(?P<percent>[0-9a-f]{2})|u(?P<script>[0-9a-f]{4}))"
    rf"|&(?:#0{{0,7}}(?P<decimal>\d{{1,7}})|#x0{{0,7}}(?P<hex>[0-9a-f]{{1,6}})|(?P<name>{'|'.join(_ENTITIES)}));?"
)
_BASES = {"octal": 8, "decimal": 10}
"""Those of the escapes that are not hexadecimal."""
_BREAKS = frozenset("nrtbfv0")
"""What stands behind a backslash for a line break, a tab or another control character."""
_ESCAPE_BEGUN = re.compile(
    r"(?i)\s*+(?:\\++(?:u\{?[0-9a-f]{0,7}|x[0-9a-f]?)?|%u?[0-9a-f]{0,3}|&#?\w{0,8})?\s*+"
)
_LONGEST_ESCAPE = 8
"""Length of the longest usual escape of one character, ``&#x0041;``: what may be left of one that was cut
through."""
_TIMES = 3
"""How many escapes may lie upon each other, as in ``%25252F``."""
_NUMBERS = frozenset({int, float, bool, type(None)})
"""Types of values in which there is no text."""


class _Needle(NamedTuple):
    """A text that gives a secret away."""

    text: str
    cased: bool
    """Whether capitals matter, as they do in base64. A header's name is put into lower case on its way, and
    a key in it with it."""

    head: str
    """What :func:`_beginnings` looks for."""
    tail: str


class _Reading:
    """A text as somebody may read it: the one that it is made of, with what ``changed`` finds there left out
    or put back into the characters that it stands for."""

    def __init__(self, plain: str, made_of: _Reading | None = None, changed: re.Pattern[str] = _IGNORED):
        self.plain = plain
        self._made_of, self._changed = made_of, changed

    def dense(self) -> _Reading:
        """Without what nobody sees."""
        plain = "".join(self.plain.split())
        if not (plain.isascii() and plain.isprintable()):
            plain = _IGNORED.sub("", plain)
        return self if plain == self.plain else _Reading(plain, self, _IGNORED)

    def without(self, changed: re.Pattern[str]) -> _Reading:
        return _Reading(changed.sub(_meant, self.plain), self, changed)

    @cached_property
    def lower(self) -> str:
        lower = self.plain.lower()
        return lower if len(lower) == len(self.plain) else "".join(map(_lower, self.plain))

    @cached_property
    def places(self) -> tuple[Sequence[int], Sequence[int]]:
        """Where each character begins and ends in the text that was given."""
        if self._made_of is None:
            return range(len(self.plain)), range(1, len(self.plain) + 1)
        begins, ends = self._made_of.places
        first: list[int] = []
        last: list[int] = []
        at = 0
        for found in self._changed.finditer(self._made_of.plain):
            begin, end = found.span()
            first += begins[at:begin]
            last += ends[at:begin]
            if _meant(found):
                first.append(begins[begin])
                last.append(ends[end - 1])
            at = end
        return [*first, *begins[at:]], [*last, *ends[at:]]


class _Cuts:
    """Where a text was cut: where it ends, and at each mark of it."""

    def __init__(self, text: str) -> None:
        self._text = text
        spans = [found.span() for found in _CUT.finditer(text)]
        self._begins = [*(begin for begin, _ in spans), len(text)]
        self._ends = [end for _, end in spans]

    def after(self, at: int) -> int | None:
        """The cut behind ``at``, if nothing but what is left of an escape lies between."""
        cut = self._begins[bisect_left(self._begins, at)]
        begun = cut - at <= 4 * _LONGEST_ESCAPE and _ESCAPE_BEGUN.fullmatch(self._text, at, cut)
        return cut if begun else None

    def before(self, at: int) -> int | None:
        """The same, ahead of ``at``."""
        place = bisect_right(self._ends, at)
        near = place and at - self._ends[place - 1] < _LONGEST_ESCAPE
        return self._ends[place - 1] if near else None


class Redactor:
    """Replaces known secrets in text and in nested JSON values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {stripped for secret in secrets if len(stripped := secret.strip()) >= SHORTEST_SECRET}
        self._needles = sorted({needle for secret in found for needle in _needles(secret)})

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._needles)

    def text(self, text: str) -> str:
        if not self._needles or not (spans := sorted(self._spans(text))):
            return text
        pieces, at = [text[: spans[0][0]]], -1
        for begin, end in spans:
            if begin >= at:
                pieces += [text[at:begin] if at >= 0 else "", REDACTED]
            at = max(at, end)
        return "".join([*pieces, text[at:]])

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        cuts = None
        for reading in _readings(text):
            plain = reading.plain
            lower = reading.lower if len(plain) >= SHORTEST_SECRET else ""
            for needle, cased, head, tail in self._needles:
                read = plain if cased else lower
                if head in read or tail in read:
                    cuts = cuts or _Cuts(text)
                    yield from _beginnings(needle, read, reading, cuts)
                    yield from _endings(needle, read, reading, cuts)

    def value(self, value: Any) -> Any:
        """A copy of a JSON value with every string redacted, mapping keys included."""
        return _each_text(value, self.text) if self._needles else value


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


def keep_secrets_of_program(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Keep the values of options and variables of a program secret whose names say that they are."""
    given = list(env.items())
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        given.append((name, value if equals else following) if name.startswith("-") else ("", ""))
    keep_secret(*(value for name, value in given if value and _SECRET_OF_PROGRAM.search(name)))


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


def _readings(text: str) -> Iterator[_Reading]:
    """The text as it stands, with its escapes undone, those within these too, and without its tags."""
    reading = _Reading(text).dense()
    yield reading
    for _ in range(_TIMES):
        undone = reading.without(_ESCAPED)
        if undone.plain == reading.plain:
            break
        reading = undone.dense()
        yield reading
    if "<" in reading.plain:
        yield reading.without(_TAG)


def _meant(found: re.Match[str]) -> str:
    """The character that an escape stands for; none, for what is left out."""
    kind = found.lastgroup
    if kind is None:
        return ""
    if kind == "sign":
        return "" if found[kind] in _BREAKS else found[kind]
    if kind == "name":
        return _ENTITIES[found[kind].lower()]
    code = int(found[kind], _BASES.get(kind, 16))
    return chr(code) if code <= sys.maxunicode else ""


def _lower(sign: str) -> str:
    return lower if len(lower := sign.lower()) == 1 else sign


def _beginnings(needle: str, read: str, reading: _Reading, cuts: _Cuts) -> Iterator[tuple[int, int]]:
    """The spans of the text that are a secret, or as much of its beginning as gives it away."""
    begins, ends = reading.places
    at = read.find(needle[:SHORTEST_SECRET])
    while at >= 0:
        same = _same(needle, read[at : at + len(needle)])
        cut = None
        if same < len(needle):
            # The x of an escape that was cut through may be the next character of the secret.
            cut = cuts.after(ends[at + same - 1]) or cuts.after(ends[at + same - 2])
        taken = cut is not None or same >= min(_PART, len(needle))
        if taken:
            yield begins[at], ends[at + same - 1] if cut is None else cut
        at = read.find(needle[:SHORTEST_SECRET], at + (same if taken else 1))


def _endings(needle: str, read: str, reading: _Reading, cuts: _Cuts) -> Iterator[tuple[int, int]]:
    """The spans of the text that are as much of the end of a secret as gives it away."""
    begins, ends = reading.places
    at = read.find(needle[-SHORTEST_SECRET:])
    while at >= 0:
        end = at + SHORTEST_SECRET
        same = _same(needle[::-1], read[max(0, end - len(needle)) : end][::-1])
        begin = begins[end - same]
        cut = cuts.before(begin)
        if cut is not None or same >= min(_PART, len(needle)):
            yield begin if cut is None else cut, ends[end - 1]
        at = read.find(needle[-SHORTEST_SECRET:], at + 1)


def _same(one: str, other: str) -> int:
    """How many characters at the beginning of both are the same."""
    if one == other:
        return len(one)
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _needles(secret: str) -> Iterator[_Needle]:
    """What is looked for in each reading of a text."""
    forms = {(form, True) for form in _base64_forms(secret)}
    # Percent signs name bytes, \u escapes the halves of a pair, and a space may be a plus sign.
    for spaced in {secret, secret.replace(" ", "+")}:
        raw, units = spaced.encode("utf-8", "surrogatepass"), spaced.encode("utf-16-be", "surrogatepass")
        pairs = "".join(chr(high << 8 | low) for high, low in zip(units[::2], units[1::2], strict=True))
        for form in (spaced, raw.decode("latin-1"), pairs, raw.hex()):
            forms |= {(reading.lower, False) for reading in _readings(form)}
    forms |= {(twice, True) for form, cased in forms if cased for twice in _base64_forms(form)}
    for form, cased in forms:
        if len(form) >= SHORTEST_SECRET:
            yield _Needle(form, cased, form[:SHORTEST_SECRET], form[-SHORTEST_SECRET:])


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
    """``url`` without user name and password, and without the values of query parameters that look secret;
    also one that lacks its scheme."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL; nothing of it can be told apart
        return url
    if not parts.netloc:
        before, at, rest = url.partition("@")
        return rest if at and "/" not in before and ":" in rest else url
    host = parts.netloc.rpartition("@")[2]
    pairs = [_parameter(pair) for pair in parts.query.split("&")] if parts.query else []
    return urlunsplit((parts.scheme, host, parts.path, "&".join(pairs), parts.fragment))


def _parameter(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}={REDACTED}" if equals and _SECRET_PARAMETER.search(name) else pair
