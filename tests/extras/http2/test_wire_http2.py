"""The client's side of an HTTP/2 connection: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from hpack import Encoder
from http2_frames import data, headers
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.extras.grpc.messages import prefixed
from pytest_llmbench.extras.http2.client import Http2Client, Stream, request_bytes

SETTINGS = SettingsFrame(0).serialize()
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/s/M"),
    (":authority", "h:1"),
    ("te", "trailers"),
]
REQUEST = request_bytes(HEADERS, prefixed(b"ask"))


class Lone(Http2Client):
    """With one stream at a time."""

    call: Stream | None = None

    def ask(self, request: bytes) -> bytes:
        self.call = self.begin(request)
        return self.to_send()

    def take(self, data: bytes) -> Taken:
        read = self.feed(data)
        of_call = self.call in read.progress
        return Taken(self.call.data if of_call and self.call is not None else b"", of_call)

    @property
    def all_sent(self) -> bool:
        return self.call is None or not self.call.unsent


@dataclass
class Taken:
    """What a read brought of the stream."""

    data: bytes
    of_call: bool


class Server:
    """An HTTP/2 server that is as it should be, which hears everything that the client sends."""

    def __init__(self, **settings: int) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings({SettingCodes[name]: value for name, value in settings.items()})
        self.heard: list[Event] = []

    def hear(self, data: bytes) -> None:
        self.heard += self.h2.receive_data(data)

    def says(self) -> bytes:
        return self.h2.data_to_send()

    def got(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.heard if isinstance(event, kind)]


def connected(server: Server) -> Lone:
    client = Lone()
    server.hear(client.opening())
    assert not client.is_ready
    client.take(server.says())
    assert client.is_ready
    server.hear(client.to_send())
    server.says()
    return client


OK = headers((":status", "200"), ("content-type", "application/grpc"))
END = headers(("grpc-status", "0"), end=True)


def calling() -> tuple[Lone, Stream]:
    client = Lone()
    client.opening()
    client.take(SETTINGS)
    client.ask(REQUEST)
    client.to_send()
    assert client.call is not None
    return client, client.call


def test_what_is_sent_is_http2_for_a_server_of_another_maker() -> None:
    server = Server()
    client = connected(server)
    for number in range(3):
        own = ("x-session-id", f"s{number}")
        server.hear(client.ask(request_bytes([*HEADERS, own], prefixed(b"m%d" % number))))
        stream = 1 + 2 * number
        server.h2.send_headers(stream, [(":status", "200")])
        server.h2.send_data(stream, b"part")
        server.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
        assert client.take(server.says()).data == b"part"
        assert client.call is not None
        assert (client.call.is_over, client.call.trailers) == (True, [(b"grpc-status", b"0")])
        server.hear(client.to_send())
    asked = server.got(RequestReceived)
    assert [event.headers for event in asked if isinstance(event, RequestReceived)] == [
        [*HEADERS, ("x-session-id", f"s{number}")] for number in range(3)
    ]
    bodies = [event.data for event in server.got(DataReceived) if isinstance(event, DataReceived)]
    assert bodies == [prefixed(b"m%d" % number) for number in range(3)]
    assert len(server.got(StreamEnded)) == 3
    server.hear(client.closing())
    assert not server.got(StreamReset)


def test_long_headers_and_long_messages_come_in_several_frames() -> None:
    server = Server()
    client = connected(server)
    long = ("authorization", "k" * 40_000)
    server.h2.decoder.max_header_list_size = 100_000
    server.hear(client.ask(request_bytes([*HEADERS, long], b"x" * 40_000)))
    (asked,) = server.got(RequestReceived)
    assert isinstance(asked, RequestReceived)
    assert asked.headers[-1] == long
    assert client.all_sent
    bodies = [event.data for event in server.got(DataReceived) if isinstance(event, DataReceived)]
    assert list(map(len, bodies)) == [16_384, 16_384, 7_232]


@pytest.mark.parametrize(("size", "window"), [(100_000, 65_535), (70_000, 100), (10, 0), (65_536, 65_535)])
def test_a_message_larger_than_the_windows_is_sent_as_they_open(size: int, window: int) -> None:
    server = Server(INITIAL_WINDOW_SIZE=window)
    client = connected(server)
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    server.hear(client.ask(request_bytes(HEADERS, message)))
    rounds = 0
    while not client.all_sent:
        rounds += 1
        server.h2.increment_flow_control_window(1000)
        server.h2.increment_flow_control_window(1000, 1)
        client.take(server.says())
        server.hear(client.to_send())
    assert rounds >= (size - window) // 1000
    assert b"".join(e.data for e in server.got(DataReceived) if isinstance(e, DataReceived)) == message
    assert len(server.got(StreamEnded)) == 1


def test_settings_that_come_later_open_and_shut_the_window() -> None:
    client = Lone()
    client.take(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 10}).serialize())
    client.ask(request_bytes(HEADERS, b"x" * 30))
    assert not client.all_sent
    for size, sent in ((5, 0), (20, 10), (40, 10)):
        client.to_send()
        client.take(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: size}).serialize())
        assert client.to_send().count(b"x") == sent
    assert client.all_sent


REPLIES = OK + data(prefixed(b"one")) + data(prefixed(b"two")[:3]) + data(prefixed(b"two")[3:]) + END
BESIDE = (
    PingFrame(0, b"12345678").serialize(),
    SettingsFrame(0, settings={SettingsFrame.MAX_CONCURRENT_STREAMS: 1}).serialize(),
    WindowUpdateFrame(0, window_increment=5).serialize(),
    b"\x00\x00\x01\xf0\x00\x00\x00\x00\x00?",  # of a kind that nobody knows
    PriorityFrame(7).serialize(),
)


def test_a_reply_does_not_depend_on_the_reads() -> None:
    whole = b"".join(BESIDE) + OK + b"".join(BESIDE) + REPLIES[len(OK) :]
    for place in range(len(whole) + 1):
        client, call = calling()
        first, second = client.take(whole[:place]), client.take(whole[place:])
        assert first.data + second.data == prefixed(b"one") + prefixed(b"two")
        assert (call.status, call.is_over, call.reset, client.problem) == (200, True, "", "")
        assert call.headers == [(b"content-type", b"application/grpc")]
        assert call.trailers == [(b"grpc-status", b"0")]


def test_bytes_of_a_message_are_handed_on_with_the_last_one_of_their_frame() -> None:
    """A part of a frame is progress all the same: no deadline runs out while it comes."""
    client, _ = calling()
    frame = data(prefixed(b"one") + prefixed(b"two"))
    first = client.take(OK + frame[:17])
    assert (first.data, first.of_call) == (b"", True)
    assert client.take(frame[17:]).data == prefixed(b"one") + prefixed(b"two")


@pytest.mark.parametrize("frame", BESIDE)
def test_what_is_beside_the_call_is_no_progress_of_it(frame: bytes) -> None:
    client, _ = calling()
    assert not client.take(frame).of_call
    assert client.take(OK).of_call
    assert not client.take(frame).of_call


def test_windows_are_given_back() -> None:
    client, _ = calling()
    client.take(OK)
    for _ in range(1024):
        client.take(data(b"x" * 16_384))
    assert client.to_send() == WindowUpdateFrame(0, window_increment=1 << 24).serialize()


def test_an_answer_of_trailers_only() -> None:
    client, call = calling()
    client.take(headers((":status", "200"), ("grpc-status", "8"), ("grpc-message", "no"), end=True))
    assert (call.is_over, call.status) == (True, 200)
    assert call.trailers == call.headers == [(b"grpc-status", b"8"), (b"grpc-message", b"no")]


def test_informational_headers_are_passed_over() -> None:
    client, call = calling()
    client.take(headers((":status", "103")) + headers((":status", "503")) + data(b"page", "END_STREAM"))
    assert (call.status, call.is_over, call.trailers) == (503, True, [])


def test_headers_in_several_frames_with_a_table() -> None:
    client, call = calling()
    encoder = Encoder()
    for stream in (1, 3):
        block = encoder.encode([(":status", "200"), ("server", "abc")])
        client.take(HeadersFrame(stream, block[:2]).serialize())
        assert call.status is None
        client.take(ContinuationFrame(stream, block[2:], flags=["END_HEADERS"]).serialize())
        assert (call.status, call.headers) == (200, [(b"server", b"abc")])
        client.take(headers(("grpc-status", "0"), end=True, stream=stream))
        if stream == 1:
            client.ask(REQUEST)
            assert client.call is not None
            call = client.call


def test_resets() -> None:
    client, call = calling()
    client.take(RstStreamFrame(1, error_code=2).serialize())
    assert (call.is_over, call.reset, call.unprocessed) == (True, "INTERNAL_ERROR", False)
    client, call = calling()
    client.take(RstStreamFrame(1, error_code=7).serialize())
    assert (call.reset, call.unprocessed) == ("REFUSED_STREAM", True)
    client, call = calling()
    client.take(OK + END + RstStreamFrame(1).serialize())
    assert (call.reset, client.problem) == ("", "")
    client, call = calling()
    client.take(RstStreamFrame(1, error_code=99).serialize())
    assert call.reset == "error code 99"


def test_a_server_that_goes_away_ends_what_it_has_begun() -> None:
    client, call = calling()
    client.take(GoAwayFrame(0, last_stream_id=(1 << 31) - 1).serialize())
    client.take(GoAwayFrame(0, last_stream_id=1, additional_data=b"max_age").serialize())
    assert client.going_away == "NO_ERROR max_age"
    assert not call.is_over
    assert client.take(REPLIES).data == prefixed(b"one") + prefixed(b"two")
    assert (call.is_over, call.unprocessed) == (True, False)


def test_a_server_that_goes_away_says_what_it_has_not_begun() -> None:
    client, call = calling()
    client.take(GoAwayFrame(0, last_stream_id=0, error_code=11).serialize())
    assert (call.is_over, call.unprocessed, client.going_away) == (True, True, "ENHANCE_YOUR_CALM")


def test_closing() -> None:
    assert Lone().closing() == b""
    client, call = calling()
    cancel, away = RstStreamFrame(1, error_code=8).serialize(), GoAwayFrame(0, last_stream_id=0).serialize()
    assert client.closing() == cancel + away
    assert call.is_over
    client, _ = calling()
    client.take(OK + END)
    assert client.closing() == away


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (data(b"x"), "not HTTP/2: cannot receive data before headers"),
        (OK + data(b"x", stream=3), "not HTTP/2: "),
        (headers((":status", "200"), stream=5), "not HTTP/2: "),
        (OK + headers(("grpc-status", "0")), "not HTTP/2: Trailers must have END_STREAM set"),
        (headers(("server", "x")), "not HTTP/2: Header block missing mandatory"),
        (headers((":status", "abc")), "not HTTP/2: headers without a status"),
        (headers((":status", "200"), ("content-length", "9")) + data(b"xx", "END_STREAM"), "not HTTP/2: "),
        (HeadersFrame(1, b"\xff\xff\xff", flags=["END_HEADERS"]).serialize(), "not HTTP/2: "),
        (HeadersFrame(1, b"").serialize() + BESIDE[0], "not HTTP/2: Invalid frame during header block"),
        (ContinuationFrame(1, b"").serialize(), "not HTTP/2: "),
        (PushPromiseFrame(1, 2, b"", flags=["END_HEADERS"]).serialize(), "Received pushed stream"),
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", "a frame of 16385 bytes, more than 16384"),
        (b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\0\0\0\0", "not HTTP/2: "),
        (WindowUpdateFrame(0, window_increment=(1 << 31) - 1).serialize(), "past 2147483647"),
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff", "not HTTP/2: "),
        (HeadersFrame(1, b"").serialize() + 70 * ContinuationFrame(1, b"\0" * 16_000).serialize(),
         "headers of more than 65536 bytes"),
        (HeadersFrame(1, b"\x40\x01a\x7f\x81\x1e" + b"a" * 4000 + b"\xbe" * 8_000,
                      flags=["END_HEADERS"]).serialize(), "not HTTP/2: "),
    ],
)  # fmt: skip
def test_what_is_no_http2_or_not_for_us(frames: bytes, said: str) -> None:
    client, _ = calling()
    found = client.take(frames)
    assert said in client.problem
    assert client.take(REPLIES).data == b""
    assert found.data in (b"", b"xx")
    goodbye = client.closing()
    assert goodbye[3] == 7  # GOAWAY
    assert goodbye[-1] != 0  # with an error code


def test_what_came_before_it_in_the_same_read_counts() -> None:
    client, call = calling()
    found = client.take(REPLIES + headers((":status", "200"), stream=5))
    assert found.data == prefixed(b"one") + prefixed(b"two")
    assert (call.is_over, found.of_call, client.problem != "") == (True, True, True)


def test_what_comes_behind_the_end_of_a_reply_counts_for_nothing() -> None:
    client, call = calling()
    found = client.take(REPLIES + data(b"more"))
    assert found.data == prefixed(b"one") + prefixed(b"two")
    assert (call.is_over, client.problem, client.has_room) == (True, "", True)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
            "answers with HTTP/1.1 (HTTP/1.1 400 Bad Request)",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/2: the server begins with b'SSH-2.0-O'"),
        (b"HTTPS-2.0-OpenSSH\r\n", "not HTTP/2: the server begins with b'HTTPS-2.0'"),
        (BESIDE[0], "not HTTP/2: the server begins with"),
    ],
)
def test_servers_of_another_protocol(answer: bytes, said: str) -> None:
    for step in (1, 3, len(answer)):
        client = Lone()
        for start in range(0, len(answer), step):
            client.take(answer[start : start + step])
        assert said in client.problem
        assert client.closing() == b""


def _any_frame(draw: Callable[..., bytes]) -> bytes:
    kind, flags = draw(st.integers(0, 10)), draw(st.integers(0, 255))
    payload = draw(st.binary(max_size=24))
    stream = draw(st.sampled_from([0, 1, 1, 3]))
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


@given(st.lists(st.composite(_any_frame)() | st.sampled_from([OK, END, *BESIDE, data(b"\0\0")]), max_size=6))
def test_nothing_that_a_server_sends_raises(frames: list[bytes]) -> None:
    client, _ = calling()
    for frame in frames:
        client.take(frame)
        client.to_send()
    client.closing()
    begun = Lone()
    begun.feed(b"".join(frames))


# --- several streams


def talking(count: int, **settings: int) -> tuple[Http2Client, list[Stream]]:
    """A client with so many streams begun."""
    client = Http2Client()
    client.opening()
    named = {getattr(SettingsFrame, name): value for name, value in settings.items()}
    client.feed(SettingsFrame(0, settings=named).serialize())
    streams = [client.begin(REQUEST) for _ in range(count)]
    client.to_send()
    return client, streams


PARTS = {
    1: [b"data: one\n\n", b"data: two\n\n"],
    3: [b"data: 1\n\ndata: 2\n\n"],
    5: [],
}
RECORDED = (
    headers((":status", "200"), ("content-type", "text/event-stream"))
    + headers((":status", "200"), ("content-type", "text/event-stream"), stream=3)
    + data(PARTS[1][0][:4])
    + data(PARTS[3][0], stream=3)
    + headers((":status", "429"), ("retry-after", "7"), stream=5, end=True)
    + PingFrame(0, b"12345678").serialize()
    + data(PARTS[1][0][4:] + PARTS[1][1])
    + headers(("x-trailer", "1"), stream=3, end=True)
    + DataFrame(1, b"", flags=["END_STREAM"]).serialize()
)


@pytest.mark.parametrize("pieces", [2, 3])
def test_replies_side_by_side_do_not_depend_on_the_reads(pieces: int) -> None:
    """Every place at which one read may end, and with a byte between two of them."""
    for place in range(len(RECORDED) + 1):
        cuts = [0, place, *([place + 1] if pieces == 3 else []), len(RECORDED)]
        client, streams = talking(3)
        bodies = {stream.stream_id: b"" for stream in streams}
        over = []
        for start, end in pairwise(cuts):
            read = client.feed(RECORDED[start:end])
            for stream in read.progress:
                bodies[stream.stream_id] += stream.data
            assert len(read.progress) == len({stream.stream_id for stream in read.progress})
            over += [stream.stream_id for stream in read.over]
        assert bodies == {number: b"".join(parts) for number, parts in PARTS.items()}
        assert over == [5, 3, 1]
        assert [stream.status for stream in streams] == [200, 200, 429]
        assert streams[1].trailers == [(b"x-trailer", b"1")]
        assert streams[2].headers == [(b"retry-after", b"7")]
        assert (client.problem, client.streams) == ("", {})


def test_the_room_that_the_server_gives() -> None:
    client, streams = talking(2, MAX_CONCURRENT_STREAMS=3)
    assert client.has_room
    client.begin(REQUEST)
    assert not client.has_room
    client.cancel(streams[0])
    assert client.has_room
    client.feed(SettingsFrame(0, settings={SettingsFrame.MAX_CONCURRENT_STREAMS: 2}).serialize())
    assert not client.has_room
    client.feed(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 9}).serialize())
    assert client.most_streams == 2  # what a later frame does not name stays
    client.feed(headers((":status", "204"), stream=3, end=True))
    assert client.has_room
    client.feed(GoAwayFrame(0, last_stream_id=99).serialize())
    assert not client.has_room


def test_without_a_limit_of_the_server_there_is_room() -> None:
    assert talking(500)[0].has_room
    assert not Http2Client().has_room


def test_what_was_given_up_is_passed_over() -> None:
    """With the table of header compression kept in step, and the window of the connection given back."""
    client, (one, two) = talking(2)
    encoder = Encoder()
    first = encoder.encode([(":status", "200"), ("server", "abc")])
    second = encoder.encode([(":status", "200"), ("server", "abc")])  # an index of the table
    client.cancel(one)
    assert client.to_send() == RstStreamFrame(1, error_code=8).serialize()
    client.cancel(one)
    assert client.to_send() == b""
    read = client.feed(
        HeadersFrame(1, first, flags=["END_HEADERS"]).serialize()
        + data(b"late")
        + HeadersFrame(3, second, flags=["END_HEADERS"]).serialize()
        + data(b"good", stream=3)
    )
    assert (read.progress, read.over, two.data) == ([two], [], b"good")
    assert two.headers == [(b"server", b"abc")]
    assert (one.status, client.problem) == (None, "")
    for _ in range(4096):  # as many bytes as the window of the connection holds at first
        client.feed(data(b"x" * 16_384))
    assert client.problem == ""
    assert client.feed(data(b"good", stream=3)).progress == [two]


def test_what_ends_a_stream_ends_no_other() -> None:
    client, (one, two, three) = talking(3)
    read = client.feed(RstStreamFrame(3, error_code=2).serialize() + data(b"")[:4])
    assert (read.over, read.progress) == ([two], [])
    assert (one.is_over, two.reset, three.is_over) == (False, "INTERNAL_ERROR", False)
    client, (one, two, three) = talking(3)
    read = client.feed(GoAwayFrame(0, last_stream_id=3).serialize())
    assert read.over == [three]
    assert (one.unprocessed, two.unprocessed, three.unprocessed) == (False, False, True)


def test_streams_share_the_window_of_the_connection() -> None:
    """What it lets out is of the oldest first; each stream has its own window beside."""
    client = Http2Client()
    client.feed(SETTINGS)
    body = b"x" * 40_000
    streams = [client.begin(request_bytes(HEADERS, body)) for _ in range(3)]
    assert [len(stream.unsent) for stream in streams] == [0, 80_000 - 65_535, 40_000]
    client.feed(WindowUpdateFrame(0, window_increment=20_000).serialize())
    assert [len(stream.unsent) for stream in streams] == [0, 0, 80_000 - 65_535 + 40_000 - 20_000]
    client.cancel(streams[2])
    client.feed(WindowUpdateFrame(0, window_increment=100_000).serialize())
    assert client.to_send().count(b"x") == 85_535


def test_an_answer_to_half_a_request_ends_it() -> None:
    client = Http2Client()
    client.feed(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 10}).serialize())
    stream = client.begin(request_bytes(HEADERS, b"x" * 30))
    client.to_send()
    client.feed(headers((":status", "413"), end=True))
    assert (stream.was_cut, stream.is_over, stream.reset) == (True, True, "")
    assert client.to_send() == RstStreamFrame(1, error_code=8).serialize()
