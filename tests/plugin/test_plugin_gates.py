"""Gates from marker to outcome: loads that end when decided, goodput, parts of a test, failed requests."""

from __future__ import annotations

import pytest
from plugin_suite import SMALL_WARMUP, Suite

AUTO = """
@llmbench.ttft(p50_ms=500, rate=50, requests="auto", max_requests=3000)
def test_first_token(llm_result):
    assert llm_result.facts.value("load.decided")

@llmbench.ttft(p50_ms=1, concurrency=4, requests="auto")
def test_impossible(): ...
"""


def test_a_decided_load_ends_early_and_the_report_says_so(suite: Suite) -> None:
    suite.write(AUTO)
    result = suite.measure("replay", scale="standard")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*FAIL ttft.p50 <= 1 ms*the whole interval is beyond the limit (at the level of this look, *"]
    )
    passed, failed = suite.entries["test_first_token"], suite.entries["test_impossible"]
    sent = passed["counts"]["submitted"]
    assert 300 <= sent < 2_000
    assert any(f"of at most 3000 requests: {3_000 - sent} saved" in note for note in passed["notes"])
    assert passed["facts"]["workload.n_requests"]["value"] == sent
    assert passed["gate"]["verdict"] == "pass"
    (objective,) = passed["gate"]["objectives"]
    assert objective["n"] == passed["facts"]["load.decided_after"]["value"] <= sent
    assert passed["metrics"]["ttft.p50"]["n"] == sent
    assert passed["validity"]["verdict"] == "valid"
    assert failed["gate"]["verdict"] == "fail"


def test_the_plan_ends_loads_as_they_would_end(suite: Suite) -> None:
    suite.write(AUTO)
    result = suite.run("--llm-endpoint=replay", "--llm-plan")
    result.stdout.fnmatch_lines(["*requests*in warm-ups*", "*requests*"])


