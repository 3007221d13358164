"""WebSockets of :class:`scripted_server.ScriptedServer`: the handshake, and frames as a test wants them."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from scripted_server import Conversation, Script, plain
from talk_script import Opened, Talk, in_turn, nothing_more
from websockets.frames import CLOSE, CONT, PING, TEXT, Frame, Opcode
from websockets.utils import accept_key

BOOM = struct.pack("!H", 1011) + b"boom"
"""Payload of a close frame: the code and a reason."""


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A frame as a server sends it."""
    return Frame(opcode, data, fin).serialize(mask=False)


def text(payload: object) -> bytes:
    """A message of JSON in one frame."""
    return frame(TEXT, json.dumps(payload, ensure_ascii=False).encode())


def fragments(payload: object, pieces: int, between: bytes = b"") -> bytes:
    """A message of JSON in several frames."""
    data = json.dumps(payload, ensure_ascii=False).encode()
    step = -(-len(data) // pieces)
    parts = [data[start : start + step] for start in range(0, len(data), step)]
    frames = [
        frame(CONT if number else TEXT, part, fin=number == len(parts) - 1)
        for number, part in enumerate(parts)
    ]
    return between.join(frames)


def created() -> dict[str, Any]:
    return {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "error": None}}


def delta(said: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "delta": said}


def completed(tokens: int = 2) -> dict[str, Any]:
    usage = {"input_tokens": 7, "output_tokens": tokens}
    return {"type": "response.completed", "response": {"status": "completed", "error": None, "usage": usage}}


def refused(status: int, message: str) -> dict[str, Any]:
    return {"type": "error", "status": status, "error": {"message": message}}


REPLY = (created(), delta("one"), delta(" two"), completed())


def handshake(head: str) -> bytes:
    """The answer that opens the WebSocket that this request asks for."""
    headers = {
        name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))
    }
    accept = accept_key(headers["sec-websocket-key"])
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    return "\r\n".join([*lines, f"Sec-WebSocket-Accept: {accept}", "", ""]).encode()


@dataclass
class WebSocketTalk(Talk):
    """One WebSocket; what it heard are control frames, each with its opcode."""

    asked: dict[str, Any] = field(default_factory=dict)
    """The last message of the client."""

    def parts(self) -> list[bytes]:
        return list(map(text, REPLY))

    def say(self, payloads: Iterable[object]) -> None:
        for payload in payloads:
            self.send(text(payload))

    def next(self) -> bool:
        while True:
            opcode, data = self._frame()
            if opcode is TEXT:
                self.asked, self.read_ns = json.loads(data), time.monotonic_ns()
                self.turn += 1
                return True
            self.heard.append((opcode, data))
            if opcode is CLOSE:
                return False

    def _frame(self) -> tuple[Opcode, bytes]:
        first, second = self._exactly(2)
        assert first & 0x80, "the client writes a message in one frame"
        assert second & 0x80, "a client masks what it sends"
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self._exactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._exactly(8))
        mask = self._exactly(4)
        data = self._exactly(length)
        whole = mask * (length // 4 + 1)
        return Opcode(first & 0x0F), bytes(a ^ b for a, b in zip(data, whole, strict=False))

    def _exactly(self, count: int) -> bytes:
        conversation = self.conversation
        while len(conversation.body) < count:
            more = conversation.sock.recv(65536)
            if not more:
                raise ConnectionError("the client has gone")
            conversation.body += more
        found, conversation.body = conversation.body[:count], conversation.body[count:]
        return found


def websockets(
    turn: Callable[[WebSocketTalk], None],
    opened: Opened[WebSocketTalk] | None = None,
    greeting: bytes = b"",
) -> Script:
    """A script for a server made with ``read_body=False``: opens the WebSocket, and calls ``turn`` for each
    message of the client. Other requests are told to upgrade."""

    def script(conversation: Conversation) -> None:
        if "sec-websocket-key" not in conversation.headers:
            conversation.send(plain("426 Upgrade Required"))
            return
        talk = WebSocketTalk(conversation)
        if opened is not None:
            opened.talks.append(talk)
        conversation.send(handshake(conversation.head) + greeting)
        while talk.next():
            turn(talk)

    return script


def replies(*payloads: object) -> Callable[[WebSocketTalk], None]:
    """The same messages to each request."""
    return lambda talk: talk.say(payloads or REPLY)


def ping(data: bytes = b"hi") -> bytes:
    return frame(PING, data)


def says(*data: bytes, then: Callable[[WebSocketTalk], None] = nothing_more) -> Script:
    """A server that sends these bytes once it was asked."""
    return websockets(in_turn(*data, then=then))
