"""Preflight of endpoints that are WebSockets: what is asked over HTTP, what by message, what can be wrong."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trustme
from json_message_server import DESCRIPTION, JsonMessageServer
from scripted_server import Conversation, Script, ScriptedServer, plain
from websocket_script import (
    BOOM,
    REPLY,
    Opened,
    Talk,
    created,
    frame,
    ping,
    refused,
    replies,
    text,
    websockets,
)
from websockets.frames import BINARY, CLOSE, PONG

from pytest_llmbench.errors import NotReadyError, SuiteError, SUTError
from pytest_llmbench.probes.access import Access, Asking, Credentials
from pytest_llmbench.probes.disclosure import read_json_messages
from pytest_llmbench.probes.endpoint import EndpointReport, examine
from pytest_llmbench.probes.token_count import ServerTokenCount
from pytest_llmbench.wire.websocket.json_messages import JsonMessages

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


def control_frames(opened: Opened) -> list[tuple[int, bytes]]:
    """What the only client said beside its message, once it has closed."""
    deadline = time.monotonic() + 5.0
    while not opened.heard or opened.heard[-1][0] is not CLOSE:
        assert time.monotonic() < deadline, opened.heard
        time.sleep(0.01)
    return [(int(opcode), data) for opcode, data in opened.heard]


def test_an_endpoint_with_websockets_and_a_model_list(serve_at: Serve) -> None:
    opened = Opened()
    url = serve_at(with_models(websockets(replies(), opened)))
    report = examine(url, access=Access(KEY), asking=Asking(extra_body={"seed": 7}))
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
    opened = Opened()

    def turn(talk: Talk) -> None:
        talk.send(ping(b"a") + text(REPLY[0]))
        talk.conversation.wait(0.05)
        talk.say(REPLY[1:])

    url = serve_at(websockets(turn, opened, greeting=text({"type": "session.created"})))
    assert examine(url, model="m").counts_tokens
    assert (PONG, b"a") in control_frames(opened)


def answers(data: bytes) -> Script:
    return lambda conversation: conversation.send(data)


def says(*data: bytes) -> Script:
    def turn(talk: Talk) -> None:
        for piece in data:
            talk.send(piece)

    return websockets(turn)


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


def test_over_tls(serve_at: Serve, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
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


# --- messages that are described

TOLD = {"path": "/talk", "request": {"prompt": "{prompt}", "n": "{max_tokens}"}, "text": "say", "end": "done"}
BY_CLOSING = {name: value for name, value in TOLD.items() if name != "end"}
NORMAL = b"\x03\xe8"


def described(**changes: Any) -> JsonMessages:
    return read_json_messages({**TOLD, **changes}, "a test")


def examined(url: str, messages: JsonMessages, model: str | None = "m") -> EndpointReport:
    asking = Asking(messages=messages)
    return examine(url, model=model, api="json-messages", access=HASTY, asking=asking)


def test_described_messages_are_asked_for_one_small_reply() -> None:
    with JsonMessageServer() as server:
        report = examined(server.url, read_json_messages(DESCRIPTION, "a test"))
    (served,) = server.served
    assert (report.base_url, report.model, report.api) == (server.url, "m", "json-messages")
    assert served.path == "/api/talk"
    assert served.asked["limits"] == {"tokens": 4, "heat": 0.0}
    assert UUID(served.asked["id"]).version == 4
    assert report.counts_tokens
    assert report.facts.value("streaming.protocol") == "websocket"
    assert report.facts.value("endpoint.api") == "json-messages"


@pytest.mark.parametrize(
    ("base", "path", "target"), [("", "", "/"), ("", "/talk", "/talk"), ("/a/v2", "", "/a/v2")]
)
def test_the_path_is_the_one_that_is_described(serve_at: Serve, base: str, path: str, target: str) -> None:
    """No version is tried in front of it: such servers answer at any path."""
    opened = Opened()
    url = serve_at(websockets(replies({"say": "x"}, {"done": 1}), opened)).removesuffix("/v1") + base
    messages = described(path=path) if path else described(path=None)
    assert examined(url, messages).base_url == url
    (talk,) = opened.talks
    assert talk.conversation.head.split(" ")[1] == target


@pytest.mark.parametrize(
    ("sent", "changes", "said"),
    [
        (
            [{"sai": "x"}, {"done": 1}],
            {},
            r'no text in 2 messages, the last of them: {"done": 1}.*hold json_messages.text of the SUT file',
        ),
        (
            [{"say": "x"}, {"dune": 1}],
            {},
            r'still open after 2 messages, the last of them: {"dune": 1}.*json_messages.end of',
        ),
        (
            [{"say": "x"}, {"done": 1}],
            {"finish_reason": "why"},
            r"2 messages that ends without a finish reason.*hold json_messages.finish_reason",
        ),
        ([{"error": "no such voice"}], {}, "the streamed reply is an error: no such voice"),
        ([{"error": "bad", "code": 400}], {"error_status": "code"}, r"HTTP 400 \(bad\)"),
        ([*REPLY], {"end": {"when": {"type": "response.completed"}}}, "another dialect, openai-responses"),
    ],
)
def test_where_the_description_does_not_fit(
    serve_at: Serve, sent: list[Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SUTError, match=f"(?s){said}"):
        examined(serve_at(websockets(replies(*sent))), described(**changes))


def test_a_server_that_takes_no_requests_is_not_ready(serve_at: Serve) -> None:
    url = serve_at(websockets(replies({"error": "loading", "code": 503})))
    with pytest.raises(NotReadyError, match="loading"):
        examined(url, described(error_status="code"))


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (frame(CLOSE, NORMAL), ""),
        (frame(CLOSE, BOOM), "closed the WebSocket with code 1011"),
        (b"", "still open after 1 messages.*json_messages.end"),
    ],
)
def test_replies_that_end_by_closing(serve_at: Serve, end: bytes, said: str) -> None:
    url = serve_at(says(text({"say": "x"}), end))
    messages = read_json_messages(BY_CLOSING, "a test")
    if not said:
        assert examined(url, messages).api == "json-messages"
        return
    with pytest.raises(SUTError, match=f"(?s){said}"):
        examined(url, messages)


def test_a_path_without_a_websocket_names_the_key(serve_at: Serve) -> None:
    url = serve_at(answers(plain("404 Not Found")))
    with pytest.raises(SUTError, match=r"(?s)HTTP 404.*no WebSocket there.*json_messages.path"):
        examined(url, described())
    with pytest.raises(SUTError, match=r"(?s)name the model: --llm-model"):
        examined(url, described(), model=None)


def test_prompts_are_counted_by_the_place_that_is_described() -> None:
    with JsonMessageServer() as server:
        messages = read_json_messages(DESCRIPTION, "a test")
        with ServerTokenCount(server.url, "m", "json-messages", messages=messages) as count:
            assert (count("one two three"), count("one")) == (3, 1)
            assert count.leaves_traces
