"""The exact parse of responses, however they were cut into reads."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import HEAD, REPLY, STREAM, chunk, chunked, plain

from pytest_llmbench.generator.http.http1 import Framing, NotHTTPError, ReplyParser

RESPONSES = {
    "chunked": (REPLY, b"".join(STREAM), Framing.CHUNKED),
    "one chunk": (HEAD + chunked([b"abc" * 50]), b"abc" * 50, Framing.CHUNKED),
    "trailers": (HEAD + chunk(b"abc") + b"0\r\nX-A: 1\r\nX-B: 2\r\n\r\n", b"abc", Framing.CHUNKED),
    "extension": (HEAD + b"3;a=b\r\nabc\r\n0;c\r\n\r\n", b"abc", Framing.CHUNKED),
    "looks like an end": (HEAD + chunked([b"x0\r\n\r\n", b"y"]), b"x0\r\n\r\ny", Framing.CHUNKED),
    "length": (plain("200 OK", b"hello"), b"hello", Framing.LENGTH),
    "length 0": (plain("404 Not Found"), b"", Framing.LENGTH),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\n" + REPLY, b"".join(STREAM), Framing.CHUNKED),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", Framing.UNTIL_CLOSE),
}


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds) if end > start]


@pytest.mark.parametrize("name", RESPONSES)
@settings(max_examples=40)
@given(places=st.lists(st.integers(0, 2000), max_size=6))
def test_reads_may_be_cut_anywhere(name, places):
    data, body, framing = RESPONSES[name]
    parser = ReplyParser()
    pieces = cut(data, places)
    received = b""
    for number, piece in enumerate(pieces):
        assert not parser.complete, f"complete before read {number} of {len(pieces)}"
        received += parser.feed(piece)
    assert parser.complete
    assert received == body
    assert parser.framing is framing
    assert not parser.surplus


@pytest.mark.parametrize("name", RESPONSES)
def test_one_parser_reads_reply_after_reply(name):
    parser = ReplyParser()
    data, body, _ = RESPONSES[name]
    for _ in range(3):
        assert parser.feed(data) == body
        assert parser.complete
        assert parser.keep_alive
        parser.begin()


def test_trailers_are_not_headers():
    parser = ReplyParser()
    parser.feed(RESPONSES["trailers"][0])
    assert [name for name, _ in parser.headers] == [b"Content-Type", b"Transfer-Encoding"]


@pytest.mark.parametrize("extra", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"\x00\xff"])
def test_surplus_bytes_leave_the_reply_alone(extra):
    parser = ReplyParser()
    assert parser.feed(plain("200 OK", b"hello", "X: 1\r\n") + extra) == b"hello"
    assert parser.complete
    assert parser.surplus
    assert (parser.status, parser.headers[0]) == (200, (b"X", b"1"))


def test_connection_close_is_not_kept_alive():
    parser = ReplyParser()
    parser.feed(plain("200 OK", b"", "Connection: close\r\n"))
    assert parser.complete
    assert not parser.keep_alive


def test_a_body_without_framing_has_no_end_of_its_own():
    parser = ReplyParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") == b"abc"
    assert (parser.complete, parser.framing) == (False, Framing.UNTIL_CLOSE)


def test_what_is_missing_of_a_length():
    parser = ReplyParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
    assert parser.missing == 7


@pytest.mark.parametrize(
    "data",
    [
        b"220 smtp ready\r\n",
        HEAD + b"xyz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nmore",
        b"\x16\x03\x01\x02\x00\x01",
    ],
)
def test_what_is_not_http(data):
    with pytest.raises(NotHTTPError):
        ReplyParser().feed(data)


@settings(max_examples=100)
@given(data=st.binary(min_size=1, max_size=200), places=st.lists(st.integers(0, 200), max_size=4))
def test_garbage_never_raises_anything_else(data, places):
    parser = ReplyParser()
    try:
        for piece in cut(data, places):
            parser.feed(piece)
    except NotHTTPError:
        return
    assert not parser.complete


def test_a_second_response_is_no_part_of_the_first():
    """Behind it in the same read, and in a read of its own."""
    parser = ReplyParser()
    assert parser.feed(REPLY + plain("200 OK", b"more")) == b"".join(STREAM)
    assert parser.complete
    assert parser.surplus
    assert parser.feed(HEAD + chunk(b"even more")) == b""


@pytest.mark.parametrize("coding", [b"xchunked", b"not-chunked", b"chunked, gzip"])
def test_another_transfer_coding_is_not_taken_for_chunks(coding):
    parser = ReplyParser()
    with suppress(NotHTTPError):
        parser.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n")
    assert not parser.complete
