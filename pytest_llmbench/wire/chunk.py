"""A chunk: the content of one wire event, whatever the dialect; and what every dialect does first with an
event: read its payload as a JSON object, or say what it is instead.

Some servers repeat all text so far with each event: their chunks are reduced to what each adds. Whether a
server does so depends on how it was started, and no event says it. Of an API that has both ways, text that
begins with the text before it is taken as a repetition until one does not; what was taken so by mistake is
put right then, which the first few events decide. Of an API that has increments alone the whole reply
decides: some of its servers repeat nevertheless (DashScope without ``incremental_output``), or send all of
the text once more at the end. Tool calls are put together here too.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pytest_llmbench.model.reply_checks import Call
from pytest_llmbench.wire.error_replies import (
    error_in,
    error_text,
    is_policy_error,
    is_turned_away,
    json_object,
    shorten,
)
from pytest_llmbench.wire.sse import SSEEvent

_NOTHING_SEEN = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
"""Unicode categories that show nothing: white space, control characters and those of no width (joiners, marks
of direction)."""
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | frozenset(
    map(chr, range(0xFE00, 0xFE10))
)
"""Characters of other categories that show nothing: fillers of Hangul, the empty Braille pattern, selectors
of variants (Unicode, ``Default_Ignorable_Code_Point``)."""


def is_visible(text: str | bytes) -> bool:
    """Whether a reader sees something of a non-empty text: more than white space and characters of no width,
    which any server could send ahead of an answer. Bytes must be printable ASCII."""
    if text.isspace():
        return False
    if isinstance(text, bytes) or (text.isprintable() and not _FILLERS.intersection(text)):
        return True
    return any(unicodedata.category(each) not in _NOTHING_SEEN and each not in _FILLERS for each in text)


@dataclass(slots=True)
class Usage:
    """Token counts as the server reports them; ``None``: it does not."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    """Output tokens, reasoning included."""
    cached_tokens: int | None = None
    """How many of the input tokens came from a prefix cache."""
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    """Input and output together."""


class CallDelta(NamedTuple):
    """What an event adds to one tool call."""

    number: int | None
    """Number of the call in the reply, as the server counts; ``None``: it does not."""
    name: str = ""
    arguments: str = ""
    identity: str = ""
    """Id of the call; most servers send it with the first event of the call alone."""


@dataclass(slots=True)
class Chunk:
    """One event of a reply. A chunk is a wire event, not a token: it may hold none, one or many.

    The text fields hold what this event adds. Token fields are only set where the server gives counts.
    """

    stamp_ns: int
    read_index: int
    text: str = ""
    """Visible output: content, refusal text, tool-call names and arguments."""
    reasoning: str = ""
    """Reasoning sent in a field of its own; it is not content for TTFT (AMB-29)."""
    choice: int | None = None
    """The choice that it belongs to; ``None`` for events that belong to none (usage, end marker, error)."""
    blank: bool = False
    """Whether the output field is present and empty: a token without text, or no token at all. See
    attribution."""
    tokens: int | None = None
    """Number of tokens of this event alone, by the token ids in it."""
    ids_alone: bool = False
    """Whether its tokens come as ids, from an API without text: they are then visible output."""
    tokens_cumulative: int | None = None
    """Output tokens of the reply up to and including this event."""
    results: Sequence[int] = ()
    """Numbers of the inputs whose vectors or scores are in a reply that is one document."""
    finish_reason: str | None = None
    usage: Usage | None = None
    done: bool = False
    """Whether it is the dialect's end marker. That does not mean success: servers send it after an error
    too."""
    error: str | None = None
    refused: bool = False
    """Whether the error is that of a content policy."""
    turned_away: bool = False
    """Whether the error is that of a server which takes no more requests at the moment."""
    problem: str = ""
    """Why the event cannot be read; empty when it can."""
    server_timings: Mapping[str, Any] | None = None
    """The server's own timing figures, with its names and unfiltered."""
    calls: tuple[CallDelta, ...] = ()
    """What the event adds to each tool call."""
    called: int = 0
    """Number of characters at the end of ``text`` that are names and arguments of tool calls."""

    @property
    def content(self) -> str:
        """The text without that of tool calls."""
        return self.text[: len(self.text) - self.called] if self.called else self.text


END_MARKER = "[DONE]"
TOKEN_TIMES = "token_times_ns"
"""Key of an event with the server's instant of each of its tokens, in integer nanoseconds of the server's
clock."""
TOKENS_PER_STEP = "avg_decoded_tokens_per_iter"
"""Key of a choice of TensorRT-LLM: tokens of the reply so far / iterations that gave them, the first too."""
_ENUMERATION = re.compile(r"^finish_?reason[._]")
_NO_FINISH = ("null", "none", "unspecified")
_FINISH_LIMIT = 80
"""Most characters of a finish reason that are kept."""


