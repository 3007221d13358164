"""Users who cut requests: the connection or the stream ends, and the server can stop working."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cut_loads import LONG, MS, SLOW, Impatient, assert_aborted_where_cut, ends
from scripted_server import (
    DONE,
    HEAD,
    REPLY,
    STREAM,
    Conversation,
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
from pytest_llmbench.generator.loop_thread import LoopThread
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop, SessionSlots
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.timing import MonotonicClock
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.adapted import Cuts
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload

IN_BAND = HEAD + chunked((event({"error": {"message": "out of memory"}}), DONE))
FIRST = HEAD + chunk(text_event("one"))


def test_a_request_that_is_cut_closes_its_connection(serve, generator_for, plan, loop_factory):
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


def test_before_the_first_byte(serve, generator_for, plan):
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
def test_what_ends_before_the_cut_says_how(serve, generator_for, plan, reply, end, said):
    server = serve(lambda conversation: conversation.send(reply))
    seen = generator_for(server).run(plan(2, workload=Impatient(after_ms=(5_000, 5_000))))
    for outcome, before, error in ends(seen):
        assert (outcome, before) == ("cut_by_user", end)
        assert said is None or said in (error or "")
    assert not seen.records.failed.any()


def test_nobody_there(generator_for, plan):
    seen = generator_for("http://127.0.0.1:9/v1").run(plan(1, workload=Impatient(after_ms=(5_000,))))
    ((outcome, before, error),) = ends(seen)
    assert (outcome, before) == ("cut_by_user", "disconnected")
    assert error


def test_what_the_session_s_end_stops_is_cancelled(serve, generator_for, plan):
    server = serve(lambda conversation: conversation.wait(20))
    generator = generator_for(server)
    timer = threading.Timer(0.3, generator.stop, ["enough"])
    timer.start()
    seen = generator.run(plan(1, workload=Impatient(after_ms=(15_000,))))
    assert ends(seen) == [("cancelled", None, "enough")]
    assert seen.records.cut_after_ns[0] == 15_000 * MS


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
def test_in_process_the_call_is_cancelled(made, plan):
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
    with EmbeddedEngine.start(SLOW) as engine:
        yield engine


def test_the_engine_aborts_what_is_cut(engine, plan):
    with LoadGenerator(Target.parse(engine.url), OpenAIChat(), model=engine.model) as generator:
        seen = generator.run(plan(8, workload=LONG, load=ClosedLoop(4)))
    assert_aborted_where_cut(seen, engine, 8)


def test_with_several_workers(engine, plan):
    with DistributedLoadGenerator(
        Address(engine.url), "openai-chat", workers=2, model=engine.model
    ) as generator:
        seen = generator.run(plan(12, workload=LONG, load=OpenLoop(20.0)))
    assert_aborted_where_cut(seen, engine, 12)


def test_a_session_goes_on_after_a_turn_that_was_cut(engine, plan):
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
