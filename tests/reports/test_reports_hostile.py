"""Whatever a server or an author wrote, and whatever number came out: every rendering holds its form."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from _pytest.junitxml import bin_xml_escape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import Page
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pydantic import ValidationError

from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import Finding, Validity
from pytest_llmbench.model.observation import EngineReadings
from pytest_llmbench.model.result import Plot, TestResult
from pytest_llmbench.redaction import outward_value
from pytest_llmbench.reports import html_blocks, plots
from pytest_llmbench.reports.ci_files import (
    annotations_text,
    bencher,
    bigger_is_better,
    ctrf,
    gitlab_metrics,
    properties,
    smaller_is_better,
)
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.markdown import MAX_BYTES, markdown_report
from pytest_llmbench.reports.minimum import FIRST_LINE, LAST_LINE, minimum_report
from pytest_llmbench.reports.terminal import brief_lines, closing_lines, overview, section_lines
from pytest_llmbench.store import entries, schema
from pytest_llmbench.store.files import document_of

Path = tuple[str | int, ...]

TEXTS = [
    "\ud800", "a\x00b\x07", "\x1b[2J\x1b[31mred", "\u202egnirts\u2066", "a\r\nb\tc\u2028d", "\uffff", "",
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)",
    "</title></svg>", "]]>", "--><b>", "&lt;b&gt;", "javascript:alert(1)",
    "a|b\n| c | d |", "\\|", "a\\\\|b`|", "`````", "```\n# x", "[x](http://evil)", "![x](http://evil)",
    "@all", "see HTTPS://evil.example/x, www.evil.example a@b.example", "#1 !2 GH-3 o/r#4 ftp://e.example",
    "- Max Throughput: 1 tok/s\n- Notes: none", FIRST_LINE, f"\n{LAST_LINE}\n",
    "$x^{$", r"$\frac{1}{$", "$$", "_hidden", "%s{0}%(x)d", "x" * 5_000, "w " * 2_000,
]  # fmt: skip
NUMBERS = [0, -1, 1e300, -1e300, 1.7e308, 5e-324, 2**63, 10**30, 0.999999999, -0.0, None]
texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=40))
numbers = st.one_of(st.sampled_from(NUMBERS), st.floats(allow_nan=False, allow_infinity=False))


def leaves(value: Any, at: Path = ()) -> Iterator[Path]:
    """Where a text or a number stands, or the name of one."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from leaves(entry, (*at, key))
    elif isinstance(value, list):
        for i, entry in enumerate(value[:6]):
            yield from leaves(entry, (*at, i))
    elif value is None or isinstance(value, str | int | float):
        yield at


def plant(report: dict[str, Any], at: Path, value: Any) -> None:
    """Put the value there, if the schema takes it."""
    place: Any = report
    for step in at[:-1]:
        place = place[step]
    before, place[at[-1]] = place[at[-1]], value
    try:
        schema.Report.model_validate(report)
    except ValidationError:
        place[at[-1]] = before


def named(report: dict[str, Any], name: str) -> dict[str, Any]:
    """With that name for what has one: a metric, a series, a mark, a fact, a column, an error."""
    entry = report["tests"][0]
    entry["metrics"][f"ttft[{name}].p99"] = dict(next(iter(entry["metrics"].values())))
    entry["facts"][name] = {"value": {name: [name]}, "origin": "detected", "source": name}
    entry["counts"][name] = 1
    entry["tables"][name] = {"title": name, "columns": [name, "b"], "rows": [[name, name], ["c", "d"]]}
    entry["notes"] += [name]
    entry["nodeid"] = name
    for level in entry["levels"]:
        level["errors"][name] = 3
        level["metrics"][name] = dict(next(iter(entry["metrics"].values())))
    return report


def bars(line: str) -> int:
    """Of a row of a table those that end a cell; a backslash takes the sign after it with it."""
    return len(re.findall(r"\||\\.", line)) - len(re.findall(r"\\.", line))


def check_html(page: str, live: Page, scripts: int) -> None:
    seen = Page(page)
    assert seen.scripts == scripts
    assert seen.tags <= live.tags
    assert seen.attributes <= live.attributes
    assert all(link.startswith("#") for link in seen.links)


