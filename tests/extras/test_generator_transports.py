"""Load over the transports of extras: what is the same for all, and for gRPC and WebSocket, which have one
request at a time on each connection."""

from __future__ import annotations

import re
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc_script
import pytest
import websocket_script
from grpc_script import GrpcTalk, calls, chunk
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, PingAckReceived, RequestReceived, StreamReset
from http2_frames import away
from http2_script import StreamTalk, streams
from scripted_load import IMPATIENT, STEP_NS, MakePlan, Run, Secured, Serve, only, outcomes, runner
from scripted_server import STREAM, Conversation, Script, ScriptedServer, plain, reply
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from talk_script import Opened, Talk, begun
from websocket_script import WebSocketTalk, created, delta, fragments, frame, handshake, text, websockets
from websockets.frames import CLOSE, PONG

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.http2.client import Http2Client
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.loop_thread import LoopFactory
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, OpenLoop
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.registry import load, transport_called
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.openai_chat import OpenAIChat

NORMAL = (CLOSE, b"\x03\xe8")
AWAY = frame(CLOSE, b"\x03\xe9")


@dataclass(frozen=True)
class Over:
    """A transport, as a server speaks it."""

    title: str
    url: Callable[[str], str]
    script: Callable[..., Script]
    in_pieces: Callable[[Any], list[bytes]]
    """A reply in five pieces: what is before the tokens, a part of the first, the rest of it with a part of
    the second, the rest of that, the end. Frames and messages are cut."""
    of_target: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OneAtATime(Over):
    """One whose connections have one request at a time."""

    refusal: Callable[[Any], bytes]
    away: Callable[[Any], bytes]
    ping: Callable[[], bytes]
    pongs: Callable[[Opened[Any]], int]
    farewells: Callable[[Opened[Any]], int]
    given_up: Callable[[Opened[Any]], list[Any]]
    """What the client said of replies that it has given up."""
    word: Any
    """What it says of one."""
    opening: Callable[[Conversation], bytes]
    alpn: str | None = None


def cut(frame: Callable[[bytes], bytes], first: bytes, second: bytes) -> list[bytes]:
    """Two messages in frames, the first in two of them, in three pieces."""
    whole, behind = frame(first[:3]) + frame(first[3:]) + frame(second), len(frame(second))
    return [whole[: -behind - 4], whole[-behind - 4 : -2], whole[-2:]]


def grpc_pieces(talk: GrpcTalk) -> list[bytes]:
    before, *_, end = talk.parts()
    return [before, *cut(talk.data, chunk(1), chunk(2)), end]


def http2_pieces(talk: StreamTalk) -> list[bytes]:
    before, *_, end = talk.parts()
    return [before, *cut(talk.asked.data, *STREAM[:2]), end]


def websocket_pieces(talk: WebSocketTalk) -> list[bytes]:
    before, first, _, end = talk.parts()
    second = fragments(delta(" two"), 2)
    assert before == text(created())
    return [before, first[:9], first[9:] + second[:30], second[30:], end]


HTTP2 = Over("HTTP/2", lambda url: url, streams, http2_pieces, {"http2": True})
GRPC = OneAtATime(
    "gRPC",
    lambda url: url.replace("http", "grpc", 1).removesuffix("/v1"),
    calls,
    grpc_pieces,
    refusal=lambda talk: talk.refusal(8, "no"),
    away=lambda talk: away(talk.stream),
    ping=grpc_script.ping,
    pongs=lambda opened: len(opened.got(PingAckReceived)),
    farewells=lambda opened: len(opened.got(ConnectionTerminated)),
    given_up=lambda opened: [reset.error_code for reset in opened.got(StreamReset)],
    word=8,  # CANCEL
    opening=lambda _: bytes.fromhex("000000040000000000"),
    alpn="h2",
)
WEBSOCKET = OneAtATime(
    "WebSocket",
    lambda url: url.replace("http", "ws", 1),
    websockets,
    websocket_pieces,
    refusal=lambda _: text(websocket_script.refused(429, "no")),
    away=lambda _: AWAY,
    ping=websocket_script.ping,
    pongs=lambda opened: sum(opcode is PONG for opcode, _ in opened.heard),
    farewells=lambda opened: opened.heard.count(NORMAL),
    given_up=lambda opened: opened.heard,
    word=NORMAL,
    opening=lambda conversation: handshake(conversation.head),
)


EACH = pytest.mark.parametrize("over", [GRPC, WEBSOCKET, HTTP2], ids=lambda over: over.title)


@pytest.fixture(params=[GRPC, WEBSOCKET], ids=lambda over: over.title)
def over(request: pytest.FixtureRequest) -> Over:
    found: Over = request.param
    return found


