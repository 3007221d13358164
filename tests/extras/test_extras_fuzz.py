"""What extras read of servers and files, fed with bytes of any kind."""

from __future__ import annotations

import json

import pytest
import yaml
from fuzz_targets import Target, begin, cut, of_a_file, read, with_other_values
from grpc_replies import FRAMES, REPLIES, SETTINGS
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_examples import FILES

from pytest_llmbench.extras.foreign.comparing import read_foreign
from pytest_llmbench.extras.foreign.recipe_files import read_recipes
from pytest_llmbench.extras.grpc import OVER_GRPC
from pytest_llmbench.extras.grpc.messages import prefixed, status_of
from pytest_llmbench.extras.http2.client import Http2Client, Stream, request_bytes
from pytest_llmbench.wire.catalogue import dialect_at

_HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/s/M"), (":authority", "h:1")]
_REQUEST = request_bytes(_HEADERS, prefixed(b"ask"))


def messages(data: bytes) -> None:
    """As ``stream``, of the messages of a gRPC call."""
    read(data, (dialect_at("grpc://h:1", name) for name in OVER_GRPC))


def call(data: bytes) -> None:
    """What comes on a connection of HTTP/2 with two streams, in several reads; then as one."""
    pieces = cut(data)
    said = []
    for reads in (pieces, [b"".join(pieces)]):
        client = Http2Client()
        client.opening()
        streams = [client.begin(_REQUEST) for _ in range(2)]
        received = dict.fromkeys((stream.stream_id for stream in streams), b"")
        over: list[int] = []
        for each in reads:
            found = client.feed(each)
            for stream in found.progress:
                received[stream.stream_id] += stream.data
            over += [stream.stream_id for stream in found.over]
            client.to_send()
        assert len(set(over)) == len(over), "a stream ends once"
        for stream in streams:
            status_of(stream.trailers)
        said.append(
            (
                received,
                sorted(over),
                [_heard(stream) for stream in streams],
                client.problem,
                client.going_away,
            )
        )
        client.closing()
    assert said[0] == said[1]


def _heard(stream: Stream) -> tuple[object, ...]:
    return stream.status, stream.headers, stream.trailers, stream.is_over, stream.reset, stream.unprocessed


def _bytes(name: str) -> bytes:
    """The content of a file; where that is YAML, as JSON, which is YAML too."""
    content = FILES[name]
    given = yaml.safe_load(content) if name.endswith(("yaml", "yml")) else content
    return (given if isinstance(given, str) else json.dumps(given)).encode()


OF_VALUES = [name for name in FILES if not name.endswith((".sh", ".py"))]


TARGETS: dict[str, tuple[Target, list[bytes]]] = {
    "messages": (messages, [bytes([at]) + b"".join(each) for at, each in enumerate(REPLIES.values())]),
    "call": (call, [bytes([at]) + SETTINGS + each for at, each in enumerate(FRAMES)]),
    "foreign result": (
        of_a_file("result.json", read_foreign),
        [
            b'{"model_id": "m", "num_prompts": 2, "request_rate": "inf", "completed": 2, "duration": 1.5, '
            b'"max_concurrency": 2, "output_throughput": 9.0, "p99_ttft_ms": 3.0, "median_tpot_ms": 1e3}',
            b'{"metadata": {"version": 2}, "benchmarks": [{"config": {"strategy": {"type_": "constant", '
            b'"rate": 2.0}}, "metrics": {"request_latency": {"successful": {"percentiles": {"p50": 1}}}}}]}',
        ],
    ),
    **{
        name: (of_a_file(name, lambda path: read_recipes(path, path.parent)), [_bytes(name)])
        for name in FILES
    },
}


@pytest.mark.parametrize("name", TARGETS)
def test_where_it_begins(name: str) -> None:
    begin(*TARGETS[name])


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=30)
@given(place=st.integers(0, 500), put=st.binary(max_size=6), which=st.integers(0, 9))
def test_a_seed_with_bytes_changed(name: str, place: int, put: bytes, which: int) -> None:
    target, seeds = TARGETS[name]
    seed = seeds[which % len(seeds)]
    target(seed[:place] + put + seed[place + len(put) :])


@pytest.mark.parametrize("name", ["foreign result", *OF_VALUES])
def test_a_value_of_another_kind(name: str) -> None:
    with_other_values(*TARGETS[name])