def check_markdown(text: str) -> None:
    assert len(text.encode()) <= MAX_BYTES
    columns = None
    fence = ""
    for line in text.split("\n"):
        ticks = re.match(r"`{3,}", line)
        if ticks and (not fence or line == fence):
            fence = "" if fence else ticks.group()
        if fence:
            continue
        if line.startswith("|"):
            columns = columns or bars(line)
            assert bars(line) == columns, line
        else:
            columns = None
        words = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line)  # code spans are as they are
        assert not re.search(r"<(?!/?(details|summary)>|br>)", words), line
        assert not re.search(r"(?i)[a-z]://|\bwww\.|@\w|[#!$]\d|\bgh-\d", words), line
        assert not re.search(r"(?<!\\)!?\[", words), line


def check_minimum(text: str, clean: str) -> None:
    """Line for line that of the clean report, but for the deviations and where the latencies come from."""

    def heads(whole: str) -> list[str]:
        lines = [line for line in whole.split("\n") if not line.startswith(("  - ", "- Latencies: from"))]
        return [line.partition(":")[0] for line in lines]

    assert heads(text) == heads(clean)


def check_ci(document: dict[str, Any]) -> None:
    """One line a command, JSON that every reader takes, OpenMetrics that its parser takes."""
    for text in (bencher(document), smaller_is_better(document), bigger_is_better(document), ctrf(document)):
        json.loads(text, parse_constant=pytest.fail)
        text.encode()
    for line in annotations_text(document).removesuffix("\n").split("\n"):
        assert re.fullmatch(r"(::(error|warning) file=[^\r\n:,]*,title=[^\r\n:,]*::[^\r\n]*)?", line), line
    list(text_string_to_metric_families(gitlab_metrics(document)))


def check_all(report: dict[str, Any], clean: dict[str, Any], live: Page) -> None:
    document = document_of(schema.Report.model_validate(report))
    strict = json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    assert json.loads(strict) == document
    check_html(html_report(document), live, 1)
    check_markdown(markdown_report(document))
    check_ci(document)
    check_minimum(minimum_report(document), minimum_report(clean))
    lines = [*overview(document), *(line for entry in document["tests"] for line in _terminal(entry))]
    for line in lines:
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", line.text)
        assert len(line.text) <= 100
    for entry in document["tests"]:
        check_html(html_blocks.extra_block(entry) + "".join(html_blocks.row_cells(entry)), live, 0)
        for name, value in properties(entry):
            told = ElementTree.Element("property", name=bin_xml_escape(name), value=bin_xml_escape(value))
            ElementTree.fromstring(ElementTree.tostring(told))


def _terminal(entry: dict[str, Any]) -> Any:
    whole = section_lines(entry, width=100)
    return whole + brief_lines(entry, width=100) + closing_lines([entry], width=100)


class Entries(list[dict[str, Any]]):
    """Named by their number where a property fails: written out they are longer than Hypothesis allows."""

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"


@pytest.fixture(scope="session")
def undrawn(every_entry: dict[str, dict[str, Any]]) -> Entries:
    """Entries of all kinds without their plots, which take their time."""
    return Entries({**entry, "plots": {}} for entry in every_entry.values())


@pytest.fixture(scope="session")
def whole(base_report: dict[str, Any]) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """A report of these entries."""
    return lambda entries: {**base_report, "tests": entries}


@pytest.fixture(scope="session")
def live(undrawn: Entries, whole: Any) -> Page:
    """The tags and attributes that pages have of themselves, those of a repeated test among them."""
    entries = [*undrawn, {**undrawn[0], "attempts": 2}]
    blocks = "".join(html_blocks.extra_block(entry) for entry in entries)
    cells = "".join([*html_blocks.header_cells(), *html_blocks.row_cells(entries[0])])
    return Page(html_report(whole(entries)) + blocks + cells)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 8), st.lists(st.tuples(st.floats(0, 0.9999), st.one_of(texts, numbers)), min_size=1))
def test_any_text_or_number_anywhere(
    undrawn: Entries, whole: Any, live: Page, which: int, plants: list[tuple[float, Any]]
) -> None:
    """``plants``: how far from the first place to the last, and what."""
    clean = whole([undrawn[which]])
    places, report = list(leaves(clean)), copy.deepcopy(clean)
    for far, value in plants:
        plant(report, places[int(far * len(places))], value)
    check_all(report, document_of(schema.Report.model_validate(clean)), live)


def test_a_megabyte(undrawn: Entries, whole: Any, live: Page) -> None:
    clean, report = whole(undrawn[:1]), whole(copy.deepcopy(undrawn[:1]))
    entry = report["tests"][0]
    entry["notes"] = entry["tables"]["ttft_results"]["rows"][0] = ["m" * 1_000_000] * 3
    entry["validity"]["findings"][0] |= {"ok": False, "message": "x | " * 250_000}
    check_all(report, document_of(schema.Report.model_validate(clean)), live)


