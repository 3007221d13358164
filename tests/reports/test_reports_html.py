"""report.html and the cells of pytest-html."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace
from typing import Any

import pytest
from outcome_samples import void
from pages import Page

from pytest_llmbench.model.result import OVER_TIME
from pytest_llmbench.plugin.interplay import HtmlReport
from pytest_llmbench.reports import html_blocks, plots
from pytest_llmbench.reports.html import MOST_PICTURES, html_report
from pytest_llmbench.reports.html_blocks import Html, details, element, fragment, paragraphs, table
from pytest_llmbench.reports.summaries import SECTIONS
from pytest_llmbench.store import schema

Entry = dict[str, Any]


@pytest.fixture(scope="module")
def page(three_tests: Entry) -> str:
    return html_report(three_tests)


@pytest.fixture(scope="module")
def whole_page(every_entry: dict[str, Entry], base_report: Entry) -> str:
    """Of a report with every test."""
    return html_report(base_report | {"tests": list(every_entry.values())})


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are counted, and need not be drawn for that."""
    monkeypatch.setattr(plots, "render", lambda plot, plot_id, salt="": "<svg></svg>")


def test_six_sections_in_order(page: str) -> None:
    expected = [f"{number}. {title}" for number, title in enumerate(SECTIONS, start=1)]
    assert Page(page).headings[-6:] == expected
    assert SECTIONS == (
        "System Identification",
        "Test Configuration",
        "Results",
        "Detailed Results",
        "Methodology Compliance",
        "Reproduction Information",
    )


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    seen = Page(page)
    assert all(address.startswith("#") for address in seen.links)
    assert not seen.tags & {"link", "iframe", "img"}
    assert page.count("<script") == 1
    assert re.search(r"Content-Security-Policy\" content=\"default-src &#x27;none&#x27;", page)
    assert "url(http" not in page
    assert "@import" not in page


def test_what_a_reviewer_looks_for_is_there(page: str) -> None:
    for text in (
        "1 of 3 limits undecided; 1 test without a measurement",
        "ttft.p99 &lt;= 600 ms",
        "468.3 ms [449.5, 491.7]",
        "TTFT by Input Length",
        "M-5.1.4.1-percentiles",
        "All 7 requirements: 5 unmet, 1 met, 1 not applicable",
        "Load generator self-check",
        "0.18 ms",
        "ab" * 32,
        "records/test_first_token_is_quick.jsonl",
        "sut.toml",
        "declared",
        "pytest gates --llm-endpoint=https://host/v1",
        "connection refused",
        "Distribution of TTFT",
    ):
        assert text in page, text


def test_warnings_stand_before_the_figures(report: Entry) -> None:
    """Whatever the verdict; each once, and a void run's reason is told elsewhere."""
    report["tests"] = [report["tests"][1], copy.deepcopy(report["tests"][1])]
    for test in report["tests"]:
        found = {"check": "sent_ahead", "ok": False, "voids": False, "message": "all replies <pause>"}
        test["validity"]["findings"] = [{**test["validity"]["findings"][0], **found}]
    page = html_report(report)
    warned = page.index("<li>sent_ahead: all replies &lt;pause&gt; (2 tests)</li>")
    assert page.index('class="banner') < warned < page.index('id="tests"')
    for test in report["tests"]:
        test["validity"]["findings"][0]["ok"] = True
    assert 'class="warned"' not in html_report(report)


def test_text_from_outside_is_escaped(page: str) -> None:
    assert "test_unreachable[<b>" not in page
    assert "test_unreachable[&lt;b&gt;|x]" in page


def test_invalid_numbers_are_not_in_the_summaries(report: Entry) -> None:
    for entry in report["tests"]:
        entry["validity"]["verdict"] = "invalid"
    results = html_report(report).split("3. Results")[1].split("4. Detailed Results")[0]
    assert results.count("not measured") == 3
    assert "1843 tok/s" not in results


def test_a_void_test_says_first_why_and_judges_no_limit(entry: Entry, report: Entry) -> None:
    detail = html_report(report | {"tests": [void(entry)]}).split('<details class="test"')[1]
    why, limits = detail.index("sends were late by 62 ms at P99"), detail.index("<table>")
    assert why < limits < detail.index("<svg")
    assert detail.count('pill neutral">not judged<') == 1 + len(entry["gate"]["objectives"])
    assert "inconclusive" not in detail[: detail.index("<svg")]
    assert "in all would decide" not in detail


