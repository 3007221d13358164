"""Reads the usual reply as a whole: text events that differ in their text alone, and a few others.

A reply of this shape need not become a chunk object per event. One text event is read as JSON and taught
(:mod:`~pytest_llmbench.wire.stream`); what stands between the text of one event and the text of the next is
then known byte by byte, and compared for all of them at once. Every other event is read as JSON, or known
from an earlier reply of the run (:class:`ReplyMemory`): they often differ in their id and text alone. The
summary is that of :func:`~pytest_llmbench.wire.reply.read_stream`, which is asked for it with one text chunk
in the place of all; where anything is unusual there is none, and the reply must be read event by event.

The memory is exact for the same reason as a text template: where two events are equal but for the value of
the JSON string ``id``, of characters that need no escaping, a JSON reader finds the same in both but for that
string. No dialect reads it; that is proved of each event before it is remembered, by decoding it with another
id.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, repeat
from typing import Any

from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.wire.chunk import Chunk, is_visible, may_repeat
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.inline_reasoning import may_open
from pytest_llmbench.wire.reply import (
    StreamSummary,
    apportion,
    estimated_size,
    read_stream,
    unshown_tokens,
)
from pytest_llmbench.wire.server_figures import named_model
from pytest_llmbench.wire.sse import SSEEvent
from pytest_llmbench.wire.stream import learn

MOST_BYTES = 128 * 1024
"""Longest reply that is read as a whole: this is done in one go, and sends must not wait for it."""
_MOST_AFTER = 8
"""Most events after the last text event."""
_DATA = b"data: "
_BREAK = b"\n\n"
_FIELDS = tuple(each.name for each in fields(StreamSummary))


class _UnusualError(Exception):
    """The reply does not have the usual form."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a reply teaches about others with the same bytes around the id and the texts."""

    identity: bytes
    shape: KnownShape
    """The shape of its text events; ``before`` contains the id."""
    start: int
    """The position at which the text events begin in the body."""
    count: int
    visible: bool
    """Whether one of the texts is more than white space."""
    summary: StreamSummary
    """The summary of this reply. Each of its chunks is one token, and the server reports no figures of its
    own."""


def read_uniform(
    bodies: Sequence[bytes],
    stamps: Sequence[int],
    dialect: Dialect,
    memory: ReplyMemory | None = None,
    teach: Callable[[Lesson], None] | None = None,
) -> StreamSummary | None:
    """Fast version of ``read_stream``: its summary for the chunks of this body; ``None``: read it event by
    event.

    ``memory`` is what earlier replies to the same dialect have taught. ``teach`` is told of a reply that
    others may be recognised by.
    """
    body = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    usual = len(body) <= MOST_BYTES and body.endswith(_BREAK) and b"\r" not in body and HOLE not in body
    if dialect.text_key is None or not usual:
        return None
    try:
        reading = _Reading(body, bodies, stamps, dialect, ReplyMemory() if memory is None else memory)
        return reading.summary(teach)
    except _UnusualError:
        return None


@dataclass(frozen=True, slots=True)
class _Texts:
    """The text events of a reply, which go from ``start`` to ``end`` in its body."""

    start: int
    end: int
    pieces: Sequence[str | bytes]
    """The text of each event: characters, or bytes where each is one."""
    text: str
    line_ends: Sequence[int]
    """Position at which the data line of each event ends; empty where one read brought everything."""


