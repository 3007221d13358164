"""Load over WebSocket: instants, connections, and what servers may do to it."""

from __future__ import annotations

import asyncio

import pytest
from planned_load import TextWorkload
from scripted_load import STEP_NS, MakePlan, Run, Serve, Wire, only, runner
from scripted_server import Conversation, Script, ScriptedServer, plain
from talk_script import Opened, hangs_up
from virtual_clock import VirtualClock
from websocket_script import (
    BOOM,
    REPLY,
    WebSocketTalk,
    completed,
    created,
    delta,
    fragments,
    frame,
    handshake,
    ping,
    refused,
    replies,
    says,
    text,
    websockets,
)
from websockets.frames import BINARY, CLOSE, CONT, PONG, TEXT, Frame

from pytest_llmbench.extras.websocket.transport import MessageReader, WebSocket
from pytest_llmbench.generator.http.connection import Connection
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.loop_thread import LoopFactory
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.wire.apis.openai_responses import OpenAIResponses
from pytest_llmbench.wire.catalogue import dialect_at

NORMAL = b"\x03\xe8"
AWAY = b"\x03\xe9"


def url_of(server: ScriptedServer) -> str:
    return server.url.replace("http", "ws", 1)


@pytest.fixture
def run(serve: Serve, plan: MakePlan) -> Run:
    return runner(serve, plan, url_of, OpenAIResponses)


# --- what is measured


def test_the_request(run: Run) -> None:
    opened: Opened[WebSocketTalk] = Opened()
    heads: list[str] = []
    script = websockets(replies(), opened)

    def noting(conversation: Conversation) -> None:
        heads.append(conversation.head)
        script(conversation)

    seen = run(noting, extra_body={"seed": 3}, target={"headers": {"Authorization": "Bearer k"}})
    (talk,) = opened.talks
    assert talk.asked == {
        "type": "response.create",
        "metadata": {"request_id": seen.records.request_id[0]},
        "model": "m",
        "input": talk.asked["input"],
        "store": False,
        "max_output_tokens": 8,
        "temperature": 0.0,
        "seed": 3,
    }
    first, *lines = heads[0].split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert first == "GET /v1/responses HTTP/1.1"
    assert headers["Authorization"] == "Bearer k"
    assert headers["User-Agent"].startswith("pytest-llmbench")
    assert "x-request-id" not in headers
    facts = seen.facts
    assert facts.value("streaming.protocol") == "websocket"
    assert facts.value("wire.dialect") == "openai-responses"
    assert facts.value("timing.submit_point") == "last_request_byte"
    assert seen.selfcheck.transport == "websocket"


def test_a_message_larger_than_the_buffers(run: Run) -> None:
    opened: Opened[WebSocketTalk] = Opened()
    big = TextWorkload(text="x" * 3_000_000)
    seen = run(websockets(replies(), opened), workload=big)
    assert seen.records.counts()["ok"] == 1
    assert len(opened.talks[0].asked["input"]) > 3_000_000


def test_the_handshake_comes_before_the_submission(run: Run) -> None:
    """More requests at once than connections are made beforehand: some have to wait for one of their own."""

    def lasting(talk: WebSocketTalk) -> None:
        talk.conversation.wait(0.5)
        talk.say(REPLY)

    opening = websockets(lasting)

    def slow(conversation: Conversation) -> None:
        conversation.wait(2 * STEP_NS / 1e9)
        opening(conversation)

    seen = run(slow, 70, load=OpenLoop(1_000.0))
    records, opened = seen.records, seen.selfcheck.connections_opened
    assert records.counts()["ok"] == 70
    assert opened > 0
    waited_ns = sorted(records.submitted_ns - records.dispatched_ns)
    assert waited_ns[-opened] > STEP_NS


def test_a_server_that_greets(run: Run) -> None:
    """It says something as soon as the connection is open: that is of no reply."""
    opened: Opened[WebSocketTalk] = Opened()
    greeting = text({"type": "session.created"}) + ping()
    seen = run(websockets(replies(), opened, greeting), 6, load=ClosedLoop(2))
    assert seen.records.counts()["ok"] == 6
    assert len(opened.talks) == 2


# --- control frames