@pytest.fixture
def run(serve: Serve, plan: MakePlan, over: Over) -> Run:
    def url_of(server: ScriptedServer) -> str:
        return over.url(server.url)

    def spoken() -> Dialect:
        return OpenAIChat() if over is HTTP2 else dialect_at(over.url("http://h:1"), "auto")

    return runner(serve, plan, url_of, spoken, **over.of_target)


def replies(talk: Talk) -> None:
    for part in talk.parts():
        talk.send(part)


@EACH
@pytest.mark.parametrize("kernel_stamps", [True, False])
def test_a_message_has_the_instant_of_its_last_byte(
    run: Run, over: Over, loop_factory: LoopFactory, kernel_stamps: bool
) -> None:
    """The server pauses within frames and within messages; both ends share the clock."""
    sent_ns: list[int] = []

    def turn(talk: Talk) -> None:
        sent_ns.append(talk.read_ns)
        for piece in over.in_pieces(talk):
            sent_ns.append(time.monotonic_ns())
            talk.send(piece)
            talk.conversation.pause(STEP_NS / 1e9)

    records = run(over.script(turn), loop_factory=loop_factory, kernel_stamps=kernel_stamps).records
    assert records.counts()["ok"] == 1, records.error
    asked, head, part, one, two, last = sent_ns
    assert records.submitted_ns[0] <= asked
    assert head <= records.first_byte_ns[0] < part
    assert one <= records.first_content_ns[0] < two
    assert list(records.chunk_ns) == [records.first_content_ns[0], records.last_content_ns[0]]
    assert two <= records.last_content_ns[0] < last
    assert last <= records.finished_ns[0]
    assert (records.output_tokens[0], records.input_tokens[0], records.http_status[0]) == (2, 7, 200)


def test_connections_are_opened_before_the_load_and_kept(run: Run, over: OneAtATime) -> None:
    opened: Opened[Talk] = Opened()
    seen = run(over.script(replies, opened), 30, load=ClosedLoop(3))
    assert seen.records.counts()["ok"] == 30
    assert sum(opened.turns) == 30
    assert len(opened.talks) == 3
    assert (seen.selfcheck.connections_prewarmed, seen.selfcheck.connections_opened) == (3, 0)
    assert over.farewells(opened) == 3
    assert not opened.got(StreamReset)


def test_over_tls(run: Run, over: OneAtATime, secured: Secured, loop_factory: LoopFactory) -> None:
    context, ca_file = secured(*filter(None, [over.alpn]))
    opened: Opened[Talk] = Opened()
    chosen: list[str | None] = []
    options: dict[str, Any] = {"server": {"tls": context}, "loop_factory": loop_factory}

    def pinging(talk: Talk) -> None:
        sock = talk.conversation.sock
        assert isinstance(sock, ssl.SSLSocket)
        chosen.append(sock.selected_alpn_protocol())
        talk.send(over.ping())
        replies(talk)

    script = over.script(pinging, opened)
    seen = run(script, 12, load=ClosedLoop(3), target={"ca_file": ca_file}, **options)
    assert seen.records.counts()["ok"] == 12
    assert len(opened.talks) == 3
    assert set(chosen) == {over.alpn}
    assert over.pongs(opened) == 12
    assert over is not GRPC or (":scheme", "https") in opened.talks[0].headers
    outcome, error = only(run(over.script(replies), target={}, **options))
    assert outcome == "disconnected"
    assert "certificate" in error


@EACH
def test_chunks_that_one_read_brought_are_told(run: Run, over: Over) -> None:
    records = run(over.script(lambda talk: talk.send(b"".join(talk.parts())))).records
    assert records.counts()["ok"] == 1
    assert records.coalesced_chunks[0] == 1


@pytest.mark.parametrize(("begins", "named"), [(False, "first-byte"), (True, "between-chunks")])
def test_pings_are_no_progress(run: Run, over: OneAtATime, begins: bool, named: str) -> None:
    """A server that pings for ever is one that has fallen silent."""

    def turn(talk: Talk) -> None:
        if begins:
            talk.send(begun(talk))
        while not talk.conversation.server.stopping.is_set():
            talk.send(over.ping())
            talk.conversation.wait(0.02)

    outcome, error = only(run(over.script(turn), deadlines=IMPATIENT))
    assert outcome == "timeout"
    assert f"{named} deadline" in error


def test_of_what_is_given_up_the_server_is_told(run: Run, over: OneAtATime) -> None:
    """It need not find out by itself that nobody waits any more."""
    opened: Opened[Talk] = Opened()
    done = threading.Event()

    def turn(talk: Talk) -> None:
        talk.send(begun(talk))
        assert not talk.next()
        done.set()

    outcome, _ = only(run(over.script(turn, opened), deadlines=IMPATIENT))
    assert outcome == "timeout"
    assert done.wait(5.0)
    assert over.given_up(opened) == [over.word]


