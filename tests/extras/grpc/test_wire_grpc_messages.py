"""Messages of gRPC: bytes to events, however they are cut into reads; and what the end of a call says."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.extras.grpc.messages import CallStatus, MessageDecoder, prefixed, status_of
from pytest_llmbench.wire.sse import SSEEvent
from pytest_llmbench.wire.stream import events_of

CUT_OFF = "a message that was cut off"


def events(*reads: bytes, cap: int = 1 << 20) -> list[SSEEvent]:
    """The stamp of a read is ten times its number."""
    return list(events_of(((read, 10 * number) for number, read in enumerate(reads)), cap, "grpc"))


def test_a_message_is_a_flag_a_length_and_its_bytes() -> None:
    assert prefixed(b"\x0a\x01x") == b"\0\0\0\0\x03\x0a\x01x"


def test_a_message_has_the_stamp_of_the_read_with_its_last_byte() -> None:
    one, two = prefixed(b"one\xff"), prefixed(b"two")
    assert events(one[:3], one[3:] + two[:6], b"", two[6:] + prefixed(b"")) == [
        SSEEvent("one\xff", "message", 10, 1),
        SSEEvent("two", "message", 30, 3),
        SSEEvent("", "message", 30, 3),
    ]


@pytest.mark.parametrize("kept", [1, 4, 5, 7])
def test_a_message_that_was_cut_off(kept: int) -> None:
    whole = prefixed(b"abc")
    assert events(prefixed(b"x"), whole[:2], whole[2:kept]) == [
        SSEEvent("x", "message", 0, 0),
        SSEEvent("abc"[: max(0, kept - 5)], "message", *((20, 2) if kept > 2 else (10, 1)), False, CUT_OFF),
    ]


def test_nothing_is_no_event() -> None:
    assert events() == events(b"") == []


def test_a_compressed_message_marks_itself_alone() -> None:
    first, second = events(b"\x01" + prefixed(b"zip")[1:] + prefixed(b"plain"))
    assert (first.data, "compressed" in first.problem) == ("", True)
    assert (second.data, second.problem) == ("plain", "")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (struct.pack(">BI", 0, 65), "a message of 65 bytes, more than 64"),
        (struct.pack(">BI", 1, 0xFFFFFFFF), "a message of 4294967295 bytes, more than 64"),
        (b"<html", "not a gRPC message (its flag is 60, not 0 or 1)"),
    ],
)
def test_what_no_message_can_follow_is_the_last_event(bad: bytes, said: str) -> None:
    first, second = events(
        prefixed(b"x" * 64) + bad[:2], bad[2:] + prefixed(b"lost"), prefixed(b"too"), cap=64
    )
    assert first.problem == ""
    assert said in second.problem
    assert (second.data, second.stamp_ns, second.terminated) == ("", 10, True)


def test_a_length_without_an_end_takes_no_memory() -> None:
    decoder = MessageDecoder(100)
    assert len(decoder.feed(struct.pack(">BI", 0, 1 << 30), 0, 0)) == 1
    for number in range(1000):
        assert decoder.feed(b"x" * 1000, number, number) == []
    assert decoder.close() == []


_MESSAGES = st.lists(st.binary(max_size=12), max_size=4).map(lambda each: b"".join(map(prefixed, each)))


@given(_MESSAGES | st.binary(max_size=40), st.data())
def test_events_do_not_depend_on_the_reads(body: bytes, data: st.DataObject) -> None:
    whole = [(event.data, event.terminated, event.problem) for event in events(body, cap=64)]
    for place in range(len(body) + 1):
        other = data.draw(st.integers(place, len(body)))
        cut = events(body[:place], body[place:other], body[other:], cap=64)
        assert [(event.data, event.terminated, event.problem) for event in cut] == whole


# --- the end of a call


@pytest.mark.parametrize(
    ("code", "name", "http"),
    [
        ("0", "OK", 200),
        ("1", "CANCELLED", 499),
        ("2", "UNKNOWN", 500),
        ("3", "INVALID_ARGUMENT", 400),
        ("4", "DEADLINE_EXCEEDED", 504),
        ("5", "NOT_FOUND", 404),
        ("7", "PERMISSION_DENIED", 403),
        ("8", "RESOURCE_EXHAUSTED", 429),
        ("12", "UNIMPLEMENTED", 501),
        ("13", "INTERNAL", 500),
        ("14", "UNAVAILABLE", 503),
        ("16", "UNAUTHENTICATED", 401),
        ("17", "UNKNOWN", 500),
        ("-1", "UNKNOWN", 500),
        ("\xb2", "UNKNOWN", 500),
    ],
)
def test_a_status_has_an_http_status_that_means_the_same(code: str, name: str, http: int) -> None:
    status = status_of([(b"grpc-status", code.encode("latin-1"))])
    assert (status.is_ok, status.http_status) == (code == "0", http)
    assert status.text == f"gRPC status {code} {name}"


def test_the_message_and_the_wait() -> None:
    trailers = [(b"grpc-status", b"8"), (b"grpc-message", b"zu voll%3A %C3%BC%FF%"), (b"x", b"y")]
    status = status_of([*trailers, (b"grpc-retry-pushback-ms", b"1500")])
    assert status.text == "gRPC status 8 RESOURCE_EXHAUSTED: zu voll: ü\ufffd%"
    assert status.retry_after == "1.5"
    assert status_of([*trailers, (b"grpc-retry-pushback-ms", b"-1")]).retry_after == ""


def test_a_call_without_a_status_has_not_succeeded() -> None:
    status = status_of([(b"server", b"x")])
    assert (status.is_ok, status.http_status) == (False, 500)
    assert status.text == "the call ended without a gRPC status"


_NAMES = st.sampled_from([b"grpc-status", b"grpc-message", b"grpc-retry-pushback-ms"])
_VALUES = st.binary(max_size=30) | st.text("0123456789", max_size=30).map(str.encode)


@given(st.lists(st.tuples(_NAMES, _VALUES)))
def test_no_trailers_raise(trailers: list[tuple[bytes, bytes]]) -> None:
    status = status_of(trailers)
    assert isinstance(status, CallStatus)
    assert 200 <= status.http_status < 600
    assert status.text


@pytest.mark.parametrize(
    "said",
    ["Received message larger than max (8388608 vs. 4194304)", "grpc: received message larger than max"],
)
def test_a_request_that_is_too_large_is_none_of_too_many(said: str) -> None:
    assert status_of([(b"grpc-status", b"8"), (b"grpc-message", said.encode())]).http_status == 413