def payload_of(event: SSEEvent, chunk: Chunk) -> dict[str, Any] | None:
    """The JSON object in an event; ``None`` where there is none, with the reason in ``chunk``.

    An event that the end of the stream cut off and that cannot be read is an empty chunk: the reply is
    truncated, which :func:`~pytest_llmbench.wire.reply.read_stream` finds out by itself.
    """
    if event.problem:
        chunk.problem = event.problem if event.terminated else ""
        return None
    try:
        payload = json.loads(event.data)
    except (ValueError, RecursionError):
        payload = None
    if payload.__class__ is dict:
        found: dict[str, Any] = payload
        return found
    read_plain(chunk, event)
    return None


def read_plain(chunk: Chunk, event: SSEEvent) -> None:
    """Read an event that is not a JSON object.

    It is the end marker, a plain error text, a keep-alive, a named event of others, or garbage.
    """
    data = event.data.strip()
    if data == END_MARKER:
        chunk.done = True
    elif event.event == "error":
        set_error(chunk, data)
    elif data and event.terminated and event.event == "message":
        chunk.problem = f"an event that is not a JSON object: {shorten(data, 80)}"
        if "\n" in data and _is_object(data.partition("\n")[0]):
            chunk.problem = (
                "several JSON objects in one event: one newline stands between them, where an empty line "
                f"ends an event: {shorten(data, 80)}"
            )


def _is_object(text: str) -> bool:
    braced = text.lstrip().startswith("{") and text.rstrip().endswith("}")
    return braced and json_object(text) is not None


def set_error(chunk: Chunk, error: Any) -> None:
    """Make the chunk an error with this object or text."""
    chunk.error = error_text(error) or "an error without a message"
    chunk.refused = is_policy_error(error)
    chunk.turned_away = is_turned_away(error)


def read_error(chunk: Chunk, payload: dict[str, Any]) -> bool:
    """Read an error in one of its many shapes into ``chunk``. False if the payload is none."""
    error = error_in(payload)
    if error is None:
        return False
    set_error(chunk, error)
    return True


def type_of(payload: dict[str, Any], event_name: str) -> str:
    """The type of an event, which is in its payload and often also its name."""
    kind = payload.get("type", event_name)
    return kind if kind.__class__ is str else ""


def finish_reason(value: Any) -> str | None:
    """A finish reason as it is kept, in lower case and without the name of its enumeration
    (``FinishReason.MAX_TOKENS``); ``None`` for none, which some gateways write as ``""``."""
    if not value:
        return None
    told = shorten(str(value), _FINISH_LIMIT) or "no readable text"
    told = told if told.islower() else _ENUMERATION.sub("", told.lower()) or told
    return None if told in _NO_FINISH else told


def text_in(source: Any, key: str) -> str:
    """The text under ``key`` of what should be an object; ``""`` where there is none."""
    value = source.get(key) if source.__class__ is dict else None
    return value if value.__class__ is str else ""


def written(source: Any, key: str) -> str:
    """The arguments under ``key`` as text: what is no text already is written as JSON; ``""`` for none."""
    value = source.get(key) if source.__class__ is dict else None
    return value if value.__class__ is str else "" if value is None else json.dumps(value)


def as_count(value: Any) -> int | None:
    """``value`` if it is a valid count, else None: 12.0 is one, True, -1 and "12" are not."""
    if value.__class__ is float and value.is_integer():
        value = int(value)
    return value if value.__class__ is int and value >= 0 else None


_DECIDED_AFTER = 8
"""Number of chunks with text after which repetition is decided, if each began with the one before: increments
never do that."""
_HALF_A_CHARACTER = "\ufffd"
"""End of a text whose last token ends inside a character; the next event replaces it."""


@dataclass(slots=True)
class _Choice:
    so_far: str = ""
    taken: list[tuple[Chunk, str]] = field(default_factory=list)
    """Chunks that were reduced, with their text as sent, as long as that may have been a mistake."""
    repeats: bool | None = None
    """Whether the server repeats; ``None``: not decided yet."""


