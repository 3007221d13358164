"""The known-delay server over HTTP/2, gRPC and WebSocket, asked by clients that are not ours."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, StreamEnded
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub
from websockets.sync.client import connect

from pytest_llmbench.simulator.known_delay import SCRIPT_HEADER, KnownDelayServer, Script

PACED, AT_ONCE = Script(2_000, 500, 5), Script(0, 0, 5)
scripts = pytest.mark.parametrize("script", [PACED, AT_ONCE], ids=["paced", "at once"])


@pytest.fixture(scope="module")
def server() -> Iterator[KnownDelayServer]:
    with KnownDelayServer() as running:
        yield running


def was_written(server: KnownDelayServer, name: str, script: Script) -> None:
    truth = server.truth()[name]
    assert len(truth.written_ns) == script.writes
    for at_ns, due_ns in zip(truth.written_ns, script.offsets_ns, strict=True):
        assert at_ns - truth.received_ns >= due_ns


@scripts
def test_messages_over_websocket(server: KnownDelayServer, script: Script) -> None:
    create = {"type": "response.create", "metadata": {"request_id": "ws"}, "input": "tea?"}
    with connect(f"ws://{server.place}/v1/responses?{script.query}", compression=None) as socket_:
        socket_.send(json.dumps(create))
        *deltas, end = [json.loads(socket_.recv(10)) for _ in range(6)]
        assert socket_.ping().wait(10)
    assert [event["delta"] for event in deltas] == [" tea"] * 5
    assert end["type"] == "response.completed"
    assert end["response"]["usage"]["output_tokens"] == 5
    assert end["response"]["output"][0]["content"][0]["text"] == " tea" * 5
    was_written(server, "ws", script)


@scripts
def test_a_call_of_grpc(server: KnownDelayServer, script: Script) -> None:
    with grpc.insecure_channel(server.place) as channel:
        call = VllmEngineStub(channel).Generate(
            pb.GenerateRequest(request_id="call", text="tea?", stream=True),
            metadata=[(SCRIPT_HEADER, script.query)],
            timeout=10,
        )
        *chunks, end = list(call)
        assert call.code() is grpc.StatusCode.OK
    assert [len(each.chunk.token_ids) for each in chunks] == [1] * 5
    assert end.complete.finish_reason == "stop"
    was_written(server, "call", script)


class Http2:
    """A connection of h2, which counts its windows."""

    def __init__(self, server: KnownDelayServer) -> None:
        host, _, port = server.place.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._h2 = H2Connection(H2Configuration(client_side=True))
        self._h2.initiate_connection()

    def ask(self, name: str, script: Script) -> int:
        stream_id = self._h2.get_next_available_stream_id()
        path = f"/v1/chat/completions?{script.query}"
        own = {":method": "POST", ":path": path, ":scheme": "http", ":authority": "here"}
        self._h2.send_headers(stream_id, list({**own, "x-request-id": name}.items()))
        self._h2.send_data(stream_id, b'{"stream":true}', end_stream=True)
        return stream_id

    def replies(self, expected: int) -> dict[int, bytes]:
        """The bodies by their stream, when so many have ended."""
        bodies: dict[int, bytes] = {}
        ended: list[Event] = []
        while len(ended) < expected:
            self._socket.sendall(self._h2.data_to_send())
            read = self._socket.recv(65_536)
            if not read:
                raise ConnectionError("closed")
            for event in self._h2.receive_data(read):
                if isinstance(event, DataReceived):
                    bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                elif isinstance(event, StreamEnded):
                    ended.append(event)
        return bodies

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_requests_side_by_side_over_http2(server: KnownDelayServer) -> None:
    with Http2(server) as client:
        ids = {client.ask(f"h2-{number}", script): script for number, script in enumerate((PACED, AT_ONCE))}
        bodies = client.replies(len(ids))
    for body in bodies.values():
        events = body.decode().removesuffix("\n\n").split("\n\n")
        assert [" tea" in event for event in events] == [True] * 5 + [False] * 3
        assert events[-1] == "data: [DONE]"
    assert bodies.keys() == ids.keys()
    truth = server.truth()
    assert {name: len(known.written_ns) for name, known in truth.items()} == {"h2-0": 5, "h2-1": 1}


def test_what_is_no_http2_or_no_script_ends_the_connection(server: KnownDelayServer) -> None:
    host, _, port = server.place.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n")
        assert client.recv(1) == b""
    with Http2(server) as client:
        client.ask("delay", Script(ttft_us=-1))
        with pytest.raises(ConnectionError):
            client.replies(1)
    assert server.truth() == {}
