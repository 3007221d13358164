"""The event-stream decoder against an oracle written byte by byte, under every way to cut a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.wire.sse import SSEDecoder, SSEEvent


class Event(NamedTuple):
    data: str
    event: str
    at: int
    """Offset of the byte that completed the last data line; for a line without end, of the last byte."""
    terminated: bool
    undecodable: bool


class Oracle:
    """The standard's rules one byte at a time; slow and obvious."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.line = b""
        self.data: list[bytes] = []
        self.kind = b""
        self.at = 0

    def read(self, stream: bytes) -> list[Event]:
        start = 3 if stream.startswith(b"\xef\xbb\xbf") else 0
        for offset in range(start, len(stream)):
            byte = stream[offset : offset + 1]
            if byte == b"\n" and stream[offset - 1 : offset] == b"\r" and offset > start:
                continue
            if byte in (b"\r", b"\n"):
                self.end_line(offset)
            else:
                self.line += byte
        if self.line:
            self.end_line(len(stream) - 1)
        self.dispatch(terminated=False)
        return self.events

    def end_line(self, offset: int) -> None:
        line, self.line = self.line, b""
        if not line:
            self.dispatch(terminated=True)
            return
        name, colon, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if colon and not name:
            return
        if name == b"data":
            self.data.append(value)
            self.at = offset
        if name == b"event":
            self.kind = value

    def dispatch(self, *, terminated: bool) -> None:
        if self.data:
            data, kind = b"\n".join(self.data), self.kind
            bad = False
            for part in (data, kind):
                try:
                    part.decode()
                except UnicodeDecodeError:
                    bad = True
            text = data.decode(errors="replace")
            named = kind.decode(errors="replace") or "message"
            self.events.append(Event(text, named, self.at, terminated, bad))
        self.data, self.kind = [], b""


def feed_all(pieces: Iterable[bytes], max_line_bytes: int = 1 << 20) -> list[SSEEvent]:
    """Events of a stream in pieces; the stamp of a piece is a thousand times its number."""
    decoder = SSEDecoder(max_line_bytes)
    events: list[SSEEvent] = []
    for number, piece in enumerate(pieces):
        events += decoder.feed(piece, number * 1000, number)
    return events + decoder.close()


def cut(stream: bytes, at: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(stream) + 1) for place in at), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


def read_of(pieces: Sequence[bytes], offset: int) -> int:
    """Number of the piece that holds the byte at ``offset``."""
    end = 0
    for number, piece in enumerate(pieces):
        end += len(piece)
        if offset < end:
            return number
    raise AssertionError("offset behind the stream")


def check(stream: bytes, pieces: Sequence[bytes]) -> None:
    expected = Oracle().read(stream)
    seen = feed_all(pieces)
    assert [(e.data, e.event, e.terminated, bool(e.problem)) for e in seen] == [
        (e.data, e.event, e.terminated, e.undecodable) for e in expected
    ]
    reads = [read_of(pieces, e.at) for e in expected]
    assert [e.read_index for e in seen] == reads
    assert [e.stamp_ns for e in seen] == [read * 1000 for read in reads]


LINES = [
    *(b"data: x", b"data:y", b"data:", b"data", b"data:  two", b'data: {"a":1}', "data: é€😀".encode()),
    *(b"data: \xff", b"data: \xe2\x82", b": keep-alive", b":", b"event: ping", b"event:", b"event: \xff"),
    *(b"id: 7", b"id: a\0b", b"retry: 10", b"retry: x", b"other: z", b" data: no", b""),
]
ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\n\n"]
LOOSE = [b"\xe2\x82", b"\xac", b"\xef\xbb\xbf", b"\xef", b"\0", b" ", b":"]
WHOLE_LINES = st.tuples(st.sampled_from(LINES), st.sampled_from(ENDS)).map(b"".join)
STREAMS = st.lists(WHOLE_LINES | st.sampled_from(LINES + ENDS + LOOSE), max_size=10).map(b"".join)
USUAL = st.lists(
    st.sampled_from([b"data: x\n\n", b"data: {}\n\n", b": c\n\n", b"data: a\ndata: b\n\n"]), max_size=9
)


@settings(max_examples=300)
@given(stream=STREAMS)
def test_any_stream_cut_at_every_byte(stream):
    check(stream, [stream])
    for place in range(len(stream) + 1):
        check(stream, cut(stream, [place]))
    check(stream, [stream[at : at + 1] for at in range(len(stream))])


