"""Gates on a baseline that would decide nothing: they say so."""

from __future__ import annotations

import pytest
from plugin_suite import Suite

from pytest_llmbench.compare.limits import comparisons, limits_of_option, nothing_decides

ONE = """
@llmbench.ttft(rate=20)
def test_first_token(): ...
"""
SLOWER = "replay:fast?step_base_us=2400&decode_us_per_sequence=40"
WAIVED = "--llm-waive=sut.model.version=the other engine is what is compared@2999-12-31"
RUNS = (100.0, 101.0, 99.0)
LIMITS = limits_of_option(["ttft.p99:5%,itl.p99:5%"])


def measure(suite: Suite, *arguments: str, endpoint: str = "replay") -> pytest.RunResult:
    return suite.measure(endpoint, "--llm-runs=3", *arguments)


def test_limits_of_which_none_decides_about_a_test_are_told() -> None:
    by_run = {"tpot.p50": RUNS}
    (told,) = nothing_decides(LIMITS, comparisons(by_run, by_run, LIMITS, paired=False))
    assert (told.check, told.ok, told.voids) == ("nothing_compared", False, False)
    assert told.message.startswith("the test has no ttft.p99, itl.p99: --llm-compare-fail=ttft.p99:5%")


def test_where_one_limit_decides_nothing_is_told() -> None:
    by_run = {"ttft.p99": RUNS}
    assert nothing_decides(LIMITS, comparisons(by_run, by_run, LIMITS, paired=False)) == ()
    assert nothing_decides((), comparisons(by_run, by_run, paired=False)) == ()


def test_a_renamed_test_is_told_that_its_gate_decides_nothing(suite: Suite) -> None:
    suite.write(ONE)
    measure(suite, "--llm-save=main").assert_outcomes(passed=1)
    suite.write(ONE.replace("test_first_token", "test_renamed"))
    result = measure(suite, "--llm-compare=main", "--llm-compare-fail=tpot.p50:5%")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*warning: nothing_compared: 0001_main.json has no results of this test*"])


def test_a_limit_on_what_the_test_does_not_yield_is_told(suite: Suite) -> None:
    suite.write(ONE)
    measure(suite, "--llm-save=main").assert_outcomes(passed=1)
    result = measure(suite, "--llm-compare=main", "--llm-compare-fail=jain_index:5%")
    result.stdout.fnmatch_lines(["*warning: nothing_compared: the test has no jain_index*"])


def test_a_session_of_another_name_is_saved_whatever_it_was_compared_with(suite: Suite) -> None:
    suite.write(ONE)
    measure(suite, "--llm-save=main").assert_outcomes(passed=1)
    limits = ("--llm-compare=main", "--llm-compare-fail=tpot.p50:50%", WAIVED)
    for name in ("--llm-save=branch", "--llm-autosave"):
        result = measure(suite, *limits, name, endpoint=SLOWER)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["baseline saved: *"])
