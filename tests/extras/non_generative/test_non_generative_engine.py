"""Vectors, scores and log-probabilities of the engine, read by our generator and held against its truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import plain_http
import pytest
from served_load import load

from pytest_llmbench.model.record import Outcome
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect

ECHO = {"echo": True, "max_tokens": 0, "logprobs": 1}
EACH = pytest.mark.parametrize("api", ["openai-embeddings", "rerank", "score", "logprobs"])


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start(
        "fast?think_mean_tokens=50&output_filter=enabled&output_refusal_share=1"
    ) as engine:
        yield engine


def ask(engine: EmbeddedEngine, path: str, body: Any) -> httpx.Response:
    return plain_http.post(f"{engine.url}{path}", json=body)


@EACH
def test_what_is_read_is_what_was_given(engine: EmbeddedEngine, api: str) -> None:
    row = load(engine, dialect=dialect(api)).only
    (truth,) = [truth for truth in engine.ground_truth() if truth.request_id == row.request_id]
    assert row.outcome is Outcome.OK, row.error
    assert row.input_tokens == truth.prompt_tokens
    assert (truth.generates, truth.output_tokens, truth.first_visible_ns) == (False, 0, None)
    assert (row.output_tokens, row.first_content_ns, list(row.chunk_ns)) == (None, None, [])
    # One clock: the engine is on this host.
    assert row.submitted_ns is not None
    assert row.finished_ns is not None
    assert truth.first_token_ns is not None
    assert truth.last_write_ns is not None
    assert row.submitted_ns <= truth.received_ns <= truth.first_token_ns
    assert truth.first_token_ns <= truth.last_write_ns <= row.finished_ns


@EACH
def test_several_documents_on_kept_connections(engine: EmbeddedEngine, api: str) -> None:
    assert load(engine, 6, concurrency=2, dialect=dialect(api)).outcomes == [Outcome.OK] * 6


def test_vectors_of_both_forms_for_every_input(engine: EmbeddedEngine) -> None:
    plain = ask(engine, "/embeddings", {"input": ["a", "b c"]}).json()
    assert [each["index"] for each in plain["data"]] == [0, 1]
    assert plain["data"][0]["embedding"] != plain["data"][1]["embedding"]
    assert plain["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert plain["data"] == ask(engine, "/embeddings", {"input": ["a", "b c"]}).json()["data"]
    packed = ask(engine, "/embeddings", {"input": [5, 6], "encoding_format": "base64"}).json()
    assert isinstance(packed["data"][0]["embedding"], str)
    assert packed["usage"]["prompt_tokens"] == 2


def test_log_probabilities_of_every_token_but_the_first(engine: EmbeddedEngine) -> None:
    told = ask(engine, "/completions", {"prompt": "one two three", **ECHO}).json()
    (choice,) = told["choices"]
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None
    assert len(others) == told["usage"]["prompt_tokens"] - 1 == 2
    assert max(others) <= 0
    assert ask(engine, "/completions", {"prompt": [5, 6, 7, 8], **ECHO}).json()["usage"]["prompt_tokens"] == 4


def test_an_echo_with_output_is_a_completion(engine: EmbeddedEngine) -> None:
    told = ask(engine, "/completions", {"prompt": 'say "echo"', **ECHO, "max_tokens": 1})
    assert "token_logprobs" not in told.text


def test_the_best_documents_come_first(engine: EmbeddedEngine) -> None:
    body = {"query": "q", "documents": ["a", "b", "c", "d"], "top_n": 3}
    results = ask(engine, "/rerank", body).json()["results"]
    scores = [each["relevance_score"] for each in results]
    assert len(results) == 3
    assert scores == sorted(scores, reverse=True)
    pairs = ask(engine, "/score", {"text_1": "q", "text_2": ["a", "b"]}).json()
    assert [each["index"] for each in pairs["data"]] == [0, 1]
    assert pairs["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/embeddings", {"input": []}, "input must be"),
        ("/embeddings", {"input": [-1]}, "token ids from 0"),
        ("/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("/embeddings", {"input": "a", "model": "other"}, "does not exist"),
        ("/embeddings", {"input": "a", "model": 3}, "model must be"),
        ("/embeddings", {"input": ""}, "the prompt is empty"),
        ("/embeddings", [], "a JSON object"),
        ("/rerank", {"query": ["a", "b"], "documents": ["c"]}, "query must be one text"),
        ("/rerank", {"query": "a", "documents": [3]}, "documents must be"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "as many as text_2"),
        ("/completions", {"prompt": ["a", "b"], **ECHO}, "one text or one list of token ids"),
        ("/completions", {"prompt": {}, **ECHO}, "prompt must be"),
        ("/completions", {**ECHO}, "prompt must be"),
    ],
)
def test_what_cannot_be_answered_is_refused(engine: EmbeddedEngine, path: str, body: Any, said: str) -> None:
    answer = ask(engine, path, body)
    assert answer.status_code in (400, 404)
    assert said in answer.json()["error"]["message"]


def test_the_metrics_page_counts_no_token(engine: EmbeddedEngine) -> None:
    def page() -> dict[str, float]:
        lines = plain_http.get(engine.url.removesuffix("/v1") + "/metrics").text.splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines)
            if name[:1] != "#"
        }

    before = page()
    ask(engine, "/embeddings", {"input": "one two three"})
    after = page()

    def grown(part: str) -> float:
        return sum(value - before.get(name, 0) for name, value in after.items() if part in name)

    assert grown("vllm:prompt_tokens_total") == 3
    assert grown("vllm:generation_tokens_total") == 0
    assert grown("time_to_first_token_seconds_count") == grown("request_generation_tokens_count") == 0
    assert grown("request_prefill_time_seconds_count") == 1


def test_faults_have_the_outcome_that_they_have_on_the_other_apis() -> None:
    faults = {
        "reset": Outcome.DISCONNECTED,
        "rate_limit": Outcome.RATE_LIMITED,
    }
    with EmbeddedEngine.start(f"fast?fault={','.join(faults)}&fault_after_tokens=0") as engine:
        rows = load(engine, 12, dialect=dialect("rerank")).rows
    assert {row.outcome for row in rows} == set(faults.values())


def test_json_is_what_every_reply_is(engine: EmbeddedEngine) -> None:
    answer = ask(engine, "/score", {"text_1": "a", "text_2": "b"})
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.content)["model"] == engine.model
