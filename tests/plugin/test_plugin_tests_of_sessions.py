"""Tests of the draft with workloads of sessions, from marker to report, records and recomputed figures."""

from __future__ import annotations

import pytest
from plugin_suite import SMALL_WARMUP, Suite

from pytest_llmbench.__main__ import main

pytestmark = pytest.mark.usefixtures("without_pictures")

PREFIX_CACHE = """
from pytest_llmbench import llmbench

TALKS = {
    "sessions": {
        "turns": (2, 4),
        "pause_s": (0.1, 0.5),
        "input_tokens": (50, 300),
        "output_tokens": (20, 60),
        "system_tokens": 512,
    }
}

@llmbench.prefix_cache(workload=TALKS, total_sessions=150, min_turn_hit_rate={"1": 0.9, "2+": 0.9})
def test_talks(llm_result):
    metrics = llm_result.metrics
    assert metrics["turn_cached_share[2+]"].point <= metrics["turn_cacheable_share[2+]"].point

@llmbench.prefix_cache(workload=TALKS, total_sessions=40, min_turn_ttft_reduction={"2+": 0.99})
def test_too_much_to_ask(): ...
"""


def recomputed(suite: Suite, capsys: pytest.CaptureFixture[str]) -> int:
    """The number of tests whose figures come out the same from what was stored."""
    capsys.readouterr()
    assert main(["recompute", str(suite.path / "out" / "report.json")]) == 0
    return capsys.readouterr().out.count("figures are identical")


def test_a_prefix_cache_by_turn(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    suite.write(PREFIX_CACHE, SMALL_WARMUP)
    suite.measure("replay:fast", scale="standard").assert_outcomes(passed=1, failed=1)
    talks, failed = suite.report["tests"]
    assert [level["role"] for level in talks["levels"]] == ["disabled", "cold", "warm"]
    assert talks["load"]["sessions"] == 8
    objectives = {each["metric"]: each["verdict"] for each in talks["gate"]["objectives"]}
    assert objectives == {"turn_cache_hit_rate[1]": "pass", "turn_cache_hit_rate[2+]": "pass"}
    assert [each["verdict"] for each in failed["gate"]["objectives"]] == ["fail"]
    for page in ("report.md", "report.html"):
        assert "Cache Effectiveness by Turn" in (suite.path / "out" / page).read_text("utf-8")
    assert recomputed(suite, capsys) == 2