def test_the_page_is_the_same_each_time(report: Entry, page: str) -> None:
    assert html_report(report) == page


def test_cells_of_pytest_html(entry: Entry) -> None:
    heads = [re.sub(r"<[^>]+>", "", cell) for cell in html_blocks.header_cells()]
    assert heads == ["Verdict", "Value", "Limit", "Interval", "Compliance"]
    verdict, value, limit, interval, compliance = html_blocks.row_cells(entry)
    assert "INCONCLUSIVE" in verdict
    assert value == (
        '<td class="col-llmvalue"><div>TTFT P99: 468.3 ms</div><div>TTFT P99.9: 557.4 ms</div></td>'
    )
    assert limit == '<td class="col-llmlimit"><div>&lt;= 600 ms</div><div>&lt;= 900 ms</div></td>'
    assert interval == '<td class="col-llminterval"><div>[449.5, 491.7]</div><div>&gt; 535.1 ms</div></td>'
    assert compliance == '<td class="col-llmcompliance llm-class-not_compliant">not compliant</td>'
    entry["compliance"] |= {"verdict": "conditional", "simulated": True}
    assert "conditional (simulated)" in html_blocks.row_cells(entry)[-1]


def test_what_was_not_measured_has_no_class_in_pytest_html(broken: schema.TestEntry) -> None:
    cell = '<td class="col-llmcompliance llm-class-none"></td>'
    assert html_blocks.row_cells(broken.plain())[-1] == cell


def test_rows_of_pytest_html_are_filtered_by_what_is_in_them(entry: Entry) -> None:
    plugin, boxes = HtmlReport(), list[str]()
    for when, ours in (("setup", None), ("call", entry), ("teardown", None)):
        row = SimpleNamespace(when=when, outcome="passed", llmbench=ours)
        plugin.pytest_html_results_table_row(row, ["result", "test", "duration"])
    plugin.pytest_html_results_summary(boxes)
    assert boxes == [], "one class: nothing to choose"
    skipped = SimpleNamespace(when="setup", outcome="skipped")
    plugin.pytest_html_results_table_row(skipped, ["result", "test", "duration"])
    plugin.pytest_html_results_summary(boxes)
    (box,) = boxes
    assert re.findall(r"</?label>|id=.([\w-]+)", box) == [
        *("", "show-llm-class-not_compliant", "", "", "show-llm-class-other", "")
    ]
    assert re.sub(r"<style>.*</style>|<[^>]+>", "", box).split() == [
        *("Compliance:", "not", "compliant", "other", "tests")
    ]


def test_a_test_that_is_not_ours_has_empty_cells() -> None:
    cells = html_blocks.row_cells(None)
    assert [re.sub(r"<[^>]+>", "", cell) for cell in cells] == [""] * 5


def test_a_test_without_limits_shows_its_figure(entry: Entry) -> None:
    entry["gate"] = {"verdict": "pass", "objectives": []}
    entry["metrics"] = {
        name: metric | {"n": 5000} for name, metric in entry["metrics"].items() if name.startswith("ttft")
    }
    _, value, limit, *_ = html_blocks.row_cells(entry)
    assert "TTFT P99: 468.3 ms [449.5, 491.7]" in value
    assert "no limit" in limit


def test_the_block_below_a_row(entry: Entry, broken: schema.TestEntry) -> None:
    block = html_blocks.extra_block(entry)
    Page(block)
    assert "<svg" in block
    assert "TTFT by Input Length" in block
    unmeasured = html_blocks.extra_block(broken.plain())
    Page(unmeasured)
    assert "nothing was measured" in unmeasured


def test_a_report_with_every_test(whole_page: str) -> None:
    page, seen = whole_page, Page(whole_page)
    assert all(address.startswith("#") for address in seen.links)
    for text in (
        "All 12 levels",
        "All 4 levels",
        "shared measurement: 2 of 4 loads measured by gates/test_capacity.py::test_maximum",
        "not measurable: the engine gives no such data",
        "68.2 µs/token [65.5, 70.9]",
        "Readings of the serving engine",
        "running mean 20, max 30",
        "kv use mean 50 %, max 75 %",
        "preemptions +3",
        "the queue grew for 20 s",
        "guardrails_full",
        "To be conditional, 4 requirements more must be met:",
        "Also unmet, 1 requirement:",
        "<caption>90%</caption>",
        "<caption>short</caption>",
        "3600 ms, indicative",
    ):
        assert text in page, text
    assert "<details open" not in page
    assert "hunter2-secret" not in page


