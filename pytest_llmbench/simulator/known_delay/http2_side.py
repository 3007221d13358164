"""The known-delay server's side of HTTP/2: chat completions as events, and vLLM's gRPC service.

It counts no window of the client's, since the load generator opens all of them wider than any reply.
Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK), gRPC over HTTP2, vllm_engine.proto of smg-grpc-proto.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, SettingsFrame, WindowUpdateFrame

from pytest_llmbench.simulator.known_delay.chat_events import event_writes
from pytest_llmbench.simulator.known_delay.script import SCRIPT_HEADER, Begin, Script

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_STREAM_ID = struct.Struct(">I")
_PREFIX = struct.Struct(">BI")
"""Prefix of a gRPC message: a flag, and the length of the message in bytes."""
_WINDOW = 1 << 30
_MOST_STREAMS = 100
"""Maximum number of concurrent streams on a connection, the same as in usual servers."""
_DATA, _HEADERS = 0, 1
_END_STREAM, _END_HEADERS = 0x1, 0x4

Frames = tuple[tuple[bytes, bytes], ...]
"""HTTP/2 frames, each as the bytes before and the bytes after its stream id."""


@dataclass(slots=True)
class _Asked:
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)


class Http2Side:
    """The server's end of one HTTP/2 connection. Framing and header blocks are made by the packages
    hyperframe and hpack."""

    def __init__(self, write: Callable[[bytes], int], begin: Begin) -> None:
        self._write = write
        self._begin = begin
        self._received = bytearray()
        self._greeted = False
        self._decoder = Decoder()
        self._asked: dict[int, _Asked] = {}

    def take(self, data: bytes, at_ns: int) -> bool:
        """Process what was read at ``at_ns``; returns whether the connection goes on, False after what is no
        HTTP/2."""
        self._received += data
        try:
            if not self._greeted and not self._greet():
                return PREFACE.startswith(self._received)
            while (frame := self._next()) is not None:
                self._hear(frame, at_ns)
        except (HyperframeError, HPACKError, ValueError, KeyError):
            return False
        return True

    def _greet(self) -> bool:
        """Answer the client's preface if it is there; returns whether it is."""
        if not self._received.startswith(PREFACE):
            return False
        del self._received[: len(PREFACE)]
        self._greeted = True
        settings = {
            SettingsFrame.MAX_CONCURRENT_STREAMS: _MOST_STREAMS,
            SettingsFrame.INITIAL_WINDOW_SIZE: _WINDOW,
        }
        window = WindowUpdateFrame(0, window_increment=_WINDOW)
        self._write(SettingsFrame(0, settings=settings).serialize() + window.serialize())
        return True

    def _next(self) -> Frame | None:
        if len(self._received) < _HEAD_BYTES:
            return None
        frame, length = Frame.parse_frame_header(memoryview(bytes(self._received[:_HEAD_BYTES])))
        end = _HEAD_BYTES + length
        if len(self._received) < end:
            return None
        frame.parse_body(memoryview(bytes(self._received[_HEAD_BYTES:end])))
        del self._received[:end]
        return frame

    def _hear(self, frame: Frame, at_ns: int) -> None:
        if isinstance(frame, HeadersFrame):
            if "END_HEADERS" not in frame.flags:
                raise ValueError("headers of more than a frame")
            headers = {str(name): str(value) for name, value in self._decoder.decode(bytes(frame.data))}
            self._asked[frame.stream_id] = _Asked(headers)
        elif isinstance(frame, DataFrame):
            self._asked[frame.stream_id].body += frame.data
        elif isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            self._write(SettingsFrame(0, flags=["ACK"]).serialize())
        elif isinstance(frame, PingFrame) and "ACK" not in frame.flags:
            self._write(PingFrame(0, opaque_data=frame.opaque_data, flags=["ACK"]).serialize())
        if "END_STREAM" in frame.flags:
            self._answer(frame.stream_id, self._asked.pop(frame.stream_id), at_ns)

    def _answer(self, stream_id: int, asked: _Asked, at_ns: int) -> None:
        headers = asked.headers
        script = Script.of(urlsplit(headers[":path"]).query or headers.get(SCRIPT_HEADER, ""))
        is_call = headers.get("content-type", "").startswith("application/grpc")
        request_id = _id_of_call(asked.body) if is_call else headers.get("x-request-id", "")
        writes, own = (call_writes if is_call else request_writes)(script), _STREAM_ID.pack(stream_id)
        self._begin(
            request_id,
            at_ns,
            script,
            lambda number: b"".join(before + own + behind for before, behind in writes[number]),
        )


@lru_cache(maxsize=256)
def request_writes(script: Script) -> list[Frames]:
    """The frames of each write of a chat completion over HTTP/2."""
    return _in_frames(
        event_writes(script), {":status": "200", "content-type": "text/event-stream"}, trailers=None
    )


@lru_cache(maxsize=256)
def call_writes(script: Script) -> list[Frames]:
    """The frames of each write of a reply of vLLM's gRPC service."""
    from smg_grpc_proto.generated import vllm_engine_pb2 as pb

    chunk = pb.GenerateStreamChunk(token_ids=[15600], prompt_tokens=1, completion_tokens=1)
    end = pb.GenerateComplete(output_ids=[15600], finish_reason="stop", prompt_tokens=1, completion_tokens=1)
    tokens = [_message(pb.GenerateResponse(chunk=chunk).SerializeToString())] * script.tokens
    tokens[-1] += _message(pb.GenerateResponse(complete=end).SerializeToString())
    return _in_frames(
        script.in_writes(tokens),
        {":status": "200", "content-type": "application/grpc"},
        trailers={"grpc-status": "0"},
    )


def _message(serialized: bytes) -> bytes:
    return _PREFIX.pack(0, len(serialized)) + serialized


def _id_of_call(body: bytearray) -> str:
    from google.protobuf.message import DecodeError
    from smg_grpc_proto.generated import vllm_engine_pb2 as pb

    try:
        return str(pb.GenerateRequest.FromString(bytes(body[_PREFIX.size :])).request_id)
    except DecodeError as error:
        raise ValueError("no request of vLLM's") from error


def _in_frames(bodies: list[bytes], headers: dict[str, str], trailers: dict[str, str] | None) -> list[Frames]:
    writes = [list(_data_frames(body)) for body in bodies]
    writes[0].insert(0, _frame(_HEADERS, _END_HEADERS, _block(headers)))
    if trailers is None:
        before, behind = writes[-1][-1]
        writes[-1][-1] = before[:-1] + bytes((_END_STREAM,)), behind
    else:
        writes[-1].append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, _block(trailers)))
    return [tuple(frames) for frames in writes]


def _data_frames(body: bytes) -> Iterable[tuple[bytes, bytes]]:
    """``body`` as DATA frames of the size that every peer accepts."""
    return (_frame(_DATA, 0, body[at : at + 16_384]) for at in range(0, len(body), 16_384))


def _frame(kind: int, flags: int, payload: bytes) -> tuple[bytes, bytes]:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)), payload


def _block(headers: dict[str, str]) -> bytes:
    """The header block of ``headers``, as literals that no table keeps, so that it is the same on every
    connection."""
    pairs = [NeverIndexedHeaderTuple(name.encode(), value.encode()) for name, value in headers.items()]
    return Encoder().encode(pairs, huffman=False)
