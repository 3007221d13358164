"""The known-delay server's side of HTTP/2: chat completions as events, and vLLM's gRPC service.

Source: RFC 9113 (HTTP/2) by the package h2, gRPC over HTTP2, vllm_engine.proto of smg-grpc-proto.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from pytest_llmbench.simulator.known_delay import SCRIPT_HEADER, Begin, Script, event_writes

_PREFIX = struct.Struct(">BI")
"""Prefix of a gRPC message: a flag, and the length of the message in bytes."""
_WINDOW = 1 << 30
_USUAL_WINDOW = 65_535
_SETTINGS = {SettingCodes.MAX_CONCURRENT_STREAMS: 100, SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW}
"""The limit of streams that usual servers have, and room for any request."""
_MOST_FRAME_BYTES = 16_384

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply by its writes."""

    head: Headers
    bodies: tuple[bytes, ...]
    trailers: Headers = ()


class Http2Side:
    """The server's end of one HTTP/2 connection."""

    def __init__(self, write: Callable[[bytes], int], begin: Begin) -> None:
        self._write = write
        self._begin = begin
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="latin-1"))
        self._h2.local_settings = Settings(client=False, initial_values=_SETTINGS)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW - _USUAL_WINDOW)
        self._asked: dict[int, tuple[dict[str, str], bytearray]] = {}
        """Headers and body of each request under way, by its stream."""

    def take(self, data: bytes, at_ns: int) -> bool:
        """Process what was read at ``at_ns``; returns whether the connection goes on, False after what is no
        HTTP/2."""
        try:
            for event in self._h2.receive_data(data):
                if isinstance(event, RequestReceived):
                    headers = {str(name): str(value) for name, value in event.headers or ()}
                    self._asked[event.stream_id or 0] = headers, bytearray()
                elif isinstance(event, DataReceived):
                    self._asked[event.stream_id or 0][1].extend(event.data or b"")
                elif isinstance(event, StreamEnded):
                    self._answer(event.stream_id, at_ns)
        except (ProtocolError, ValueError, KeyError):
            return False
        self._write(self._h2.data_to_send())
        return True

    def _answer(self, stream_id: int, at_ns: int) -> None:
        headers, body = self._asked.pop(stream_id)
        script = Script.of(urlsplit(headers[":path"]).query or headers.get(SCRIPT_HEADER, ""))
        if headers.get("content-type", "").startswith("application/grpc"):
            request_id, reply = _id_of_call(body), call_reply(script)
        else:
            request_id, reply = headers.get("x-request-id", ""), request_reply(script)
        self._begin(request_id, at_ns, script, lambda number: self._frames(stream_id, reply, number))

    def _frames(self, stream_id: int, reply: Reply, number: int) -> bytes:
        """The frames of a write; none for a stream that the client has given up."""
        body, is_last = reply.bodies[number], number == len(reply.bodies) - 1
        try:
            if number == 0:
                self._h2.send_headers(stream_id, reply.head)
            for at in range(0, len(body), _MOST_FRAME_BYTES):
                ends = is_last and not reply.trailers and at + _MOST_FRAME_BYTES >= len(body)
                self._h2.send_data(stream_id, body[at : at + _MOST_FRAME_BYTES], end_stream=ends)
            if is_last and reply.trailers:
                self._h2.send_headers(stream_id, reply.trailers, end_stream=True)
        except ProtocolError:
            pass
        return self._h2.data_to_send()


@lru_cache(maxsize=256)
def request_reply(script: Script) -> Reply:
    """A chat completion over HTTP/2."""
    return Reply(((":status", "200"), ("content-type", "text/event-stream")), tuple(event_writes(script)))


@lru_cache(maxsize=256)
def call_reply(script: Script) -> Reply:
    """A reply of vLLM's gRPC service."""
    from smg_grpc_proto.generated import vllm_engine_pb2 as pb

    chunk = pb.GenerateStreamChunk(token_ids=[15600], prompt_tokens=1, completion_tokens=1)
    end = pb.GenerateComplete(output_ids=[15600], finish_reason="stop", prompt_tokens=1, completion_tokens=1)
    tokens = [_message(pb.GenerateResponse(chunk=chunk).SerializeToString())] * script.tokens
    tokens[-1] += _message(pb.GenerateResponse(complete=end).SerializeToString())
    head = ((":status", "200"), ("content-type", "application/grpc"))
    return Reply(head, tuple(script.in_writes(tokens)), (("grpc-status", "0"),))


def _message(serialized: bytes) -> bytes:
    return _PREFIX.pack(0, len(serialized)) + serialized


def _id_of_call(body: bytearray) -> str:
    from google.protobuf.message import DecodeError
    from smg_grpc_proto.generated import vllm_engine_pb2 as pb

    try:
        return str(pb.GenerateRequest.FromString(bytes(body[_PREFIX.size :])).request_id)
    except DecodeError as error:
        raise ValueError("no request of vLLM's") from error
