"""Load over gRPC: instants, connections, and what servers may do to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from grpc_script import GRPC, REPLY, GrpcTalk, calls, chunk, complete, ping, replies
from h2.events import PingAckReceived, StreamReset
from http2_frames import away
from planned_load import TextWorkload
from scripted_load import STEP_NS, MakePlan, Run, Serve, Wire, only, runner
from scripted_server import Script, ScriptedServer
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import (
    VllmEngineServicer,
    add_VllmEngineServicer_to_server,
)
from talk_script import Opened, begun, hangs_up, in_turn, nothing_more
from virtual_clock import VirtualClock

from pytest_llmbench.extras.grpc.messages import prefixed
from pytest_llmbench.extras.grpc.transport import CallHead, Calls
from pytest_llmbench.extras.http2.transport import Http2
from pytest_llmbench.generator.http.connection import Connection
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.loop_thread import LoopFactory
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, OpenLoop
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import CallDialect

TOO_LONG = b"\0\x7f\xff\xff\xff"
ZIPPED = b"\x01" + prefixed(b"zip")[1:]


def url_of(server: ScriptedServer) -> str:
    return server.url.replace("http", "grpc", 1).removesuffix("/v1")


def spoken() -> CallDialect:
    return dialect_at("grpc://h:1", "vllm-grpc")


@pytest.fixture
def run(serve: Serve, plan: MakePlan) -> Run:
    return runner(serve, plan, url_of, spoken)


# --- what is measured


def test_the_request(run: Run) -> None:
    opened: Opened[GrpcTalk] = Opened()
    seen = run(
        calls(replies(), opened),
        extra_body={"seed": 3},
        target={"headers": {"Authorization": "Bearer k", "User-Agent": "mine", "X-Tenant": "t"}},
    )
    (talk,) = opened.talks
    asked = vllm.GenerateRequest.FromString(talk.asked[5:])
    assert talk.asked[:5] == prefixed(talk.asked[5:])[:5]
    assert asked.request_id == seen.records.request_id[0]
    assert (asked.stream, asked.sampling_params.max_tokens, asked.sampling_params.seed) == (True, 8, 3)
    assert talk.headers == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/vllm.grpc.engine.VllmEngine/Generate"),
        (":authority", f"127.0.0.1:{talk.conversation.server.port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity"),
        ("user-agent", "mine"),
        ("authorization", "Bearer k"),
        ("x-tenant", "t"),
    ]
    facts = seen.facts
    assert facts.value("streaming.protocol") == "grpc"
    assert facts.value("wire.dialect") == "vllm-grpc"
    assert facts.value("timing.submit_point") == "message_sent"
    assert facts.value("timing.first_point") == "first_token_message"
    assert seen.selfcheck.transport == "grpc"


def test_a_connection_has_one_call_at_a_time(run: Run) -> None:
    opened: Opened[GrpcTalk] = Opened()

    def lasting(talk: GrpcTalk) -> None:
        talk.conversation.wait(0.3)
        talk.reply()

    seen = run(calls(lasting, opened), 20, load=OpenLoop(1_000.0))
    assert seen.records.counts()["ok"] == 20
    assert opened.turns == [1] * 20


# --- requests larger than the windows


@pytest.mark.parametrize("window", [65_535, 10])
def test_a_message_larger_than_the_windows(run: Run, loop_factory: LoopFactory, window: int) -> None:
    opened: Opened[GrpcTalk] = Opened()
    script = calls(replies(), opened, INITIAL_WINDOW_SIZE=window)
    size = 3_000_000 if window > 10 else 5_000
    seen = run(script, 2, workload=TextWorkload(text="x" * size), loop_factory=loop_factory)
    assert seen.records.counts()["ok"] == 2, seen.records.error
    (talk,) = opened.talks
    assert len(vllm.GenerateRequest.FromString(talk.asked[5:]).text) > size
    assert (seen.records.submitted_ns != MISSING).all()


def test_the_submission_is_that_of_the_last_part(run: Run) -> None:
    """The server makes room for the rest of a request after a while: until then it is not submitted."""
    room_ns: list[int] = []
    read_ns: list[int] = []

    def make_room(talk: GrpcTalk) -> None:
        if not room_ns and len(talk.asked) == 65_535:
            talk.conversation.wait(2 * STEP_NS / 1e9)
            room_ns.append(time.monotonic_ns())
            talk.h2.increment_flow_control_window(100_000)
            talk.h2.increment_flow_control_window(100_000, talk.stream)
            talk.flush()

    def turn(talk: GrpcTalk) -> None:
        read_ns.append(talk.read_ns)
        talk.reply()

    script = calls(turn, generous=False, partly=make_room)
    records = run(script, workload=TextWorkload(text="x" * 100_000)).records
    assert records.counts()["ok"] == 1, records.error
    assert room_ns[0] <= records.submitted_ns[0] <= read_ns[0]
    assert records.submitted_ns[0] - records.dispatched_ns[0] > STEP_NS


def test_a_request_that_is_never_taken_runs_into_the_deadline(run: Run) -> None:
    opened: Opened[GrpcTalk] = Opened()
    deadlines = Deadlines(connect_s=5.0, first_byte_s=5.0, between_chunks_s=5.0, total_s=0.5, drain_s=15.0)
    script = calls(replies(), opened, generous=False)
    seen = run(script, workload=TextWorkload(text="x" * 100_000), deadlines=deadlines)
    outcome, error = only(seen)
    assert outcome == "timeout"
    assert "total deadline" in error
    assert seen.records.submitted_ns[0] == MISSING
    (reset,) = opened.got(StreamReset)
    assert reset.error_code == 8  # CANCEL


def test_an_answer_to_half_a_request(run: Run) -> None:
    """It is complete, but the connection is of no further use."""
    opened: Opened[GrpcTalk] = Opened()

    def at_once(talk: GrpcTalk) -> None:
        if len(talk.asked) == 65_535:
            talk.send(talk.refusal(8, "message larger than max"))

    script = calls(replies(), opened, generous=False, partly=at_once)
    seen = run(script, 2, workload=TextWorkload(text="x" * 100_000))
    assert seen.records.counts()["http_error"] == 2, seen.records.error
    assert len(opened.talks) >= 2


# --- control frames


def test_pings_are_answered_in_the_midst_of_a_reply_and_between_two(
    run: Run, loop_factory: LoopFactory
) -> None:
    opened: Opened[GrpcTalk] = Opened()

    def turn(talk: GrpcTalk) -> None:
        whole = talk.data(chunk(2))
        for piece in (
            ping() + talk.ok() + ping(),
            talk.data(chunk(1)) + ping() + whole[:7],
            whole[7:],
            ping(),
            talk.data(complete()) + talk.end() + ping(),
        ):
            talk.send(piece)
            talk.conversation.wait(0.01)

    seen = run(calls(turn, opened), 2, loop_factory=loop_factory)
    assert seen.records.counts()["ok"] == 2, seen.records.error
    assert list(seen.records.output_tokens) == [2, 2]
    assert opened.turns == [2]
    assert len(opened.got(PingAckReceived)) >= 9  # after the last one the client closes


# --- servers that are not as they should be


def says(*parts: Callable[[GrpcTalk], bytes], then: Callable[[GrpcTalk], None] = nothing_more) -> Script:
    return calls(in_turn(*parts, then=then))


def ended(status: int = 0, message: str = "") -> Callable[[GrpcTalk], bytes]:
    return lambda talk: talk.end(status, message)


def refusal(status: int, message: str = "", *more: tuple[str, str]) -> Callable[[GrpcTalk], bytes]:
    return lambda talk: talk.refusal(status, message, *more)


def raw(payload: bytes, *flags: str) -> Callable[[GrpcTalk], bytes]:
    return lambda talk: talk.data(payload, *flags)


def page(status: str, body: bytes = b"", kind: str = "text/html") -> Callable[[GrpcTalk], bytes]:
    return lambda talk: talk.head((":status", status), ("content-type", kind)) + talk.data(body, "END_STREAM")


@pytest.mark.parametrize(
    ("script", "outcome", "said"),
    [
        (says(refusal(8, "slow down")), "rate_limited",
         "HTTP 429 Too Many Requests: gRPC status 8 RESOURCE_EXHAUSTED: slow down"),
        (says(refusal(14, "", ("grpc-retry-pushback-ms", "50"))), "rate_limited", "status 14 UNAVAILABLE"),
        (says(refusal(14, "not yet")), "http_error", "HTTP 503 Service Unavailable: gRPC status 14"),
        (says(refusal(3, "no such%3A thing")), "http_error",
         "HTTP 400 Bad Request: gRPC status 3 INVALID_ARGUMENT: no such: thing"),
        (says(refusal(3, "blocked by guardrail")), "refused", "blocked by guardrail"),
        (says(refusal(13)), "http_error", "HTTP 500 Internal Server Error: gRPC status 13 INTERNAL"),
        (says(GrpcTalk.ok, ended(12, "what")), "http_error",
         "HTTP 501 Not Implemented: gRPC status 12 UNIMPLEMENTED: what"),
        (says(begun, ended(13, "broke down")), "in_band_error", "gRPC status 13 INTERNAL: broke down"),
        (says(begun, ended(9, "blocked by guardrail")), "refused", "blocked by guardrail"),
        (says(begun, raw(complete()), ended(14)), "in_band_error", "gRPC status 14 UNAVAILABLE"),
        (says(begun, raw(complete(), "END_STREAM")), "in_band_error", "ended without a gRPC status"),
        (says(begun, raw(complete()), lambda talk: talk.head(("server", "x"), end=True)), "in_band_error",
         "ended without a gRPC status"),
        (says(lambda talk: talk.head((":status", "200"), GRPC, end=True)), "http_error",
         "ended without a gRPC status"),
        (says(begun, ended()), "truncated", "without a finish reason"),
        (says(refusal(0)), "empty", "no event at all"),
        (says(GrpcTalk.ok, ended()), "empty", "no event at all"),
        (says(begun, raw(complete("abort")), ended()), "in_band_error", "finish reason abort"),
        (says(begun, lambda talk: talk.reset(2)), "disconnected",
         "reset the call (INTERNAL_ERROR) before the response was"),
        (says(lambda talk: talk.reset(7)), "disconnected",
         "reset the call (REFUSED_STREAM) before the first byte"),
        (says(begun, raw(complete()), lambda talk: talk.reset(0)), "disconnected",
         "reset the call (NO_ERROR)"),
        (says(lambda talk: away(0, 11, b"enough")), "disconnected",
         "went away (ENHANCE_YOUR_CALM enough) without having begun the call before the first byte"),
        (says(lambda talk: away(1, 0, b"max_age"), begun, then=hangs_up), "disconnected",
         "went away (NO_ERROR max_age) and closed the connection before the response was complete"),
        (says(begun, then=hangs_up), "disconnected", "closed the connection before the response"),
        (says(begun, raw(chunk(2)[:4]), then=hangs_up), "disconnected", "before the response was"),
        (says(begun, then=lambda talk: talk.conversation.reset()), "disconnected", "broke the connection"),
        (says(then=hangs_up), "disconnected", "before the first byte"),
        (says(begun, raw(chunk(2)[:4]), ended()), "truncated", "without a finish reason"),
        (says(begun, raw(TOO_LONG), ended()), "undecodable", "a message of 2147483647 bytes"),
        (says(begun, raw(ZIPPED), raw(complete()), ended()), "undecodable", "a compressed message"),
        (says(begun, raw(b"<html>"), ended()), "undecodable", "not a gRPC message (its flag is 60"),
        (says(begun, raw(prefixed(b"\xff\xff")), ended()), "undecodable",
         "a message that is not a GenerateResponse"),
        (says(begun, lambda talk: talk.head(("a", "b"))), "undecodable", "Trailers must have END_STREAM"),
        (says(raw(b"x")), "undecodable", "cannot receive data before headers"),
        (says(begun, lambda talk: b"\xff\xff\xff" + bytes(6)), "undecodable", "a frame of 16777215 bytes"),
        (says(page("503", b"<h1>overloaded</h1>")), "rate_limited",
         "HTTP 503 Service Unavailable: overloaded"),
        (says(page("404")), "http_error", "HTTP 404 Not Found"),
        (says(page("200", b"<h1>hello</h1>")), "undecodable",
         "the reply is text/html, not application/grpc: <h1>hello</h1>"),
        (says(page("200")), "empty", "empty body"),
    ],
)  # fmt: skip
def test_outcomes(run: Run, script: Script, outcome: str, said: str) -> None:
    found, error = only(run(script))
    assert (found, said in error) == (outcome, True), (found, error)


def test_an_error_behind_messages_keeps_what_was_measured_and_the_connection(run: Run) -> None:
    opened: Opened[GrpcTalk] = Opened()
    seen = run(calls(lambda talk: talk.send(begun(talk) + talk.end(13, "no")), opened), 3)
    assert seen.records.counts()["in_band_error"] == 3
    assert (seen.records.first_content_ns != MISSING).all()
    assert list(seen.records.http_status) == [200] * 3
    assert opened.turns == [3]


@pytest.mark.parametrize("answer", ["refused", "away"])
def test_what_a_kept_connection_has_not_begun_is_sent_once_more(run: Run, answer: str) -> None:
    opened: Opened[GrpcTalk] = Opened()

    def turn(talk: GrpcTalk) -> None:
        if talk.turn == 0:
            talk.reply()
        else:
            talk.send(talk.reset(7) if answer == "refused" else away(1, 0))

    seen = run(calls(turn, opened), 3)
    assert seen.records.counts()["ok"] == 3, seen.records.error
    assert seen.selfcheck.stale_retries == 2
    assert opened.turns == [2, 2, 1]


def test_a_server_that_goes_away_after_each_reply(run: Run) -> None:
    opened: Opened[GrpcTalk] = Opened()

    def turn(talk: GrpcTalk) -> None:
        talk.send(away((1 << 31) - 1) + away(talk.stream))
        talk.reply()

    seen = run(calls(turn, opened), 5)
    assert seen.records.counts()["ok"] == 5, seen.records.error
    assert opened.turns == [1] * 5
    assert seen.selfcheck.stale_retries == 0


def test_messages_that_nobody_asked_for_count_for_nothing(run: Run) -> None:
    opened: Opened[GrpcTalk] = Opened()

    def turn(talk: GrpcTalk) -> None:
        whole = talk.ok() + talk.data(b"".join(REPLY)) + talk.end()
        talk.send(whole + talk.data(chunk(9)))

    seen = run(calls(turn, opened), 3)
    assert seen.records.counts()["ok"] == 3, seen.records.error
    assert list(seen.records.output_tokens) == [2] * 3


@pytest.mark.parametrize(("pinged", "stale"), [(False, True), (True, False)])
def test_a_kept_connection_that_was_closed_before_the_request(pinged: bool, stale: bool) -> None:
    """Once something was written after the request, nobody can tell whether that was delivered."""
    wire, clock = Wire(delivers=False), VirtualClock(1_000)
    over: list[Exchange] = []
    loop = asyncio.new_event_loop()
    try:
        connection = Connection(wire, clock, None, loop.create_future())
        http2 = Http2(connection, wire, Calls())
        connection.attach(wire)
        connection.received(bytes.fromhex("000000040000000000"), 900)  # its settings
        asked = CallHead(Target.parse("grpc://h:1"), spoken(), "/s/M").wire("r", b"")
        exchange = Exchange(PreparedRequest("r", asked, 0, 1, 1), 1_000, 1_000, over.append)
        http2.submit(exchange, reused=True)
        assert exchange.submitted_ns is not None
        if pinged:
            connection.received(ping(), 1_100)
        connection.ended(None)
    finally:
        loop.close()
    assert (wire.resent == [exchange], len(over)) == (stale, 0 if stale else 1)
    assert exchange.end is (None if stale else End.BROKEN)


# --- what is no gRPC


# --- servers of grpcio


class Slow(VllmEngineServicer):
    """A reply of vLLM's within some 20 ms."""

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for message in REPLY:
            time.sleep(0.007)
            yield vllm.GenerateResponse.FromString(message[5:])


