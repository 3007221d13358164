"""Users who cut requests: the connection or the stream ends, and the server can stop working."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from h2.events import StreamReset
from http2_script import EVENTS, Peer, peers
from planned_load import TextWorkload
from scripted_server import (
    DONE,
    HEAD,
    REPLY,
    STREAM,
    Conversation,
    ScriptedServer,
    chunk,
    chunked,
    event,
    plain,
    text_event,
)

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.in_process_transports import (
    AsgiTransport,
    CallableTransport,
    PythonPieces,
    TaskTransport,
    parameters_of,
)
from pytest_llmbench.generator.loop_thread import LoopFactory, LoopThread
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop, SessionSlots
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, OUTCOMES
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.timing.clock import MonotonicClock
from pytest_llmbench.wire.catalogue import dialect, dialect_at
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.adapted import Cuts
from pytest_llmbench.workloads.catalogue import with_cuts
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

Serve = Callable[..., ScriptedServer]
GeneratorFor = Callable[..., LoadGenerator]
MakePlan = Callable[..., LoadPlan]

MS = 1_000_000
TOKENS = 400
LONG = with_cuts(SyntheticWorkload("long", Fixed(20), Fixed(TOKENS)), Cuts(0.5, Uniform(50, 250)))
"""Replies take at least two seconds of the engine below; half of them are cut long before."""
SLOW = "fast?step_base_us=5000&context_limit_tokens=2000"
IN_BAND = HEAD + chunked((event({"error": {"message": "out of memory"}}), DONE))
FIRST = HEAD + chunk(text_event("one"))


@dataclass(frozen=True)
class Impatient(TextWorkload):
    """Request i is cut after ``after_ms[i]``; 0: its user waits."""

    after_ms: tuple[int, ...] = ()

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        texts = super().requests(count, seed)
        pairs = zip(texts, self.after_ms, strict=True)
        return [PlannedRequest(r.index, 8, 1, text=r.text, cut_after_ns=ms * MS or None) for r, ms in pairs]

    def specification(self) -> Mapping[str, Any]:
        return {"cuts": list(self.after_ms)}


def ends(seen: Observation) -> list[tuple[str, str | None, str | None]]:
    """Outcome, end before the cut and error of each request, in the order of the plan."""
    records = seen.records
    rows = zip(records.index, records.outcome, records.end_before_cut, records.error, strict=True)
    return [
        (OUTCOMES[outcome].value, end, error) for _, outcome, end, error in sorted(rows, key=lambda r: r[0])
    ]


def test_a_request_that_is_cut_closes_its_connection(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan, loop_factory: LoopFactory
) -> None:
    closed = threading.Event()

    def script(conversation: Conversation) -> None:
        if conversation.number == 0:
            conversation.send(FIRST)
            if conversation.sock.recv(1) == b"":
                closed.set()
            conversation.close()
        else:
            conversation.send(REPLY)

    server = serve(script)
    generator = generator_for(server, loop_factory=loop_factory)
    seen = generator.run(plan(3, workload=Impatient(after_ms=(100, 0, 0))))
    assert closed.wait(10)
    assert ends(seen) == [("cut_by_user", None, None), ("ok", None, None), ("ok", None, None)]
    records = seen.records
    assert records.cut_after_ns.tolist() == [100 * MS, MISSING, MISSING]
    assert records.finished_ns[0] - records.submitted_ns[0] >= 100 * MS
    assert records.first_content_ns[0] < records.finished_ns[0]
    assert (records.output_tokens[0], records.http_status[0], records.finish_reason[0]) == (1, 200, None)
    assert records.scheduled_ns[1] == records.finished_ns[0]  # its slot is free at once
    assert records.judged.tolist() == [False, True, True]
    assert not records.failed.any()


def test_before_the_first_byte(serve: Serve, generator_for: GeneratorFor, plan: MakePlan) -> None:
    def script(conversation: Conversation) -> None:
        conversation.sock.recv(1)
        conversation.close()

    seen = generator_for(serve(script)).run(plan(1, workload=Impatient(after_ms=(50,))))
    assert ends(seen) == [("cut_by_user", None, None)]
    assert seen.records.first_byte_ns[0] == MISSING
    assert seen.records.http_status[0] == MISSING


@pytest.mark.parametrize(
    ("reply", "end", "said"),
    [
        (REPLY, "ok", None),
        (plain("500 Oops", b"out of luck"), "http_error", "out of luck"),
        (IN_BAND, "in_band_error", "out of memory"),
    ],
    ids=["complete", "status", "in band"],
)  # fmt: skip
def test_what_ends_before_the_cut_says_how(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan, reply: bytes, end: str, said: str | None
) -> None:
    server = serve(lambda conversation: conversation.send(reply))
    seen = generator_for(server).run(plan(2, workload=Impatient(after_ms=(5_000, 5_000))))
    for outcome, before, error in ends(seen):
        assert (outcome, before) == ("cut_by_user", end)
        assert said is None or said in (error or "")
    assert not seen.records.failed.any()


def test_nobody_there(generator_for: GeneratorFor, plan: MakePlan) -> None:
    seen = generator_for("http://127.0.0.1:9/v1").run(plan(1, workload=Impatient(after_ms=(5_000,))))
    ((outcome, before, error),) = ends(seen)
    assert (outcome, before) == ("cut_by_user", "disconnected")
    assert error


def test_what_the_session_s_end_stops_is_cancelled(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    server = serve(lambda conversation: conversation.wait(20))
    generator = generator_for(server)
    timer = threading.Timer(0.3, generator.stop, ["enough"])
    timer.start()
    seen = generator.run(plan(1, workload=Impatient(after_ms=(15_000,))))
    assert ends(seen) == [("cancelled", None, "enough")]
    assert seen.records.cut_after_ns[0] == 15_000 * MS


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


def generate() -> tuple[Callable[..., AsyncIterator[str]], list[str]]:
    """A model that ends no reply by itself, and what ended its calls."""
    ends_of: list[str] = []

    async def endless(prompt: str, max_tokens: int) -> AsyncIterator[str]:
        try:
            for _ in range(max_tokens if prompt.endswith("-1") else 10_000):
                yield "word "
                await asyncio.sleep(0.01)
        except BaseException as error:
            ends_of.append(type(error).__name__)
            raise

    return endless, ends_of


def application() -> tuple[Callable[..., Any], list[str]]:
    """The same as an ASGI application."""
    ends_of: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")]})  # fmt: skip
        pieces = STREAM if b"-1" in body else (text_event("word "),) * 10_000
        try:
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0.01)
        except BaseException as error:
            ends_of.append(type(error).__name__)
            raise
        await send({"type": "http.response.body", "body": b""})

    return app, ends_of


@pytest.mark.parametrize("made", [generate, application])
def test_in_process_the_call_is_cancelled(made: Any, plan: MakePlan) -> None:
    code, ends_of = made()
    transport: TaskTransport
    spoken: Dialect
    if made is generate:
        parameters = parameters_of(code)
        transport, spoken = CallableTransport(code, parameters, MonotonicClock()), PythonPieces(parameters)
    else:
        transport, spoken = AsgiTransport(code, MonotonicClock()), OpenAIChat()
    target = Target.parse("http://in-process/v1")
    with LoadGenerator(target, spoken, model="m", transport=transport, thread=LoopThread()) as generator:
        seen = generator.run(plan(2, workload=Impatient(after_ms=(100, 0)), load=ClosedLoop(2)))
    assert ends(seen) == [("cut_by_user", None, None), ("ok", None, None)]
    assert seen.records.output_tokens[seen.records.index == 0] > 1
    assert ends_of == ["CancelledError"]


# --- the embedded engine: the server's own word


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start(SLOW, grpc=True) as engine:
        yield engine


def truth_of(engine: EmbeddedEngine, ids: Sequence[str]) -> dict[str, GroundTruth]:
    """What the engine says of these requests, once it has heard of the end of each."""
    until = time.monotonic() + 20
    while True:
        told = {entry.request_id: entry for entry in engine.ground_truth()}
        if set(ids) <= told.keys() or time.monotonic() > until:
            return {name: told[name] for name in ids}
        time.sleep(0.05)


def assert_aborted_where_cut(seen: Observation, engine: EmbeddedEngine, requests: int) -> None:
    records = seen.records
    planned = {request.index: request.cut_after_ns for request in LONG.requests(requests, 1)}
    waited = list(planned.values()).count(None)
    assert 0 < waited < requests
    assert (records.ok.sum(), records.has_outcome(Outcome.CUT_BY_USER).sum()) == (waited, requests - waited)
    truth = truth_of(engine, list(records.request_id))
    for row, name in enumerate(records.request_id):
        after_ns, true = planned[records.index[row]], truth[name]
        assert true.aborted == (after_ns is not None)
        if after_ns is None:
            assert records.output_tokens[row] == true.output_tokens == TOKENS
        else:
            assert records.cut_after_ns[row] == after_ns
            assert records.finished_ns[row] - records.submitted_ns[row] >= after_ns
            # It gave what we read, a little more on the way, and then no more.
            assert max(records.output_tokens[row], 0) <= true.output_tokens < TOKENS


@pytest.mark.parametrize("way", ["http", "websocket", "vllm-grpc", "kserve-grpc"])
def test_the_engine_aborts_what_is_cut(engine: EmbeddedEngine, plan: MakePlan, way: str) -> None:
    url, spoken = engine.url, dialect("openai-chat")
    if way == "websocket":
        url, spoken = url.replace("http://", "ws://"), dialect("openai-responses")
    elif way != "http":
        url, spoken = f"grpc://{engine.grpc_target}", dialect_at("grpc://h:1", way)
    with LoadGenerator(Target.parse(url), spoken, model=engine.model) as generator:
        seen = generator.run(plan(8, workload=LONG, load=ClosedLoop(4)))
    assert_aborted_where_cut(seen, engine, 8)


def test_with_several_workers(engine: EmbeddedEngine, plan: MakePlan) -> None:
    with DistributedLoadGenerator(
        Address(engine.url), "openai-chat", workers=2, model=engine.model
    ) as generator:
        seen = generator.run(plan(12, workload=LONG, load=OpenLoop(20.0)))
    assert_aborted_where_cut(seen, engine, 12)


def test_a_session_goes_on_after_a_turn_that_was_cut(engine: EmbeddedEngine, plan: MakePlan) -> None:
    cuts = Cuts(0.5, Uniform(20, 80))
    chat = SessionWorkload("chat", Fixed(4), Fixed(10), Fixed(60), Fixed(30), cuts=cuts)
    with LoadGenerator(Target.parse(engine.url), OpenAIChat(), model=engine.model) as generator:
        records = generator.run(plan(16, workload=chat, load=SessionSlots(2))).records
    assert len(records) == 16
    cut = records.has_outcome(Outcome.CUT_BY_USER)
    assert cut.sum() == 8
    assert all(records.end_before_cut[row] is None for row in np.flatnonzero(cut))
    rows = {place: row for row, place in enumerate(zip(records.session, records.turn, strict=True))}
    for (session, turn), row in rows.items():
        if turn > 1:
            before = rows[session, turn - 1]
            assert records.scheduled_ns[row] == records.finished_ns[before] + 30 * MS
