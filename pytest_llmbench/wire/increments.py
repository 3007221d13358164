"""Reduces chunks of servers that repeat all text so far with each event to what each adds.

Whether a server does so depends on how it was started, and no event says it: text that begins with the text
before it is taken as a repetition until one does not. What was taken so by mistake is put right then, which
the first few events decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pytest_llmbench.wire.chunk import Chunk

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
