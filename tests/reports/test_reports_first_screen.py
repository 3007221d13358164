"""The first screen: the banner, the cards, how far a value lies from its limit, and the strips."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from pytest_llmbench.reports.document import ReportView
from pytest_llmbench.reports.first_screen import FirstScreen, Span, held_of
from pytest_llmbench.reports.html import comparison_strip, html_report, limit_strip

Entry = dict[str, Any]


def screen(report: Entry) -> FirstScreen:
    return FirstScreen(ReportView(report))


def objective(verdict: str, point: float | None, limit: float = 100.0, **more: Any) -> Entry:
    ends = {"lower": None if point is None else point * 0.9, "upper": None if point is None else point * 1.1}
    told = {"metric": "ttft.p99", "op": "<=", "unit": "ms", "n": 400, "reason": f"it is {verdict}", **ends}
    return {**told, "limit": limit, "point": point, "verdict": verdict, **more}


def with_limits(entry: Entry, *objectives: Entry, nodeid: str = "gates/t.py::test_x") -> Entry:
    order = ("fail", "inconclusive", "pass")
    worst = min((one["verdict"] for one in objectives), key=order.index, default="pass")
    outcome = "passed" if worst == "pass" else "failed"
    made = copy.deepcopy(entry)
    made |= {"nodeid": nodeid, "outcome": outcome, "comparisons": [], "error": None}
    made["gate"] = {"verdict": worst, "objectives": list(objectives)}
    return made


def compared(better: str, point: float, half: float, verdict: str, *, gated: bool = True) -> Entry:
    return {
        "metric": "ttft.p99" if better == "lower" else "request_throughput",
        "unit": "ms" if better == "lower" else "req/s", "better": better, "baseline_name": "main",
        "candidate_name": "now", "baseline": [100.0] * 3, "candidate": [120.0] * 3, "paired": False,
        "change": {"point": point, "lower": point - half, "upper": point + half, "unit": "1", "n": 3,
                   "level": 0.95, "method": "t"},
        "margin": 0.05, "mde": 0.04, "verdict": verdict, "reason": "why", "gated": gated,
    }  # fmt: skip


@pytest.fixture
def made(report: Entry, entry: Entry) -> Entry:
    """One limit broken of five, two undecided, one comparison of two regressed; a void test and an error."""
    tests = [
        with_limits(entry, objective("pass", 60), nodeid="g/t.py::test_good"),
        with_limits(
            entry, objective("inconclusive", 99), objective("fail", 151), objective("pass", 20),
            nodeid="g/t.py::test_bad",
        ),
        with_limits(entry, objective("inconclusive", None), nodeid="g/t.py::test_open"),
    ]  # fmt: skip
    tests[0]["comparisons"] = [
        compared("lower", 0.2, 0.03, "regressed"),
        compared("higher", -0.01, 0.02, "equivalent"),
        compared("lower", 0.5, 0.01, "regressed", gated=False),
    ]
    tests[0]["gate"]["verdict"], tests[0]["outcome"] = "fail", "failed"
    void = with_limits(entry, objective("fail", 500), nodeid="g/t.py::test_void")
    void["validity"] = {
        "verdict": "invalid",
        "findings": [{"check": "lag", "ok": False, "voids": True, "message": "sends were late", "data": {}}],
    }
    return {**report, "tests": [*tests, void, report["tests"][2]]}


@pytest.mark.parametrize(("limit", "told"), [(900.0, False), (112.0, True), (80.0, True), (60.0, False)])
def test_what_the_machine_may_have_done_is_told_where_it_decides(
    report: Entry, entry: Entry, limit: float, told: bool
) -> None:
    """Of 100 [90, 110], at most 15 too high and 5 too low."""
    late = objective("pass", 100, limit, too_high_by=15.0, too_low_by=5.0)
    (test,) = ReportView({**report, "tests": [with_limits(entry, late)]}).tests
    (card,) = held_of(test)
    assert ("by the machine" in card.measured) == told


def test_the_banner_counts_what_was_held(made: Entry) -> None:
    assert screen(made).banner == (
        "1 of 5 limits broken, 2 undecided; 1 of 2 comparisons regressed; "
        "1 test void; 1 test without a measurement"
    )
    assert screen(made).tone == "bad"


def test_the_banner_of_good_and_of_empty_reports(report: Entry, entry: Entry) -> None:
    good = {**report, "tests": [with_limits(entry, objective("pass", 60), objective("pass", 70))]}
    assert (screen(good).banner, screen(good).tone) == ("all 2 limits kept", "good")
    bare = {**report, "tests": [with_limits(entry)]}
    assert (screen(bare).banner, screen(bare).tone) == ("no limit was set", "neutral")
    empty = {**report, "tests": []}
    assert (screen(empty).banner, screen(empty).tone) == ("no test ran", "neutral")


def spending(cost: float | None) -> Entry:
    amounts = {"requests": 9, "input_tokens": 900, "output_tokens": 90}
    return {"spent": {**amounts, "cost": cost, "currency": None if cost is None else "EUR"}}


@pytest.mark.parametrize(
    ("spent", "told"),
    [
        ([spending(0.5), spending(1.25)], "1.75 EUR"),
        ([spending(0.0004), spending(0.0)], "0.0004 EUR"),
        ([spending(1200.0), {}], "at least 1,200.00 EUR"),
        ([spending(None), {}], None),
        ([], None),
    ],
)
def test_the_cost_is_told_where_there_are_prices(
    report: Entry, entry: Entry, spent: list[Entry], told: str | None
) -> None:
    found = screen({**report, "tests": [entry | one for one in spent]})
    assert dict(found.facts).get("Cost") == told


def test_comparisons_that_decide_nothing_are_shown(report: Entry, entry: Entry) -> None:
    shown = with_limits(entry) | {"comparisons": [compared("lower", 0.2, 0.03, "regressed", gated=False)]}
    found = screen({**report, "tests": [shown]})
    assert (found.banner, found.tone) == (
        "no limit was set; against main: now regressed in 1 of 1 metric",
        "neutral",
    )
    forest = comparison_strip(found.compared)
    assert forest is not None
    assert 'class="dot neutral"' in forest
    assert 'class="allowed"' not in forest


def test_a_test_that_failed_in_its_body_is_told(report: Entry, entry: Entry) -> None:
    failed = with_limits(entry, objective("pass", 60)) | {"outcome": "failed", "error": "assert 3 < 2\nmore"}
    found = screen({**report, "tests": [failed]})
    assert found.banner == "the limit kept; 1 test failed, but not by a limit"
    assert [(card.deciding, card.cause) for card in found.cards] == [(None, "assert 3 < 2")]


def test_an_expected_failure_counts_as_no_broken_limit(report: Entry, entry: Entry) -> None:
    known = with_limits(entry, objective("fail", 500)) | {"outcome": "xfailed"}
    found = screen({**report, "tests": [known]})
    assert (found.banner, found.tone, found.cards) == (
        "no limit was judged; 1 test expected to fail",
        "neutral",
        [],
    )


def test_cards_name_the_worst_limit_first(made: Entry) -> None:
    cards = screen(made).cards
    assert [card.test.headline for card in cards] == ["FAIL", "FAIL", "ERROR", "INVALID", "INCONCLUSIVE"]
    good, bad, error, void, open_ = cards
    assert good.deciding is not None
    assert (good.deciding.word, good.deciding.allowed) == ("regressed", 0.05)
    assert bad.deciding is not None
    assert (bad.deciding.measured, bad.deciding.distance) == ("151 ms [135.9, 166.1]", "+51 %")
    assert (bad.more, bad.cause, bad.number) == (1, "it is fail", 1)
    assert (error.deciding, error.cause) == (None, "https://host/v1: connection refused")
    assert (void.deciding, void.cause) == (None, "sends were late")
    assert open_.deciding is not None
    assert (open_.deciding.distance, open_.deciding.measured) == (None, "not measured")


def test_the_command_runs_the_test_as_the_session_ran_it(made: Entry) -> None:
    made["environment"] = made["environment"] | {
        "command": ["pytest", "-q", "gates", "--llm-endpoint", "http://h/v1", "--llm-require", "--llm-seed=3",
                    "--unknown", "x"],
        "settings": {"endpoint": "http://h/v1", "require": True, "seed": 3},
    }  # fmt: skip
    made["tests"] = [test for test in made["tests"] if test["nodeid"].endswith(("test_bad", "test_good"))]
    assert screen(made).command == (
        "pytest g/t.py::test_good g/t.py::test_bad --llm-endpoint http://h/v1 --llm-require --llm-seed=3"
    )


@pytest.mark.parametrize(
    ("point", "limit", "text"),
    [(151.0, 100.0, "+51 %"), (99.5, 100.0, "-0.5 %"), (100.0, 100.0, "at the limit"),
     (73_000.0, 100.0, "+72,900 %"), (100.004, 100.0, "+0.004 %"), (5.0, 0.0, None), (None, 100.0, None),
     (0.0, 100.0, "-100 %")],
)  # fmt: skip
def test_distance_from_a_limit(entry: Entry, point: float | None, limit: float, text: str | None) -> None:
    (held,) = held_of(objectives_view(entry, objective("pass", point, limit)))
    assert held.distance == text


def test_spans_of_limits_and_comparisons(entry: Entry, made: Entry) -> None:
    floor = objective("pass", 200.0, 100.0, op=">=", metric="output_token_throughput", unit="tok/s")
    zero = objective("pass", 0.0, 100.0, op=">=")
    none = objective("pass", 3.0, 0.0, op=">")
    found = held_of(objectives_view(entry, objective("fail", 151.0), floor, zero, none))
    assert [tuple(round(end, 4) if end else end for end in one.span) for one in found] == [
        (1.359, 1.51, 1.661),
        (round(100 / 220, 4), 0.5, round(100 / 180, 4)),
        (None, None, None),
        (None, None, None),
    ]
    regressed, equivalent = [one for one in screen(made).held if one.allowed is not None]
    assert regressed.span == pytest.approx(Span(0.17, 0.2, 0.23))
    assert equivalent.span == pytest.approx(Span(-0.01, 0.01, 0.03))  # a lower rate is worse


def objectives_view(entry: Entry, *objectives: Entry) -> Any:
    from pytest_llmbench.reports.document import TestView

    return TestView(with_limits(entry, *objectives))


def test_the_strip_puts_limits_on_one_axis(made: Entry) -> None:
    strip = limit_strip(screen(made).held)
    assert strip is not None
    bound = set(re.findall(r'class="bound" style="left:([\d.]+)%', strip))
    assert len(bound) == 1  # the line at 1.0 is the same in all rows
    line = float(bound.pop())
    dots = {tone: float(at) for tone, at in re.findall(r'class="dot (\w+)" style="left:([\d.]+)%', strip)}
    assert dots["good"] < dots["warn"] < line < dots["bad"]
    assert strip.index("151 ms") < strip.index("99 ms") < strip.index("60 ms")  # the worst first
    assert 'aria-label="ttft.p99 &lt;= 100 ms: 151 ms [135.9, 166.1] (+51 %), broken"' in strip
    assert "no share of this limit can be drawn" in strip  # of the one that was not measured


def test_an_open_end_and_a_far_one_have_arrows(entry: Entry) -> None:
    far = objective("fail", 100_000.0)
    open_ = objective("inconclusive", 90.0, upper=None)
    strip = limit_strip(held_of(objectives_view(entry, far, open_)))
    assert strip is not None
    assert re.findall(r'class="bar ([^"]+)"', strip) == ["bad open-low open-high", "warn open-high"]


def test_the_forest_shows_the_worsening_and_what_is_allowed(made: Entry) -> None:
    forest = comparison_strip(screen(made).held)
    assert forest is not None
    allowed = {float(at) for at in re.findall(r'class="allowed" style="left:0;width:([\d.]+)%', forest)}
    zero = {float(at) for at in re.findall(r'class="zero" style="left:([\d.]+)%', forest)}
    assert len(allowed) == len(zero) == 1
    dots = dict(re.findall(r'class="dot (\w+)" style="left:([\d.]+)%', forest))
    assert zero.pop() < float(dots["good"]) < allowed.pop() < float(dots["bad"])
    assert "+20 % [+17 %, +23 %]" in forest
    assert limit_strip([]) is None
    assert comparison_strip([]) is None


def test_many_limits_are_folded(entry: Entry) -> None:
    held = held_of(objectives_view(entry, *(objective("pass", 10.0 + i) for i in range(30))))
    strip = limit_strip(held)
    assert strip is not None
    shown, folded = strip.split("<summary>and 18 more</summary>")
    assert (shown.count('class="dot'), folded.count('class="dot')) == (12, 18)
    assert "39 ms" in shown  # the nearest to its limit
    assert "10 ms" in folded


def test_the_page_says_first_what_matters(made: Entry) -> None:
    page = html_report(made)
    body = page.partition("<body>")[2]
    order = ["5 limits broken", 'class="cards"', "Comparisons</h2>", "Limits</h2>", 'id="tests"', "1. System"]
    places = [body.index(text) for text in order]
    assert places == sorted(places)
    assert page.count('class="test" open=""') == 5  # none of these passed
    assert "Compliance with the draft" in body


def test_of_a_test_that_was_run_again_the_last_attempt_counts(report: Entry, entry: Entry) -> None:
    first, last = (
        {"duration_s": took, "spent": {"cost": cost, "currency": "USD"}}
        for took, cost in ((30.0, 0.5), (12.0, 0.25))
    )
    again = {"attempts": 2, "earlier_attempts": [first | {"status": "FAIL", "reason": "too slow"}]} | last
    found = screen({**report, "tests": [with_limits(entry, objective("pass", 60)) | again]})
    assert (found.banner, found.tone) == ("the limit kept; 1 test passed only when run again", "good")
    assert found.cards == []
    assert (dict(found.facts)["Took"], dict(found.facts)["Cost"]) == ("42 s", "0.75 USD")


def test_what_failed_beside_the_limits_is_named(report: Entry, entry: Entry) -> None:
    body = with_limits(entry, objective("pass", 60)) | {"outcome": "failed"}
    asked = body | {"nodeid": "g/t.py::test_asked", "parameters": {"compliance": "unconditional"}}
    causes = [card.cause for card in screen({**report, "tests": [body, asked]}).cards]
    assert causes == [
        "the test itself failed, see what pytest says",
        "unconditional was asked for, and the run is not compliant",
    ]


def test_limits_of_void_runs_were_set_and_not_judged(made: Entry) -> None:
    void = [entry for entry in made["tests"] if entry["validity"]["verdict"] == "invalid"][:1]
    assert screen({**made, "tests": void}).banner == "no limit was judged; 1 test void"


def test_ends_that_have_no_logarithm_are_drawn_at_the_edge(entry: Entry) -> None:
    odd = objective("inconclusive", 60, lower=-5.0)
    none = objective("pass", 0.0, lower=0.0, upper=0.0)
    strip = limit_strip(held_of(objectives_view(entry, odd, none)))
    assert strip is not None
    assert re.findall(r'class="bar ([^"]+)"', strip) == ["warn open-low", "good open-low open-high"]
