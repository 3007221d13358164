"""The engine over WebSocket: OpenAI's Responses API, several turns on one socket."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from socket import SHUT_RDWR
from typing import Any

import plain_http
import pytest
from known_truth import in_order, truth_of
from waiting import wait_for
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.serving.http_events import parse_response_create
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.tokens import reference_tokenizer

DEADLINE_S = 10.0
HELLO = "hello there, sea"


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast?context_limit_tokens=2000") as engine:
        yield engine


@pytest.fixture
def socket(engine: EmbeddedEngine) -> Iterator[ClientConnection]:
    with dial(engine) as socket:
        yield socket


def dial(engine: EmbeddedEngine, path: str = "/responses") -> ClientConnection:
    url = engine.url.replace("http://", "ws://") + path
    return connect(url, open_timeout=DEADLINE_S, close_timeout=1.0, proxy=None)


def ask(socket: ClientConnection, **response: Any) -> None:
    socket.send(json.dumps({"type": "response.create", "response": {"input": HELLO, **response}}))


def receive(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(timeout=DEADLINE_S))


def events(socket: ClientConnection) -> list[Any]:
    """All events up to the one that ends the response."""
    found = [receive(socket)]
    while found[-1]["type"] not in ("response.completed", "error"):
        found.append(receive(socket))
    return found


def test_the_events_of_a_response(engine: EmbeddedEngine, socket: ClientConnection) -> None:
    ask(socket, model=engine.model, max_output_tokens=3, metadata={"request_id": "ws-1"})
    found = events(socket)
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in found] == list(range(11))
    assert found[0]["response"]["status"] == "in_progress"
    text = "".join(event["delta"] for event in found[4:7])
    assert text == found[7]["text"]
    assert reference_tokenizer().count(text) == 3
    response = found[-1]["response"]
    assert (response["id"], response["model"]) == ("resp_ws-1", engine.model)
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert [part["text"] for item in response["output"] for part in item["content"]] == [text]
    prompt_tokens = reference_tokenizer().count(HELLO)
    assert response["usage"] == {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + 3,
    }


def test_the_ground_truth(engine: EmbeddedEngine, socket: ClientConnection) -> None:
    sent_ns = time.monotonic_ns()
    ask(socket, max_output_tokens=4, metadata={"request_id": "ws-truth"})
    events(socket)
    received_ns = time.monotonic_ns()
    truth = truth_of(engine, "ws-truth")
    assert (truth.output_tokens, truth.finish_reason, truth.aborted) == (4, "length", False)
    assert in_order(sent_ns, truth, received_ns)
    assert truth.first_visible_ns == truth.first_write_ns


def test_several_turns_and_what_they_continue(engine: EmbeddedEngine, socket: ClientConnection) -> None:
    ask(socket, max_output_tokens=5)
    first = events(socket)[-1]["response"]
    ask(socket, max_output_tokens=2, previous_response_id=first["id"])
    second = events(socket)[-1]["response"]
    prompt_tokens = reference_tokenizer().count(HELLO)
    assert first["usage"]["input_tokens"] == prompt_tokens
    assert second["usage"]["input_tokens"] == prompt_tokens + 5 + prompt_tokens
    ask(socket, max_output_tokens=2, previous_response_id=first["id"])
    (error,) = events(socket)
    assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
    ask(socket, max_output_tokens=2)
    assert events(socket)[-1]["response"]["usage"]["output_tokens"] == 2


def test_turns_asked_for_at_once_are_answered_in_order(socket: ClientConnection) -> None:
    for tokens in (4, 2, 3):
        ask(socket, max_output_tokens=tokens, metadata={"request_id": f"queued-{tokens}"})
    for tokens in (4, 2, 3):
        response = events(socket)[-1]["response"]
        assert (response["id"], response["usage"]["output_tokens"]) == (f"resp_queued-{tokens}", tokens)


def test_the_fields_may_stand_beside_the_type(engine: EmbeddedEngine, socket: ClientConnection) -> None:
    content = [{"type": "input_text", "text": HELLO}]
    message = {
        "type": "response.create",
        "model": engine.model,
        "instructions": "be brief",
        "input": [{"role": "user", "content": content}],
        "max_output_tokens": 1,
    }
    socket.send(json.dumps(message))
    usage = events(socket)[-1]["response"]["usage"]
    tokenizer = reference_tokenizer()
    assert usage["input_tokens"] == tokenizer.count(HELLO) + tokenizer.count("be brief")


def test_closing_aborts_the_sequence(engine: EmbeddedEngine) -> None:
    with dial(engine) as socket:
        ask(socket, max_output_tokens=1900, metadata={"request_id": "ws-gone"})
        while receive(socket)["type"] != "response.output_text.delta":
            pass
    wait_for(lambda: any(truth.request_id == "ws-gone" for truth in engine.ground_truth()))
    truth = truth_of(engine, "ws-gone")
    assert truth.aborted
    assert truth.output_tokens < 1900
    assert engine.status()["running"] == 0


@pytest.mark.parametrize(
    ("message", "status", "words"),
    [
        ("{", 400, "not JSON"),
        ('{"type": "session.update"}', 400, "response.create"),
        ("[1]", 400, "response.create"),
        ('{"type": "response.create", "response": 3}', 400, "response must be an object"),
        ({"input": 7, "max_output_tokens": 0}, 400, "input must be"),
        ({"input": 7, "max_output_tokens": 0}, 400, "max_output_tokens must be"),
        ({"input": "x", "model": "other"}, 404, "the model 'other' does not exist"),
        ({"input": ""}, 400, "the prompt is empty"),
        ({"input": "sea " * 3000}, 400, "maximum context length is 2000"),
        ({"input": "x", "max_output_tokens": 5000}, 400, "maximum context length is 2000"),
    ],
)
def test_errors(socket: ClientConnection, message: Any, status: int, words: str) -> None:
    text = message if isinstance(message, str) else json.dumps({"type": "response.create", **message})
    socket.send(text)
    error = receive(socket)
    assert (error["type"], error["status"]) == ("error", status)
    assert words in error["error"]["message"]
    ask(socket, max_output_tokens=1)
    assert events(socket)[-1]["type"] == "response.completed"


def test_a_missing_input_is_a_mistake() -> None:
    with pytest.raises(RefusalError, match="input must be a list"):
        parse_response_create('{"type": "response.create"}', "sim-fast")


def test_other_paths_and_plain_http(engine: EmbeddedEngine) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        dial(engine, "/realtime")
    answer = plain_http.get(f"{engine.url}/responses", timeout=DEADLINE_S)
    assert answer.status_code == 426
    assert "WebSocket" in answer.json()["error"]["message"]


def test_reasoning_is_an_item_of_its_own() -> None:
    with EmbeddedEngine.start("fast?lead_reasoning_tokens=2&tokens_per_chunk=4") as engine:
        with dial(engine) as socket:
            ask(socket, max_output_tokens=8)
            found = events(socket)
        deltas = [event for event in found if event["type"].endswith(".delta")]
        kinds = [event["type"] for event in deltas]
        assert kinds[:2] == ["response.reasoning_text.delta"] * 2
        assert set(kinds[2:]) == {"response.output_text.delta"}
        count = reference_tokenizer().count
        assert [count(event["delta"]) for event in deltas] == [1, 1, 4, 2]
        response = found[-1]["response"]
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
        (truth,) = engine.ground_truth()
        assert truth.first_write_ns is not None
        assert truth.first_visible_ns is not None
        assert truth.first_visible_ns > truth.first_write_ns


@pytest.mark.parametrize("fault", ["truncate", "reset", "crash"])
def test_faults_that_end_the_connection(fault: str) -> None:
    with EmbeddedEngine.start(f"fast?fault={fault}&fault_after_tokens=2&fault_count=1") as engine:
        with dial(engine) as socket:
            ask(socket, max_output_tokens=500)
            closed: type[Exception] = ConnectionClosedOK if fault == "truncate" else ConnectionClosed
            with pytest.raises(closed):
                events(socket)
        wait_for(lambda: len(engine.ground_truth()) == 1)
        (truth,) = engine.ground_truth()
        assert (truth.fault, truth.aborted) == (fault, True)


@pytest.mark.parametrize(
    ("fault", "status"),
    [("rate_limit", 429), ("overloaded", 503), ("in_band_error", 500), ("huge_line", 501)],
)
def test_faults_that_are_error_events(fault: str, status: int) -> None:
    with EmbeddedEngine.start(f"fast?fault={fault}&fault_count=1") as engine, dial(engine) as socket:
        ask(socket, max_output_tokens=20)
        found = events(socket)
        assert (found[-1]["type"], found[-1]["status"]) == ("error", status)
        assert len(found) == (7 if fault == "in_band_error" else 1)
        ask(socket, max_output_tokens=1)
        assert events(socket)[-1]["type"] == "response.completed"


def test_connections_that_vanish_in_mid_stream_leave_the_engine_alive() -> None:
    with EmbeddedEngine.start("fast") as engine:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(dial(engine)) for _ in range(12)]
            for socket in sockets:
                ask(socket, max_output_tokens=30_000)
            for number, socket in enumerate(sockets):
                while receive(socket)["type"] != "response.output_text.delta":
                    pass
                if number % 2:  # without a closing handshake
                    socket.socket.shutdown(SHUT_RDWR)
        wait_for(lambda: len(engine.ground_truth()) == len(sockets))
        assert all(truth.aborted for truth in engine.ground_truth())
        assert engine.status()["running"] == 0


def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    with EmbeddedEngine.start("fast") as engine, dial(engine) as deaf, dial(engine) as socket:
        ask(deaf, max_output_tokens=30_000)
        ask(socket, max_output_tokens=50)
        assert events(socket)[-1]["response"]["usage"]["output_tokens"] == 50
