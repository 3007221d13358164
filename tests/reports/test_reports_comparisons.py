"""Comparisons in every format: the change, what was allowed, what could be seen, and who decides."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.compare.limits import RegressionLimit, comparisons
from pytest_llmbench.reports import comparisons as words
from pytest_llmbench.reports.ci_files import properties
from pytest_llmbench.reports.document import TestView
from pytest_llmbench.reports.html_blocks import comparison_block, extra_block, row_cells
from pytest_llmbench.reports.terminal import brief_lines, section_lines
from pytest_llmbench.store.objects import plain_object

BEFORE = {"ttft.p99": (100.0, 101.0, 99.0), "request_throughput": (10.0, 10.1, 9.9)}
AFTER = {"ttft.p99": (120.0, 121.0, 119.0), "request_throughput": (10.0, 10.1, 9.9)}


@pytest.fixture
def found() -> list[dict[str, Any]]:
    made = comparisons(
        BEFORE, AFTER, [RegressionLimit("ttft.p99", 0.05, "t")], names=("main", "now"), paired=False
    )
    return [plain_object(each) for each in made]


@pytest.fixture
def compared(entry: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    return {**entry, "comparisons": found}


def test_a_comparison_is_a_sentence(found: list[dict[str, Any]]) -> None:
    text = words.comparison_text(found[0])
    assert text.startswith("ttft.p99 +20 % [+17.")
    assert "against +5 % allowed; main 100.0 ms (3 runs), now 120.0 ms (3 runs); minimum detectable" in text
    assert text.endswith("the whole interval of the worsening lies beyond the 5 % that is allowed")


@pytest.mark.parametrize(
    ("index", "ends", "told"),
    [
        (0, (0.0, -0.01, 0.01), "now equals main in TTFT P99 [-1, 1], allowed 5 %"),
        (0, (0.047, 0.039, 0.055), "now is 4.7 % slower than main in TTFT P99 [3.90, 5.50], allowed 5 %"),
        (0, (-0.02, -0.05, 0.01), "now is 2 % faster than main in TTFT P99 [-1, 5], allowed 5 %"),
        (0, (0.02, None, 0.05), "now is 2 % slower than main in TTFT P99 [open, 5], allowed 5 %"),
        (1, (-0.02, -0.05, None), "now is 2 % lower than main in Request throughput [open, 5], allowed 5 %"),
        (1, (0.02, 0.0, 0.03), "now is 2 % higher than main in Request throughput [0, 3], allowed 5 %"),
        (1, (None, None, None), "now: Request throughput not measured"),
    ],
)
def test_a_change_in_a_sentence(
    found: list[dict[str, Any]], index: int, ends: tuple[float | None, ...], told: str
) -> None:
    change = dict(zip(("point", "lower", "upper"), ends, strict=True))
    assert words.sentence(found[index] | {"change": found[index]["change"] | change}) == told


def test_what_decides_nothing_is_counted_for_each_system(found: list[dict[str, Any]]) -> None:
    other = [{**each, "candidate_name": "third", "verdict": "equivalent"} for each in found]
    told = "against main: now regressed in 1 of 2 metrics, no change shown of third in 2 metrics"
    assert words.shown_text([*found, *found, *other]) == told


def test_a_rate_may_fall_a_latency_may_rise(found: list[dict[str, Any]]) -> None:
    assert [words.allowed_text(each) for each in found] == ["+5 %", "-5 %"]
    assert [words.allowed_text(each, "mde")[0] for each in found] == ["+", "-"]


def test_what_cannot_be_told_is_said(found: list[dict[str, Any]]) -> None:
    change = found[0]["change"]
    undefined = {**found[0], "mde": None, "baseline": [], "change": {**change, "point": None}}
    assert words.change_text(undefined) == "not measured"
    assert words.allowed_text(undefined, "mde") == "not known"
    assert words.means_text(undefined, "baseline") == "not measured"
    assert words.change_text({**found[0], "change": {**change, "upper": None}}).endswith(", open]")


def test_the_terminal_shows_what_decides_and_counts_the_rest(compared: dict[str, Any]) -> None:
    text = "\n".join(line.text for line in brief_lines(compared, width=100))
    assert "now compared with main (independent runs)" in text
    assert "regressed    ttft.p99 +20 %" in text
    assert "minimum" in text
    assert "… and 1 more comparisons" in text
    assert "shown only" not in text
    verbose = "\n".join(line.text for line in section_lines(compared, width=100))
    assert "request_throughput (shown only)" in verbose


def test_the_row_of_pytest_html_has_the_comparison_that_decides(compared: dict[str, Any]) -> None:
    compared["gate"] = {**compared["gate"], "objectives": [], "advisory": []}
    _, value, limit, *_ = row_cells(compared)
    assert "+20 % [+17." in value
    assert "ttft.p99 &lt;= main +5 %" in limit
    assert "No limits were set." not in extra_block(compared)


def test_html_and_junit_have_them(compared: dict[str, Any]) -> None:
    block = str(comparison_block(TestView(compared)))
    assert "TTFT P99" in block
    assert "Request throughput (shown only)" in block
    assert "regressed" in block
    told = dict(properties(compared))
    assert told["llmbench.ttft.p99.regression"] == "regressed"
    assert told["llmbench.ttft.p99.regression.change"] == "0.200012"
    assert not any("request_throughput.regression" in key for key in told)


def test_without_comparisons_nothing_is_said(entry: dict[str, Any]) -> None:
    assert comparison_block(TestView({**entry, "comparisons": []})) is None
    assert TestView({**entry, "comparisons": []}).comparisons == []


def test_a_void_run_is_not_compared(compared: dict[str, Any]) -> None:
    void = {**compared, "validity": {**compared["validity"], "verdict": "invalid"}}
    assert TestView(void).comparisons == []


def test_attempts_are_called_that(entry: dict[str, Any]) -> None:
    assert TestView(entry).attempt is None
    assert "attempt" not in TestView(entry).name
    earlier = [{"status": "FAIL", "reason": "too slow"}, {"status": "SKIPPED", "reason": None}]
    test = TestView({**entry, "attempts": 3, "earlier_attempts": earlier})
    said = "attempt 3 of this test, after attempt 1: FAIL, too slow; attempt 2: SKIPPED, no reason is known"
    assert test.attempt == said
    assert test.name.endswith("(attempt 3)")
    assert said in " ".join(line.text.strip() for line in section_lines(test.entry, width=100))


def test_rows_of_several_systems_are_named(entry: dict[str, Any], found: list[dict[str, Any]]) -> None:
    assert not any(words.row(one, found)[0].startswith("now: ") for one in found)
    both = [*found, *({**each, "candidate_name": "third"} for each in found)]
    assert words.caption(both) == "now, third, each compared with main (independent runs)"
    block = str(comparison_block(TestView({**entry, "comparisons": both})))
    places = [block.index(f"{name}: {metric}") for metric in ("TTFT", "Request") for name in ("now", "third")]
    assert places == sorted(places), "those that decide first"
    text = "\n".join(line.text for line in section_lines({**entry, "comparisons": both}, width=100))
    assert "regressed    third: ttft.p99 +20 %" in text
