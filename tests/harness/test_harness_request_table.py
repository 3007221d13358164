"""Requests that failed, lack something or carry a server's odd words, as arrays and as a table."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from pytest_llmbench.harness.analysis import LoadedTest, LoadRequests, RequestTable, csv_rows, plain_columns
from pytest_llmbench.model.record import (
    Instant,
    Number,
    Outcome,
    Phase,
    RequestRecord,
    Whole,
    Words,
    of_kind,
)
from pytest_llmbench.model.records import KINDS, NUMBERS, TEXTS, Records
from pytest_llmbench.store.files import write_csv

MS = 1_000_000
TEST = cast(LoadedTest, SimpleNamespace(nodeid="t.py::t", entry=SimpleNamespace(attempts=1)))


def request(index: int, **values: Any) -> RequestRecord:
    start = 9_007_199_254_740_993 + index  # one more than a float can count to
    return RequestRecord(index, f"r-{index}", Phase.MEASURE, submitted_ns=start, **values)


def table() -> RequestTable:
    good = request(
        0, first_content_ns=9_007_199_254_740_993 + 7 * MS, output_tokens=0, outcome=Outcome.OK,
        chunk_ns=[5, 6], chunk_tokens=[1, 2],
    )  # fmt: skip
    failed = request(
        1, outcome=Outcome.HTTP_ERROR, http_status=500, error="=cmd|' /C calc'!A0 \ud800",
        thinking_end_reason="=1+1",
    )  # fmt: skip
    parts = [("a", [good]), ("b", [failed])]
    return RequestTable(
        [
            LoadRequests(2 * number, label, Records.from_rows(rows))
            for number, (label, rows) in enumerate(parts)
        ]
    )


def test_what_was_not_observed_is_no_number() -> None:
    found = table()
    assert found.ttft_ms[0] == 7.0
    assert math.isnan(found.ttft_ms[1])
    assert found.output_tokens[0] == 0.0
    assert math.isnan(found.output_tokens[1])
    assert np.isnan(found["http_status"]).tolist() == [True, False]
    assert found["first_content_ns"].tolist() == [9_007_199_254_740_993 + 7 * MS, -1]
    assert found["error"][0] is None
    assert found.outcome.tolist() == ["ok", "http_error"]
    assert found.label.tolist() == ["a", "b"]
    assert found.load.tolist() == [0, 2]
    assert found.select([False, True]).load.tolist() == [2]
    assert [own.tolist() for own in found.chunk_ns] == [[5, 6], []]
    assert [own.tolist() for own in found.chunk_tokens] == [[1, 2], []]


def test_a_table_keeps_nanoseconds_and_has_empty_cells() -> None:
    columns = plain_columns(TEST, table())
    assert columns["submitted_ns"] == [9_007_199_254_740_993, 9_007_199_254_740_994]
    assert columns["first_content_ns"] == [9_007_199_254_740_993 + 7 * MS, None]
    assert columns["output_tokens"] == [0, None]
    assert columns["http_status"] == [None, 500]
    assert columns["ttft_ms"] == [7.0, None]


def test_every_column_is_in_the_table_and_nothing_is_not_zero() -> None:
    numbers, words = of_kind(Instant, Number), of_kind(Words)
    zeros = RequestRecord(0, "a", Phase.MEASURE, **dict.fromkeys(numbers, 0), **dict.fromkeys(words, ""))
    parts = [LoadRequests(0, "", Records.from_rows([zeros, RequestRecord(1, "b", Phase.MEASURE)]))]
    columns = plain_columns(TEST, RequestTable(parts))
    assert all(columns[name] == [0, None] for name in numbers)
    assert all(columns[name] == ["", None] for name in words)
    assert all(columns[name] == [0, 0] for name in of_kind(Whole) if name != "index")
    assert set(NUMBERS) | set(TEXTS) | set(KINDS) <= set(columns)


def test_what_a_server_wrote_is_text_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_csv(path, list(plain_columns(TEST, table())), csv_rows(iter([(TEST, table())])))
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["error"] for row in rows] == ["", "'=cmd|' /C calc'!A0 \ufffd"]
    assert [row["thinking_end_reason"] for row in rows] == ["", "'=1+1"]
    assert [row["reasoning_token_source"] for row in rows] == ["none", "none"]


def test_nothing_is_a_table_too() -> None:
    empty = RequestTable([])
    assert len(empty) == len(empty.ttft_ms) == len(empty.chunk_ns) == len(empty.label) == 0
