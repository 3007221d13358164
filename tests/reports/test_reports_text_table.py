"""Text tables: flush right numbers, names cut before numbers, nothing beyond the width."""

from __future__ import annotations

import pytest

from pytest_llmbench.reports.terminal import text_table

COLUMNS = ("metric", "value", "change", "verdict")
ROWS = [
    ("ttft.p99", "524 ms", "+4.2 % [+1.0, +7.2]", "regressed"),
    ("output_token_throughput[full@50%]", "1843 tok/s", "not known", "inconclusive"),
    ("tpot.p50", "9 ms", "-1.0 % [-2.0, +0.1]", "equivalent"),
]


def test_what_fits_is_shown_as_it_is() -> None:
    assert text_table(("name", "runs"), [("main", "3"), ("v1.4", "12")], width=80) == [
        "name  runs", "----------", "main     3", "v1.4    12",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [70, 62])
def test_names_are_cut_and_numbers_are_not(width: int) -> None:
    lines = text_table(COLUMNS, ROWS, width=width, whole=("verdict",))
    assert max(map(len, lines)) <= width
    assert "+4.2 % [+1.0, +7.2]  regressed" in lines[2]
    assert lines[3].endswith("1843 tok/s            not known  inconclusive")
    assert "…" in lines[3]


def test_a_very_narrow_terminal_costs_numbers_last() -> None:
    lines = text_table(COLUMNS, ROWS, width=40)
    assert max(map(len, lines)) <= 40
    assert "1843 tok/s" in lines[3]
    assert "…" in lines[2]


def test_a_table_without_rows_has_its_head() -> None:
    assert text_table(("a", "b"), [], width=10) == ["a  b", "----"]


def test_a_line_break_in_a_name_breaks_no_line() -> None:
    assert text_table(("a",), [("x\ny",)], width=10)[-1] == "x y"