class _Reading:
    """The reading of one body. Methods raise :class:`_UnusualError`."""

    def __init__(
        self,
        body: bytes,
        bodies: Sequence[bytes],
        stamps: Sequence[int],
        dialect: Dialect,
        memory: ReplyMemory,
    ) -> None:
        self._body = body
        self._stamps = stamps
        self._read_ends = list(accumulate(map(len, bodies)))
        self._dialect = dialect
        self._memory = memory
        self._id = id_of(body)

    def summary(self, teach: Callable[[Lesson], None] | None) -> StreamSummary:
        shape, start = self._shape()
        found = self._texts(shape, start)
        visible = next((n for n, piece in enumerate(found.pieces) if is_visible(piece)), None)
        if visible is not None and may_open(found.pieces[visible]):
            raise _UnusualError  # with reasoning inside the text, perhaps
        if may_repeat(found.pieces):
            raise _UnusualError
        around = self._body[: found.start] + HOLE + self._body[found.end :]
        key = around.replace(self._id, HOLE) if self._id else around, len(found.pieces), visible is not None
        known = self._memory.summaries.get(key)
        if known is None:
            summary = self._first_of_its_kind(found, shape, key)
        else:
            summary = StreamSummary(**known)
            summary.chunk_tokens = [1] * len(found.pieces)
            summary.server_timings = {}
        self._set_instants(summary, found, visible)
        summary.text = found.text
        proved = self._memory.shape
        if teach is None or proved is None or not self._id or key not in self._memory.summaries:
            return summary
        head = proved.before + self._id + proved.between
        if head == shape.before + shape.between and proved.tail == shape.tail:
            # It was proved that text events of this shape read the same with another id.
            count = len(found.pieces)
            teach(Lesson(self._id, shape, found.start, count, visible is not None, summary))
        return summary

    def _shape(self) -> tuple[KnownShape, int]:
        """The shape of the text events, and the position of the first."""
        known = self._memory.shape
        if known is not None and self._id:
            start = self._body.find(known.before + self._id + known.between)
            if start >= 0 and self._body[max(0, start - len(_BREAK)) : start] in (b"", _BREAK):
                return KnownShape(known.before + self._id, known.between, known.tail, known.choice), start
        return self._taught()

    def _taught(self) -> tuple[KnownShape, int]:
        """The shape of text events as learnt from the first one with text, and the position of that event."""
        decode = self._dialect.decode
        for start, end in self._blocks(0, len(self._body)):
            event = self._event(start, end)
            chunk = decode(event)
            if not chunk.text:
                continue
            template = learn(event, chunk, self._dialect.text_key or "", decode)
            if template is None:
                break
            head = _DATA + template.head.encode()
            shape = KnownShape(head, b"", template.tail.encode() + _BREAK, template.choice)
            before, identity, between = head.partition(self._id) if self._id else (b"", b"", b"")
            if identity and id_is_alone([(event, chunk)], identity.decode(), decode):
                self._memory.shape = KnownShape(before, between, shape.tail, shape.choice)
            return shape, start
        raise _UnusualError

    def _first_of_its_kind(self, found: _Texts, shape: KnownShape, key: SummaryKey) -> StreamSummary:
        """The summary of a reply whose like was not seen before. Its instants are set later."""
        before = self._others(0, found.start)
        after = self._others(found.end, len(self._body))
        piece = next(filter(is_visible, found.pieces), found.pieces[0])
        standing = Chunk(0, 0, piece if isinstance(piece, str) else piece.decode(), choice=shape.choice)
        others = [*before, *after]
        if any(chunk.choice not in (None, shape.choice) for _, chunk in others):
            raise _UnusualError
        chunks = [*(chunk for _, chunk in before), standing, *(chunk for _, chunk in after)]
        summary = read_stream(chunks)
        summary.answered_by = named_model([self._body])
        summary.text = found.text
        summary.unshown_tokens = unshown_tokens(summary)
        total = summary.output_tokens
        if summary.token_source is not TokenSource.SERVER_USAGE or total is None or total == 0:
            raise _UnusualError
        if total == len(found.pieces):
            summary.chunk_tokens, summary.attribution = [1] * total, "exact"
            lasting = bool(self._id) and not summary.server_timings and not summary.server_token_ns
            if lasting and id_is_alone(others, self._id.decode(), self._dialect.decode):
                self._memory.keep(key, {name: getattr(summary, name) for name in _FIELDS})
        elif any(chunk.blank for _, chunk in others):
            raise _UnusualError  # they may be tokens
        else:
            sizes = [estimated_size(len(piece)) for piece in found.pieces]
            summary.chunk_tokens, summary.attribution = apportion(total, sizes), "apportioned"
        return summary

    def _others(self, start: int, end: int) -> list[tuple[SSEEvent, Chunk]]:
        """The other events between two positions, which do not change what chunks hold output."""
        found = []
        for from_, to in self._blocks(start, end):
            event = self._event(from_, to)
            chunk = self._dialect.decode(event)
            if chunk.text or chunk.reasoning or chunk.error is not None or chunk.problem:
                raise _UnusualError
            found.append((event, chunk))
        return found

    def _blocks(self, at: int, last: int) -> Iterator[tuple[int, int]]:
        """Start and end of each event from ``at`` to ``last``, without the line break."""
        while at < last:
            end = self._body.find(_BREAK, at)
            yield at, end
            at = end + len(_BREAK)

    def _event(self, start: int, end: int) -> SSEEvent:
        """An event of a single data line."""
        block = self._body[start:end]
        if not block.startswith(_DATA) or b"\n" in block:
            raise _UnusualError
        try:
            return SSEEvent(block[len(_DATA) :].decode(), "message", 0, 0)
        except UnicodeDecodeError:
            raise _UnusualError from None

    def _texts(self, shape: KnownShape, start: int) -> _Texts:
        head, tail = shape.before + shape.between, shape.tail
        blocks = self._body[start:].split(b"\n")[:-2:2]
        for _ in range(_MOST_AFTER):
            if blocks and not (blocks[-1].startswith(head) and blocks[-1].endswith(tail[:-2])):
                blocks.pop()
        skip, drop = len(head), len(_BREAK) - len(tail)
        pieces = [block[skip:drop] for block in blocks]
        # What stands around the pieces has not been looked at: this compares all of it.
        whole = head + (tail + head).join(pieces) + tail
        if not pieces or not self._body.startswith(whole, start):
            raise _UnusualError
        texts, text = _plain(pieces, b"".join(pieces))
        line_ends: Sequence[int] = ()
        if len(self._read_ends) > 1:
            lengths = map((len(head) + len(tail)).__add__, map(len, pieces))
            line_ends = list(accumulate(lengths, initial=start - len(_BREAK)))[1:]
        return _Texts(start, start + len(whole), texts, text, line_ends)

    def _set_instants(self, summary: StreamSummary, found: _Texts, visible: int | None) -> None:
        read_ends, stamps = self._read_ends, self._stamps
        instants, reads = instants_of(found.line_ends, len(found.pieces), read_ends, stamps)
        summary.chunk_ns = instants
        summary.coalesced_chunks = len(instants) - reads
        summary.first_nonempty_ns, summary.last_content_ns = instants[0], instants[-1]
        summary.first_content_ns = None if visible is None else instants[visible]
        first_end = self._body.find(b"\n")
        summary.first_event_ns = stamps[bisect_left(read_ends, first_end + 1)]


