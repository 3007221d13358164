"""Load by described messages: what servers may do to it, and replies that end with their connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from json_message_server import DESCRIPTION, JsonMessageServer
from scripted_load import MakePlan, Run, Serve, only, runner
from scripted_server import Script, ScriptedServer
from websocket_script import BOOM, Opened, Talk, frame, hangs_up, replies, says, text, websockets
from websockets.frames import BINARY, CLOSE, TEXT

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import TOKEN_SOURCES
from pytest_llmbench.wire.websocket.description import read_description
from pytest_llmbench.wire.websocket.json_messages import JsonMessages

NORMAL = b"\x03\xe8"
PLAIN: dict[str, Any] = {
    "path": "/talk",
    "request": {"prompt": "{prompt}", "id": "{request_id}"},
    "text": "say",
    "end": "done",
    "error_status": "status",
}
BY_CLOSING = {name: value for name, value in PLAIN.items() if name != "end"}
ONE, TWO, DONE = {"say": "one"}, {"say": " two"}, {"done": True}


def described(table: Mapping[str, Any]) -> JsonMessages:
    mistakes: list[str] = []
    found = read_description(table, mistakes)
    assert found is not None, mistakes
    return found


def url_of(server: ScriptedServer) -> str:
    return server.url.replace("http", "ws", 1).removesuffix("/v1")


@pytest.fixture
def run(serve: Serve, plan: MakePlan) -> Run:
    """``table``: the description of the messages."""

    def load(
        script: Script, requests: int = 1, table: Mapping[str, Any] = PLAIN, **options: Any
    ) -> Observation:
        return runner(serve, plan, url_of, lambda: described(table))(script, requests, **options)

    return load


BEGUN = text(ONE) + text(TWO)


@pytest.mark.parametrize(
    ("script", "outcome", "said"),
    [
        (says(BEGUN, text(DONE)), "ok", ""),
        (says(BEGUN, frame(CLOSE, BOOM)), "disconnected", "boom before the response was complete"),
        (says(BEGUN, frame(CLOSE, NORMAL)), "truncated", "ended without a finish reason"),
        (says(frame(CLOSE, NORMAL)), "disconnected", "code 1000 (OK) before the first byte"),
        (says(BEGUN, then=hangs_up), "disconnected", "closed the connection before the response"),
        (says(BEGUN, frame(BINARY, b"{}")), "undecodable", "a binary message, where messages are JSON text"),
        (says(BEGUN, frame(TEXT, b"{nonsense"), text(DONE)), "undecodable", "a message that is no JSON"),
        (says(frame(TEXT, b'{"say": "\xff"}'), text(DONE)), "undecodable", "not UTF-8"),
        (says(text({"say": ["one"]}), text(DONE)), "undecodable", "text that is no text but list"),
        (says(text({"error": "no", "status": 500})), "http_error", "HTTP 500 Internal Server Error: no"),
        (says(text({"error": "slow", "status": 429})), "rate_limited", "HTTP 429 Too Many Requests: slow"),
        (says(text({"error": "no status"})), "in_band_error", "no status"),
        (says(BEGUN, text({"error": "no", "status": 500})), "in_band_error", "no"),
        (says(text({"queued": 1}), text(DONE)), "empty", "no content"),
    ],
)
def test_outcomes(run: Run, script: Script, outcome: str, said: str) -> None:
    found, error = only(run(script))
    assert (found, said in error) == (outcome, True), error


@pytest.mark.parametrize(
    ("script", "outcome", "said"),
    [
        (says(BEGUN, frame(CLOSE, NORMAL)), "ok", ""),
        (says(BEGUN + frame(CLOSE, NORMAL)), "ok", ""),
        (says(BEGUN, frame(CLOSE, BOOM)), "disconnected", "boom before the response was complete"),
        (says(BEGUN, then=hangs_up), "disconnected", "closed the connection before the response"),
        (says(frame(CLOSE, NORMAL)), "disconnected", "code 1000 (OK) before the first byte"),
        (says(text({"error": "no"})), "in_band_error", "no"),
    ],
)
def test_outcomes_where_closing_ends_a_reply(run: Run, script: Script, outcome: str, said: str) -> None:
    found, error = only(run(script, table=BY_CLOSING))
    assert (found, said in error) == (outcome, True), error


def test_a_connection_for_each_reply_that_ends_with_it(run: Run) -> None:
    opened = Opened()

    def turn(talk: Talk) -> None:
        talk.say([ONE, TWO])
        talk.send(frame(CLOSE, NORMAL))

    records = run(websockets(turn, opened), 6, table=BY_CLOSING, load=ClosedLoop(2)).records
    assert records.counts()["ok"] == 6
    assert [count for count in opened.turns if count] == [1] * 6
    assert (records.finished_ns >= records.last_content_ns).all()


def test_connections_are_kept_between_replies_and_after_refusals(run: Run) -> None:
    opened = Opened()
    seen = run(websockets(replies(ONE, DONE), opened), 20, load=ClosedLoop(2))
    assert seen.records.counts()["ok"] == 20
    assert (len(opened.talks), sum(opened.turns)) == (2, 20)
    refused = Opened()
    seen = run(websockets(replies({"error": "no", "status": 503}), refused), 3)
    assert list(seen.records.http_status) == [503] * 3
    assert refused.turns == [3]


def test_an_error_within_a_reply_ends_the_connection(run: Run) -> None:
    opened = Opened()
    seen = run(websockets(replies(ONE, {"error": "no"}), opened), 3)
    assert seen.records.counts()["in_band_error"] == 3
    assert opened.turns == [1, 1, 1]


def test_what_is_recorded_is_what_the_server_noted(plan: Callable[..., LoadPlan]) -> None:
    with JsonMessageServer() as server:
        with LoadGenerator(Target.parse(server.url), described(DESCRIPTION), model="m") as generator:
            seen = generator.run(plan(12, load=ClosedLoop(3)))
        truth = {served.asked["id"]: served for served in server.served}
    records = seen.records
    assert records.counts()["ok"] == 12
    assert set(records.request_id) == set(truth)
    assert server.connections == 3
    for n, request_id in enumerate(records.request_id):
        true = truth[request_id]
        assert true.path == "/api/talk"
        assert true.asked["of"] == "m"
        assert true.asked["limits"] == {"tokens": 8, "heat": 0.0}
        assert (records.output_tokens[n], records.input_tokens[n]) == (8, true.words)
        assert TOKEN_SOURCES[records.token_source[n]].value == "server_usage"
        assert records.submitted_ns[n] <= true.read_ns <= true.written_ns[0] <= records.first_content_ns[n]
        assert true.written_ns[-1] <= records.last_content_ns[n]
    assert seen.facts.value("wire.dialect") == "json-messages"
    assert seen.facts.value("streaming.protocol") == "websocket"


def test_it_has_no_form_over_grpc() -> None:
    with pytest.raises(SuiteError, match="json-messages is not spoken over gRPC"):
        LoadGenerator(Target.parse("grpc://127.0.0.1:1"), described(PLAIN), model="m")
