"""Nights that try to become what later ones are compared with: broken, waived, not confirmed; and the way in
which a maintainer accepts a new level."""

from __future__ import annotations

import json
import shutil
from typing import Any

from plugin_suite import SMALL_WARMUP, Suite

ONE = """
import pytest
@llmbench.ttft(rate=20, requests=30)
@llmbench.no_regression("tpot.p50", max_slowdown=0.05)
def test_first_token(): ...
"""
EXEMPT = ONE.replace("@llmbench.ttft", '@pytest.mark.xfail(reason="the new kernel")\n@llmbench.ttft')
SLOWER = "replay:fast?step_base_us=2400&decode_us_per_sequence=40"
WAIVED = "--llm-waive=sut.model.version=the other engine is what is compared@2999-12-31"
NIGHT = ("--llm-runs=3", "--llm-save=main", "--llm-inconclusive=pass")
COMPARED = (*NIGHT, "--llm-compare=main", WAIVED)


def saved_last(suite: Suite) -> dict[str, Any]:
    """The only test of the session that was saved last."""
    path = max(suite.path.glob(".llmbench/*/*_main.json"))
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found["tests"][0]


def verdict(suite: Suite) -> str:
    (entry,) = suite.report["tests"]
    (gated,) = [each for each in entry["comparisons"] if each["gated"]]
    return str(gated["verdict"])


def test_a_regression_becomes_no_baseline_until_somebody_accepts_it(suite: Suite) -> None:
    suite.write(ONE, SMALL_WARMUP)
    suite.measure("replay", *NIGHT).assert_outcomes(passed=1)
    suite.measure("replay", *COMPARED).assert_outcomes(passed=1)
    (second,) = suite.path.glob(".llmbench/*/0002_main.json")
    shutil.copy(second, second.with_name("0003_main.json"))  # a third night like it
    assert (saved_last(suite)["standing"], saved_last(suite)["verdicts"]) == (
        "counts",
        {"tpot.p50": "equivalent"},
    )

    twice = (*COMPARED, "--llm-compare-confirm=2/3")
    first = suite.measure(SLOWER, *twice)
    first.assert_outcomes(passed=1)
    first.stdout.fnmatch_lines(
        ["*unconfirmed*tpot.p50 +*", "*shows in 1 of the last 3 sessions; 2 are needed*"]
    )
    first.stdout.fnmatch_lines(
        ["*saved, but later sessions are not compared with it: *did not pass the comp*"]
    )
    last = saved_last(suite)
    assert (last["standing"], last["verdicts"]) == ("behind", {"tpot.p50": "unconfirmed"})
    suite.measure(SLOWER, *twice).assert_outcomes(failed=1)
    assert verdict(suite) == "regressed"

    suite.write(EXEMPT)
    exempt = suite.measure(SLOWER, *COMPARED)
    exempt.assert_outcomes(xfailed=1)
    exempt.stdout.fnmatch_lines(["*XFAIL*tpot.p50 <= main*+* %*"])  # its drift shows all the same
    assert saved_last(suite)["standing"] == "waived"

    suite.write(ONE)
    after = suite.measure(SLOWER, *COMPARED)
    after.assert_outcomes(failed=1)
    assert "3 sessions of 'main' are left out of the comparison" in " ".join(after.stdout.str().split())
    assert len(suite.report["tests"][0]["comparisons"][0]["baseline"]) == 3

    suite.measure(SLOWER, *NIGHT, "--llm-accept=the new kernel is here to stay").assert_outcomes(passed=1)
    assert saved_last(suite)["accepted"] == "the new kernel is here to stay"
    now = suite.measure(SLOWER, *COMPARED)
    now.assert_outcomes(passed=1)
    assert verdict(suite) == "equivalent"
    assert "a new level was accepted: the new kernel" in " ".join(now.stdout.str().split())
