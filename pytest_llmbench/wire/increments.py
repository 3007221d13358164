"""Reduces chunks of servers that repeat all text so far with each event to what each adds.

Whether a server does so depends on how it was started, and no event says it. Of an API that has both ways,
text that begins with the text before it is taken as a repetition until one does not; what was taken so by
mistake is put right then, which the first few events decide. Of an API that has increments alone the whole
reply decides: some of its servers repeat nevertheless (DashScope without ``incremental_output``), or send all
of the text once more at the end. Tool calls are put together here too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from pytest_llmbench.model.reply_checks import Call
from pytest_llmbench.wire.chunk import CallDelta, Chunk

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


def ends_with_all(pieces: Sequence[str]) -> bool:
    """Whether the last piece is all of those before it once more."""
    said = pieces[-1] if len(pieces) > 2 else ""
    return len(said) >= _REPEATED and said == "".join(pieces[:-1])


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
    if ends_with_all(pieces):
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


def _is_object(text: str) -> bool:
    if not text.startswith("{") or not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


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
