"""A chunk: the content of one wire event, whatever the dialect."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    which any server could send ahead of an answer. Bytes have to be printable ASCII."""
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

    @property
    def undecodable(self) -> bool:
        return self.problem != ""
