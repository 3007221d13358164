"""Every dialect that the embedded engine serves, through the whole chain: preflight, load, records, facts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.open_sut import open_sut
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

DEADLINES = Deadlines(connect_s=5, first_byte_s=10, between_chunks_s=10, total_s=20, drain_s=20)
WORKLOAD = SyntheticWorkload("small", Fixed(32), Fixed(4))


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast") as engine:
        yield engine


@pytest.mark.parametrize(
    ("api", "protocol", "workers"),
    [
        ("openai-responses", "sse", 0),
        ("anthropic-messages", "sse", 1),  # a process of its own is told the dialect by its name
        ("ollama-chat", "ndjson", 1),
        ("ollama-generate", "ndjson", 0),
    ],
)
def test_a_load_in_each_dialect(engine: EmbeddedEngine, api: str, protocol: str, workers: int) -> None:
    settings = Settings(endpoint=engine.url, workers=workers)
    opened = open_sut(SUT(engine.url, api=api), settings, on_progress=lambda _: None)
    try:
        seen = opened.executor.run(LoadPlan("test", WORKLOAD, ClosedLoop(2), 4, 1, deadlines=DEADLINES))
        counter = opened.counter
        assert counter is not None
        counted = counter("the wide sea")
    finally:
        opened.close()
    assert opened.api == api
    assert seen.records.counts()["ok"] == 4
    assert seen.records.output_tokens.tolist() == [4] * 4
    assert seen.records.chunk_tokens.tolist() == [1] * 16
    assert (seen.facts.value("wire.dialect"), seen.facts.value("streaming.protocol")) == (api, protocol)
    assert opened.facts.value("endpoint.api") == api
    assert counted == 3