def instants_of(
    line_ends: Sequence[int], count: int, read_ends: Sequence[int], stamps: Sequence[int]
) -> tuple[list[int], int]:
    """The instants of ``count`` events whose data lines end at ``line_ends``, and how many reads brought
    them.

    An event has the stamp of the read that brought the end of its data line. ``line_ends`` is not used where
    one read brought everything.
    """
    if len(read_ends) == 1:
        return [stamps[0]] * count, 1
    so_far = list(map(bisect_left, repeat(line_ends), read_ends))
    first = so_far.count(0)
    if so_far[first : first + count] == list(range(1, count + 1)):  # each came by itself
        return list(stamps[first : first + count]), count
    instants: list[int] = []
    reads = 0
    for ended, stamp in zip(so_far, stamps, strict=False):
        more = ended - len(instants)
        if more > 0:
            instants += [stamp] * more
            reads += 1
    return instants, reads


def plain_texts(pieces: list[bytes], whole: bytes) -> Sequence[str | bytes] | None:
    """The texts between the quotes, as JSON reads them; ``None`` if one is empty or must be parsed.

    ``whole``: the pieces, one after the other.
    """
    try:
        return _plain(pieces, whole)[0]
    except _UnusualError:
        return None


def _plain(pieces: list[bytes], whole: bytes) -> tuple[Sequence[str | bytes], str]:
    """The texts between the quotes, as JSON reads them, and all as one. None is empty.

    A line break in a piece would be an event in between: JSON strings hold none, so it is not read as text.
    """
    texts: Sequence[str | bytes] = pieces
    try:
        text = whole.decode("ascii" if whole.isascii() else "utf-8")
        if not whole.isascii() or not _needs_no_escape(text):
            decoded = map(bytes.decode, pieces)
            texts = read = [one if _needs_no_escape(one) else str(json.loads(f'"{one}"')) for one in decoded]
            text = "".join(read)
    except ValueError:  # not UTF-8, or not a JSON string
        raise _UnusualError from None
    if not all(texts):
        raise _UnusualError
    return texts, text


def _needs_no_escape(text: str) -> bool:
    return text.isprintable() and '"' not in text and "\\" not in text


HOLE = b"\0"
"""The byte that replaces the id; JSON text contains no such byte."""
_OTHER_ID = "another-id"
_LEAST_ID = 8
_MOST_ID = 128
_LOOK_FOR_ID = 256
_ROOM = 512

SummaryKey = tuple[bytes, int, bool]
"""The events around the text with holes for ids, the number of text events, and whether one of them is
visible."""


@dataclass(frozen=True, slots=True)
class KnownShape:
    """The shape of a text event: ``before + id + between + text + tail``."""

    before: bytes
    between: bytes
    tail: bytes
    choice: int | None


@dataclass(slots=True)
class ReplyMemory:
    """What was learnt from the replies of one dialect. Its size is bounded."""

    shape: KnownShape | None = None
    summaries: dict[SummaryKey, dict[str, Any]] = field(default_factory=dict)
    """Key → fields of a StreamSummary; those about instants and text must not be used."""

    def keep(self, key: SummaryKey, summary: dict[str, Any]) -> None:
        if len(self.summaries) >= _ROOM:
            self.summaries.clear()
        self.summaries[key] = summary


def id_of(body: bytes) -> bytes:
    """The id of the first event, if it can be told from other text; else empty."""
    at = body.find(b'"id":', 0, _LOOK_FOR_ID)
    start = body.find(b'"', at + 5, at + 7) + 1
    end = body.find(b'"', start, start + _MOST_ID)
    if at < 0 or start == 0 or end < start + _LEAST_ID:
        return b""
    found = body[start:end]
    return found if found.replace(b"-", b"").replace(b"_", b"").isalnum() else b""


def id_is_alone(
    events: Iterable[tuple[SSEEvent, Chunk]], identity: str, decode: Callable[[SSEEvent], Chunk]
) -> bool:
    """Whether every event with the id has it once, as its ``id``, and reads the same with another one."""
    for event, chunk in events:
        count = event.data.count(identity)
        if count == 0:
            continue
        payload = json.loads(event.data)
        if count > 1 or payload.__class__ is not dict or payload.get("id") != identity:
            return False
        if decode(replace(event, data=event.data.replace(identity, _OTHER_ID))) != chunk:
            return False
    return True