def test_a_refusal_has_a_status_and_the_connection_stays(run: Run, over: OneAtATime) -> None:
    opened: Opened[Talk] = Opened()
    seen = run(over.script(lambda talk: talk.send(over.refusal(talk)), opened), 3)
    assert list(seen.records.http_status) == [429] * 3
    assert (seen.records.first_byte_ns != MISSING).all()
    assert (seen.records.first_content_ns == MISSING).all()
    assert opened.turns == [3]


def test_idle_connections_that_the_server_leaves_are_left_out(run: Run, over: OneAtATime) -> None:
    opened: Opened[Talk] = Opened()

    def turn(talk: Talk) -> None:
        replies(talk)
        talk.conversation.wait(0.05)
        talk.send(over.away(talk))

    seen = run(over.script(turn, opened), 3, load=OpenLoop(4.0, arrival="uniform"))
    assert seen.records.counts()["ok"] == 3
    assert seen.selfcheck.stale_retries == 0


@pytest.mark.parametrize("begins", [0, 5])
def test_a_server_that_ends_within_the_opening(run: Run, over: OneAtATime, begins: int) -> None:
    def script(conversation: Conversation) -> None:
        conversation.send(over.opening(conversation)[:begins])
        conversation.close()

    outcome, error = only(run(script))
    assert outcome == "disconnected"
    assert "cannot connect to 127.0.0.1:" in error


@EACH
def test_an_opening_that_is_never_answered_runs_into_the_deadline(run: Run, over: Over) -> None:
    deadlines = Deadlines(connect_s=0.3, first_byte_s=5.0, between_chunks_s=5.0, total_s=15.0, drain_s=15.0)
    count = 3 if over is HTTP2 else 1  # streams that wait for one opening
    seen = run(
        lambda conversation: conversation.wait(5.0), count, load=ClosedLoop(count), deadlines=deadlines
    )
    assert len(seen.records) == count
    for outcome, error in outcomes(seen):
        assert outcome == "timeout"
        assert "connect deadline" in error


def test_a_dialect_without_a_form_over_it_is_refused(over: OneAtATime) -> None:
    with pytest.raises(SuiteError, match=f"--llm-api: openai-chat is not spoken over {over.title}"):
        LoadGenerator(Target.parse(over.url("http://127.0.0.1:1/v1")), OpenAIChat(), model="m")


@pytest.mark.parametrize("over", [GRPC, HTTP2], ids=lambda over: over.title)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (plain("400 Bad Request", b"Invalid"), "answers with HTTP/1.1 (HTTP/1.1 400 Bad Request), not with"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/2: the server begins with"),
    ],
)
def test_a_server_of_another_protocol(run: Run, over: Over, answer: bytes, said: str) -> None:
    seen = run(reply(answer), 2, load=ClosedLoop(2))
    assert len(seen.records) == 2
    for outcome, error in outcomes(seen):
        assert outcome == "undecodable"
        assert said in error
        assert "127.0.0.1:" in error
    assert (seen.records.submitted_ns == MISSING).all()


@pytest.mark.parametrize("over", [GRPC, HTTP2], ids=lambda over: over.title)
@pytest.mark.parametrize(("session", "said"), [("s7", [("x-session-id", "s7")]), (None, [])])
def test_a_turn_says_which_session_it_is_of(over: Over, session: str | None, said: list[Any]) -> None:
    target = Target.parse(over.url("http://h:1"), **over.of_target)
    spoken = OpenAIChat() if over is HTTP2 else dialect_at(over.url("http://h:1"), "auto")
    name = "http/2" if over is HTTP2 else "grpc"
    head, _ = load(transport_called(name).carry)(target, spoken, "/s/M", "X-Session-Id")
    server = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
    client = Http2Client()
    server.receive_data(client.opening())
    client.feed(b"\0\0\0\4\0\0\0\0\0")
    server.receive_data(client.to_send())
    client.begin(head.wire("r1", b"", session))
    asked, *more = server.receive_data(client.to_send())
    assert isinstance(asked, RequestReceived)
    assert [pair for pair in asked.headers if pair[0] == "x-session-id"] == said
    assert over is HTTP2 or vllm.GenerateRequest.FromString(more[0].data[5:]).request_id == "r1"


@pytest.mark.parametrize("over", [GRPC, HTTP2], ids=lambda over: over.title)
def test_a_package_that_is_not_installed(over: Over, monkeypatch: pytest.MonkeyPatch) -> None:
    known = OpenAIChat() if over is HTTP2 else dialect_at(over.url("http://h:1"), "auto")
    load.cache_clear()
    for name in list(sys.modules):
        if re.match(r"pytest_llmbench\.extras\.(grpc\.transport|http2\.(transport|client))|h2\.", name):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "h2", None)
    install = over.title.lower().replace("/", "")
    with pytest.raises(SuiteError, match=rf"(?s)not installed: h2.*pytest-llmbench\[{install}\]"):
        LoadGenerator(Target.parse(over.url("http://127.0.0.1:1"), **over.of_target), known, model="m")
