"""``@llmbench.job`` on a replayed engine: the loads that engine repositories gate are decided."""

from __future__ import annotations

import re
from typing import Any

import pytest
from plugin_suite import SMALL_WARMUP, Suite

SHAPES = """
from pytest_llmbench import e2e, llmbench, ms

@llmbench.job(prompts=500, min_output_tok_s=10, max_makespan_s=3_600, ttft_p99_ms=600_000, itl_p99_ms=5_000)
def test_all_at_once(): ...

@llmbench.job(prompts=200, concurrency=64, ttft_p99_ms=60_000, tpot_p50_ms=500, min_requests_per_s=0.1)
def test_200_with_64_in_flight(): ...

@llmbench.ttft(requests=640, concurrency=64, p50_ms=60_000, p99_ms=90_000, slo=[e2e.p99 <= 900_000 * ms])
def test_640_with_64_in_flight(): ...

@llmbench.job(prompts=512, concurrency=128, runs=3, ttft_mean_ms=90_000, e2e_p99_ms=600_000)
def test_512_with_128_in_flight(): ...
"""


def standard(suite: Suite, *more: str, endpoint: str = "replay:h100-8b") -> pytest.RunResult:
    return suite.measure(endpoint, *more, scale="standard")


def limits(entry: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["metric"]: (each["verdict"], each["reason"]) for each in entry["gate"]["objectives"]}


def test_the_shapes_of_engine_repositories_are_decided_and_recomputed(suite: Suite) -> None:
    suite.write(SHAPES, conftest=SMALL_WARMUP)
    standard(suite).assert_outcomes(passed=4)
    found = suite.entries
    for name, runs in (("test_all_at_once", 1), ("test_512_with_128_in_flight", 3)):
        figure = found[name]["metrics"]["makespan"]
        assert (figure["runs"], figure["kind"]) == (runs, "assumed_spread" if runs == 1 else "runs")
        assert figure["lower"] < figure["point"] < figure["upper"]
        assert {verdict for verdict, _ in limits(found[name]).values()} == {"pass"}
    reason = limits(found["test_all_at_once"])["output_token_throughput"][1]
    enough = "1.5 times is enough while the noise of this system is unknown"
    assert re.fullmatch(rf"the value is [\d.]+ times the limit; {enough}", reason)
    assert suite.recomputed() == 4


def test_a_near_limit_takes_five_runs_and_a_far_one_one(suite: Suite) -> None:
    body = """
        @llmbench.job(prompts=60, concurrency=16, ttft_p50_ms={limit})
        def test_near(): ...

        @llmbench.job(prompts=60, concurrency=16, ttft_p50_ms=1e6)
        def test_far(): ...
        """
    suite.write(body.format(limit=1e6), conftest=SMALL_WARMUP)
    standard(suite).assert_outcomes(passed=2)
    point = suite.entries["test_near"]["metrics"]["ttft.p50"]["point"]
    suite.write(body.format(limit=1.2 * point), conftest=SMALL_WARMUP)
    standard(suite).assert_outcomes(passed=2)
    found = suite.entries
    assert {name: each["metrics"]["ttft.p50"]["runs"] for name, each in found.items()} == {
        "test_near": 5, "test_far": 1,
    }  # fmt: skip
    suite.write(body.format(limit=point / 10), conftest=SMALL_WARMUP)
    standard(suite).assert_outcomes(passed=1, failed=1)
    assert suite.entries["test_near"]["metrics"]["ttft.p50"]["runs"] == 1


def test_the_plan_tells_the_runs_that_it_takes(suite: Suite) -> None:
    suite.write(SHAPES.split("@llmbench.ttft")[0], conftest=SMALL_WARMUP)
    result = standard(suite, "--llm-plan", "-k", "64_in_flight")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*304 requests (104 in warm-ups and probes)*"])


@pytest.mark.slow
def test_workers_of_xdist_measure_jobs(suite: Suite) -> None:
    suite.write(SHAPES.split("@llmbench.ttft")[0], conftest=SMALL_WARMUP)
    standard(suite, "-n", "2").assert_outcomes(passed=2)


@pytest.mark.slow
def test_a_proposed_limit_of_a_calibration_decides_in_one_run(suite: Suite) -> None:
    body = """
        @llmbench.job(prompts=60, concurrency=16, ttft_p50_ms={p50}, e2e_p99_ms={p99})
        def test_gate(): ...
        """
    suite.write(body.format(p50=1e6, p99=1e6), conftest=SMALL_WARMUP)
    noisy = "replay:fast?eos_mean_tokens=300"
    standard(suite, "--llm-calibrate", "--llm-runs=8", endpoint=noisy).assert_outcomes(passed=1)
    rows = {row[0]: row for row in suite.entries["test_gate"]["tables"]["calibration"]["rows"]}
    p50, p99 = (float(re.sub(r"[^0-9.]", "", rows[name][6])) for name in ("ttft.p50", "e2e.p99"))
    suite.write(body.format(p50=p50, p99=p99), conftest=SMALL_WARMUP)
    standard(suite, endpoint=noisy).assert_outcomes(passed=1)
    entry = suite.entry
    for metric in ("ttft.p50", "e2e.p99"):
        figure = entry["metrics"][metric]
        assert (figure["kind"], figure["runs"]) == ("saved_spread", 1)
        assert "with the saved spread" in limits(entry)[metric][1]
    assert not [each for each in entry["validity"]["findings"] if each["check"] == "limit_within_noise"]
    assert suite.recomputed() == 1
    suite.pytester.makeconftest(SMALL_WARMUP.replace("requests=2", "requests=3"))
    standard(suite, endpoint=noisy)
    entry = suite.entry
    assert entry["metrics"]["ttft.p50"]["kind"] != "saved_spread"
    assert any("measured something else: warmup was 2 requests" in note for note in entry["notes"])


def test_keywords_of_other_tests_are_answered_with_those_of_a_job(suite: Suite) -> None:
    suite.write("""
        @llmbench.job(requests=100, steady=True, compliance="conditional")
        def test_job(): ...
    """)
    result = standard(suite)
    result.stderr.fnmatch_lines(["*unknown parameter 'requests'; did you mean prompts?*"])
    assert result.ret != 0
