"""Replies of one JSON document over a real socket: the instant of the last byte, and every way to fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from planned_load import TextWorkload
from scripted_server import Conversation, Script, ScriptedServer, plain, reply

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import MISSING, OUTCOMES, TOKEN_SOURCES
from pytest_llmbench.wire.catalogue import dialect

Ask = Callable[..., Observation]
JSON = "Content-Type: application/json\r\n"
EMBEDDED: dict[str, Any] = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}],
    "usage": {"prompt_tokens": 9, "total_tokens": 9},
}


def document(value: Any) -> bytes:
    return plain("200 OK", json.dumps(value).encode(), JSON)


@pytest.fixture
def ask(serve: Callable[..., ScriptedServer], plan: Callable[..., LoadPlan]) -> Iterator[Ask]:
    made: list[LoadGenerator] = []

    def once(script: Script, api: str = "openai-embeddings", **changes: Any) -> Observation:
        generator = LoadGenerator(Target.parse(serve(script).url), dialect(api), model="m")
        made.append(generator)
        return generator.run(plan(**changes))

    yield once
    for generator in made:
        generator.close()


def test_a_document_is_there_with_its_last_byte(ask: Ask) -> None:
    data = document(EMBEDDED)

    def in_two_reads(conversation: Conversation) -> None:
        conversation.send(data[:-5])
        conversation.wait(0.05)
        conversation.send(data[-5:])

    seen = ask(in_two_reads)
    records = seen.records
    assert (OUTCOMES[records.outcome[0]], records.error[0]) == (Outcome.OK, None)
    assert records.finished_ns[0] - records.submitted_ns[0] >= 50_000_000
    assert records.first_byte_ns[0] < records.finished_ns[0]
    assert records.input_tokens[0] == 9
    for name in (
        "first_event_ns",
        "first_nonempty_ns",
        "first_content_ns",
        "last_content_ns",
        "output_tokens",
    ):
        assert getattr(records, name)[0] == MISSING, name
    assert len(records.chunk_ns) == 0
    assert TOKEN_SOURCES[records.token_source[0]] is TokenSource.NONE
    assert seen.facts.value("streaming.protocol") == "json"


@pytest.mark.parametrize(
    ("data", "outcome", "said"),
    [
        (document({**EMBEDDED, "data": []}), Outcome.EMPTY, "no result"),
        (document({"error": {"message": "out of memory"}}), Outcome.IN_BAND_ERROR, "out of memory"),
        (document({**EMBEDDED, "data": EMBEDDED["data"] * 2}), Outcome.UNDECODABLE, "two results"),
        (document({"data": [{"embedding": [float("nan")]}]}), Outcome.UNDECODABLE, "not finite"),
        (plain("200 OK", b"<html>", "Content-Type: text/html\r\n"), Outcome.UNDECODABLE, "no JSON object"),
        (plain("200 OK", b"", JSON), Outcome.EMPTY, "empty body"),
        (plain("429 Too Many Requests"), Outcome.RATE_LIMITED, "429"),
        (plain("500 Oops", b"{}", JSON), Outcome.HTTP_ERROR, "500"),
    ],
)
def test_a_reply_without_a_result_fails_with_its_cause(
    ask: Ask, data: bytes, outcome: Outcome, said: str
) -> None:
    seen = ask(reply(data))
    assert OUTCOMES[seen.records.outcome[0]] is outcome
    assert said in (seen.records.error[0] or "")


def test_a_document_that_is_cut_off_is_no_success(ask: Ask) -> None:
    def cut(conversation: Conversation) -> None:
        conversation.send(document(EMBEDDED)[:-1])
        conversation.close()

    seen = ask(cut)
    assert OUTCOMES[seen.records.outcome[0]] is Outcome.DISCONNECTED
    assert seen.records.input_tokens[0] == MISSING


def test_every_input_has_its_result(ask: Ask) -> None:
    scores = {"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 0.25}]}
    three = TextWorkload(text="query\x1eone\x1etwo")
    assert ask(reply(document(scores)), "score", workload=three).records.ok[0]
    seen = ask(reply(document(scores)), "score")
    assert seen.records.error[0] == "the reply holds 2 results, 1 were requested"