def test_pings_are_answered_in_the_midst_of_a_reply_and_between_two(
    run: Run, loop_factory: LoopFactory
) -> None:
    opened: Opened[WebSocketTalk] = Opened()

    def turn(talk: WebSocketTalk) -> None:
        whole = text(delta("two"))
        for piece in (
            text(created()),
            ping(b"a") + frame(PONG, b"nobody asked"),
            text(delta("one")) + ping(b"b") + whole[:7],
            whole[7:],
            fragments(delta("three"), 2, between=ping(b"c")),
            text(completed(3)) + ping(b"d"),
        ):
            talk.send(piece)
            talk.conversation.wait(0.01)
        if talk.turn == 0:  # after the last one the client closes
            talk.send(ping(b"e"))

    seen = run(websockets(turn, opened), 2, loop_factory=loop_factory)
    records = seen.records
    assert records.counts()["ok"] == 2
    assert list(records.output_tokens) == [3, 3]
    assert seen.selfcheck.stale_retries == 0
    (talk,) = opened.talks
    pongs = b"".join(data for opcode, data in talk.heard if opcode is PONG)
    assert pongs == b"abcdeabcd"


# --- servers that are not as they should be


BEGUN = text(created()) + text(delta("one"))


@pytest.mark.parametrize(
    ("script", "outcome", "said"),
    [
        (says(frame(CLOSE, BOOM)), "disconnected", "code 1011 (internal error) boom before the first byte"),
        (says(BEGUN, frame(CLOSE, BOOM)), "disconnected", "boom before the response was complete"),
        (says(BEGUN + frame(CLOSE, BOOM)), "disconnected", "1011 (internal error) boom"),
        (says(BEGUN, frame(CLOSE)), "disconnected", "code 1005"),
        (says(BEGUN, frame(CLOSE, NORMAL)), "truncated", "ended without a finish reason"),
        (says(frame(CLOSE, NORMAL)), "disconnected", "code 1000 (OK) before the first byte"),
        (says(BEGUN, then=hangs_up), "disconnected", "closed the connection before the response"),
        (says(BEGUN, text(delta("x"))[:9], then=hangs_up), "disconnected", "before the response was"),
        (says(BEGUN, then=lambda talk: talk.conversation.reset()), "disconnected", "broke the connection"),
        (says(then=hangs_up), "disconnected", "before the first byte"),
        (says(BEGUN, frame(BINARY, b"{}")), "undecodable", "a binary message, where messages are JSON text"),
        (says(BEGUN, frame(TEXT, b"{nonsense"), text(completed())), "undecodable", "not a JSON object"),
        (says(frame(TEXT, b'{"type": "response.output_text.delta", "delta": "\xff"}'), text(completed())),
         "undecodable", "not UTF-8"),
        (says(BEGUN, Frame(TEXT, b"{}").serialize(mask=True)), "undecodable", "incorrect masking"),
        (says(BEGUN, frame(CONT, b"{}")), "undecodable", "unexpected continuation frame"),
        (says(BEGUN, b"\x8f\x00"), "undecodable", "not WebSocket: invalid opcode"),
        (says(text(refused(500, "broke down"))), "http_error", "HTTP 500 Internal Server Error: broke down"),
        (says(text(refused(429, "slow down"))), "rate_limited", "HTTP 429 Too Many Requests: slow down"),
        (says(text({"type": "error", "error": {"message": "no status"}})), "in_band_error", "no status"),
        (says(BEGUN, text(refused(500, "broke down"))), "in_band_error", "broke down"),
        (says(text(created()), text({"type": "response.failed", "response": {"status": "failed"}})),
         "in_band_error", "the response failed without a reason"),
        (says(text(created()), text(completed())), "empty", "no visible text"),
    ],
)  # fmt: skip
def test_outcomes(run: Run, script: Script, outcome: str, said: str) -> None:
    found, error = only(run(script))
    assert (found, said in error) == (outcome, True), error


def test_a_server_error_leaves_the_connection(run: Run) -> None:
    opened = Opened()
    seen = run(websockets(replies(refused(500, "no")), opened), 3)
    assert list(seen.records.http_status) == [500] * 3
    assert opened.turns == [3]


