"""``--llm-budget`` and ``budget=`` from the command line to the report, in virtual time."""

from __future__ import annotations

import pytest
from plugin_suite import Suite, refused

AB = """
    @llmbench.ttft(rate=20)
    @llmbench.no_regression("tpot.p50", max_slowdown=0.02)
    def test_speed(): ...
"""
SLOWER = "replay:h100-8b?step_base_us=7150&prefill_us_per_token=39.6&decode_us_per_sequence=16.5"


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [pytest.param("replay:h100-8b", "equivalent", marks=pytest.mark.slow), (SLOWER, "regressed")],
)
def test_a_comparison_ends_when_it_is_decided(suite: Suite, candidate: str, verdict: str) -> None:
    suite.write(AB)
    against = "--llm-baseline-endpoint=replay:h100-8b"
    ran = suite.measure(candidate, against, "--llm-budget=2m", scale="standard")
    ran.assert_outcomes(**{"passed" if verdict == "equivalent" else "failed": 1})
    (test,) = suite.report["tests"]
    (found,) = (each for each in test["comparisons"] if each["gated"])
    assert found["verdict"] == verdict
    assert 3 <= len(found["candidate"]) == len(found["baseline"]) < 12
    assert "budget of 120 s: in 90 of 100 sessions the test finds a worsening of" in test["notes"][0]
    assert suite.recomputed() == 1


def test_a_job_is_run_until_its_limits_are_decided(suite: Suite) -> None:
    suite.write(
        """
        @llmbench.job(prompts=60, concurrency=16, ttft_p99_ms=100_000, budget="1m")
        def test_far(llm_result):
            assert len(llm_result.observations) == 1

        @llmbench.job(prompts=60, concurrency=16, min_output_tok_s=1500, budget="1m")
        def test_near(llm_result):
            assert len(llm_result.observations) == 5
        """
    )
    suite.run("--llm-endpoint=replay:h100-8b").assert_outcomes(passed=2)


def test_the_plan_says_what_the_time_is_spent_on(suite: Suite) -> None:
    suite.write(AB.replace('@llmbench.no_regression("tpot.p50", max_slowdown=0.02)', ""))
    ran = suite.run("--llm-endpoint=replay:h100-8b", "--llm-budget=1m", "--llm-plan")
    ran.stdout.fnmatch_lines(["*1,064 requests*, 66 s"])


@pytest.mark.parametrize("wrong", ["soon", "0s"])
def test_what_is_no_time_is_refused(suite: Suite, wrong: str) -> None:
    suite.write(AB)
    ran = suite.run("--llm-endpoint=replay", f"--llm-budget={wrong}")
    refused(ran).fnmatch_lines(["*--llm-budget*"])
