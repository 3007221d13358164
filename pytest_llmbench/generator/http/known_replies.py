"""Whole responses, HTTP framing and all, that differ from an earlier one in their id and texts alone.

A server frames reply after reply in the same way. Once one has been read exactly (httptools for HTTP, the
dialect for its events), what stands around its texts is known byte by byte. A later response with the same
bytes there, the right chunk sizes and plain texts reads the same but for the texts: whatever an HTTP parser
and a JSON reader did, they would do again. So it is compared, not parsed; anything else is parsed.

The id may be another one of the same length. That is exact as well: no dialect reads the id, which
:mod:`~pytest_llmbench.wire.uniform` proves of each event, and no header that matters may hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from pytest_llmbench.wire.chunk import is_visible, may_repeat
from pytest_llmbench.wire.inline_reasoning import may_open
from pytest_llmbench.wire.reply import StreamSummary
from pytest_llmbench.wire.uniform import MOST_BYTES, Lesson, plain_texts

_HOLE = b"\0"
"""The byte that takes the place of each byte of the id; a response that contains it is parsed."""
_END_OF_HEAD = b"\r\n\r\n"
_NEW_LINE = b"\r\n"
_BREAK = b"\n\n"
_HEX = b"0123456789abcdefABCDEF"
_MOST_SHAPES = 8
"""How many shapes are remembered. A server has one at a time, but replies of several seconds may be under
way, each with its date."""
_MOST_ENDINGS = 512
_MEANINGFUL = frozenset(
    {
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"keep-alive",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

EndingKey = tuple[bytes, int, bool]
"""The bytes behind the texts, how many texts there are, and whether one of them is visible."""


@dataclass(slots=True)
class KnownReply:
    """A response that was recognised. Positions are those of its bytes as received."""

    summary: StreamSummary
    """The summary of an earlier reply; all of it holds for this one but its instants and its text."""
    status: int
    count: int
    """Number of text events."""
    visible: int | None
    """Index of the first text event that is not white space; None where there is none."""
    first_line_end: int
    """The position at which the data line of the first event of any kind ends."""
    start: int
    """The position at which the data line of the event before the texts ends, or would end."""
    tail: int
    """Bytes of a text event and its chunk behind the text."""
    lengths: Sequence[int]
    """For each text event the bytes before its tail: chunk size, head of the event, text."""

    def line_ends(self) -> list[int]:
        """The positions at which the data lines of the text events end."""
        return list(accumulate(map(self.tail.__add__, self.lengths), initial=self.start))[1:]


class _Sizes(dict[int, bytes]):
    """A table of chunk sizes as the server writes them, by the length of what comes before the tail, the size
    included."""

    def __init__(self, style: bytes, head: int, tail: int) -> None:
        """``style``: how the server writes digits. ``head`` and ``tail``: lengths of what stands around the
        text, the line break behind the size included, that behind the chunk not."""
        self.style = style
        self.head = head
        self.tail = tail

    def __missing__(self, length: int) -> bytes:
        found = _BREAK  # no size is written like that
        for digits in range(1, 9):
            text = length - digits - self.head
            size = self.style % (max(0, text) + self.head - len(_NEW_LINE) + self.tail)
            if len(size) == digits:
                found = size
                break
        if len(self) < _MOST_ENDINGS:
            self[length] = found
        return found


@dataclass(slots=True)
class _Shape:
    """The form of a response: ``before``; for each text the chunk size, ``head``, the text, ``tail``; an
    ending."""

    status: int
    opening: bytes
    id_at: int
    hole: bytes
    """Placeholder for the id: as many hole bytes as the id has bytes."""
    before: list[bytes]
    """The pieces between the ids; ``head`` is split in the same way."""
    head: list[bytes]
    tail: bytes
    tails_after: int
    """How often ``tail`` occurs behind the texts."""
    first_line_end: int
    style: bytes
    """How the server writes the digits of chunk sizes."""
    sizes: _Sizes = field(compare=False)
    endings: dict[EndingKey, StreamSummary] = field(default_factory=dict, compare=False)

    def read(self, raw: bytes) -> KnownReply | None:
        identity = raw[self.id_at : self.id_at + len(self.hole)]
        before = identity.join(self.before)
        if not (raw.startswith(before) and identity.translate(None, b"-_").isalnum()):
            return None
        pieces, ending = self.pieces(raw[len(before) :], identity)
        lengths = list(map(len, pieces))
        head = identity.join(self.head)
        heads = {length: self.sizes[length] + head for length in set(lengths)}
        without = list(map(bytes.removeprefix, pieces, map(heads.__getitem__, lengths)))
        whole = b"".join(without)
        # What has lost the length of its head began with it.
        widths = set(map(len, heads.values()))
        if len(widths) == 1:  # as it is where all sizes have as many digits
            removed = widths.pop() * len(lengths)
        else:
            removed = sum(len(heads[length]) for length in lengths)
        if not pieces or len(whole) != sum(lengths) - removed:
            return None
        texts = plain_texts(without, whole)
        if texts is None:
            return None
        visible = (
            0
            if is_visible(texts[0])
            else next((number for number, text in enumerate(texts) if is_visible(text)), None)
        )
        if visible is not None and may_open(texts[visible]):
            return None  # what it begins with may be reasoning
        if may_repeat(texts):
            return None
        summary = self.endings.get((ending, len(pieces), visible is not None))
        if summary is None:
            return None
        start = len(before) - len(_BREAK) - len(_NEW_LINE)
        count = len(pieces)
        return KnownReply(
            summary, self.status, count, visible, self.first_line_end, start, len(self.tail), lengths
        )

    def pieces(self, rest: bytes, identity: bytes) -> tuple[list[bytes], bytes]:
        """Split what comes behind ``before``: size, head and text of each text event; the ending, without
        ids."""
        pieces = rest.split(self.tail)
        ending = pieces.pop()
        if self.tails_after:
            after = pieces[-self.tails_after :]
            del pieces[-self.tails_after :]
            ending = self.tail.join([*after, ending])
        return pieces, ending.replace(identity, self.hole)


class KnownReplies:
    """The shapes of replies known so far, of one server and one dialect. Their number is bounded."""

    def __init__(self) -> None:
        self._shapes: list[_Shape] = []
        self.openings: tuple[bytes, ...] = ()
        """The beginnings of recognisable responses: their heads, up to where the id comes."""

    def read(self, reads: Sequence[bytes]) -> KnownReply | None:
        """Recognise a response that seems complete; ``None``: it must be parsed."""
        raw = reads[0] if len(reads) == 1 else b"".join(reads)
        if len(raw) > MOST_BYTES or _HOLE in raw:
            return None
        for shape in self._shapes:
            found = shape.read(raw)
            if found is not None:
                return found
        return None

    def learn(self, reads: Sequence[bytes], bodies: Sequence[bytes], status: int, lesson: Lesson) -> None:
        """Learn the shape of a response that was parsed exactly.

        The parse found it complete and chunked, with nothing behind it, on a connection that stays open.
        ``bodies`` is what the parse made of it. A response teaches nothing if its events are not a chunk
        each, or if its chunks hold extensions or trailers.
        """
        if self.read(reads) is not None:
            return  # others like it, which ended at about the same time, came first
        raw = b"".join(reads)
        body_at = raw.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        chunks = _chunks(raw, body_at)
        if _HOLE in raw or chunks is None or not _is_harmless(lesson.identity, raw[:body_at]):
            return
        if b"".join([chunk.data for chunk in chunks]) != b"".join(bodies):
            return
        if not all(chunk.data.endswith(_BREAK) and chunk.data.count(_BREAK) == 1 for chunk in chunks):
            return
        shape = _shape_of(raw, chunks, status, lesson)
        if shape is None:
            return
        shape = next((known for known in self._shapes if known == shape), shape)
        self._shapes = [shape, *(other for other in self._shapes if other is not shape)][:_MOST_SHAPES]
        before = lesson.identity.join(shape.before)
        pieces, ending = shape.pieces(raw[len(before) :], lesson.identity)
        if len(pieces) == lesson.count:
            if len(shape.endings) >= _MOST_ENDINGS:
                shape.endings.clear()
            told = replace(lesson.summary, text="", chunk_ns=[], chunk_tokens=[])
            shape.endings[ending, lesson.count, lesson.visible] = told
            self.openings = tuple({known.opening for known in self._shapes})


@dataclass(frozen=True, slots=True)
class _Chunk:
    at: int
    """The position at which the chunk's size begins."""
    size: bytes
    data: bytes