def test_a_server_that_ends_connections_by_their_age(plan: MakePlan) -> None:
    """It says that it goes away while replies are under way, and they are still to come."""
    ages = [("grpc.max_connection_age_ms", 200), ("grpc.max_connection_age_grace_ms", 10_000)]
    server = grpc.server(futures.ThreadPoolExecutor(8), options=ages)
    add_VllmEngineServicer_to_server(Slow(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with LoadGenerator(Target.parse(f"grpc://127.0.0.1:{port}"), spoken(), model="m") as generator:
            seen = generator.run(plan(40, load=OpenLoop(40.0), workload=TextWorkload(text="x" * 200_000)))
    finally:
        server.stop(None).wait()
    assert seen.records.counts()["ok"] == 40, seen.records.error
    assert seen.selfcheck.connections_opened > 0


# --- the embedded engine


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast?context_limit_tokens=2000", grpc=True) as engine:
        yield engine


@pytest.mark.parametrize("name", ["vllm-grpc", "kserve-grpc"])
def test_the_embedded_engine(engine: EmbeddedEngine, plan: MakePlan, name: str) -> None:
    target = Target.parse(f"grpc://{engine.grpc_target}")
    with LoadGenerator(target, dialect_at("grpc://h:1", name), model="sim-fast") as generator:
        seen = generator.run(plan(24, load=ClosedLoop(4)))
    records = seen.records
    assert records.counts()["ok"] == 24, records.error
    assert (seen.selfcheck.connections_prewarmed, seen.selfcheck.connections_opened) == (4, 0)
    truth = {entry.request_id: entry for entry in engine.ground_truth()}
    for row, request_id in enumerate(records.request_id):
        true = truth[request_id]
        assert records.output_tokens[row] == true.output_tokens == 8
        instants = [
            records.dispatched_ns[row],
            records.submitted_ns[row],
            true.received_ns,
            true.first_write_ns,
            records.first_content_ns[row],
            records.last_content_ns[row],
            records.finished_ns[row],
        ]
        assert instants == sorted(instants, key=int)
        assert true.last_write_ns is not None
        assert true.last_write_ns <= records.last_content_ns[row]


def test_refusals_of_the_embedded_engine(engine: EmbeddedEngine, plan: MakePlan) -> None:
    target = Target.parse(f"grpc://{engine.grpc_target}")
    with LoadGenerator(target, dialect_at("grpc://h:1", "kserve-grpc"), model="another") as generator:
        outcome, error = only(generator.run(plan(1)))
    assert outcome in ("http_error", "in_band_error")
    assert "another" in error
