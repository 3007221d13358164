"""Lines of JSON: bytes to events, however they are cut into reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.wire.sse import NDJSONDecoder, SSEEvent


def events(*reads: bytes, cap: int = 1 << 20) -> list[SSEEvent]:
    """The stamp of a read is ten times its number."""
    decoder = NDJSONDecoder(cap)
    found = [event for number, read in enumerate(reads) for event in decoder.feed(read, 10 * number, number)]
    return found + decoder.close()


def test_a_line_has_the_stamp_of_the_read_that_ended_it():
    assert events(b'{"a"', b':1}\n{"b":2}\n{', b"}") == [
        SSEEvent('{"a":1}', "message", 10, 1),
        SSEEvent('{"b":2}', "message", 10, 1),
        SSEEvent("{}", "message", 20, 2, terminated=False),
    ]


def test_blank_lines_are_no_events_and_carriage_returns_no_text():
    assert [event.data for event in events(b'\r\n{"a":1}\r\n \n\n{"b":2}\r', b"\n")] == ['{"a":1}', '{"b":2}']


def test_a_separator_of_unicode_ends_no_line():
    (event,) = events('{"a":"x\u2028y\x85z"}\n'.encode())
    assert event.data == '{"a":"x\u2028y\x85z"}'


def test_what_is_not_utf8_or_too_long_marks_its_own_line_only():
    found = events(b'"\xff"\n{}\n' + b"x" * 70 + b"\n{}\n", cap=64)
    assert [bool(event.problem) for event in found] == [True, False, True, False]
    assert "not UTF-8" in found[0].problem
    assert found[2].problem == "a line of more than 64 bytes"
    assert len(found[2].data) == 64


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_without_an_end_takes_bounded_memory(size):
    decoder = NDJSONDecoder(100)
    for number in range(1000):
        assert decoder.feed(b"x" * size, number, number) == []
    (event,) = decoder.close()
    assert len(event.data) == 100
    assert not event.terminated


@given(st.binary(max_size=40) | st.text(alphabet='{}"\n\ré ', max_size=40).map(str.encode), st.data())
def test_events_do_not_depend_on_the_reads(body, data):
    place = data.draw(st.integers(0, len(body)))
    whole, halves = events(body), events(body[:place], body[place:])
    assert [(e.data, e.terminated, e.problem) for e in halves] == [
        (e.data, e.terminated, e.problem) for e in whole
    ]
