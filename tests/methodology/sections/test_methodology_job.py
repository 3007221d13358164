"""The job on canned servers: what it takes and gives, and how often it is run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_levels import INPUT_TOKENS, OUTPUT_TOKENS, QueueServer, canned_setting

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.measuring.job_figures import first_wave, steady_middle
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import job, ttft
from pytest_llmbench.model.estimate import EstimateKind, SavedSpread
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario


def run(server: QueueServer, spreads: dict[str, SavedSpread] | None = None, **keywords: Any) -> TestResult:
    setting = replace(canned_setting("standard"), spreads=spreads or {})
    return drive(job.TEST.procedure(build(job.Parameters, keywords), setting), server)


def points(result: TestResult) -> dict[str, float | None]:
    return {name: each.point for name, each in result.metrics.items()}


def test_known_answers_of_eight_prompts_at_once() -> None:
    """Four slots of 100 ms: two waves, 200 ms. The first token comes 20 ms after the start of its service."""
    result = run(server := QueueServer(), prompts=8)
    assert [plan.load for plan in server.measured] == [ClosedLoop(8)]
    found = points(result)
    assert found["makespan"] == pytest.approx(0.2)
    assert found["request_throughput"] == pytest.approx(40.0)
    assert found["output_token_throughput"] == pytest.approx(8 * OUTPUT_TOKENS / 0.2)
    assert found["input_token_throughput"] == pytest.approx(8 * INPUT_TOKENS / 0.2)
    assert found["total_token_throughput"] == pytest.approx(8 * (INPUT_TOKENS + OUTPUT_TOKENS) / 0.2)
    assert (found["ttft.min"], found["ttft.max"]) == (pytest.approx(20.0), pytest.approx(120.0))
    assert found["ttft.mean"] == pytest.approx(70.0)
    assert (found["e2e.p99"], found["e2e.mean"]) == (pytest.approx(200.0, rel=0.01), pytest.approx(150.0))
    assert found["tpot.mean"] == pytest.approx(80.0 / (OUTPUT_TOKENS - 1))
    assert result.metrics["makespan"].kind is EstimateKind.ASSUMED_SPREAD
    assert "request_throughput[steady]" not in found


def test_the_steady_middle_stands_beside_a_long_job() -> None:
    found = points(run(QueueServer(), prompts=80, concurrency=4))
    assert found["request_throughput"] == pytest.approx(40.0)
    assert found["request_throughput[steady]"] == pytest.approx(
        40.0, rel=0.06
    )  # 76 in 18 waves, edge to edge


def test_a_rate_makes_it_an_open_loop() -> None:
    server = QueueServer()
    run(server, prompts=30, rate=10)
    (plan,) = server.measured
    assert isinstance(plan.load, OpenLoop)
    assert plan.requests == 30


def test_one_run_decides_a_far_limit_and_five_a_near_one() -> None:
    for limit, runs, verdict in (
        (1.0, 1, GateVerdict.PASS), (0.24, 5, GateVerdict.PASS), (0.02, 1, GateVerdict.FAIL),
        (0.17, 5, GateVerdict.FAIL),
    ):  # fmt: skip
        result = run(server := QueueServer(), prompts=8, max_makespan_s=limit)
        assert (len(server.measured), result.metrics["makespan"].runs) == (runs, runs), limit
        assert gate(result.objectives, result.metrics).verdict is verdict, limit


def test_without_limits_and_with_a_number_of_runs_nothing_is_added() -> None:
    run(server := QueueServer(), prompts=8)
    run(three := QueueServer(), prompts=8, runs=3, max_makespan_s=0.21)
    assert (len(server.measured), len(three.measured)) == (1, 3)
    assert len({plan.seed for plan in three.measured}) == 3  # other words
    assert {(plan.first, plan.lengths_seed) for plan in three.measured} == {
        (0, three.measured[0].lengths_seed)
    }


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ((), EstimateKind.SAVED_SPREAD),
        ((("tokens.counted_by", "the server"),), EstimateKind.SAVED_SPREAD),
        ((("tokens.counted_by", "the reference tokenizer"),), EstimateKind.ASSUMED_SPREAD),
    ],
)
def test_a_saved_spread_is_of_what_is_made_alike(
    made: tuple[tuple[str, str], ...], kind: EstimateKind
) -> None:
    saved = {"output_token_throughput": SavedSpread(0.02, 8, made=made)}
    found = run(QueueServer(), saved, prompts=40, concurrency=4)
    assert found.metrics["output_token_throughput"].kind is kind


def test_a_saved_spread_decides_what_an_assumed_one_does_not() -> None:
    saved = {"makespan": SavedSpread(0.01, 8)}
    result = run(server := QueueServer(), saved, prompts=8, max_makespan_s=0.24)
    assert len(server.measured) == 1
    assert result.metrics["makespan"].kind is EstimateKind.SAVED_SPREAD
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.PASS


def test_more_slots_than_prompts_are_all_at_once() -> None:
    assert build(job.Parameters, {"prompts": 5, "concurrency": 9}).load == ClosedLoop(5)
    assert build(job.Parameters, {"prompts": 5, "concurrency": 3}).load == ClosedLoop(3)
    assert job.Parameters().count == 1000


def test_the_steady_middle_is_from_the_first_refill_to_the_last_send() -> None:
    server = QueueServer(slots=2)
    keywords = {"concurrency": 2, "requests": 20, "steady": True}
    result = drive(ttft.TEST.procedure(build(ttft.Parameters, keywords), canned_setting("standard")), server)
    (run,) = result.observations
    middle, sent = steady_middle(run, 2), np.sort(run.records.submitted_ns)
    assert (middle.started_ns, middle.ended_ns) == (sent[2] - 1, sent[-1])
    assert result.metrics["ttft.p50"].n == 18
    assert result.metrics["ttft.p50"].kind in (EstimateKind.SAMPLE, EstimateKind.CRUDE)
    assert steady_middle(run, 20) is run


@pytest.mark.parametrize(
    ("keywords", "warned"),
    [
        ({"prompts": 100, "concurrency": 50, "ttft_p50_ms": 10}, True),
        ({"prompts": 100, "concurrency": 51, "ttft_p50_ms": 10}, True),
        ({"prompts": 100, "concurrency": 53, "ttft_p50_ms": 10}, False),
        ({"prompts": 100, "concurrency": 50, "ttft_p99_ms": 10, "e2e_p50_ms": 9}, False),
        ({"prompts": 100, "ttft_p99_ms": 10}, False),
        ({"prompts": 100, "rate": 50, "ttft_p50_ms": 10}, False),
    ],
)
def test_a_percentile_at_the_end_of_the_first_wave_warns(keywords: dict[str, Any], warned: bool) -> None:
    found = first_wave(build(job.Parameters, keywords))
    assert [each.check for each in found] == ["first_wave"] * warned
    assert not any(each.voids for each in found)


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"requests": 10}, "unknown parameter 'requests'; did you mean prompts"),
        ({"num_prompts": 10}, "did you mean prompts"),
        ({"max_requests": 10}, "unknown parameter 'max_requests'"),
        ({"steady": True}, "unknown parameter 'steady'"),
        ({"failures": "over_limit"}, "unknown parameter 'failures'"),
        ({"prompts": 0}, "prompts must be at least 1"),
        ({"prompts": "auto"}, "prompts must be a whole number"),
        ({"arrival": "gamma"}, "arrival needs rate"),
        ({"compliance": "conditional"}, "compliance does not apply"),
        ({"runs": "many"}, "runs must be a whole number, or 'auto'"),
    ],
)
def test_mistakes(keywords: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        build(job.Parameters, keywords)


def test_a_rate_may_have_a_cap_and_the_wait_for_a_place_is_told() -> None:
    parameters = build(job.Parameters, {"prompts": 10, "rate": 100, "arrival": "uniform", "concurrency": 1})
    assert parameters.load == OpenLoop(100, "uniform", most_in_flight=1)
    assert parameters.load.request_rate is None
    assert parameters.load.describe().endswith("uniform arrivals at 100 req/s, at most 1 in flight")
    setting = canned_setting("standard")
    server = ReplayEngine(parse_scenario("fast?step_base_us=20000"))
    result = drive(job.TEST.procedure(parameters, setting), server.run)
    (run_,) = result.observations
    (note,) = [each for each in result.notes if each.id == "held_back"]
    told = note.parameters
    arrivals_ns = run_.started_ns + 10_000_000 * np.arange(1, 11)
    waits_ns = run_.records.scheduled_ns - arrivals_ns
    assert (told["cap"], told["held"], told["sent"]) == (1, int((waits_ns > 0).sum()), 10)
    assert told["longest"] == Amount(int(waits_ns.max()) / 1e9, "s")
    assert run_.selfcheck.peak_in_flight == 1
