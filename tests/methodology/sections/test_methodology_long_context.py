"""The long-context procedure (section 5.9): laws known in advance, canned and in the engine."""

from __future__ import annotations

from typing import Any

import pytest
from canned_levels import are_in_the_catalogue, rows_of
from canned_streams import StreamServer, streaming_setting
from replayed_sut import ReplayedSUT

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Scale
from pytest_llmbench.methodology.sections import long_context
from pytest_llmbench.model.draft import CONTEXT_LENGTHS
from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.long_context import LONG_CONTEXT, LongContextWorkload
from pytest_llmbench.workloads.long_context import long_context as mixed
from pytest_llmbench.workloads.sequence import drawn, sequence_sha256

LENGTHS = (1024, 2048, 4096, 8192)


def straight(plan: Any, request: Any) -> float:
    """20 ms and 50 µs per token."""
    return 20.0 + 0.05 * float(request.input_tokens)


def pump(
    server: StreamServer, scale: Scale = "standard", limit: int | None = None, **given: Any
) -> TestResult:
    parameters = build(long_context.Parameters, {"lengths": LENGTHS, **given})
    facts = {"sut.context_limit_tokens": limit} if limit is not None else {}
    return drive(
        long_context.TEST.procedure(parameters, streaming_setting(LONG_CONTEXT, scale, **facts)), server
    )


def test_a_straight_line_is_recovered() -> None:
    result = pump(StreamServer(ttft_ms=straight))
    assert result.metrics["prefill_slope"].point == pytest.approx(50.0)
    assert result.metrics["prefill_linear_fit"].point == pytest.approx(1.0)
    fit = result.facts.value("long_context.fit")
    assert fit["linear"]["slope_us_per_token"] == pytest.approx(50.0)
    assert fit["linear"]["intercept_ms"] == pytest.approx(20.0)
    assert fit["power"]["k"] < 1
    assert result.facts.value("long_context.best_fit").startswith("Linear (R² = 1), about 50.0 µs")
    assert any(note.startswith("best fit: Linear") for note in map(str, result.notes))


def test_a_power_law_is_recovered() -> None:
    result = pump(StreamServer(ttft_ms=lambda plan, request: 0.001 * request.input_tokens**1.5))
    assert result.metrics["prefill_exponent"].point == pytest.approx(1.5, abs=1e-6)
    assert result.metrics["prefill_exponent_fit"].point == pytest.approx(1.0)
    assert result.facts.value("long_context.best_fit").startswith("Power law (R² = 1)")
    assert result.facts.value("long_context.fit")["power"]["r2_original_scale"] == pytest.approx(1.0)


def test_ttft_and_prefill_scaling_of_every_length() -> None:
    result = pump(StreamServer(ttft_ms=straight))
    assert result.metrics["ttft[8192].mean"].point == pytest.approx(429.6)
    assert result.metrics["ttft[1024].p95"].point == pytest.approx(71.2)
    by_length = {entry["length"]: entry for entry in result.facts.value("long_context.lengths")}
    assert list(by_length) == list(LENGTHS)
    assert by_length[8192]["ms_per_1k_tokens"] == pytest.approx(1000 * 429.6 / 8192)
    # 256 tokens in 429.6 ms and 255 gaps of 10 ms, one request at a time
    assert by_length[8192]["output_tok_s"] == pytest.approx(256 / 2.9796, rel=0.01)
    assert by_length[8192]["input_tok_s"] == pytest.approx(8192 / 2.9796, rel=0.01)
    assert all(entry["requests_ok"] == 20 for entry in by_length.values())


def test_table_twelve_follows_the_draft_and_adds_the_median() -> None:
    result = pump(StreamServer(ttft_ms=straight), concurrency=2)
    shown = next(t for t in result.tables if t.id == "long_context")
    assert shown.title == "Long Context Scaling"
    assert shown.columns[:5] == ("Context (tokens)", "TTFT Mean", "TTFT P50", "TTFT P95", "ms/1K tokens")
    assert shown.columns[6] == "Output tok/s at 2 in flight"
    assert rows_of(result, "long_context")["8192"][0].startswith("429.6 ms")
    assert rows_of(result, "long_context")["8192"][3] == "52.4 ms"
    assert rows_of(result, "long_context_fit")["Best fit"][0].startswith("Linear")
    plot = result.plots[0]
    assert plot.x_log
    assert plot.y_log
    assert plot.series["mean TTFT"][0] == tuple(map(float, LENGTHS))


