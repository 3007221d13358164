"""Profiles and their mixtures from marker to report."""

from __future__ import annotations

from plugin_suite import Suite

MIXED = """
from pytest_llmbench import llmbench, ms, ttft, e2e

@llmbench.ttft(
    rate=20,
    workload={"profile:CLAS": 0.6, "house": 0.4},
    slo=[ttft["profile:CLAS"].p50 <= 900 * ms, e2e["house"].p50 <= 0.01 * ms],
)
def test_mixture(): ...
"""
CONFTEST = """
from pytest_llmbench import Fixed, SyntheticWorkload

def pytest_llmbench_workloads(config):
    return {"house": SyntheticWorkload("house", Fixed(64), Fixed(8))}
"""


def test_limits_on_classes_are_judged_told_and_recomputed(suite: Suite) -> None:
    suite.write(MIXED, CONFTEST)
    result = suite.measure("replay")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*FAIL e2e[[]house].p50 <= 0.01 ms*"])
    (entry,) = suite.report["tests"]
    assert entry["metrics"]["ttft[profile:CLAS].p50"]["n"] + entry["metrics"]["e2e[house].p50"]["n"] == 50
    assert entry["compliance"]["verdict"] == "not_compliant"
    workload = next(each["text"] for each in entry["configuration"] if each["item"] == "Workload")
    assert "profile:CLAS, after draft-mondal" in workload
    assert "suggests no limit (a suggestion, not applied)" in workload
    assert suite.recomputed() == 1


def test_the_plan_tells_what_a_profile_suggests(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(rate=20, p50_ms=900, workload="profile:COMP")
        def test_completion(): ...
    """)
    result = suite.run("--llm-endpoint=replay", "--llm-plan", "--llm-scale=quick")
    result.stdout.fnmatch_lines(["*profile:COMP*suggests ttft.p99 <= 200 ms (a suggestion, not applied)*"])
