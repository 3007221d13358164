"""How the metrics of a result were made, as its records tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_llmbench.harness.comparison.identity import made_by
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.records import TOKEN_SOURCES, Records
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.catalogue import workload

PLAN = LoadPlan("measure", workload("synthetic-uniform"), OpenLoop(20.0), 100, seed=42)
SEEN = ReplayEngine(parse_scenario("fast")).run(PLAN)


def _made(records: Records, test: str = "ttft", **facts: str) -> dict[str, str]:
    told = Facts.of(Origin.DECLARED, {name.replace("__", "."): value for name, value in facts.items()})
    seen = (replace(SEEN, records=records),)
    return made_by(TestResult(test, "0", "Test", {}, (), (), (), seen, WarmupReport(), told))


@pytest.mark.parametrize(
    ("others", "source", "counted"),
    [
        (0, TokenSource.NONE, "the server"),
        (100, TokenSource.CHUNK_USAGE, "the server"),
        (1, TokenSource.REFERENCE_TOKENIZER, "the server"),  # a few replies without usage
        (40, TokenSource.CHUNK_USAGE, "the server"),
        (40, TokenSource.REFERENCE_TOKENIZER, "the server and the reference tokenizer"),
        (100, TokenSource.REFERENCE_TOKENIZER, "the reference tokenizer"),
        (100, TokenSource.CHUNK_COUNT, "chunks with text"),
        (100, TokenSource.TOKENIZER_FILE, "tokenizer of-the-model"),
        (100, TokenSource.NONE, None),
    ],
)
def test_who_counted_the_tokens(others: int, source: TokenSource, counted: str | None) -> None:
    sources = np.full(100, TOKEN_SOURCES.index(TokenSource.SERVER_USAGE), dtype=np.int8)
    sources[:others] = TOKEN_SOURCES.index(source)
    made = _made(replace(SEEN.records, token_source=sources), tokenizer__name="of-the-model")
    assert made.get("tokens.counted_by") == counted


def test_how_tokens_are_timed() -> None:
    direct, chunks = "ITL, method direct", "Time Between Chunks, method A"
    assert _made(SEEN.records)["itl.method"] == direct
    several = replace(SEEN.records, chunk_tokens=np.full_like(SEEN.records.chunk_tokens, 4))
    assert _made(several)["itl.method"] == chunks
    asked = _made(several, "itl", streaming__itl_option="B")
    assert asked["itl.method"] == "ITL, method B"
    assert "itl.method" not in _made(Records.from_rows(()))