def test_tables_keep_the_order_of_the_test(whole_page: str) -> None:
    places = [whole_page.index(f"<caption>ITL Results at {share}%</caption>") for share in (25, 50, 75, 90)]
    assert places == sorted(places)


def test_a_test_without_limits_leads_with_its_figure(whole_page: str) -> None:
    verdicts = whole_page.split('<section id="tests">')[1].split("1. System Identification")[0]
    assert "Maximum concurrent requests: 64" in verdicts
    assert "Knee point: 14 req/s" in verdicts


def test_ids_of_the_plots_of_a_page_are_unique(whole_page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', whole_page)
    assert len(ids) > len(SECTIONS)
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("undrawn")
def test_a_page_has_no_more_pictures_than_it_can_show(entry: Entry, report: Entry) -> None:
    own = next(iter(entry["plots"].values()))
    pictures = {"own": own, **dict.fromkeys(OVER_TIME, own)}
    tests = [
        entry | {"nodeid": f"g.py::test_{number}", "plots": pictures, "outcome": "passed"}
        for number in range(40)
    ]
    for good in tests[:-1]:
        good["gate"] = good["gate"] | {"verdict": "pass"}
    page = html_report({**report, "tests": tests})
    drawn = [len(re.findall("<svg", part)) for part in page.split('class="test"')[1:]]
    assert sum(drawn) == MOST_PICTURES
    assert drawn[-1] == 4  # undecided: it has all of its own
    assert all(count >= 1 for count in drawn)  # and nobody goes without the picture of the test
    assert "3 of 4 pictures are not drawn, since the page has 60" in page
    Page(page)


@pytest.mark.usefixtures("undrawn")
def test_pictures_of_a_shared_load_are_drawn_once(entry: Entry, report: Entry) -> None:
    other = copy.deepcopy(entry) | {"nodeid": "g.py::test_other"}
    for stretch in other["stretches"]:
        stretch["shared_from"] = entry["nodeid"]
    passed = entry | {"gate": {"verdict": "pass", "objectives": []}, "outcome": "passed"}
    page = html_report({**report, "tests": [passed, other]})
    first, second = page.split('class="test"')[1:]
    assert "<svg" not in first, "it passed, and is folded"
    assert 'Pictures of the shared load: <a href="#test-1">test_other</a>' in first
    assert second.count("<svg") == len(entry["plots"])
    shown: dict[str, str] = {}
    assert "<svg" in html_blocks.extra_block(passed, shown)
    block = html_blocks.extra_block(other, shown)
    assert "TTFT by Input Length" not in block
    assert f"Tables and pictures of the shared load: {entry['nodeid']}" in block.replace("&#x27;", "'")


@pytest.mark.usefixtures("undrawn")
def test_a_row_of_pytest_html_draws_the_course_of_a_load_only_where_something_is_wrong(entry: Entry) -> None:
    own = next(iter(entry["plots"].values()))
    entry["plots"] = {"own": own, **dict.fromkeys(OVER_TIME, own)}
    assert html_blocks.extra_block(entry).count("<svg") == 4
    entry |= {"gate": {"verdict": "pass", "objectives": []}, "outcome": "passed"}
    assert html_blocks.extra_block(entry).count("<svg") == 1


# HTML from values.


def test_text_is_escaped_and_html_is_not() -> None:
    assert element("td", "a < b & c", Html("<br>")) == "<td>a &lt; b &amp; c<br></td>"


def test_attributes_are_escaped_named_and_left_out() -> None:
    built = element("th", "x", class_="a", data_column_type='"n"', scope=None)
    assert built == '<th class="a" data-column-type="&quot;n&quot;">x</th>'


def test_children_nest() -> None:
    assert fragment(["a", ["b", None]], element("br")) == "ab<br>"


def test_rows_have_heads() -> None:
    built = table(("A", "B"), [("1", "2")], caption="<C>")
    assert '<th scope="row">1</th><td>2</td>' in built
    assert "<caption>&lt;C&gt;</caption>" in built


def test_no_list_without_entries() -> None:
    assert paragraphs([]) == ""


def test_details_fold() -> None:
    assert details("s", "b") == "<details><summary>s</summary>b</details>"
    assert details("s", open_=True).startswith('<details open="">')
