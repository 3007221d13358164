"""gRPC of :class:`scripted_server.ScriptedServer`: HTTP/2, and frames as a test wants them.

What the client sends is read by the package h2, which has its own mind about what HTTP/2 is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RequestReceived,
    StreamEnded,
)
from h2.settings import SettingCodes
from http2_frames import data, headers, reset
from hyperframe.frame import PingFrame
from scripted_server import Conversation, Script
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from talk_script import Opened, Talk

from pytest_llmbench.extras.grpc.messages import prefixed

GRPC = ("content-type", "application/grpc")


def chunk(*ids: int) -> bytes:
    """A message of a reply of vLLM's."""
    said = vllm.GenerateStreamChunk(token_ids=ids, prompt_tokens=7, completion_tokens=len(ids))
    return prefixed(vllm.GenerateResponse(chunk=said).SerializeToString())


def complete(finish: str = "stop") -> bytes:
    """The last message of a reply of vLLM's, which repeats the last token."""
    said = vllm.GenerateComplete(output_ids=[2], prompt_tokens=7, completion_tokens=1, finish_reason=finish)
    return prefixed(vllm.GenerateResponse(complete=said).SerializeToString())


REPLY = (chunk(1), chunk(2), complete())


@dataclass
class GrpcTalk(Talk):
    """One connection."""

    h2: H2Connection
    generous: bool = True
    """Give the windows back as the request comes in."""
    partly: Callable[[GrpcTalk], None] | None = None
    """Called when there is something of a request, and not all of it."""
    stream: int = 0
    """The stream of the last call."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    asked: bytes = b""
    """The message of the last call, with what is before it."""

    def next(self) -> bool:
        while True:
            data = self.conversation.sock.recv(65536)
            if self.take(data):
                return True
            if not data or isinstance(self.heard[-1], ConnectionTerminated):
                return False

    def take(self, data: bytes) -> bool:
        """Whether these bytes of the client end the request of a call."""
        is_whole = False
        for event in self.h2.receive_data(data):
            self.heard.append(event)
            if isinstance(event, RequestReceived):
                self.headers, self.stream, self.asked = list(event.headers), event.stream_id, b""
            elif isinstance(event, DataReceived):
                self.asked += event.data
                if self.generous and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                self.read_ns = time.monotonic_ns()
                self.turn += 1
                is_whole = True
        self.flush()
        if self.asked and not is_whole and self.partly is not None:
            self.partly(self)
        return is_whole

    def flush(self) -> None:
        if out := self.h2.data_to_send():
            self.send(out)

    # Frames, of the last call.

    def head(self, *pairs: tuple[str, str], end: bool = False) -> bytes:
        return headers(*pairs, end=end, stream=self.stream)

    def ok(self) -> bytes:
        return self.head((":status", "200"), GRPC)

    def data(self, payload: bytes, *flags: str) -> bytes:
        return data(payload, *flags, stream=self.stream)

    def end(self, status: int = 0, message: str = "", *more: tuple[str, str]) -> bytes:
        said = [("grpc-message", message)] if message else []
        return self.head(("grpc-status", str(status)), *said, *more, end=True)

    def refusal(self, status: int, message: str = "", *more: tuple[str, str]) -> bytes:
        """Trailers only."""
        said = [("grpc-message", message)] if message else []
        return self.head((":status", "200"), GRPC, ("grpc-status", str(status)), *said, *more, end=True)

    def reset(self, code: int) -> bytes:
        return reset(code, self.stream)

    def parts(self) -> list[bytes]:
        first, second, last = map(self.data, REPLY)
        return [self.ok(), first, second, last + self.end()]

    def reply(self, messages: Iterable[bytes] = REPLY) -> None:
        """A whole reply, each message in a frame of its own."""
        self.send(self.ok())
        for message in messages:
            self.send(self.data(message))
        self.send(self.end())


def ping(data: bytes = b"12345678") -> bytes:
    return PingFrame(0, data).serialize()


def calls(
    turn: Callable[[GrpcTalk], None],
    opened: Opened[GrpcTalk] | None = None,
    *,
    generous: bool = True,
    partly: Callable[[GrpcTalk], None] | None = None,
    **settings: int,
) -> Script:
    """A script for a server made with ``read_body=False``: calls ``turn`` for each call of a client.

    ``settings``: those of the server, by the names that h2 has for them.
    """

    def script(conversation: Conversation) -> None:
        h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        h2.initiate_connection()
        if settings:
            h2.update_settings({SettingCodes[name]: value for name, value in settings.items()})
        talk = GrpcTalk(conversation, h2, generous, partly)
        if opened is not None:
            opened.talks.append(talk)
        begun = f"{conversation.head}\r\n\r\n".encode() + conversation.body
        conversation.body = b""
        if talk.take(begun):
            turn(talk)
        while talk.next():
            turn(talk)

    return script


def replies(messages: Iterable[bytes] = REPLY) -> Callable[[GrpcTalk], None]:
    """The same messages to each call."""
    told = tuple(messages)
    return lambda talk: talk.reply(told)
