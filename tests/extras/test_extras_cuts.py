"""Users who cut requests over what extras speak: a stream is reset, and the server stops working."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cut_loads import LONG, SLOW, Impatient, assert_aborted_where_cut, ends
from h2.events import StreamReset
from http2_script import EVENTS, Peer, peers
from scripted_server import (
    STREAM,
    ScriptedServer,
)

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect, dialect_at
from pytest_llmbench.wire.openai_chat import OpenAIChat

Serve = Callable[..., ScriptedServer]
MakePlan = Callable[..., LoadPlan]


def test_over_http2_the_stream_is_reset_and_the_others_go_on(serve: Serve, plan: MakePlan) -> None:
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        first, second = peer.next(), peer.next()
        assert first is not None
        assert second is not None
        peer.send(first.head(EVENTS) + first.data(STREAM[0]) + second.head(EVENTS) + second.data(STREAM[0]))
        peer.until(StreamReset)
        peer.send(second.data(b"".join(STREAM[1:])) + second.data(b"", end=True))
        assert peer.next() is None

    server = serve(peers(turn, opened), read_body=False)
    with LoadGenerator(Target.parse(server.url, http2=True), OpenAIChat(), model="m") as generator:
        seen = generator.run(plan(2, workload=Impatient(after_ms=(150, 0)), load=ClosedLoop(2)))
    server.stop()
    assert ends(seen) == [("cut_by_user", None, None), ("ok", None, None)]
    (reset,) = opened[0].got(StreamReset)
    assert reset.error_code == 8  # CANCEL
    assert len(opened) == 1


def test_over_http2_the_connection_stays_also_where_nothing_had_come(serve: Serve, plan: MakePlan) -> None:
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        assert peer.next() is not None
        peer.until(StreamReset)
        second = peer.next()
        assert second is not None
        peer.send(second.reply())
        assert peer.next() is None

    server = serve(peers(turn, opened), read_body=False)
    with LoadGenerator(Target.parse(server.url, http2=True), OpenAIChat(), model="m") as generator:
        seen = generator.run(plan(2, workload=Impatient(after_ms=(100, 0))))
    server.stop()
    assert ends(seen) == [("cut_by_user", None, None), ("ok", None, None)]
    assert len(opened) == 1


@pytest.fixture(scope="module")
def slow_engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start(SLOW, grpc=True) as engine:
        yield engine


@pytest.mark.parametrize("way", ["websocket", "vllm-grpc", "kserve-grpc"])
def test_the_engine_aborts_what_is_cut(slow_engine: EmbeddedEngine, plan: MakePlan, way: str) -> None:
    if way == "websocket":
        url, spoken = slow_engine.url.replace("http://", "ws://"), dialect("openai-responses")
    else:
        url, spoken = f"grpc://{slow_engine.grpc_target}", dialect_at("grpc://h:1", way)
    with LoadGenerator(Target.parse(url), spoken, model=slow_engine.model) as generator:
        seen = generator.run(plan(8, workload=LONG, load=ClosedLoop(4)))
    assert_aborted_where_cut(seen, slow_engine, 8)