def test_auto_without_a_limit_is_refused_at_collection(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(requests="auto", max_seconds=-1)
        def test_nothing(): ...
        @llmbench.goodput(requests="auto")
        def test_no_limits(): ...
    """)
    result = suite.measure("replay")
    result.stderr.fnmatch_lines(["*max_seconds must be greater than zero*", "*at least one of ttft_ms*"])


def test_goodput_passes_fails_and_has_no_compliance_class(suite: Suite) -> None:
    suite.write("""
        @llmbench.goodput(ttft_ms=500, tpot_ms=100, e2e_ms=60_000, min_share=0.9, rate=20, requests=200)
        def test_good(llm_result):
            assert llm_result.goodput_share.point == 1.0
            assert llm_result.goodput.point > 10

        @llmbench.goodput(ttft_ms=1, min_share=0.9, rate=20, requests=200)
        def test_bad(): ...
    """)
    result = suite.measure("replay", scale="standard")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*FAIL goodput_share >= 90 %*"])
    for entry in suite.entries.values():
        assert entry["compliance"]["requirements"] == []
        assert entry["compliance"]["verdict"] == "not_compliant"
        assert any("not part of the draft" in note for note in entry["notes"])
    assert "Goodput Results" in (suite.path / "out" / "summary.md").read_text("utf-8")


def test_broken_schemas_are_limited_apart_from_goodput(suite: Suite) -> None:
    suite.write("""
        import pytest
        from pytest_llmbench import llmbench, metric

        LOAD = {"e2e_ms": 60_000, "min_share": 0.9, "rate": 20, "requests": 100}

        @llmbench.goodput(**LOAD, workload="profile:FUNC", max_schema_violation_rate=0.5)
        def test_kept(llm_result):
            assert llm_result.goodput_share.point == 1.0
            assert 0.1 < llm_result.metrics["schema_violation_rate"].point < 0.5

        @llmbench.goodput(**LOAD, workload="profile:FUNC", max_schema_violation_rate=0.1)
        def test_broken(): ...

        @llmbench.goodput(**LOAD, max_schema_violation_rate=0.9)
        def test_nothing_was_asked(): ...

        @llmbench.ttft(
            rate=20, requests=100, workload={"profile:FUNC": 1, "profile:CLAS": 1},
            slo=[metric("schema_violation_rate[profile:FUNC]", "ratio") <= 0.6],
        )
        def test_mixed(llm_result):
            rates = {name: each.point for name, each in llm_result.metrics.items() if "violation" in name}
            assert rates["schema_violation_rate"] == rates["schema_violation_rate[profile:FUNC]"]
            assert "schema_violation_rate[profile:CLAS]" not in rates
            assert sum(rates.values()) == pytest.approx(3 * rates["schema_violation_rate"])
    """)
    result = suite.measure("replay:fast?schema_fault_rate=0.3", scale="standard")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*FAIL schema_violation_rate <= 10 %*"])
    lines = [line for line in result.outlines if "test_nothing_was_asked" in line]
    assert any("INCONCLUSIVE" in line for line in lines), lines


@pytest.mark.slow
@pytest.mark.usefixtures("however_late")
def test_why_thinking_ended_by_a_counter_of_the_page(suite: Suite) -> None:
    body = """
        @llmbench.reasoning(rate=20, requests=40)
        def test_budget(llm_result): ...
    """
    suite.write(body, conftest=SMALL_WARMUP)
    (suite.path / "sut.toml").write_text(
        '[reasoning]\nend_reason = "metric:vllm:thinking_ended_total{reason}"\n'
    )
    thinks = "think_mean_tokens=20&think_spread=0.5&think_budget_tokens=20&server_timings=false"
    suite.measure(f"sim:fast?{thinks}", "--llm-sut=sut.toml", scale="standard").assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    every = entry["metrics"]["budget_force_rate"]
    assert every["method"].startswith("counter of the engine's metrics page")
    assert 0 < every["point"] < 1
    assert entry["metrics"]["budget_force_rate[overthinking]"]["point"] == every["point"]


def test_reasoning_from_marker_to_reports(suite: Suite) -> None:
    suite.write("""
        LOAD = {"rate": 1, "requests": 200}

        @llmbench.reasoning(**LOAD, ttot_p50_ms=50, max_critical_evictions=0, max_budget_force_rate=0.5)
        def test_kept(llm_result):
            assert llm_result.think_tokens.mean.point > 40

        @llmbench.reasoning(**LOAD, max_think_tokens_mean=20, ttot_p99_ms=50)
        def test_broken(): ...
    """)
    thinks = "think_mean_tokens=60&think_spread=0.3&think_budget_tokens=80&scheduler=phase"
    result = suite.measure(f"replay:fast?{thinks}", scale="standard")
    result.assert_outcomes(passed=1, failed=1)
    kept, broken = suite.entries.values()
    assert [each["verdict"] for each in broken["gate"]["objectives"]] == ["pass", "fail"]
    assert kept["compliance"]["requirements"] == []
    assert broken["metrics"]["think_tokens.mean"]["point"] > 20
    shown = {
        "summary.md": "Reasoning Results",
        "report.html": "Distribution of TTOT",
        "minimum.txt": "chat-and-reasoning",
    }
    for name, text in shown.items():
        assert text in (suite.path / "out" / name).read_text("utf-8"), name


def test_limits_on_goodput_are_written_like_any_other(suite: Suite) -> None:
    suite.write("""
        from pytest_llmbench import goodput, goodput_share, llmbench, output_token_goodput
        from pytest_llmbench import percent, req_s, tok_s

        GOOD = dict(ttft_ms=500, min_share=0.5, rate=20, requests=200)
        LIMITS = [goodput >= 10 * req_s, goodput_share >= 90 * percent, output_token_goodput >= 10 * tok_s]

        @llmbench.goodput(**GOOD, slo=LIMITS)
        def test_kept(): ...

        @llmbench.goodput(**GOOD, slo=[goodput >= 1_000 * req_s])
        def test_broken(): ...
    """)
    suite.measure("replay", scale="standard").assert_outcomes(passed=1, failed=1)
    assert verdicts(suite, "test_kept") == ["pass"] * 4
    assert verdicts(suite, "test_broken") == ["pass", "fail"]
    suite.write("""
        from pytest_llmbench import goodput, llmbench, req_s

        @llmbench.ttft(rate=20, requests=200, slo=[goodput >= 10 * req_s])
        def test_elsewhere(): ...
    """)
    result = suite.measure("replay", scale="standard")
    result.stderr.fnmatch_lines(["*slo limits goodput, which ttft does not measure: use @llmbench.goodput*"])


def verdicts(suite: Suite, name: str) -> list[str]:
    return [judged["verdict"] for judged in suite.entries[name]["gate"]["objectives"]]


def test_limits_on_buckets(suite: Suite) -> None:
    suite.write("""
        from pytest_llmbench import llmbench, ms, ttft

        @llmbench.ttft(
            rate=20, requests=300, slo=[ttft["0-256"].p50 <= 500 * ms, ttft["256-512"].p50 <= 1 * ms]
        )
        def test_buckets(): ...
    """)
    suite.measure("replay", scale="standard").assert_outcomes(failed=1)
    assert verdicts(suite, "test_buckets") == ["pass", "fail"]


def test_limits_on_classes(suite: Suite) -> None:
    suite.write("""
        from pytest_llmbench import llmbench, ms, ttft
        from pytest_llmbench.model.objective import metric

        @llmbench.fairness(
            capacity_rps=30,
            slo=[ttft["short"].p50 <= 5_000 * ms, metric("starvation_rate", "ratio")["long"] <= 1.0],
        )
        def test_classes(): ...
    """)
    suite.measure("replay", scale="quick").assert_outcomes(passed=1)
    assert verdicts(suite, "test_classes") == ["pass", "pass"]


FAULTY = "replay:fast?fault=http_error&fault_rate=0.03&seed=3"


def test_failures_over_the_limit_and_the_error_budget_before_all(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(p99_ms=60_000, rate=20, requests=1000, max_error_share=0.1)
        def test_left_out(): ...

        @llmbench.ttft(p99_ms=60_000, rate=20, requests=1000, max_error_share=0.1, failures="over_limit")
        def test_over(): ...

        @llmbench.ttft(p50_ms=1, rate=20, requests="auto", max_requests=1000)
        def test_budget(): ...
    """)
    result = suite.measure(FAULTY, scale="standard")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    found = suite.entries
    assert found["test_over"]["gate"]["verdict"] == "fail"
    assert found["test_over"]["metrics"]["ttft.p99"]["point"] < 60_000
    assert found["test_budget"]["validity"]["verdict"] == "invalid"
    assert found["test_budget"]["counts"]["submitted"] < 1_000
    assert found["test_budget"]["gate"]["verdict"] == "inconclusive"
