"""A batch: the load, the figures that only a common start gives, and what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replayed_sut import ReplayedSUT

from pytest_llmbench import make_workload
from pytest_llmbench.extras.batch import figures, procedure
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.plan import Batch, LoadPlan
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect_at

MS = 1_000_000


def row(
    index: int, sent_ms: float, first_ms: int, tokens: int = 11, gap_ms: int = 10, **more: Any
) -> RequestRecord:
    """A reply of a token each ``gap_ms``."""
    at = [(first_ms + gap_ms * number) * MS for number in range(tokens)]
    return RequestRecord(
        index,
        f"r{index}",
        Phase.MEASURE,
        **{
            "submitted_ns": round(sent_ms * MS), "first_nonempty_ns": at[0], "first_content_ns": at[0],
            "last_content_ns": at[-1], "finished_ns": at[-1], "chunk_ns": at, "chunk_tokens": [1] * tokens,
            "attribution": "exact", "output_tokens": tokens, "input_tokens": 100, "outcome": Outcome.OK,
            "token_source": TokenSource.SERVER_USAGE,
        } | more,
    )  # fmt: skip


def measured(**given: Any) -> TestResult:
    return ReplayedSUT().measure(procedure.TEST, **given)


def with_records(result: TestResult, *runs: list[RequestRecord]) -> list[Any]:
    return [replace(result.observations[0], records=Records.from_rows(rows)) for rows in runs]


def test_all_leave_at_one_instant_in_replay() -> None:
    result = measured(prompts=24, runs=2, max_send_spread_ms=1)
    assert result.observations[0].plan.load == Batch(24)
    for run in result.observations:
        assert len({*run.records.submitted_ns.tolist()}) == 1
    spread = result.metrics["send_spread"]
    assert (spread.point, spread.lower, spread.unit, spread.runs) == (0.0, 0.0, "ms", 2)
    first, last = (
        np.array([getattr(run.records, name) for run in result.observations])
        for name in ("submitted_ns", "finished_ns")
    )
    lasted_s = (last.max(axis=1) - first.min(axis=1)) / 1e9
    assert result.metrics["makespan"].point == pytest.approx(np.exp(np.log(lasted_s).mean()), rel=1e-3)
    assert result.metrics["common_generation_rate"].point > 0  # type: ignore[operator]
    assert result.test == "batch"
    assert result.tables[0].id == "batch"
    assert "send_spread" not in result.by_run  # it is the generator's


def test_the_rate_while_all_generate_and_that_of_the_fastest() -> None:
    """Two replies of a token each 10 ms from 100 and 150 ms on, and one of 5 ms; a failed one is in none."""
    rows = [
        row(0, 0.0, 100), row(1, 0.1, 150), row(2, 0.3, 120, tokens=21, gap_ms=5),
        row(3, 0.5, 900, outcome=Outcome.DISCONNECTED),
    ]  # fmt: skip
    seen = with_records(measured(prompts=2), rows)
    assert figures.send_spread(seen).point == pytest.approx(0.5)
    found = figures.rates_of(seen, 1)
    # From 150 to 200 ms: 5 tokens of the first, 5 of the second, 10 of the third.
    assert found["common_generation_rate"].point == pytest.approx(20 / 0.05)
    assert found["fastest_rate_times_prompts"].point == pytest.approx(200 * 4)
    assert found["server_generation_rate.p50"].point is None


def test_replies_that_never_generate_at_the_same_time_have_no_such_rate() -> None:
    seen = with_records(measured(prompts=2), [row(0, 0, 100), row(1, 0, 200)])
    common = figures.rates_of(seen, 1)["common_generation_rate"]
    assert common.point is None
    assert "no stretch of time" in common.method
    none = figures.rates_of(with_records(measured(prompts=2), [row(0, 0, 1, outcome=Outcome.EMPTY)]), 1)
    assert none["fastest_rate_times_prompts"].point is None
    unsent = with_records(measured(prompts=2), [row(0, 0, 1, submitted_ns=None, outcome=Outcome.REFUSED)])
    assert figures.send_spread(unsent).point is None


def test_the_server_s_own_rates() -> None:
    told: dict[str, Any] = {"prefill_ns": 50 * MS, "generation_ns": 110 * MS}
    seen = with_records(
        measured(prompts=2),
        [row(0, 0, 100, **told, cached_tokens=20), row(1, 0, 100, prefill_ns=0, generation_ns=55 * MS)],
    )
    found = figures.rates_of(seen, 1)
    assert found["server_prefill_rate.mean"].point == pytest.approx(80 / 0.05)  # the second has none
    assert found["server_generation_rate.mean"].point == pytest.approx((100 + 200) / 2)
    assert found["fastest_rate_times_prompts"].point == pytest.approx(200 * 2)
    assert "of the server" in found["fastest_rate_times_prompts"].method


@pytest.mark.usefixtures("however_late")
def test_a_transport_that_holds_nothing_back_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        target="async def reply(prompt, max_tokens):\n    for _ in range(3):\n        yield 'word ', 1\n",
        test_held="""
        from pytest_llmbench import llmbench, metric, ms

        @llmbench.batch(prompts=6, slo=[metric("send_spread", "ms") <= 60_000 * ms])
        def test_all_at_once(llm_result):
            assert [note.id for note in llm_result.notes if note.id == "not_held_back"]
        """,
    )
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess("--llm-endpoint=python:target:reply", "--llm-scale=quick")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [({"concurrency": 4}, "concurrency"), ({"rate": 4}, "rate"), ({"prompts": 0}, "prompts must be")],
)
def test_a_batch_takes_no_other_load(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        build(procedure.Parameters, given, test="batch", counted=True)


@pytest.mark.parametrize(
    ("way", "released"),
    [("http", "last_byte"), ("ws", "last_byte"), ("grpc", "whole_request")],
)
def test_a_batch_over_each_transport(grpc_engine: EmbeddedEngine, way: str, released: str) -> None:
    url, dialect = {
        "ws": (grpc_engine.url.replace("http://", "ws://"), "openai-responses"),
        "grpc": (f"grpc://{grpc_engine.grpc_target}", "vllm-grpc"),
    }.get(way, (grpc_engine.url, "openai-chat"))
    target = Address(url).target()
    spoken = dialect_at(url, dialect)
    workload = make_workload(input_tokens=64, output_tokens=8)
    form = "token_ids" if way == "grpc" else "text"
    with LoadGenerator(target, spoken, model=grpc_engine.model, prompt_form=form) as generator:
        seen = generator.run(LoadPlan("batch", workload, Batch(16), 16, seed=1))
    assert seen.records.counts()["ok"] == 16, {*seen.records.error}
    assert seen.facts.value(LoadFact.RELEASE) == released
    assert seen.selfcheck.peak_in_flight == 16
    assert (seen.records.scheduled_ns == seen.started_ns).all()
