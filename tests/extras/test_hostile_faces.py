"""The embedded engine's faces, HTTP, WebSocket and gRPC, hear what nobody means: an answer in words, and the
next client is served."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import plain_http
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import ClientConnection, connect

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

DEADLINE_S = 20.0
FEW = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NUMBERS = st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e308, -0.0, True]) | st.integers() | st.floats()
WORDS = st.sampled_from(["", "\ud800", "\x00", "\x1b[2J", "x" * 100_000, "data: [DONE]\n\n"]) | st.text()
VALUES = st.recursive(
    st.none() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "model", "input", "prompt", "messages", "max_tokens", "max_output_tokens", "stream", "metadata",
    "temperature", "stop", "n", "seed", "ignore_eos", "stream_options", "previous_response_id",
)  # fmt: skip
FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUES))
_WRONG = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED)
DEEP = "[" * 100_000
METHODS = (
    "/vllm.grpc.engine.VllmEngine/Generate",
    "/vllm.grpc.engine.VllmEngine/Abort",
    "/vllm.grpc.engine.VllmEngine/GetModelInfo",
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStreamInfer",
    "/no.such/Method",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast?context_limit_tokens=500&step_base_us=100", grpc=True) as engine:
        yield engine


def is_served(engine: EmbeddedEngine) -> None:
    """The next client, and nothing stays behind of those before it."""
    body = {"model": engine.model, "prompt": "hello", "max_tokens": 2}
    answer = plain_http.post(f"{engine.url}/completions", json=body, timeout=DEADLINE_S)
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 2)


def _text(value: Any) -> str:
    return json.dumps(value)  # surrogates stay escaped, as a server may send and get them


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_http(engine: EmbeddedEngine, path: str) -> None:
    with httpx.Client(base_url=f"{engine.url}/", timeout=DEADLINE_S, trust_env=False) as client:

        def status(body: str | bytes) -> int:
            return client.post(path, content=body, headers={"content-type": "application/json"}).status_code

        @FEW
        @given(fields=FIELDS | VALUES)
        def told(fields: Any) -> None:
            assert status(_text(fields)) in (200, 400, 404)

        told()
        for body in ("", "{", DEEP, b"\xff\xfe", b"{}" * 1000):
            assert status(body) == 400
    is_served(engine)


def test_websocket(engine: EmbeddedEngine) -> None:
    url = engine.url.replace("http://", "ws://") + "/responses"

    def dial() -> ClientConnection:
        return connect(url, open_timeout=DEADLINE_S, close_timeout=1.0, proxy=None)

    def told(message: str | bytes) -> None:
        with dial() as socket:
            socket.send(message)
            try:
                first = json.loads(socket.recv(timeout=DEADLINE_S))
            except ConnectionClosedError as closed:  # with a reason of the protocol, and not without a word
                if closed.rcvd is None:
                    raise
                return
            assert first["type"] == "error" or first["type"].startswith("response.")

    @FEW
    @given(fields=FIELDS | VALUES)
    def all_told(fields: Any) -> None:
        told(_text({"type": "response.create", "response": fields}))

    all_told()
    for message in ("", "{", DEEP, b"\xff\xfe", b"", "\x00", '{"type": 7}'):
        told(message)
    is_served(engine)


def _any_bytes(method: str, channel: grpc.Channel) -> Callable[[bytes], str]:
    """Of a call whose request is just these bytes, what went wrong in the engine; empty for nothing."""
    call = channel.stream_stream if method.endswith("StreamInfer") else channel.unary_stream
    send = call(method, request_serializer=bytes, response_deserializer=bytes)

    def wrong(data: bytes) -> str:
        request = iter([data]) if method.endswith("StreamInfer") else data
        answer = send(request, timeout=DEADLINE_S)
        try:
            for _ in answer:
                pass
        except grpc.RpcError as error:
            # UNKNOWN is what gRPC makes of an exception (and itself of bytes that are no message), and
            # DEADLINE_EXCEEDED of a call that hangs.
            code, details = error.code(), str(error.details())
            harmless = code is grpc.StatusCode.UNKNOWN and "DecodeError" in details
            return f"{code}: {details}" if code in _WRONG and not harmless else ""
        return ""

    return wrong


@pytest.mark.parametrize("method", METHODS)
def test_grpc(engine: EmbeddedEngine, method: str) -> None:
    assert engine.grpc_target is not None
    named = st.tuples(st.integers(1, 20), st.binary(max_size=60)).map(
        lambda field: bytes([field[0] << 3 & 0x7F | 2, len(field[1])]) + field[1]
    )
    numbered = st.tuples(st.integers(1, 15), st.integers(0, 127)).map(
        lambda field: bytes([field[0] << 3, field[1]])
    )
    messages = st.binary(max_size=80) | st.lists(named | numbered, max_size=8).map(b"".join)
    with grpc.insecure_channel(engine.grpc_target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        wrong = _any_bytes(method, channel)

        @FEW
        @given(data=messages)
        def told(data: bytes) -> None:
            assert wrong(data) == ""

        told()
        for data in (b"", b"\xff" * 10, struct.pack("<I", 2**31) * 4, bytes(100_000)):
            assert wrong(data) == ""
    is_served(engine)