def test_lengths_ascend_in_a_closed_loop_with_twenty_requests_each() -> None:
    server = StreamServer(ttft_ms=straight)
    result = pump(server)
    plans = server.measured
    assert [plan.workload.specification()["input_length"]["params"]["tokens"] for plan in plans] == list(
        LENGTHS
    )
    assert {plan.load for plan in plans} == {ClosedLoop(1)}
    assert {plan.requests for plan in plans} == {20}
    assert [level.label for level in result.levels] == [str(length) for length in LENGTHS]
    for plan in plans:
        planned = drawn(plan.workload, plan.first, 20, plan.seed)
        assert {request.max_tokens for request in planned} == {256}
        assert plan.workload.name == "long-context"
        assert plan.workload.standard


def test_no_two_documents_begin_alike() -> None:
    server = StreamServer()
    pump(server)
    beginnings = [
        tuple(request.token_ids[:16])
        for plan in server.measured
        for request in drawn(plan.workload, plan.first, plan.requests, plan.seed)
        if request.token_ids is not None
    ]
    assert len(beginnings) == 80
    assert len(set(beginnings)) == 80


def test_warm_up_has_short_contexts() -> None:
    server = StreamServer()
    result = pump(server)
    warm = [plan for plan in server.plans if plan.phase is not Phase.MEASURE]
    assert warm
    assert all(r.input_tokens <= 512 for plan in warm for r in plan.workload.requests(2, plan.seed))
    assert result.facts.value("warmup.longest_input_tokens") == 512
    assert result.warmup.performed


def test_the_sequence_of_all_lengths_is_told() -> None:
    server = StreamServer()
    facts = pump(server).facts
    assert facts.value("workload.name") == "long-context"
    assert facts.value("workload.n_requests") == 80
    assert facts.value("workload.targets") == list(LENGTHS)
    assert facts.value("workload.slices") == [[0, 20]] * 4
    again = [
        request
        for length, (_, seed) in zip(LENGTHS, facts.value("workload.parts"), strict=True)
        for request in LONG_CONTEXT.at_length(length).requests(20, seed)
    ]
    assert facts.value("workload.sequence_sha256") == sequence_sha256(again)


def test_lengths_beyond_the_context_are_left_out_and_named() -> None:
    server = StreamServer(ttft_ms=straight)
    result = pump(server, limit=4096 + 256)
    assert [plan.label for plan in server.measured] == ["1024 tokens", "2048 tokens", "4096 tokens"]
    assert result.facts.value("long_context.omitted") == [8192, 16384, 32768, 65536, 131072]
    assert any(
        "do not fit a context of 4352 tokens" in note and "8192" in note for note in map(str, result.notes)
    )


def test_too_small_a_context_is_told_before_anything_is_sent() -> None:
    setting = streaming_setting(LONG_CONTEXT, **{"sut.context_limit_tokens": 1000})
    told = long_context.TEST.needs(long_context.Parameters(), setting)
    assert len(told) == 1
    assert "at least 3 are needed" in told[0]
    assert not long_context.TEST.needs(long_context.Parameters(), streaming_setting(LONG_CONTEXT))


def test_an_unknown_context_is_tried_up_to_the_first_refusal() -> None:
    server = StreamServer(ttft_ms=straight, refuses=lambda request: request.input_tokens > 5000)
    result = pump(server, lengths=(1024, 2048, 4096, 8192, 16384))
    assert [plan.label for plan in server.measured][-1] == "8192 tokens"
    assert result.facts.value("long_context.refused") == [8192]
    assert result.facts.value("long_context.omitted") == [16384]
    assert result.metrics["prefill_slope"].point == pytest.approx(50.0)
    assert "ttft[8192].p95" not in result.metrics
    assert result.budgeted == (0, 1, 2)
    assert any(
        "refused prompts of 8192 tokens (400: maximum context" in note for note in map(str, result.notes)
    )
    assert any("context limit is not known" in note for note in map(str, result.notes))
    assert all(finding.ok for finding in result.findings)