def test_an_error_within_a_reply_ends_the_connection(run: Run) -> None:
    """Nobody knows whether the rest of that reply is still to come."""
    opened: Opened[WebSocketTalk] = Opened()
    seen = run(websockets(replies(created(), delta("a"), refused(500, "no")), opened), 3)
    assert seen.records.counts()["in_band_error"] == 3
    assert opened.turns == [1, 1, 1]


@pytest.mark.parametrize("later", [False, True])
def test_messages_that_nobody_asked_for(run: Run, later: bool) -> None:
    """They might be taken for the next reply."""
    opened: Opened[WebSocketTalk] = Opened()

    def turn(talk: WebSocketTalk) -> None:
        more = text(delta("more"))
        talk.send(b"".join(map(text, REPLY)) + (b"" if later else more))
        talk.send(more if later else b"")
        talk.conversation.wait(0.02)

    seen = run(websockets(turn, opened), 3, load=OpenLoop(10.0, arrival="uniform"))
    assert seen.records.counts()["ok"] == 3
    assert set(opened.turns) <= {0, 1}


def test_a_server_that_closes_after_each_reply(run: Run) -> None:
    opened: Opened[WebSocketTalk] = Opened()

    def turn(talk: WebSocketTalk) -> None:
        talk.send(b"".join(map(text, REPLY)) + frame(CLOSE, AWAY))

    seen = run(websockets(turn, opened), 5)
    assert seen.records.counts()["ok"] == 5
    assert opened.turns == [1] * 5
    assert (CLOSE, AWAY) in opened.heard


@pytest.mark.parametrize(("since_ns", "stale"), [(-1, True), (1, False)])
def test_a_close_that_came_before_the_request(since_ns: int, stale: bool) -> None:
    """The server has read nothing of it, so it is sent once more; a close that came after it is an answer."""
    wire, clock = Wire(), VirtualClock(1_000)
    ended: list[Exchange] = []
    loop = asyncio.new_event_loop()
    try:
        spoken = dialect_at("ws://h", "auto")
        ready: asyncio.Future[None] = loop.create_future()
        reader = MessageReader("ws://h/v1/responses")
        connection = Connection(wire, clock, None, ready)
        socket = WebSocket(connection, wire, reader, spoken)
        connection.attach(wire)
        connection.received(handshake(wire.written[0].decode()), 900)
        assert ready.done()
        exchange = Exchange(PreparedRequest("r", b"frame", 0, 1, 1), 1_000, 1_000, ended.append)
        socket.submit(exchange, reused=True)
        assert exchange.submitted_ns is not None
        connection.received(frame(CLOSE, AWAY), exchange.submitted_ns + since_ns)
    finally:
        loop.close()
    assert (wire.resent == [exchange], len(ended)) == (stale, 0 if stale else 1)
    assert exchange.end is (None if stale else End.BROKEN)
    assert len(wire.written) == 3  # the handshake, the request, the answer to the close


@pytest.mark.parametrize(
    ("answer", "outcome", "status", "said"),
    [
        (plain("404 Not Found", b"no such thing"), "http_error", 404, "HTTP 404 Not Found: no such thing"),
        (plain("426 Upgrade Required"), "http_error", 426, "HTTP 426 Upgrade Required"),
        (plain("503 Service Unavailable", b"overloaded"), "rate_limited", 503, "overloaded"),
        (plain("302 Found", headers="Location: /\r\n"), "http_error", 302, "HTTP 302 Found"),
        (plain("200 OK", b"{}"), "undecodable", None, "HTTP 200 in place of a WebSocket (101)"),
        (plain("101 Switching Protocols", headers="Upgrade: h2c\r\nConnection: upgrade\r\n"),
         "undecodable", None, "no WebSocket handshake"),
        (b"SSH-2.0-OpenSSH\r\n", "undecodable", None, "no WebSocket handshake"),
    ],
)  # fmt: skip
def test_refused_upgrades(run: Run, answer: bytes, outcome: str, status: int | None, said: str) -> None:
    def script(conversation: Conversation) -> None:
        conversation.send(answer)

    seen = run(script, 2)
    records = seen.records
    assert records.counts()[outcome] == 2
    assert all(said in (error or "") for error in records.error), records.error
    assert list(records.http_status) == [MISSING if status is None else status] * 2
    assert (records.submitted_ns == MISSING).all()