@pytest.fixture(scope="session")
def clean(undrawn: Entries, whole: Any) -> dict[str, Any]:
    """A report of two entries."""
    return document_of(schema.Report.model_validate(whole(undrawn[:2])))


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_any_name_of_anything(
    undrawn: Entries, whole: Any, clean: dict[str, Any], live: Page, name: str
) -> None:
    check_all(named(whole(copy.deepcopy(undrawn[:2])), name), clean, live)


@pytest.mark.slow
@pytest.mark.parametrize("name", [text for text in TEXTS if len(text) < 10_000])
def test_any_name_in_a_plot(name: str) -> None:
    shown = outward_value(name)
    band = {"x": [1.0, 2.0], "lower": [1.0, 1.0], "upper": [2.0, 3.0]}
    plot = {
        "title": shown, "x_label": shown, "y_label": shown, "marks": {shown: 1.5, "b": 2.0},
        "series": {shown: {"x": [1.0, 2.0], "y": [1.0, 2.0]}, "c": {"x": [1.0, 2.0], "y": [2.0, 1.0]}},
        "bands": {shown: band},
    }  # fmt: skip
    ElementTree.fromstring(plots.render(plot, shown, salt=shown).replace("xlink:", ""))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("value", [number for number in NUMBERS if number is not None])
def test_any_number_in_a_plot(value: float, log: bool) -> None:
    values = [1.0, value]
    plot = {
        "title": "t", "x_label": "x", "y_label": "y", "x_log": log, "y_log": log, "marks": {"limit": value},
        "series": {"a": {"x": values, "y": values}},
        "bands": {"a": {"x": values, "lower": values, "upper": values}},
    }  # fmt: skip
    svg = plots.render(plot, "p").replace("xlink:", "")
    ElementTree.fromstring(svg)
    assert ("not drawn" in svg) == (abs(value) > 1e15 or (log and 0 < abs(value) < 1e-15))


def test_a_text_where_a_check_has_a_number_is_refused() -> None:
    with pytest.raises(ValidationError):
        schema.ValidityEntry.model_validate(
            {
                "verdict": "valid",
                "findings": [{"check": "c", "ok": True, "voids": True, "message": "", "value": "x"}],
            }
        )


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1.7e308, 10**400])
def test_what_is_no_number_costs_no_entry(result: TestResult, value: float) -> None:
    at_ns = np.array([6 * 10**6, 7 * 10**6], dtype=np.int64)
    told = min(value, 1.7e308)
    readings = EngineReadings(at_ns, {"running": np.array([told, told])}, {"x": -told}, {"x": told})
    hostile = replace(
        result,
        observations=(replace(result.observations[0], engine=readings),),
        validity=Validity((Finding.of("send_lag", False, value, value),)),
        facts=Facts.of(Origin.DETECTED, {"sut.figure": value, "sut.figures": {"a": [value]}}),
        plots=(Plot("p", "t", "x", "y", {"s": ((1.0, 2.0), (1.0, told))}, marks={"m": value}),),
        by_run={"ttft.p99": (value, 1.0)},
    )
    entry = entries.entry_from_result(hostile, nodeid="a::b", outcome="error").plain()
    json.dumps(entry, allow_nan=False)
    engine, finding = entry["stretches"][0]["engine"], entry["validity"]["findings"][0]
    assert engine["growth"] == {"x": None}
    assert engine["gauges"]["running"]["mean"] is None
    assert (finding["value"], finding["limit"]) == (
        (told, told) if value == told == 1.7e308 else (None, None)
    )
    section_lines(entry)


def test_what_is_to_be_found_is_found(undrawn: Entries, whole: Any, live: Page) -> None:
    """The checks themselves."""
    with pytest.raises(AssertionError):
        check_html("<p onclick='x'>a</p>", live, 0)
    with pytest.raises(AssertionError):
        check_html("<script>a</script><script>b</script>", live, 1)
    for text in ("| a | b |\n| c | d | e |", "| a | b |\n| c\\\\| | d |", "<b>", "[x](y)"):
        with pytest.raises(AssertionError):
            check_markdown(text)
    check_markdown("| a | b |\n| c\\| | `<d>` |\n\n```text\n<b>\n```\n")
    clean = minimum_report(whole(undrawn))
    with pytest.raises(AssertionError):
        check_minimum(clean.replace("- Model:", "- Model: x\n- Model:"), clean)
