"""All ten tests in one session, in virtual time: a smoke run always, the draft's full scale on demand."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_suite import Suite

TEN = Path(__file__).parents[2] / "example_suites" / "full_methodology" / "test_ten_tests.py"
NAMED_DATA_SET = {"prefix_cache": "S-5.7.2-workload", "guardrail": "S-5.10.2-workload"}
"""Tests whose advised workload is made of a data set that is not bundled, and the clause that says so."""


def test_ten_tests_at_quick_scale(suite: Suite) -> None:
    suite.write(TEN.read_text("utf-8"))
    suite.measure("replay", "--llm-inconclusive=pass", scale="quick").assert_outcomes(passed=10)
    tests = {entry["test"]: entry for entry in suite.report["tests"]}
    assert len(tests) == 10
    for entry in tests.values():
        assert entry["validity"]["verdict"] == "valid"
        # A smoke run never complies, and says what it falls short of.
        assert entry["compliance"]["verdict"] == "not_compliant"
        assert "M-4.5.1-warmup-volume" in entry["compliance"]["next_class"]["clauses"]
    assert tests["tradeoff"]["shared"]
    assert not tests["throughput"]["shared"]


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
