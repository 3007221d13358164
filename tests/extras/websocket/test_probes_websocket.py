"""Preflight of endpoints that are WebSockets: what is asked over HTTP, what by message, what can be wrong."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator

import pytest
from scripted_load import Secured
from scripted_server import Conversation, Script, ScriptedServer, plain
from talk_script import Opened
from waiting import wait_for
from websocket_script import (
    BOOM,
    REPLY,
    WebSocketTalk,
    created,
    frame,
    ping,
    refused,
    replies,
    says,
    text,
    websockets,
)
from websockets.frames import BINARY, CLOSE, PONG

from pytest_llmbench.errors import NotReadyError, SuiteError, SUTError
from pytest_llmbench.probes.access import Access, Credentials, RequestForm
from pytest_llmbench.probes.endpoint import examine
from pytest_llmbench.probes.token_count import ServerTokenCount

Serve = Callable[..., str]
CANARY = "sk-canary-0123456789"
KEY = Credentials(
    {"Authorization": f"Bearer {CANARY}"}, frozenset({CANARY}), "environment variable LLM_API_KEY"
)
HASTY = Access(connect_s=0.5, answer_s=0.5)
MODELS = json.dumps({"object": "list", "data": [{"id": "small"}]}).encode()


@pytest.fixture
def serve_at() -> Iterator[Serve]:
    """Serves a script; the URL of its WebSockets."""
    servers: list[ScriptedServer] = []

    def start(script: Script, tls: ssl.SSLContext | None = None) -> str:
        servers.append(ScriptedServer(script, read_body=False, tls=tls))
        return servers[-1].url.replace("http", "ws", 1)

    yield start
    for server in servers:
        server.stop()


def with_models(script: Script) -> Script:
    """A server that has HTTP pages too."""

    def both(conversation: Conversation) -> None:
        path = conversation.head.split(" ")[1]
        if path == "/v1/models":
            conversation.send(plain("200 OK", MODELS, "Content-Type: application/json\r\n"))
        elif path == "/v1/responses":
            script(conversation)
        else:
            conversation.send(plain("404 Not Found", headers="Connection: close\r\n"))
            conversation.close()

    return both


def control_frames(opened: Opened[WebSocketTalk]) -> list[tuple[int, bytes]]:
    """What the only client said beside its message, once it has closed."""
    wait_for(lambda: bool(opened.heard) and opened.heard[-1][0] is CLOSE, "the client has not closed")
    return [(int(opcode), data) for opcode, data in opened.heard]


def test_an_endpoint_with_websockets_and_a_model_list(serve_at: Serve) -> None:
    opened: Opened[WebSocketTalk] = Opened()
    url = serve_at(with_models(websockets(replies(), opened)))
    report = examine(url, access=Access(KEY), asking=RequestForm(extra_body={"seed": 7}))
    assert (report.base_url, report.model, report.api) == (url, "small", "openai-responses")
    assert report.models == ("small",)
    assert report.counts_tokens
    assert report.facts.value("streaming.protocol") == "websocket"
    assert report.facts.value("endpoint.url") == url
    (talk,) = opened.talks
    assert talk.asked["type"] == "response.create"
    assert (talk.asked["model"], talk.asked["seed"], talk.asked["max_output_tokens"]) == ("small", 7, 16)
    assert "stream" not in talk.asked
    assert talk.conversation.headers["authorization"] == f"Bearer {CANARY}"
    assert control_frames(opened) == [(CLOSE, b"\x03\xe8")]


def test_a_server_of_websockets_alone_needs_the_name_of_the_model(serve_at: Serve) -> None:
    url = serve_at(websockets(replies()))
    assert examine(url, model="m").model == "m"
    with pytest.raises(SUTError, match=r"(?s)HTTP 426.*name the model: --llm-model"):
        examine(url)


@pytest.mark.parametrize("suffix", ["", "/v1"])
def test_the_base_may_be_left_out(serve_at: Serve, suffix: str) -> None:
    url = serve_at(with_models(websockets(replies())))
    assert examine(url.removesuffix("/v1") + suffix).base_url == url


def test_pings_and_greetings_do_not_disturb(serve_at: Serve) -> None:
    opened: Opened[WebSocketTalk] = Opened()

    def turn(talk: WebSocketTalk) -> None:
        talk.send(ping(b"a") + text(REPLY[0]))
        talk.conversation.wait(0.05)
        talk.say(REPLY[1:])

    url = serve_at(websockets(turn, opened, greeting=text({"type": "session.created"})))
    assert examine(url, model="m").counts_tokens
    assert (PONG, b"a") in control_frames(opened)


def answers(data: bytes) -> Script:
    return lambda conversation: conversation.send(data)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            answers(plain("404 Not Found")),
            r"HTTP 404: no WebSocket there.*--llm-endpoint=http://127.0.0.1:\d+/v1;",
        ),
        (answers(plain("405 Method Not Allowed")), "HTTP 405: no WebSocket there"),
        (answers(plain("426 Upgrade Required")), "HTTP 426: no WebSocket there"),
        (answers(plain("403 Forbidden")), "HTTP 403; no API key was sent.*a path without a WebSocket"),
        (answers(plain("301 Moved", headers="Location: /v2\r\n")), "redirects to /v2"),
        (answers(plain("500 Oops", b"broke down")), r"HTTP 500 \(broke down\)"),
        (answers(plain("200 OK", b"{}")), r"HTTP 200 in place of a WebSocket \(101\)"),
        (answers(b"SSH-2.0\r\n"), "no WebSocket handshake"),
        (lambda conversation: conversation.close(), "closed within the handshake"),
        (says(frame(CLOSE, BOOM)), r"code 1011 \(internal error\) boom.*the server's log"),
        (says(frame(BINARY, b"{}")), "a binary message"),
        (says(text(refused(404, "the model `m` does not exist"))), "the endpoint has no model 'm'"),
        (says(text(refused(400, "Unknown parameter: 'metadata'"))), "refuses the field metadata"),
        (says(text(refused(500, "broke down"))), r"HTTP 500 \(broke down\)"),
        (says(text({"type": "error", "error": {"message": "broke down"}})), "is an error: broke down"),
        (says(text(created()), frame(CLOSE, BOOM)), "without a completion in it"),
        (says(text({"hello": 1}), frame(CLOSE, BOOM)), "without a completion in it"),
    ],
)
def test_endpoints_that_cannot_be_measured(serve_at: Serve, script: Script, said: str) -> None:
    with pytest.raises(SUTError, match=rf"(?s){said}"):
        examine(serve_at(script), model="m", access=Access(connect_s=2.0, answer_s=2.0))


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_server_may_be_waited_for(serve_at: Serve, status: int) -> None:
    for script in (answers(plain(f"{status} Busy")), says(text(refused(status, "busy")))):
        with pytest.raises(NotReadyError, match=f"HTTP {status}"):
            examine(serve_at(script), model="m")


def test_replies_that_do_not_end(serve_at: Serve) -> None:
    url = serve_at(says(*map(text, REPLY[:-1])))
    with pytest.raises(SUTError, match="does not end"):
        examine(url, model="m", access=HASTY)
    with pytest.raises(SUTError, match=r"no answer within 0\.5 s"):
        examine(serve_at(says()), model="m", access=HASTY)
    with pytest.raises(SUTError, match=r"no answer within 0\.5 s"):
        examine(serve_at(lambda conversation: conversation.wait(2.0)), model="m", access=HASTY)


def test_a_port_where_nothing_listens(serve_at: Serve) -> None:
    with pytest.raises(NotReadyError, match="connection refused"):
        examine("ws://127.0.0.1:1/v1", model="m")


def test_a_dialect_without_a_form_over_websocket_is_refused_before_any_traffic() -> None:
    with pytest.raises(SuiteError, match="--llm-api: openai-chat is not spoken over WebSocket"):
        examine("ws://127.0.0.1:1/v1", api="openai-chat")


def test_over_tls(serve_at: Serve, secured: Secured) -> None:
    context, ca_file = secured()
    url = serve_at(websockets(replies()), tls=context)
    report = examine(url, model="m", access=Access(ca_file=ca_file))
    assert report.base_url == url
    assert report.facts.value("endpoint.certificate_checked") is True
    with pytest.raises(SUTError, match="TLS: the server's certificate"):
        examine(url, model="m")


def test_a_proxy_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    with pytest.raises(SUTError, match=r"(?s)proxy.*NO_PROXY"):
        examine("ws://engine.example/v1", model="m")


def test_tokens_are_counted_by_message(serve_at: Serve) -> None:
    url = serve_at(with_models(websockets(replies())))
    with ServerTokenCount(url, "small", "openai-responses") as count:
        assert count("Hello there") == 7
        assert count.source == f"usage of one-token completions, {url}/responses"
