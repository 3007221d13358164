"""All ten tests in one session, in virtual time: a smoke run always, the draft's full scale on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from consistent_figures import contradictions
from plugin_suite import Suite

TEN = Path(__file__).parents[2] / "example_suites" / "full_methodology" / "test_ten_tests.py"
QUARTER = "replay:fast?step_base_us=4800&decode_us_per_sequence=24&prefill_us_per_token=40"
"""At a quarter of the speed of the usual engine a smoke run sends fewer requests in as many loads."""
NAMED_DATA_SET = {"prefix_cache": "S-5.7.2-workload", "guardrail": "S-5.10.2-workload"}
"""Tests whose advised workload is needs a data set that is not bundled, and the clause that says so."""


def test_ten_tests_at_quick_scale(suite: Suite) -> None:
    suite.write(TEN.read_text("utf-8"))
    suite.measure(QUARTER, "--llm-inconclusive=pass", scale="quick").assert_outcomes(passed=10)
    report = suite.report
    tests = {entry["test"]: entry for entry in report["tests"]}
    assert len(tests) == 10
    for entry in tests.values():
        assert entry["validity"]["verdict"] == "valid"
        # A smoke run never complies, and says what it falls short of.
        assert entry["compliance"]["verdict"] == "not_compliant"
        assert "M-4.5.1-warmup-volume" in entry["compliance"]["next_class"]["clauses"]
    assert tests["tradeoff"]["shared"]
    assert not tests["throughput"]["shared"]
    assert contradictions(report) == []
    _contradictions_are_found(report)


def _with_figures_of_its_own(report: dict[str, Any]) -> dict[str, Any]:
    """A copy whose figures may be changed."""

    def copied(holder: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            **holder,
            "metrics": {name: dict(figure) for name, figure in holder["metrics"].items()},
            **more,
        }

    tests = [copied(entry, levels=[copied(level) for level in entry["levels"]]) for entry in report["tests"]]
    return {**report, "tests": tests}


def _contradictions_are_found(report: dict[str, Any]) -> None:
    """What the real report must not have, put into it."""
    maximum = {"point": 1.0, "lower": 1.0, "upper": 1.0}
    for test, metric, text in (
        ("throughput", "max_output_token_throughput", "above its maximum"),
        ("throughput", "constrained_output_token_throughput", "and, swept, operating_point"),
        ("tradeoff", "max_output_token_throughput", "and, swept, max_output"),
        ("ttft", "ttft.p99", "not ascending"),
    ):
        spoiled = _with_figures_of_its_own(report)
        entry = next(entry for entry in spoiled["tests"] if entry["test"] == test)
        entry["metrics"][metric] = {**entry["metrics"][metric], **maximum}
        assert any(text in found for found in contradictions(spoiled)), text
    spoiled = _with_figures_of_its_own(report)
    for entry in spoiled["tests"]:
        if entry["test"] == "guardrail":
            entry["metrics"]["throughput_reduction"] |= {"point": -0.3, "lower": -0.4, "upper": -0.2}
        for level in entry["levels"]:
            level["metrics"]["request_throughput"] |= {"point": 1.0}
    found = contradictions(spoiled)
    assert any("with filters it is faster" in text for text in found)
    assert any("in flight are not" in text for text in found)


@pytest.mark.slow
def test_ten_tests_at_full_scale(suite: Suite) -> None:
    """Eight unconditional; two conditional for want of a data set, which is named."""
    suite.write(TEN.read_text("utf-8"))
    suite.measure("replay", scale="full").assert_outcomes(passed=10)
    for entry in suite.report["tests"]:
        compliance = entry["compliance"]
        missing = NAMED_DATA_SET.get(entry["test"])
        if missing is None:
            assert compliance["verdict"] == "unconditional", entry["test"]
            assert compliance["next_class"] is None
        else:
            assert compliance["verdict"] == "conditional", entry["test"]
            assert compliance["next_class"]["clauses"] == [missing]
    assert contradictions(suite.report) == []
