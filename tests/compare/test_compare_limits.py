"""Limits of options, identities and waivers: what is compared, and what is not."""

from __future__ import annotations

from datetime import date

import pytest

from pytest_llmbench.compare.comparability import IF_KNOWN, REQUIRED, SHOWN, matched, waivers_of_option
from pytest_llmbench.compare.limits import (
    RegressionLimit,
    comparisons,
    limits_of_option,
    margin_mistakes,
    nothing_decides,
)
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.judgement import ComparisonVerdict

TODAY = date(2026, 3, 1)
RUNS = (100.0, 101.0, 99.0)


def test_limits_are_read_with_commas_and_repeated() -> None:
    found = limits_of_option(["ttft.p99:5%, output_token_throughput:2.5%", "itl[90%].p99:10 %"])
    assert [(limit.metric, limit.margin) for limit in found] == [
        ("ttft.p99", 0.05),
        ("output_token_throughput", 0.025),
        ("itl[90%].p99", 0.10),
    ]


def test_every_mistake_of_the_limits_is_listed() -> None:
    with pytest.raises(SuiteError) as caught:
        limits_of_option(["ttft.p99:5,ttfx.p99:5%,ttft.p50,tokens_in_flight:5%,ttft.p50:100%,ttft.p50:x%"])
    text = str(caught.value)
    for said in (
        "6 mistakes",
        "'ttft.p99:5' lacks a unit",
        "no metric is called 'ttfx.p99'; did you mean ttft",
        "'ttft.p50' needs a limit",
        "neither more nor less",
        "from 0 % to below 100 %, got 100%",
        "has 'x' for a limit",
    ):
        assert said in text


@pytest.mark.parametrize("margin", [-0.01, 1.0, 5, True, "5%", float("nan")])
def test_a_margin_is_a_share(margin: object) -> None:
    assert margin_mistakes(margin)


def test_limits_decide_and_the_rest_is_shown() -> None:
    before = {"ttft.p99": RUNS, "ttft.p90": RUNS, "ttft[0-256].p99": RUNS, "completion_rate": (1.0, 1.0, 1.0)}
    limits = [RegressionLimit("ttft.p99", 0.05, "a"), RegressionLimit("ttft.p99", 0.02, "b")]
    found = comparisons(before, before, limits, paired=False)
    assert [(each.metric, each.gated, each.margin) for each in found] == [
        ("ttft.p99", True, 0.02),
        ("completion_rate", False, 0.05),
    ]


def test_a_guarded_metric_that_is_missing_does_not_pass() -> None:
    (found,) = comparisons(
        {"ttft.p50": RUNS}, {"ttft.p50": RUNS}, [RegressionLimit("itl.p99", 0.05, "a")], paired=False
    )[:1]
    assert (found.metric, found.verdict) == ("itl.p99", ComparisonVerdict.INCONCLUSIVE)
    assert "undefined in 3 of 3 runs of baseline" in found.reason
    option = RegressionLimit("itl.p99", 0.05, "--llm-compare-fail", everywhere=False)
    assert "itl.p99" not in {
        each.metric for each in comparisons({"ttft.p50": RUNS}, {"ttft.p50": RUNS}, [option], paired=False)
    }


def test_limits_of_which_none_decides_about_a_test_are_told() -> None:
    limits = limits_of_option(["ttft.p99:5%,itl.p99:5%"])
    without, having = {"tpot.p50": RUNS}, {"ttft.p99": RUNS}
    (told,) = nothing_decides(limits, comparisons(without, without, limits, paired=False))
    assert (told.check, told.ok, told.voids) == ("nothing_compared", False, False)
    assert told.message.startswith("the test has no ttft.p99, itl.p99: --llm-compare-fail=ttft.p99:5%")
    assert nothing_decides(limits, comparisons(having, having, limits, paired=False)) == ()
    assert nothing_decides((), comparisons(having, having, paired=False)) == ()


def test_waivers_have_a_field_a_reason_and_a_last_day() -> None:
    (waiver,) = waivers_of_option(["host.cpu=new runners, see #12 @ home@2026-03-01"], TODAY)
    assert (waiver.field, waiver.reason) == ("host.cpu", "new runners, see #12 @ home")
    assert waiver.expires == TODAY
    assert "until 2026-03-01: new runners" in str(waiver)


def test_every_mistake_of_the_waivers_is_listed() -> None:
    given = ["seed=x@2026-02-28", "seeed=x@2026-03-02", "seed=x@tomorrow", "seed=@2026-03-02", "seed"]
    with pytest.raises(SuiteError) as caught:
        waivers_of_option(given, TODAY)
    text = str(caught.value)
    for said in ("expired on 2026-02-28", "did you mean seed?", "'tomorrow' for its last day"):
        assert said in text
    assert text.count("needs a field, a reason and the last day") == 2


def test_identities_match_field_by_field() -> None:
    one = {"seed": 42, "model": "m", "host.cpu": "A", "sut.software.version": "1"}
    other = one | {"seed": 43, "host.cpu": "B", "sut.software.version": "2"}
    waivers = waivers_of_option(["host.cpu=new runners@2026-04-01"], TODAY)
    match = matched(one, other, waivers)
    assert match.mismatches == ("seed was 42, now it is 43",)
    assert match.waived == ("host.cpu was A, now it is B; host.cpu is waived until 2026-04-01: new runners",)
    assert match.shown == ("sut.software.version was 1, now it is 2",)
    assert matched(one, one).mismatches == ()
    assert matched(one, {**one, "model": None}).mismatches == ("model was m, now it is not known",)


@pytest.mark.parametrize(
    ("field", "theirs", "said"),
    [
        ("endpoint.answered_by", "m-small", "endpoint.answered_by was m-small, now it is m-large"),
        ("endpoint.answered_by", None, ""),
        ("request.extra_body", None, "request.extra_body was not known, now it is {'effort': 'low'}"),
        ("request.extra_body", {"effort": "high"}, "request.extra_body was {'effort': 'high'}, now it is"),
        ("endpoint.models", ["m", "/models/m-1"], ""),
    ],
)
def test_the_model_that_answers_and_what_it_is_asked_have_to_agree(
    field: str, theirs: object, said: str
) -> None:
    """Which model answers is known of some servers, and of baselines that are not old."""
    ours = dict.fromkeys(REQUIRED, "same") | {
        "endpoint.answered_by": "m-large", "request.extra_body": {"effort": "low"},
        "endpoint.models": ["m", "/models/m-2"],
    }  # fmt: skip
    found = matched({**ours, field: theirs}, ours)
    assert len(found.mismatches) == bool(said)
    assert all(each.startswith(said) for each in found.mismatches)
    assert len(found.shown) == (field == "endpoint.models")
    if said:
        waived = matched({**ours, field: theirs}, ours, waivers_of_option([f"{field}=so@2999-12-31"], TODAY))
        assert waived.mismatches == ()


def test_no_field_is_both_required_and_shown() -> None:
    kinds = (REQUIRED, IF_KNOWN, SHOWN)
    assert sum(map(len, kinds)) == len(set().union(*kinds))