def test_a_failing_length_is_no_refusal() -> None:
    result = pump(StreamServer(ttft_ms=straight, fails=lambda plan: plan.label == "8192 tokens"))
    assert result.facts.value("long_context.refused") == []
    assert result.budgeted == (0, 1, 2, 3)
    assert result.metrics["ttft[8192].p95"].point is None
    assert result.metrics["prefill_slope"].point == pytest.approx(50.0)


def test_prompts_cut_to_a_limit_void_the_run() -> None:
    result = pump(
        StreamServer(ttft_ms=straight, input_tokens=lambda request: min(request.input_tokens, 4096)),
        lengths=(512, 1024, 2048, 4096, 8192),
    )
    finding = result.findings[0]
    assert (finding.check, finding.ok, finding.voids) == ("context_truncated", False, True)
    assert "8192 (counted 4096)" in finding.message
    assert result.facts.value("long_context.truncated") == [8192]
    assert "ttft[8192].p95" not in result.metrics
    assert result.metrics["ttft[4096].p50"].point == pytest.approx(224.8)


def test_equal_counts_for_different_lengths_are_a_cut_too() -> None:
    """A vocabulary that needs more tokens than ours hides the cut from a comparison with what was asked."""
    result = pump(
        StreamServer(ttft_ms=straight, input_tokens=lambda request: min(2 * request.input_tokens, 8192))
    )
    assert result.facts.value("long_context.truncated") == [8192]


def test_a_count_clearly_below_what_was_asked_for_is_a_cut() -> None:
    result = pump(
        StreamServer(
            ttft_ms=straight, input_tokens=lambda r: 6600 if r.input_tokens == 8192 else r.input_tokens
        )
    )
    assert result.facts.value("long_context.truncated") == [8192]


@pytest.mark.parametrize(("vocabulary", "template"), [(1.0, 12), (1.0, 40), (1.12, 40), (0.88, 0), (0.7, 40)])
def test_a_template_on_top_or_another_vocabulary_is_no_cut(vocabulary: float, template: int) -> None:
    def counted(request: PlannedRequest) -> int:
        return round(vocabulary * request.input_tokens) + template

    result = pump(StreamServer(ttft_ms=straight, input_tokens=counted))
    assert result.findings[0].ok
    assert result.facts.value("long_context.truncated") == []
    assert result.facts.value("long_context.lengths")[0]["mean_input_tokens"] == (
        round(vocabulary * 1024) + template
    )


def test_a_cut_is_one_by_the_vocabulary_of_the_server() -> None:
    def counted(request: PlannedRequest) -> int:
        return round(0.88 * min(request.input_tokens, 6600))

    result = pump(StreamServer(ttft_ms=straight, input_tokens=counted))
    assert result.facts.value("long_context.truncated") == [8192]


@pytest.mark.parametrize(
    ("limit", "lengths"),
    [
        (131_072 + 256, CONTEXT_LENGTHS),
        (8_192, (1024, 2048, 4096)),
        (4_096, (512, 1024, 2048)),
        (2_048, (256, 512, 1024)),
        (1_280, (256, 512, 1024)),
    ],
)
def test_a_short_context_has_three_lengths_too(limit: int, lengths: tuple[int, ...]) -> None:
    setting = streaming_setting(LONG_CONTEXT, **{"sut.context_limit_tokens": limit})
    assert long_context.lengths_of(long_context.Parameters(), setting) == lengths
    assert long_context.TEST.needs(long_context.Parameters(), setting) == ()


def test_a_context_too_short_for_three_lengths_is_told_with_what_helps() -> None:
    setting = streaming_setting(LONG_CONTEXT, **{"sut.context_limit_tokens": 1_024})
    with pytest.raises(SuiteError, match=r"lengths= or fewer output_tokens="):
        long_context.lengths_of(long_context.Parameters(), setting)
    with pytest.raises(SuiteError, match=r"workload='synthetic-uniform'") as told:
        mixed(4_096)
    assert "lengths=" not in str(told.value)


