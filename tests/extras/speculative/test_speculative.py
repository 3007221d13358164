"""Speculative decoding: acceptance and speedup against the embedded engine's truth, and who tells them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from plugin_suite import SMALL_WARMUP, Suite
from replayed_sut import ReplayedSUT

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.extras.speculative import procedure
from pytest_llmbench.extras.speculative.procedure import acceptance_of, by_replies, by_stream
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.metrics.itl import choose_option, itl_samples
from pytest_llmbench.metrics.latency import tpot_ms
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.probes.engine_metrics import EngineMetricsProbe, page_urls
from pytest_llmbench.simulator.engine.faults import MetricsForm
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

ON = "fast?speculative_tokens=4&acceptance=0.7"
LENGTH = (1 - 0.7**5) / (1 - 0.7)
WORK = SyntheticWorkload("short", Fixed(50), Fixed(100))


def measured(scenario: str = ON, change: Any = lambda seen: seen, **given: Any) -> TestResult:
    return ReplayedSUT(scenario, change=change).measure(procedure.TEST, "quick", **given)


def close(estimate: Any, truth: float, within: float) -> bool:
    return bool(estimate.lower <= truth <= estimate.upper) and abs(estimate.point / truth - 1) < within


def test_acceptance_and_speedup_are_the_engines_truth() -> None:
    given: dict[str, Any] = {"min_acceptance_length": 2.5, "min_speedup": 1.4, "concurrency": 1}
    result = measured(f"{ON}&seed=3", workload=WORK, **given)
    metrics = result.metrics
    assert close(metrics["acceptance_length"], LENGTH, 0.05)
    assert close(metrics["acceptance_rate"], (LENGTH - 1) / 4, 0.08)
    assert all(close(metrics[f"acceptance_at[{n}]"], 0.7**n, 0.2) for n in (1, 2, 3, 4))
    slow, quick = (parse_scenario(f"fast?speculative_tokens={k}").engine.step_ns(0, 1, 100) for k in (0, 4))
    assert close(metrics["speedup"], LENGTH * slow / quick, 0.05)
    assert gate(result.objectives, metrics).verdict is GateVerdict.PASS
    assert [(each.check, each.ok) for each in result.findings] == [("steps_in_stream", True)]
    assert {table.id for table in result.tables} == {"speculative", "acceptance_by_place"}
    assert metrics["output_token_throughput"].point > metrics["output_token_throughput[off]"].point


def test_limits_that_do_not_hold_fail_and_what_nobody_tells_is_no_pass() -> None:
    failed = measured("fast?speculative_tokens=4&acceptance=0.3", min_acceptance_length=2.0, min_speedup=2.0)
    assert gate(failed.objectives, failed.metrics).verdict is GateVerdict.FAIL
    off = measured("fast", min_acceptance_length=2.0)
    assert off.metrics["acceptance_length"].point is None
    assert gate(off.objectives, off.metrics).verdict is GateVerdict.INCONCLUSIVE
    assert "no_acceptance_told" in {note.id for note in off.notes}


def test_a_stream_that_gathers_steps_is_told() -> None:
    def gathered(seen: Observation) -> Observation:
        records = seen.records
        return replace(seen, records=replace(records, chunk_tokens=2 * records.chunk_tokens))

    (finding,) = measured(change=gathered).findings
    assert (finding.check, finding.ok, finding.voids) == ("steps_in_stream", False, False)


def test_speculation_off_is_needed_for_the_speedup_alone() -> None:
    setting = replace(ReplayedSUT().setting("synthetic-uniform"), variants={})
    assert procedure.needs(procedure.Parameters(min_acceptance_length=2.0), setting) == ()
    (lacks,) = procedure.needs(procedure.Parameters(min_speedup=1.5), setting)
    assert "[variants.speculation_disabled]" in lacks


def readings(before: dict[str, float], after: dict[str, float], **gauges: Any) -> EngineReadings:
    return EngineReadings(np.arange(2), gauges, before, after)


def seen_by_hand(**told: Any) -> Records:
    """Two replies of nine tokens: the first in steps of 4, 4 after the first token, the second in 2, 6."""
    columns: dict[str, Any] = {
        "index": np.arange(2), "outcome": np.zeros(2, dtype=np.int8), "output_tokens": np.full(2, 9),
        "chunk_offsets": np.array([0, 3, 6]), "chunk_ns": np.array([0, 10, 20, 0, 30, 40]) * 1_000_000,
        "chunk_tokens": np.array([1, 4, 4, 1, 2, 6]), "first_content_ns": np.zeros(2, dtype=np.int64),
        "first_nonempty_ns": np.zeros(2, dtype=np.int64), "submitted_ns": np.full(2, -5),
        "last_content_ns": np.array([20, 40]) * 1_000_000, "class_label": ["code", "chat"],
    }  # fmt: skip
    return Records.filled(
        2, {"request_id": ["a", "b"], "phase": np.zeros(2, dtype=np.int8), **columns, **told}
    )


def test_known_answers_of_each_source() -> None:
    plain = seen_by_hand()
    counted = readings(
        {"drafts": 10, "draft_tokens": 20, "accepted_draft_tokens": 10},
        {"drafts": 110, "draft_tokens": 220, "accepted_draft_tokens": 160},
    )
    found = acceptance_of(counted, plain)
    assert (found.metrics["acceptance_length"].point, found.metrics["acceptance_rate"].point) == (2.5, 0.75)
    whole_or_nothing = 1.96 * (2 * 1.5 - 1.5**2) ** 0.5 / 10
    assert found.metrics["acceptance_length"].upper == pytest.approx(2.5 + whole_or_nothing, abs=1e-3)
    sglang = readings(
        {"drafts": 0, "generated_tokens": 0, "requests_finished": 0},
        {"drafts": 4, "generated_tokens": 18, "requests_finished": 2},
    )
    of_steps = acceptance_of(sglang, plain).metrics["acceptance_length"]
    assert of_steps.point == 4.0
    assert of_steps.upper == pytest.approx(4.0 + 1.96 * (3 * 4 / 4) ** 0.5, abs=1e-3)
    by_iteration = {
        "draft_tokens": 40,
        "accepted_draft_tokens": 30,
    }  # TensorRT-LLM before it counted by place
    before = dict.fromkeys(by_iteration, 0)
    both = acceptance_of(readings(before, by_iteration, acceptance_length=np.array([2.5])), plain)
    assert (both.metrics["acceptance_length"].point, both.metrics["acceptance_rate"].point) == (2.5, 0.75)
    alone = acceptance_of(readings(before, by_iteration), plain)
    assert {name: each.point for name, each in alone.metrics.items()} == {"acceptance_rate": 0.75}
    assert alone.source == "the counters of the metrics page"
    gauge = readings({}, {}, acceptance_length=np.array([0.0, 3.5]))
    assert acceptance_of(gauge, plain).metrics["acceptance_length"].point == 3.5
    assert acceptance_of(None, plain).metrics == {}
    still = acceptance_of(readings({"drafts": 5}, {"drafts": 5}), plain)
    assert (still.metrics, still.source) == ({}, "")
    told = seen_by_hand(draft_tokens=np.array([12, MISSING]), accepted_draft_tokens=np.array([6, MISSING]))
    replies = by_replies(told)
    assert (replies["acceptance_length"].point, replies["acceptance_rate"].point) == (4.0, 0.5)
    assert by_stream(plain).point == 4.0


def test_steps_without_a_draft() -> None:
    """N-grams: ten drafts in eighty steps."""
    grown = {"drafts": 10, "draft_tokens": 40, "accepted_draft_tokens": 20, "generated_tokens": 102}
    at = {"accepted_draft_tokens_at[0]": 12, "accepted_draft_tokens_at[1]": 8}
    for finished in ({"requests_finished": 2}, {}):  # else there are the two replies
        after = {**grown, **at, **finished}
        found = acceptance_of(readings(dict.fromkeys(after, 0), after), seen_by_hand()).metrics
        assert (found["acceptance_length"].point, found["tokens_per_step"].point) == (3.0, 1.25)
        assert (found["acceptance_length"].n, found["tokens_per_step"].n) == (10, 80)
        error = ((12 + 3 * 8) / 80 - 0.25**2) ** 0.5 / 80**0.5
        assert found["tokens_per_step"].upper == pytest.approx(1.25 + 1.96 * error, abs=1e-4)

    def of_ngrams(seen: Observation) -> Observation:
        assert seen.engine is not None
        more = {"generated_tokens": 7.0 * seen.engine.totals_after["generated_tokens"]}
        return replace(seen, engine=replace(seen.engine, totals_after={**seen.engine.totals_after, **more}))

    result = measured(change=of_ngrams)
    (note,) = [str(each) for each in result.notes if each.id == "steps_without_draft"]
    assert "% of the steps had a draft" in note


def test_latencies_of_steps_of_several_tokens_by_hand() -> None:
    """TPOT is time over tokens, whatever the steps; ITL the time between events, and named so."""
    records = seen_by_hand()
    assert tpot_ms(records).tolist() == [20 / 8, 40 / 8]
    assert choose_option(records) == "A"
    samples = itl_samples(records, "A", min_output_tokens=2)
    assert samples.counts.label == "Time Between Chunks"
    assert samples.values.tolist() == [10.0, 10.0, 30.0, 10.0]
    every = itl_samples(records, "B", min_output_tokens=2).values  # a token each, the burst together
    assert sorted(every.tolist()) == [0.0] * 12 + [10.0] * 3 + [30.0]


@pytest.mark.usefixtures("however_late")
@pytest.mark.parametrize("form", get_args(MetricsForm))
def test_the_served_engine_tells_the_same_as_the_replay(form: MetricsForm) -> None:
    """SGLang's counters know no places and no guessed tokens; they count what was sent, so nothing of a last
    draft beyond the end of its reply."""
    work = LoadPlan("work", WORK, ClosedLoop(4), 24, seed=3)
    scenario = f"{ON}&usage=every_chunk&metrics={form}"
    with EmbeddedEngine.start(scenario) as served, EngineMetricsProbe(page_urls(served.url)) as page:
        assert page.before() is None
        target, spoken = Target.parse(served.url), dialect("openai-completions")
        with LoadGenerator(target, spoken, model=served.model, prompt_form="token_ids") as generator:
            real = generator.run(work).records
        readings = page.stop()
    told = acceptance_of(readings, real)
    virtual = ReplayEngine(parse_scenario(ON)).run(work)
    again = acceptance_of(virtual.engine, virtual.records)
    assert told.source == again.source == "the counters of the metrics page"
    length, expected = told.metrics["acceptance_length"], again.metrics["acceptance_length"]
    if form == "sglang":
        assert length.point == pytest.approx(by_stream(real).point, rel=1e-12)
        assert length.point == pytest.approx(expected.point, rel=0.03)
        assert "acceptance_at[1]" not in told.metrics
    else:
        assert length == expected
        assert told.metrics["acceptance_rate"] == again.metrics["acceptance_rate"]
        assert told.metrics["acceptance_at[4]"] == again.metrics["acceptance_at[4]"]
    for name in ("draft_tokens", "accepted_draft_tokens"):
        assert sorted(getattr(real, name).tolist()) == sorted(getattr(virtual.records, name).tolist())
    assert by_stream(real).point == by_stream(virtual.records).point
    assert by_replies(real)["acceptance_length"].point == by_stream(real).point


@pytest.mark.usefixtures("however_late")
def test_replies_of_tensorrt_tell_the_length() -> None:
    """``avg_decoded_tokens_per_iter`` of each choice, where the metrics page tells nothing."""
    work = LoadPlan("work", WORK, ClosedLoop(4), 24, seed=3)
    scenario = f"{ON}&usage=every_chunk&server_timings=off&metrics=tensorrt-llm"
    with EmbeddedEngine.start(scenario) as served:
        target, spoken = Target.parse(served.url), dialect("openai-completions")
        with LoadGenerator(target, spoken, model=served.model, prompt_form="token_ids") as generator:
            real = generator.run(work).records
    virtual = ReplayEngine(parse_scenario(ON)).run(work).records
    assert sorted(real.accepted_draft_tokens.tolist()) == sorted(virtual.accepted_draft_tokens.tolist())
    counted = {"draft_tokens": 100, "accepted_draft_tokens": 60}  # of each iteration: the rate alone
    told = acceptance_of(readings(dict.fromkeys(counted, 0), counted), real)
    assert told.source == "the replies"
    assert told.metrics["acceptance_length"].point == by_stream(virtual).point
    assert told.metrics["acceptance_rate"].point == 0.6


def test_replies_of_one_token_an_iteration_tell_no_length() -> None:
    """As TensorRT-LLM's are without speculation."""
    assert by_replies(seen_by_hand(accepted_draft_tokens=np.zeros(2, dtype=np.int64))) == {}


