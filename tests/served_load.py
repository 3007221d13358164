"""Load from our own generator on an embedded engine: what its peculiarities look like from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plain_http
from prometheus_client.parser import text_string_to_metric_families

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.openai_chat import OpenAIChat, OpenAICompletions

CHAT = OpenAIChat()
TOKENS = 8
PATIENT = Deadlines(connect_s=5.0, first_byte_s=10.0, between_chunks_s=10.0, total_s=15.0, drain_s=15.0)
SHORT = Deadlines(connect_s=5.0, first_byte_s=1.0, between_chunks_s=0.5, total_s=2.0, drain_s=5.0)


@dataclass(frozen=True)
class EightTokens:
    name: str = "eight-tokens"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [
            PlannedRequest(index, max_tokens=TOKENS, input_tokens=3, text="the wide sea")
            for index in range(count)
        ]

    def specification(self) -> Mapping[str, Any]:
        return {}


def sent_as_ids(engine: EmbeddedEngine, plan: LoadPlan) -> Observation:
    target = Target.parse(engine.url)
    with LoadGenerator(target, OpenAICompletions(), model=engine.model, prompt_form="token_ids") as generator:
        return generator.run(plan)


def truths_of(engine: EmbeddedEngine, seen: Observation) -> list[GroundTruth]:
    """The engine's own account of each record, in the order of the records."""
    by_id = {truth.request_id: truth for truth in engine.ground_truth()}
    return [by_id[name] for name in seen.records.request_id]


@dataclass(frozen=True)
class Seen:
    """What the generator made of the replies, and their texts."""

    observation: Observation
    rows: list[RequestRecord]

    @property
    def outcomes(self) -> list[Outcome]:
        return [OUTCOMES[number] for number in self.observation.records.outcome]

    @property
    def only(self) -> RequestRecord:
        (row,) = self.rows
        return row


def load(
    engine: EmbeddedEngine,
    requests: int = 1,
    *,
    deadlines: Deadlines = PATIENT,
    concurrency: int = 1,
    extra_body: Mapping[str, Any] | None = None,
    dialect: Dialect = CHAT,
    url: str | None = None,
) -> Seen:
    rows: list[RequestRecord] = []
    plan = LoadPlan("measure", EightTokens(), ClosedLoop(concurrency), requests, seed=1, deadlines=deadlines)
    with LoadGenerator(
        Target.parse(url or engine.url),
        dialect,
        model=engine.model,
        extra_body=extra_body,
        count_text=reference_tokenizer("cl100k_base").count,
    ) as generator:
        return Seen(generator.run(plan, rows.append), rows)


def serve_and_load(scenario: str, requests: int = 1, **options: Any) -> Seen:
    with EmbeddedEngine.start(scenario) as engine:
        return load(engine, requests, **options)


def raw_chat(engine: EmbeddedEngine, **body: Any) -> bytes:
    """The body of one streamed reply, byte for byte."""
    content = {"stream": True, "max_tokens": TOKENS, "messages": [{"role": "user", "content": "sea"}], **body}
    url = f"{engine.url}/chat/completions"
    return plain_http.post(url, json=content, timeout=10.0).content


def chunks(raw: bytes) -> list[Any]:
    """The JSON of each event that has some."""
    text = raw.decode().replace("\r\n", "\n").replace("\r", "\n")
    data = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: {")]
    return [json.loads(each) for each in data]


def page_of(engine: EmbeddedEngine) -> str:
    """The page of metrics."""
    return plain_http.get(engine.url.removesuffix("/v1") + "/metrics").text


def by_engine(page: str, series: str) -> dict[str, float]:
    """The values of a series, by the engine that each is of."""
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {sample.labels["engine"]: sample.value for sample in samples if sample.name == f"vllm:{series}"}