def increments(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The chunks, each with the text that it adds to its choice. Chunks are changed in place."""
    choices: dict[int | None, _Choice] = {}
    for chunk in chunks:
        if chunk.text:
            _reduce(chunk, choices.setdefault(chunk.choice, _Choice()))
        yield chunk


def _reduce(chunk: Chunk, choice: _Choice) -> None:
    if choice.repeats is False:
        return
    text = chunk.text
    known = choice.so_far.rstrip(_HALF_A_CHARACTER)
    if text.startswith(known):
        if choice.so_far:
            chunk.text = text[len(known) :] if text != choice.so_far else ""
            chunk.blank = not chunk.text
        choice.so_far = text
        if choice.repeats is None:
            choice.taken.append((chunk, text))
            if len(choice.taken) > _DECIDED_AFTER:
                choice.repeats, choice.taken = True, []
    elif choice.repeats is None:
        choice.repeats = False
        for earlier, whole in choice.taken:
            earlier.text, earlier.blank = whole, False
        choice.taken = []
    else:
        chunk.problem = "text that does not go on from the text before it"


_GROWN, _REPEATED = 3, 12
"""Least number of times that a text grew, or of characters that were said again, by which it is one text that
is repeated: pieces of a text begin with one another now and then, but not all of them and as often."""


def repeats(pieces: Sequence[str]) -> bool:
    """Whether each piece repeats the whole one before it and goes on from there. Equal ones may be among
    them, but alone they are the output of a model that repeats itself."""
    pairs = list(pairwise(pieces))
    if not all(after.startswith(before.rstrip(_HALF_A_CHARACTER)) for before, after in pairs):
        return False
    grown = sum(len(after) > len(before) for before, after in pairs)
    often = grown >= _GROWN or sum(map(len, pieces[:-1])) >= _REPEATED
    return often and 2 * grown >= max(1, len(pairs))


def without_repetitions(chunks: Sequence[Chunk]) -> None:
    """Reduce the chunks of a reply, in place, if its server repeats what it has said. Text and reasoning are
    looked at apart, and so are choices."""
    for choice in {chunk.choice for chunk in chunks} - {None}:
        own = [chunk for chunk in chunks if chunk.choice == choice]
        told = [chunk.content for chunk in own]
        texts = _reduced(told)
        thoughts = _reduced([chunk.reasoning for chunk in own])
        for chunk, before, text, reasoning in zip(own, told, texts, thoughts, strict=True):
            if (text, reasoning) != (before, chunk.reasoning):
                chunk.text, chunk.reasoning = text + chunk.text[len(before) :], reasoning
                chunk.blank = not (chunk.text or reasoning)


def may_repeat(pieces: Sequence[Any]) -> bool:
    """Whether pieces of a text, none of them empty, can be repetitions: the last begins with the first and is
    longer. Few texts do, so the usual reply is known to be none by this alone."""
    return len(pieces[-1]) > len(pieces[0]) and pieces[-1].startswith(pieces[0])


def _reduced(texts: list[str]) -> list[str]:
    """What each of the texts adds; the texts as they are where none is repeated."""
    pieces = [text for text in texts if text]
    if not pieces or not may_repeat(pieces):
        return texts
    said = pieces[-1] if len(pieces) > 2 else ""
    if len(said) >= _REPEATED and said == "".join(pieces[:-1]):  # all of those before it once more
        last = max(at for at, text in enumerate(texts) if text)
        return [*texts[:last], *([""] * (len(texts) - last))]
    if not repeats(pieces):
        return texts
    whole = [text.rstrip(_HALF_A_CHARACTER) for text in texts]
    so_far = accumulate(whole, lambda before, text: text or before, initial="")
    return [text[len(before) :] for before, text in zip(so_far, whole, strict=False)]


_MOST_PIECES = 1024
"""Pieces of the arguments of a call beyond which no event with its name begins another one."""


@dataclass(slots=True)
class _OpenCall:
    number: int | None
    identity: str
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The arguments. Servers send them in pieces, whole with each event, or all so far with each."""
        whole = "".join(self.pieces)
        last = self.pieces[-1] if len(self.pieces) > 1 else whole
        if last == whole or _is_object(whole):
            return whole
        return last if _is_object(last) or repeats(self.pieces) else whole

    def goes_on_with(self, delta: CallDelta) -> bool:
        """Whether an event without another id is part of this call, rather than the begin of another one."""
        if not delta.name or not self.name:
            return True
        if delta.name != self.name:  # a name in pieces, of a server that numbers its calls
            return delta.number is not None and not self.pieces
        again = (
            not delta.arguments or [delta.arguments] == self.pieces[-1:] or len(self.pieces) > _MOST_PIECES
        )
        return again or not _is_object(self.arguments)

    def take(self, delta: CallDelta) -> None:
        self.identity = self.identity or delta.identity
        if delta.name.startswith(self.name):  # some servers send it with every event
            self.name = delta.name or self.name
        else:
            self.name += delta.name
        if delta.arguments:
            self.pieces.append(delta.arguments)


def calls_of(chunks: Iterable[Chunk]) -> list[Call]:
    """The tool calls in the order of their numbers, otherwise of their beginnings. Names and arguments come
    in pieces of any size, of several calls in turns.

    A call is told from others by its id, by its number, and by the name with which it begins: there are
    servers that give all calls one number, and some that give none.
    """
    found: list[_OpenCall] = []
    for delta in (delta for chunk in chunks for delta in chunk.calls):
        call = _continued(found, delta)
        if call is None:
            call = _OpenCall(delta.number, delta.identity)
            found.append(call)
        call.take(delta)
    found.sort(key=lambda call: call.number or 0)
    return [Call(call.name, call.arguments) for call in found]


def _continued(found: Sequence[_OpenCall], delta: CallDelta) -> _OpenCall | None:
    """The call that an event goes on with; None if it begins another one."""
    alike = [
        call for call in reversed(found) if None in (delta.number, call.number) or delta.number == call.number
    ]
    if delta.identity:
        alike = [call for call in alike if call.identity in ("", delta.identity)]
        alike.sort(key=lambda call: call.identity, reverse=True)  # that with the same id first
    latest = alike[0] if alike else None
    if latest is None or (delta.identity and latest.identity == delta.identity):
        return latest
    return latest if latest.goes_on_with(delta) else None