def test_figures_by_class() -> None:
    parts = {"synthetic-uniform": 0.5, "synthetic-skewed": 0.5}
    result = measured(workload=parts, prompts=32)
    for label in parts:
        assert result.metrics[f"acceptance_length[{label}]"].point == pytest.approx(LENGTH, rel=0.2)
        assert result.metrics[f"tokens_per_event[{label}]"].point == pytest.approx(LENGTH, rel=0.2)
    assert "acceptance_by_class" in {table.id for table in result.tables}


SUITE = """
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

SHORT = SyntheticWorkload("short", Fixed(50), Fixed(100))

@llmbench.speculative(prompts=32, concurrency=4, min_acceptance_length=2.0, workload=SHORT)
def test_speculation(llm_result):
    told = llm_result.metrics["acceptance_length"].point
    assert abs(told / 2.7731 - 1) < 0.08
    assert "acceptance_told_by" in {note.id for note in llm_result.notes}
"""


@pytest.mark.usefixtures("however_late")
@pytest.mark.parametrize("form", get_args(MetricsForm))
def test_a_session_on_each_engine_s_page_alone(pytester: pytest.Pytester, form: MetricsForm) -> None:
    suite = Suite(pytester)
    suite.write(SUITE, SMALL_WARMUP)
    with EmbeddedEngine.start(f"{ON}&usage=every_chunk&server_timings=off&metrics={form}") as served:
        outcome = suite.measure(served.url, "-n0")
    outcome.assert_outcomes(passed=1)
