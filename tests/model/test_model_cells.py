"""The cells of tables become text in one place, in the notation of all reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.numbers import Amount, Cell, Figure, cells, text_of, with_intervals
from pytest_llmbench.model.result import Table

CLOSED = Estimate(8.864, 6.54, 12.0, 0.95, 2_000, "order statistics", "ms")
OPEN = replace(CLOSED, upper=None, n=400)
SEEN = replace(CLOSED, lower=None, upper=None, kind=EstimateKind.OBSERVED)
BOUND = CLOSED.at_least(Reason.RANGE_ENDED, "nothing above it was tested")
UNKNOWN = Estimate.undefined(unit="ms", method="no server data", reason=Reason.NOT_MEASURABLE)


@pytest.mark.parametrize(
    ("estimate", "value", "interval", "both"),
    [
        (CLOSED, "8.86 ms", "[6.54, 12]", "8.86 ms [6.54, 12]"),
        (OPEN, "8.86 ms, indicative", "> 6.54 ms", "8.86 ms (> 6.54 ms), indicative"),
        (SEEN, "8.86 ms", "", "8.86 ms"),
        (BOUND, "at least 8.86 ms", "> 6.54 ms", "at least 8.86 ms (> 6.54 ms)"),
        (UNKNOWN, "not measurable: no server data", "", "not measurable: no server data"),
        (None, "not measured", "", "not measured"),
    ],
)
def test_a_figure_has_one_notation(estimate: Estimate | None, value: str, interval: str, both: str) -> None:
    assert Figure("ttft.p99", estimate).text == value
    assert Figure("ttft.p99", estimate, "interval").text == interval
    assert Figure("ttft.p99", estimate, "both").text == both


def test_what_the_draft_does_not_let_be_reported_has_no_number() -> None:
    few = Figure("ttft.p99", OPEN, reported_from=1_000)
    assert few.text == "n < 1000, not reported"
    assert replace(few, part="interval").text == ""
    assert Figure("ttft.p99", CLOSED, reported_from=1_000).text == "8.86 ms"
    assert Figure("ttft.p50", OPEN).text == "8.86 ms"


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("words", "words"),
        (12, "12"),
        (Amount(None, "ratio"), "not measured"),
        (Amount(0.99996, "ratio"), "> 99.99 %"),
        (Amount(20.0, "req/s"), "20 req/s"),
        (Figure("jain_index", replace(CLOSED, point=0.9871, unit="ratio")), "0.9871"),
        (Figure("goodput_share", replace(CLOSED, point=0.9871, unit="ratio")), "98.71 %"),
        (Figure("x", replace(CLOSED, point=-0.05, lower=-0.1, upper=None), "change"), "-5 % [-10 %, open]"),
        (Figure("x", replace(CLOSED, point=0.0, lower=-0.1, upper=0.02), "change"), "0 % [-10 %, +2 %]"),
        (Figure("x", UNKNOWN, "change"), "not measured"),
    ],
)
def test_a_cell_becomes_text(cell: Cell, text: str) -> None:
    assert text_of(cell) == text


def test_a_table_holds_values_and_shows_text() -> None:
    (known,) = cells({"ttft.p50": CLOSED}, ("ttft.p50",))
    (absent,) = cells({}, ("ttft.p50",), "both")
    rows = with_intervals([("Requests", 3), ("TTFT P50", known)])
    table = Table("t", "T", ("Metric", "Value", "95 % interval"), (*rows, ("TTFT", absent, "")))
    assert table.cells[1][1] == Figure("ttft.p50", CLOSED)
    assert table.rows == (
        ("Requests", "3", ""),
        ("TTFT P50", "8.86 ms", "[6.54, 12]"),
        ("TTFT", "not measured", ""),
    )
