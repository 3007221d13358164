"""The APIs of the engine beside chat and completions, read by our generator and held against its truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import plain_http
import pytest
from served_load import TOKENS, Seen, load

from pytest_llmbench.model.record import LENGTH_FINISH, Outcome, TokenSource
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.apis.anthropic_messages import AnthropicMessages
from pytest_llmbench.wire.apis.engines import OllamaChat, OllamaGenerate
from pytest_llmbench.wire.apis.openai_responses import OpenAIResponses
from pytest_llmbench.wire.dialect import Dialect

DIALECTS = [OpenAIResponses(), AnthropicMessages(), OllamaChat(), OllamaGenerate()]
EACH = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
FAULTS = {
    "in_band_error": Outcome.IN_BAND_ERROR,
    "truncate": Outcome.TRUNCATED,
    "reset": Outcome.DISCONNECTED,
    "rate_limit": Outcome.RATE_LIMITED,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast?lead_reasoning_tokens=3&prefix_caching=true") as engine:
        yield engine


def loaded(engine: EmbeddedEngine, dialect: Dialect, *args: Any, **options: Any) -> Seen:
    url = engine.url.removesuffix("/v1") if dialect.rooted else engine.url
    return load(engine, *args, dialect=dialect, url=url, **options)


@EACH
def test_what_is_read_is_what_was_given(engine: EmbeddedEngine, dialect: Dialect) -> None:
    row = loaded(engine, dialect).only
    (truth,) = [truth for truth in engine.ground_truth() if truth.request_id == row.request_id]
    assert row.outcome is Outcome.OK, row.error
    assert row.finish_reason in LENGTH_FINISH
    assert (row.output_tokens, row.reasoning_tokens) == (TOKENS, 3)
    assert (row.token_source, row.attribution) == (TokenSource.SERVER_USAGE, "exact")
    assert list(row.chunk_tokens) == [1] * TOKENS
    assert row.input_tokens == truth.prompt_tokens
    told = None if dialect.rooted else truth.cached_tokens
    assert row.cached_tokens == told
    # One clock: the engine is on this host.
    assert truth.first_write_ns is not None
    assert truth.first_visible_ns is not None
    assert row.first_reasoning_ns is not None
    assert row.first_content_ns is not None
    assert row.submitted_ns is not None
    assert row.submitted_ns <= truth.received_ns
    assert truth.first_write_ns <= row.first_reasoning_ns <= row.first_content_ns
    assert truth.first_visible_ns <= row.first_content_ns
    assert not truth.aborted


@EACH
def test_several_replies_on_kept_connections(engine: EmbeddedEngine, dialect: Dialect) -> None:
    seen = loaded(engine, dialect, 6, concurrency=2)
    assert seen.outcomes == [Outcome.OK] * 6
    assert sum(row.output_tokens or 0 for row in seen.rows) == 6 * TOKENS


def test_faults_have_the_outcome_that_they_have_on_the_other_apis() -> None:
    faults = ",".join(FAULTS)
    with EmbeddedEngine.start(f"fast?fault={faults}&fault_after_tokens=2") as engine:
        rows = [row for dialect in DIALECTS for row in loaded(engine, dialect, 8).rows]
        fates = {truth.request_id: truth.fault for truth in engine.ground_truth()}
    refused = "rate_limit"  # which leaves no record in the engine
    expected = [FAULTS[fates.get(row.request_id) or refused] for row in rows]
    assert [row.outcome for row in rows] == expected
    assert set(expected) == set(FAULTS.values())


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("responses", {"input": "x", "stream": False}, 400, "streamed only"),
        ("responses", {"input": 7, "stream": True}, 400, "input must be"),
        ("responses", [1], 400, "JSON object"),
        ("../api/chat", {"messages": 7}, 400, "messages must be a list"),
        ("../api/generate", {"prompt": "x", "options": {"num_predict": 0}}, 400, "num_predict must be"),
        ("../api/generate", {"prompt": "x", "stream": False}, 400, "streamed only"),
        ("messages", {"messages": [], "max_tokens": 3}, 400, "messages must be a list"),
        ("messages", {"messages": [{"role": "user", "content": "x"}]}, 400, "max_tokens is missing"),
        (
            "messages",
            {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
            404,
            "m",
        ),
    ],
)
def test_what_is_wrong_is_said(engine: EmbeddedEngine, path: str, body: Any, status: int, words: str) -> None:
    answer = plain_http.post(f"{engine.url}/{path}", content=json.dumps(body), timeout=10)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