def test_scales() -> None:
    setting = {scale: streaming_setting(LONG_CONTEXT, scale) for scale in ("quick", "standard", "full")}  # type: ignore[arg-type]
    few = long_context.Parameters(requests=5)
    assert {plan.requests for plan in long_context.TEST.plans(few, setting["quick"])} == {3}
    assert {plan.requests for plan in long_context.TEST.plans(few, setting["standard"])} == {5}
    assert {plan.requests for plan in long_context.TEST.plans(few, setting["full"])} == {20}
    assert long_context.lengths_of(few, setting["full"]) == CONTEXT_LENGTHS
    assert long_context.lengths_of(few, setting["quick"]) == (1024, 2048, 4096, 8192)


def test_another_output_makes_a_custom_workload() -> None:
    server = StreamServer(ttft_ms=straight)
    result = pump(server, output_tokens=16)
    assert {plan.workload.name for plan in server.measured} == {"long-context (custom output)"}
    assert result.facts.value("workload.standard") is False


def test_limits() -> None:
    parameters = build(
        long_context.Parameters, {"max_exponent": 1.2, "max_slope_us": 80, "ttft_p95_ms": {8192: 1500}}
    )
    assert [(o.metric, o.op, o.limit, o.unit) for o in parameters.objectives] == [
        ("prefill_exponent", "<=", 1.2, "ratio"),
        ("prefill_slope", "<=", 80, "us/token"),
        ("ttft[8192].p95", "<=", 1500, "ms"),
    ]
    result = pump(StreamServer(ttft_ms=straight))
    assert are_in_the_catalogue(result.metrics)


def test_mistakes_in_the_marker() -> None:
    with pytest.raises(SuiteError) as wrong_kind:
        build(long_context.Parameters, {"ttft_p95_ms": {"8192": 100}, "lengths": [4096, 1024]})
    assert "must be given as {8192: 1500}" in str(wrong_kind.value)
    assert "lengths must ascend" in str(wrong_kind.value)
    with pytest.raises(SuiteError) as caught:
        build(
            long_context.Parameters,
            {
                "workload": "synthetic-uniform",
                "concurrency": 5,
                "lengths": (100, 1024),
                "ttft_p95_ms": {8192: 100},
            },
        )
    for part in ("'long-context'", "between 1 and 4", "at least 3", "[100]", "[8192]"):
        assert part in str(caught.value)


def replayed(scenario: str, **given: Any) -> TestResult:
    return ReplayedSUT(f"{scenario}&context_limit_tokens=32768").measure(
        long_context.TEST, requests=3, **given
    )


def test_linear_prefill_of_the_engine_has_an_exponent_near_one() -> None:
    result = replayed("fast?prefill_us_per_token=100&step_base_us=50&attention_ns_per_pair=0")
    assert result.metrics["prefill_exponent"].point == pytest.approx(1.0, abs=0.01)
    assert result.metrics["prefill_slope"].point == pytest.approx(100.0, rel=0.01)
    # the engine's context of 32,768 holds no more than 16,384 with the output
    assert [level.label for level in result.levels] == ["1024", "2048", "4096", "8192", "16384"]


def test_attention_of_the_engine_has_an_exponent_near_two() -> None:
    result = replayed(
        "fast?prefill_us_per_token=0&step_base_us=10&kv_us_per_token=0&attention_ns_per_pair=500"
    )
    exponent = result.metrics["prefill_exponent"]
    assert exponent.point == pytest.approx(2.0, abs=0.01)
    # n(n + 1)/2 pairs of 0.5 µs
    assert result.metrics["ttft[8192].p50"].point == pytest.approx(8192 * 8193 / 2 * 0.5e-3, rel=0.01)
    assert result.facts.value("long_context.best_fit").startswith("Power law")


def test_the_engine_refuses_what_does_not_fit_its_context() -> None:
    sut = ReplayedSUT("fast?context_limit_tokens=32768")
    parameters = build(long_context.TEST.parameters, {"requests": 3})
    setting = streaming_setting(LongContextWorkload(LONG_CONTEXT.targets))
    result = drive(long_context.TEST.procedure(parameters, setting), sut.run)
    assert result.facts.value("long_context.refused") == [32768]
    assert result.facts.value("long_context.omitted") == [65536, 131072]
    assert len(result.facts.value("long_context.lengths")) == 5