def _chunks(raw: bytes, at: int) -> list[_Chunk] | None:
    """The chunks of a body; ``None`` if it holds anything but chunks and its plain end."""
    found: list[_Chunk] = []
    while True:
        line_end = raw.find(_NEW_LINE, at)
        size = raw[at : max(at, line_end)]
        if not size or len(size) > 8 or size.strip(_HEX):
            return None
        data_at = line_end + len(_NEW_LINE)
        end = data_at + int(size, 16)
        if end == data_at:
            return found if raw[data_at:] == _NEW_LINE else None
        if raw[end : end + len(_NEW_LINE)] != _NEW_LINE:
            return None
        found.append(_Chunk(at, size, raw[data_at:end]))
        at = end + len(_NEW_LINE)


def _is_harmless(identity: bytes, head: bytes) -> bool:
    """Whether the head means the same with another id of this length."""
    status_line, *lines = head.split(_NEW_LINE)
    if identity in status_line:
        return False
    names = [line.partition(b":")[0] for line in lines if identity in line]
    return all(name.lower() not in _MEANINGFUL and identity not in name for name in names)


def _shape_of(raw: bytes, chunks: Sequence[_Chunk], status: int, lesson: Lesson) -> _Shape | None:
    first = b"".join([chunk.data for chunk in chunks])[: lesson.start].count(_BREAK)
    texts = chunks[first : first + lesson.count]
    style = next(
        (style for style in (b"%x", b"%X") if all(chunk.size == style % len(chunk.data) for chunk in texts)),
        None,
    )
    if style is None or len(texts) != lesson.count:
        return None
    identity = lesson.identity
    head = _NEW_LINE + lesson.shape.before + lesson.shape.between
    tail = lesson.shape.tail + _NEW_LINE
    last = texts[-1]
    ending = raw[last.at + len(last.size) + len(last.data) + 2 * len(_NEW_LINE) :]
    earliest = chunks[0]
    id_at = raw.find(identity)
    return _Shape(
        status=status,
        opening=raw[: min(id_at, earliest.at)],
        id_at=id_at,
        hole=_HOLE * len(identity),
        before=raw[: texts[0].at].split(identity),
        head=head.split(identity),
        tail=tail,
        tails_after=ending.count(tail),
        first_line_end=earliest.at + len(earliest.size) + len(_NEW_LINE) + earliest.data.find(b"\n"),
        style=style,
        sizes=_Sizes(style, len(head), len(lesson.shape.tail)),
    )