@settings(max_examples=300)
@given(stream=STREAMS | USUAL.map(b"".join), at=st.lists(st.integers(0, 10_000), max_size=8))
def test_any_stream_cut_at_random_places(stream, at):
    check(stream, cut(stream, at))


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: one\n\ndata: two\n\n", ["one", "two"]),
        (b"data:one\n\n", ["one"]),
        (b"data:  one\n\n", [" one"]),
        (b'data:{"a": 1}\n\n', ['{"a": 1}']),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", ["one", "two"]),
        (b"data: one\r\rdata: two\r\r", ["one", "two"]),
        (b"data: one\ndata: more\n\n", ["one\nmore"]),
        (b"data: one\rdata: more\n\n", ["one\nmore"]),
        (b"data: one\r\n\ndata: two\n\n", ["one", "two"]),
        (b"data\n\n", [""]),
        (b"data:\ndata:\n\n", ["\n"]),
        (b"\xef\xbb\xbfdata: one\n\n", ["one"]),
        (b": comment\n\ndata: one\n\n", ["one"]),
        (b"event: ping\n\ndata: one\n\n", ["one"]),
        (b"Data: one\n\n", []),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_known_streams(stream, data):
    assert [event.data for event in feed_all([stream])] == data


def test_event_type_belongs_to_one_event():
    events = feed_all([b"event: error\ndata: a\n\ndata: b\n\n"])
    assert [(event.event, event.data) for event in events] == [("error", "a"), ("message", "b")]


def test_an_event_without_its_empty_line_is_returned_and_marked():
    events = feed_all([b"data: one\n\ndata: [DONE]"])
    assert [(event.data, event.terminated) for event in events] == [("one", True), ("[DONE]", False)]


def test_close_twice_returns_the_pending_event_once():
    decoder = SSEDecoder()
    decoder.feed(b"data: one\n", 5, 3)
    assert decoder.close() == [SSEEvent("one", "message", 5, 3, terminated=False)]
    assert decoder.close() == []


def test_the_stamp_is_that_of_the_data_line_not_of_the_empty_line():
    decoder = SSEDecoder()
    assert decoder.feed(b"data: on", 10, 0) == []
    assert decoder.feed(b"e\n", 20, 1) == []
    assert decoder.feed(b": still here\n", 30, 2) == []
    assert decoder.feed(b"\ndata: two\n\n", 40, 3) == [
        SSEEvent("one", "message", 20, 1),
        SSEEvent("two", "message", 40, 3),
    ]


def test_a_carriage_return_ends_its_line_before_the_line_feed_comes():
    decoder = SSEDecoder()
    decoder.feed(b"data: one\r", 10, 0)
    assert decoder.feed(b"\n\r\n", 20, 1) == [SSEEvent("one", "message", 10, 0)]


def test_bytes_that_are_not_text_mark_their_event_only():
    good, bad, after = feed_all([b"data: a\n\ndata: \xff\xfe\n\ndata: b\n\n"])
    assert not good.problem
    assert bad.problem
    assert "UTF-8" in bad.problem
    assert bad.data == "��"
    assert (after.data, after.problem) == ("b", "")


def test_comments_need_not_be_text():
    (event,) = feed_all([b": \xff\n\ndata: a\n\n"])
    assert not event.problem


@pytest.mark.parametrize("size", [63, 64, 65, 200])
def test_a_line_above_the_cap_marks_its_event(size):
    stream = b"data: " + b"x" * (size - 6) + b"\n\ndata: next\n\n"
    for place in range(len(stream)):
        long, following = feed_all(cut(stream, [place]), max_line_bytes=64)
        assert bool(long.problem) == (size > 64)
        assert long.data == "x" * (min(size, 64) - 6)
        assert (following.data, following.problem) == ("next", "")


def test_a_line_without_end_takes_no_more_memory_than_the_cap():
    decoder = SSEDecoder(max_line_bytes=1000)
    for number in range(100):
        assert decoder.feed(b"data: " + b"x" * 500, number, number) == []
    (event,) = decoder.close()
    assert len("data: " + event.data) == 1000
    assert event.problem
    assert not event.terminated


def test_a_comment_above_the_cap_is_still_only_a_comment():
    (event,) = feed_all([b":" + b"x" * 500 + b"\ndata: a\n\n"], max_line_bytes=64)
    assert (event.data, event.problem) == ("a", "")


def test_a_cap_too_small_for_field_names_is_refused():
    with pytest.raises(ValueError, match="at least 64"):
        SSEDecoder(max_line_bytes=5)
