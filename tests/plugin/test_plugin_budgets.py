"""Budgets of a session, from the command line to the outcome."""

from __future__ import annotations

import pytest
from plugin_suite import Suite

TWO = """
@llmbench.ttft(p50_ms=5000, rate=20, requests=40)
def test_a(): ...

@llmbench.ttft(p50_ms=5000, rate=20, requests=45, seed=7)
def test_b(): ...
"""


def test_what_certainly_exceeds_ends_before_anything_is_sent(suite: Suite) -> None:
    suite.write(TWO)
    result = suite.measure("replay", "--llm-caps=requests=60", "--llm-caps=rate=10")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = str(result.stderr)
    assert "test_suite.py::test_a: rate=20 is more than --llm-caps=rate=10 allows: raise it with" in told
    assert "the tests send at least " in told
    assert "more than --llm-caps=requests=60 allows: raise it with --llm-caps=requests=" in told
    assert not (suite.path / "out" / "records").exists()


def test_tests_that_are_not_selected_count_for_nothing(suite: Suite) -> None:
    suite.write(TWO)
    options = ("--llm-caps=requests=80", "--llm-inconclusive=pass")
    assert suite.measure("replay", *options).ret == pytest.ExitCode.USAGE_ERROR
    suite.measure("replay", *options, "-k", "test_b").assert_outcomes(passed=1, deselected=1)
    assert suite.measure("replay", *options, "--collect-only").ret == pytest.ExitCode.OK


def test_a_budget_that_runs_out_voids_the_test_and_keeps_what_was_measured(suite: Suite) -> None:
    """Only the second test is short of tokens: answers are not known beforehand."""
    suite.write(TWO)
    result = suite.measure("replay:h100-8b", "--llm-caps=tokens=45000", "--llm-inconclusive=pass")
    result.assert_outcomes(passed=1, errors=1)
    first, second = suite.report["tests"]
    assert (first["outcome"], second["outcome"]) == ("passed", "error")
    void = [finding["message"] for finding in second["validity"]["findings"] if not finding["ok"]]
    assert any("--llm-caps=tokens=45000 allows: raise it with --llm-caps=tokens=" in each for each in void)
    assert 0 < second["counts"]["submitted"] < 45


@pytest.mark.parametrize("given", ["--llm-caps=requests=0", "--llm-caps=seconds=nan", "--llm-caps=rate=-1"])
def test_budgets_are_positive_numbers(suite: Suite, given: str) -> None:
    suite.write(TWO)
    result = suite.measure("replay", given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert given.rpartition("=")[0].replace("=", ": ") in str(result.stderr)


def test_a_workload_that_raises_hides_no_budget_of_others(suite: Suite) -> None:
    """The check before the first test needs its requests; what it raises is told by its own test."""
    suite.write("""
        from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

        class Broken:
            name = "broken"
            standard = False

            def requests(self, count, seed):
                raise RuntimeError("the file moved")

            def specification(self):
                return SyntheticWorkload("whole", Fixed(16), Fixed(8)).specification()

        @llmbench.ttft(p50_ms=5000, rate=20, requests=40, workload=Broken())
        def test_a(): ...

        @llmbench.ttft(p50_ms=5000, rate=20, requests=40)
        def test_b(): ...
    """)
    result = suite.measure("replay", "--llm-caps=tokens=1000")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "tokens (test_suite.py::test_b " in str(result.stderr)
    result = suite.measure("replay", "--llm-caps=tokens=1000", "-k", "test_a")
    result.assert_outcomes(errors=1)
    assert "RuntimeError: the file moved" in str(result.stdout)
