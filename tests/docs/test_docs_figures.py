"""Figures that the explanations repeat are those of their sources, and those of a replay come out again."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from pytest_llmbench.compliance.audit import ambiguities, load_catalogue

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of all lines of tables."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\|.*", text, re.M)
    ]


COVERAGE = {
    "independent, exponential": "independent, exponential",
    "M/M/1": "M/M/1 at 50%",
    "M/M/8": "M/M/8 at 80%",
    "M/M/32": "M/M/32 at 90%",
    "embedded engine at 85 % load": "embedded engine at 85%",
}
"""What a label of the explanation has in it, and the same row in the table of the reference."""


@pytest.mark.parametrize("label", COVERAGE)
def test_coverages_are_those_of_the_table(label: str) -> None:
    (told,) = [row for row in rows(page("explanation/intervals.md")) if label in row[0] and len(row) == 5]
    table = page("../benchmarks/coverage.md").partition("<!-- end of coverage -->")[0].rpartition("<!--")[2]
    source = [row for row in rows(table) if row[:2] == [COVERAGE[label], "1,000"]]
    assert told[1:] == [cell.split()[0] for cell in source[0][2:]]


def test_the_short_tables_have_rows_of_the_full_ones() -> None:
    full = page("../benchmarks/coverage.md").splitlines()
    rows = [line for line in page("reference/coverage.md").splitlines() if line.startswith("|")]
    assert [row for row in rows if row not in full] == []


def test_counts_of_clauses_are_those_of_the_catalogue() -> None:
    text, entries = page("explanation/compliance.md"), list(load_catalogue().values())
    for keyword, line in (
        ("MUST", "| MUST"),
        ("SHOULD", "| SHOULD"),
        ("MAY", "| MAY"),
        ("none", "| no keyword"),
    ):
        (told,) = re.findall(rf"^{re.escape(line)}.*", text, re.M)
        counted = [entry for entry in entries if entry.counts_as == keyword]
        effects = Counter(entry.verdict_effect for entry in counted)
        cells = [int(cell) if (cell := part.strip()) else 0 for part in told.strip("|").split("|")[1:]]
        assert cells == [len(counted), effects["blocks"], effects["downgrades"], effects["none"]]
    by = Counter(entry.verification for entry in entries)
    assert f"{by['automatic']} of the {len(entries)} are checked" in text
    assert f"{by['declared']} rest on" in text
    assert f"{by['structural']} are properties" in text
    assert f"each of {len(ambiguities())} such places" in text


def test_errors_of_the_generator_are_those_that_were_measured() -> None:
    measured = page("../benchmarks/performance.md")
    told = [row for row in rows(page("reference/performance.md")) if row[0].startswith("Poisson, ")]
    assert len(told) == 3
    for row in told:
        assert f"| {row[0]} | TTFT error P50 / P99 | {row[1]} |" in measured


SHOWN = """
import pytest

from pytest_llmbench import SUT


@pytest.fixture(scope="module")
def llm_sut():
    return SUT("replay:h100-8b?max_num_seqs=16")


def test_figures(llm_bench):
    closed = llm_bench.measure("ttft", p50_ms=1, concurrency=16)
    served = closed.request_throughput.point
    opened = llm_bench.measure("ttft", p50_ms=1, rate=1.2 * served)
    light = llm_bench.measure("ttft", p50_ms=1, rate=4).ttft.p99
    print(f"closed {served:.1f} {closed.ttft.p50.point:.0f} ms {closed.ttft.p99.point:.0f} ms")
    print(f"open {1.2 * served:.1f} {opened.ttft.p50.point:,.0f} ms {opened.ttft.p99.point:,.0f} ms")
    print(f"light {light.point:.1f} ms [{light.lower:.1f}, {light.upper:.1f}]")
"""


def test_figures_of_replays_come_out_again(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(SHOWN)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-s", "--llm-endpoint=replay")
    result.assert_outcomes(passed=1)
    table = [" ".join(row) for row in rows(page("explanation/open-loop.md"))]
    for line in result.outlines:
        if found := re.match(r"\S*(closed|open) (\S+) (.*ms)$", line):
            _, rate, latencies = found.groups()
            assert any(rate in row and latencies in row for row in table), line
        if found := re.match(r"light (.*)", line):
            assert found[1] in page("explanation/undecided-p99.md")
    assert {"closed", "open", "light"} <= {word for line in result.outlines for word in line.split()[:2]}
