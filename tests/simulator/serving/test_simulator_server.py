"""The engine over HTTP, end to end on loopback."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from known_truth import in_order, truth_of
from waiting import wait_for

from pytest_llmbench.simulator.scenario import PRESETS
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.simulator.serving.request_body import Endpoint
from pytest_llmbench.tokens import reference_tokenizer

CHAT, COMPLETIONS = str(Endpoint.CHAT), str(Endpoint.COMPLETIONS)
HELLO = [{"role": "user", "content": "hello there, sea"}]
DEADLINE_S = 10.0


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast?context_limit_tokens=2000") as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: EmbeddedEngine) -> Iterator[httpx.Client]:
    with connect(engine) as client:
        yield client


def connect(engine: EmbeddedEngine) -> httpx.Client:
    origin = engine.url.removesuffix("/v1")
    return httpx.Client(base_url=origin, timeout=DEADLINE_S, trust_env=False)


def events(response: httpx.Response) -> list[Any]:
    """The data of each event; all of them are one line."""
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block[6:]) for block in blocks]


def stream(client: httpx.Client, path: str, request_id: str = "", **body: Any) -> httpx.Response:
    headers = {"x-request-id": request_id} if request_id else {}
    return client.post(path, json={"stream": True, **body}, headers=headers)


def test_a_chat_stream(client: httpx.Client, engine: EmbeddedEngine) -> None:
    response = stream(
        client,
        CHAT,
        "chat-1",
        model=engine.model,
        messages=HELLO,
        max_tokens=5,
        stream_options={"include_usage": True},
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-request-id"] == "chat-1"
    assert response.headers["server"].startswith("pytest-llmbench-sim/")
    chunks = events(response)
    assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {("chatcmpl-chat-1", "sim-fast")}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(list(delta) == ["content"] and delta["content"].strip() for delta in deltas[1:6])
    assert deltas[6:] == [{}]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None] * 6 + ["length"]
    prompt_tokens = reference_tokenizer().count("hello there, sea")
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 5,
        "total_tokens": prompt_tokens + 5,
    }


def test_without_include_usage_there_is_none(client: httpx.Client) -> None:
    chunks = events(stream(client, CHAT, messages=HELLO, max_completion_tokens=2))
    assert len(chunks) == 4
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize(("prompt", "tokens"), [("hello", 1), ([10, 20, 30], 3), ([[10, 20]], 2)])
def test_a_completion_stream(client: httpx.Client, prompt: Any, tokens: int) -> None:
    response = stream(
        client, COMPLETIONS, prompt=prompt, max_tokens=3, stream_options={"include_usage": True}
    )
    chunks = events(response)
    assert len(chunks) == 3 + 2
    assert all(chunk["choices"][0]["text"].strip() for chunk in chunks[:3])
    assert chunks[3]["choices"][0]["finish_reason"] == "length"
    assert chunks[4]["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "hello there, sea"})]
)
def test_replies_that_are_not_streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    reply = client.post(path, json={**body, "max_tokens": 6}).json()
    choice = reply["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert reference_tokenizer().count(text) == 6
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 6


def test_a_long_prompt_is_counted_too(client: httpx.Client) -> None:
    text = "a sea, wide and far; " * 2000
    response = client.post(COMPLETIONS, json={"prompt": text})
    assert str(reference_tokenizer().count(text)) in response.json()["error"]["message"]


def test_models_and_health(client: httpx.Client, engine: EmbeddedEngine) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (engine.model, 2000)
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        (CHAT, {"messages": HELLO, "model": "gpt"}, 404, "sim-fast"),
        (CHAT, {"messages": "hello"}, 400, "messages"),
        (CHAT, {"messages": HELLO, "max_tokens": 2000}, 400, "2000 output tokens"),
        (COMPLETIONS, {"prompt": [1] * 2000}, 400, "maximum context length is 2000"),
        (COMPLETIONS, {"prompt": ""}, 400, "empty"),
        ("/v1/images/generations", {}, 404, CHAT),
        ("/health", {}, 405, "GET"),
    ],
)
def test_errors_have_the_shape_clients_know(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, named: str
) -> None:
    response = client.post(path, json=body, headers={"x-request-id": "e-1"})
    assert response.status_code == status
    assert response.headers["x-request-id"] == "e-1"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert named in error["message"]


def test_a_body_that_is_not_json_is_400(client: httpx.Client) -> None:
    response = client.post(CHAT, content=b'{"messages": ', headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "BadRequestError")


def test_ground_truth_is_in_order_and_no_token_comes_early(
    client: httpx.Client, engine: EmbeddedEngine
) -> None:
    sent_ns = time.monotonic_ns()
    stream(client, COMPLETIONS, "truth-1", prompt=list(range(320)), max_tokens=20)
    ended_ns = time.monotonic_ns()
    truth = truth_of(engine, "truth-1")
    assert in_order(sent_ns, truth, ended_ns)
    assert (truth.prompt_tokens, truth.output_tokens) == (320, 20)
    assert (truth.finish_reason, truth.aborted) == ("length", False)
    figures = PRESETS["fast"]
    assert truth.first_write_ns - truth.admitted_ns >= figures.step_ns(320, 0, 0)
    steps_ns = sum(figures.step_ns(0, 1, 320 + given) for given in range(1, 20))
    # From the admission on: a first write that a busy machine delays is nearer to the last one.
    assert truth.last_write_ns - truth.admitted_ns >= figures.step_ns(320, 0, 0) + 0.9 * steps_ns


def test_received_is_the_last_byte_of_the_request(engine: EmbeddedEngine) -> None:
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 1}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nx-request-id: halves\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    with socket.create_connection(address(engine), timeout=DEADLINE_S) as connection:
        connection.sendall(head.encode() + body[:5])
        time.sleep(0.15)
        second_half_ns = time.monotonic_ns()
        connection.sendall(body[5:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert truth_of(engine, "halves").received_ns >= second_half_ns


def address(engine: EmbeddedEngine) -> tuple[str, int]:
    url = httpx.URL(engine.url)
    assert url.port is not None
    return url.host, url.port


def test_a_client_that_goes_away_frees_its_place(engine: EmbeddedEngine) -> None:
    body = {"prompt": [1], "max_tokens": 1900, "stream": True}
    headers = {"x-request-id": "gone"}
    with (
        connect(engine) as leaving,
        leaving.stream("POST", COMPLETIONS, json=body, headers=headers) as response,
    ):
        next(response.iter_raw())
    wait_for(lambda: engine.status()["running"] == 0)
    truth = truth_of(engine, "gone")
    assert truth.aborted
    assert truth.finish_reason is None
    assert truth.output_tokens < 1900


def test_latency_rises_with_load() -> None:
    def tpot_ms(truth: GroundTruth) -> float:
        assert truth.last_write_ns is not None
        assert truth.first_write_ns is not None
        return (truth.last_write_ns - truth.first_write_ns) / (truth.output_tokens - 1) / 1e6

    body = {"prompt": [1, 2, 3], "max_tokens": 20}
    with EmbeddedEngine.start("fast?step_base_us=2000&decode_us_per_sequence=2000") as engine:
        with connect(engine) as client, ThreadPoolExecutor(8) as pool:
            stream(client, COMPLETIONS, "alone", **body)
            list(pool.map(lambda i: stream(client, COMPLETIONS, f"crowd-{i}", **body), range(8)))
        alone = tpot_ms(truth_of(engine, "alone"))
        crowd = [tpot_ms(truth) for truth in engine.ground_truth() if truth.request_id != "alone"]
    assert len(crowd) == 8
    # One sequence: 2 + 2 ms a step; eight: 2 + 16 ms. A busy host makes either longer by any amount, and only
    # a first write that it delayed makes a span shorter.
    assert alone >= 3.5
    assert sorted(crowd)[4] >= 10.0


def test_a_reader_that_does_not_read_stops_nobody_else() -> None:
    body = json.dumps({"prompt": [1], "max_tokens": 30_000, "stream": True}).encode()
    request = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    with EmbeddedEngine.start("fast?step_base_us=20&prefill_us_per_token=0&kv_us_per_token=0") as engine:
        with socket.socket() as slow, connect(engine) as client:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(DEADLINE_S)
            slow.connect(address(engine))
            slow.sendall(request)
            wait_for(lambda: engine.status()["running"] == 1)
            assert len(events(stream(client, COMPLETIONS, prompt=[1], max_tokens=50))) == 51
            wait_for(lambda: engine.status()["running"] == 0)
            received = bytearray()
            while not received.endswith(b"0\r\n\r\n"):
                received += slow.recv(1 << 20)
        assert received.count(b'"text":" ') == 30_000


def test_the_early_end_of_an_answer_is_stop() -> None:
    with EmbeddedEngine.start("fast?eos_mean_tokens=4&seed=2") as engine, connect(engine) as client:
        replies = [client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 100}).json() for _ in range(8)]
        body = {"prompt": "x", "max_tokens": 30, "ignore_eos": True}
        forced = client.post(COMPLETIONS, json=body).json()
        status = engine.status()
    lengths = [reply["usage"]["completion_tokens"] for reply in replies]
    assert {reply["choices"][0]["finish_reason"] for reply in replies} == {"stop"}
    assert max(lengths) < 100
    assert len(set(lengths)) > 1
    assert forced["usage"]["completion_tokens"] == 30
    assert status["requests_accepted"] == 9
    assert status["pacing_error_us"]["n"] == status["steps"] > 0


def test_many_at_once_on_kept_connections(client: httpx.Client, engine: EmbeddedEngine) -> None:
    failures: list[str] = []

    def work(worker: int) -> None:
        for i in range(4):
            chunks = events(stream(client, COMPLETIONS, f"w{worker}-{i}", prompt=[1, 2], max_tokens=8))
            if len(chunks) != 9:
                failures.append(f"{worker}-{i}: {len(chunks)} chunks")

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert failures == []
    ours = [truth for truth in engine.ground_truth() if truth.request_id.startswith("w")]
    assert len(ours) == 48
    assert all(truth.output_tokens == 8 for truth in ours)
