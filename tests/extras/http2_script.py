"""HTTP/2 of :class:`scripted_server.ScriptedServer`, with any number of streams on a connection.

What the client sends is read by the package h2; what it gets are frames as a test wants them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes, Settings
from http2_frames import data, headers, reset
from scripted_server import STREAM, Conversation, Script
from talk_script import Talk

EVENTS = ("content-type", "text/event-stream")


@dataclass
class Asked:
    """A request of the client."""

    stream: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    read_ns: int = 0
    """When its last byte had been read."""

    def head(self, *pairs: tuple[str, str], status: int = 200, end: bool = False) -> bytes:
        return headers((":status", str(status)), *pairs, end=end, stream=self.stream)

    def data(self, payload: bytes, *, end: bool = False) -> bytes:
        return data(payload, *(["END_STREAM"] if end else []), stream=self.stream)

    def trailers(self, *pairs: tuple[str, str]) -> bytes:
        return headers(*pairs, end=True, stream=self.stream)

    def reset(self, code: int) -> bytes:
        return reset(code, self.stream)

    def reply(self, parts: Iterable[bytes] = STREAM) -> bytes:
        """A whole reply, each part in a frame of its own."""
        return self.head(EVENTS) + b"".join(map(self.data, parts)) + self.data(b"", end=True)


@dataclass
class StreamTalk(Talk):
    """One request, by itself on its stream."""

    asked: Asked

    def parts(self) -> list[bytes]:
        first, second, *rest = STREAM
        data = self.asked.data
        return [self.asked.head(EVENTS), data(first), data(second), data(b"".join(rest), end=True)]


@dataclass
class Peer:
    """One connection, from the server's side."""

    conversation: Conversation
    h2: H2Connection
    whole: deque[Asked] = field(default_factory=deque)
    """Requests that have come, and that nobody has taken."""
    begun: dict[int, Asked] = field(default_factory=dict)
    heard: list[Event] = field(default_factory=list)
    """Everything of the client."""
    asked: int = 0
    """Requests so far."""
    open: set[int] = field(default_factory=set)
    """Streams that have begun and have not been ended."""
    most_open: int = 0

    def send(self, data: bytes) -> None:
        at = 0
        while at < len(data):  # frames that end a stream
            size, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
            if kind == 3 or (kind in (0, 1) and flags & 1):
                self.open.discard(int.from_bytes(data[at + 5 : at + 9], "big"))
            at += 9 + size
        self.conversation.send(data)

    def __iter__(self) -> Iterator[Asked]:
        """The requests of the client, until it closes."""
        while (asked := self.next()) is not None:
            yield asked

    def next(self) -> Asked | None:
        while not self.whole:
            data = self.conversation.sock.recv(65536)
            self.take(data)
            if not self.whole and (not data or self.got(ConnectionTerminated)):
                return None
        return self.whole.popleft()

    def take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            self.heard.append(event)
            if isinstance(event, RequestReceived):
                self.begun[event.stream_id] = Asked(event.stream_id, list(event.headers))
                self.open.add(event.stream_id)
                self.most_open = max(self.most_open, len(self.open))
            elif isinstance(event, DataReceived):
                self.begun[event.stream_id].body += event.data
                if event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                asked = self.begun.pop(event.stream_id)
                asked.read_ns = time.monotonic_ns()
                self.whole.append(asked)
                self.asked += 1
            elif isinstance(event, StreamReset):
                self.begun.pop(event.stream_id, None)
                self.open.discard(event.stream_id)
        if out := self.h2.data_to_send():
            self.send(out)

    def until(self, kind: type[Event]) -> None:
        """Read until there was an event of this kind."""
        while not self.got(kind):
            self.take(self.conversation.sock.recv(65536))

    def got(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind)]


def peers(turn: Callable[[Peer], None], opened: list[Peer] | None = None, **settings: int) -> Script:
    """A script for a server made with ``read_body=False``: calls ``turn`` once for each connection.

    ``settings``: those of the server, by the names that h2 has for them.
    """

    def script(conversation: Conversation) -> None:
        h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        given = {SettingCodes[name]: value for name, value in settings.items()}
        h2.local_settings = Settings(client=False, initial_values=given)
        h2.initiate_connection()
        # It does not see what is sent, so it would think that no stream ever ends.
        given.pop(SettingCodes.MAX_CONCURRENT_STREAMS, None)
        h2.local_settings = Settings(client=False, initial_values=given)
        peer = Peer(conversation, h2)
        if opened is not None:
            opened.append(peer)
        begun = f"{conversation.head}\r\n\r\n".encode() + conversation.body
        conversation.body = b""
        peer.take(begun)
        turn(peer)

    return script


def each(answer: Callable[[Peer, Asked], None]) -> Callable[[Peer], None]:
    """A turn that answers each request as it comes."""

    def turn(peer: Peer) -> None:
        for asked in peer:
            answer(peer, asked)

    return turn


def streams(turn: Callable[[StreamTalk], None]) -> Script:
    """A script that calls ``turn`` for each request."""
    return peers(each(lambda peer, asked: turn(StreamTalk(peer.conversation, asked, read_ns=asked.read_ns))))


def answers(parts: Iterable[bytes] = STREAM) -> Callable[[Peer], None]:
    """A turn with the same reply to each request."""
    told = tuple(parts)
    return each(lambda peer, asked: peer.send(asked.reply(told)))


def api(peer: Peer) -> None:
    """A turn that lists a model, and streams the same reply to whatever else it is asked."""
    for asked in peer:
        if (":path", "/v1/models") in asked.headers:
            listed = b'{"data": [{"id": "m"}]}'
            peer.send(asked.head(("content-type", "application/json")) + asked.data(listed, end=True))
        else:
            peer.send(asked.reply())


def only_http2(conversation: Conversation) -> None:
    """A script with that API, which ends what is no HTTP/2."""
    if conversation.head.startswith("PRI * HTTP/2.0"):
        peers(api)(conversation)
    else:
        conversation.close()
