"""report.html and the cells of pytest-html."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from pytest_llmbench.reports import pytest_html
from pytest_llmbench.reports.html import SECTIONS, html_report
from pytest_llmbench.store import schema

Entry = dict[str, Any]
_VOID = {"meta", "br", "hr"}


class Outline(HTMLParser):
    """Checks nesting and collects headings, addresses and ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in _VOID:
            self.open.append(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag == "h2":
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings[-1] += data


def outline(text: str) -> Outline:
    parser = Outline()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture
def page(report: Entry) -> str:
    return html_report(report)


def test_six_sections_in_order(page: str) -> None:
    expected = [f"{number}. {title}" for number, title in enumerate(SECTIONS, start=1)]
    assert outline(page).headings == expected
    assert SECTIONS == (
        "System Identification",
        "Test Configuration",
        "Results",
        "Detailed Results",
        "Methodology Compliance",
        "Reproduction Information",
    )


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    seen = outline(page)
    assert all(address.startswith("#") for address in seen.addresses)
    assert not seen.tags & {"script", "link", "iframe", "img"}
    assert "url(http" not in page
    assert "@import" not in page


def test_what_a_reviewer_looks_for_is_there(page: str) -> None:
    for text in (
        "1 INCONCLUSIVE, 1 PASS, 1 ERROR",
        "ttft.p99 &lt;= 600 ms",
        "468.3 ms [449.5, 491.7]",
        "TTFT by Input Length",
        "M-5.1.4.1-percentiles",
        "All 7 requirements: 5 unmet, 1 met, 1 not applicable",
        "Load generator self-check",
        "0.183 ms",
        "ab" * 32,
        "records/test_first_token_is_quick.jsonl",
        "sut.toml",
        "declared",
        "pytest gates --llm-endpoint=https://host/v1",
        "connection refused",
        "Distribution of TTFT",
    ):
        assert text in page, text


def test_text_from_outside_is_escaped(page: str) -> None:
    assert "test_unreachable[<b>" not in page
    assert "test_unreachable[&lt;b&gt;|x]" in page


def test_invalid_numbers_are_not_in_the_summaries(report: Entry) -> None:
    for entry in report["tests"]:
        entry["validity"]["verdict"] = "invalid"
    results = html_report(report).split("3. Results")[1].split("4. Detailed Results")[0]
    assert results.count("not measured") == 2
    assert "1843 tok/s" not in results


def test_the_page_is_the_same_each_time(report: Entry, page: str) -> None:
    assert html_report(report) == page


def test_cells_of_pytest_html(entry: Entry) -> None:
    heads = [re.sub(r"<[^>]+>", "", cell) for cell in pytest_html.header_cells()]
    assert heads == ["Verdict", "Value", "Limit", "Interval"]
    verdict, value, limit, interval = pytest_html.row_cells(entry)
    assert "INCONCLUSIVE" in verdict
    assert value == (
        '<td class="col-llmvalue"><div>TTFT P99: 468.3 ms</div><div>TTFT P99.9: 557.4 ms</div></td>'
    )
    assert limit == '<td class="col-llmlimit"><div>&lt;= 600 ms</div><div>&lt;= 900 ms</div></td>'
    assert interval == '<td class="col-llminterval"><div>[449.5, 491.7]</div><div>&gt; 535.1 ms</div></td>'


def test_a_test_that_is_not_ours_has_empty_cells() -> None:
    cells = pytest_html.row_cells(None)
    assert [re.sub(r"<[^>]+>", "", cell) for cell in cells] == ["", "", "", ""]


def test_a_test_without_limits_shows_its_figure(entry: Entry) -> None:
    entry["gate"] = {"verdict": "pass", "objectives": []}
    entry["metrics"] = {
        name: metric | {"n": 5000} for name, metric in entry["metrics"].items() if name.startswith("ttft")
    }
    _, value, limit, _ = pytest_html.row_cells(entry)
    assert "TTFT P99: 468.3 ms [449.5, 491.7]" in value
    assert "no limit" in limit


def test_the_block_below_a_row(entry: Entry, broken: schema.TestEntry) -> None:
    block = pytest_html.extra_block(entry)
    outline(block)
    assert "<svg" in block
    assert "TTFT by Input Length" in block
    unmeasured = pytest_html.extra_block(broken.plain())
    outline(unmeasured)
    assert "nothing was measured" in unmeasured
