"""Each column through every form that a record has: what was observed comes back, and nothing is not zero."""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from same_records import same

from pytest_llmbench.columns import BlockFile, RecordLog, block_of, merged, records_of
from pytest_llmbench.generator.records.spool import SpoolReader, SpoolWriter
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.record import (
    Instant,
    Number,
    Outcome,
    Phase,
    RequestRecord,
    TokenSource,
    Words,
    of_kind,
)
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.simulator.replay.records import rows_of
from pytest_llmbench.store.record_line import RECORDS_SCHEMA, row_reader
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter, read_runs

NAMES = tuple(column.name for column in fields(RequestRecord))
RECORDS = tuple(column.name for column in fields(Records))
OBSERVED = {
    "Whole": (3, 0),
    "Instant": (70, 0),
    "Number": (5, 0),
    "Text": ("some", ""),
    "Words": ("gone", ""),
    "PhaseOf": tuple(Phase),
    "SourceOf": tuple(TokenSource),
    "OutcomeOf": tuple(Outcome),
    "Several": ([60, 75], [0], []),
    "str": ("exact", "none"),
    "dict[str, float]": ({"queue_ms": 1.5}, {}),
}
"""Kind of column → values that can be observed, zero and nothing among them."""


def record(index: int, **values: Any) -> RequestRecord:
    return RequestRecord(**{"index": index, "request_id": f"r-{index}", "phase": Phase.MEASURE} | values)


def cases(name: str) -> list[RequestRecord]:
    """Requests with each value of one column and nothing else, and with a submission and chunks beside it."""
    kind = str(next(column.type for column in fields(RequestRecord) if column.name == name))
    beside = {"submitted_ns": 50, "chunk_ns": [60, 75], "chunk_tokens": [1, 2], "attribution": "exact"}
    if name == "index":
        return [record(3), record(0)]
    values = list(enumerate(OBSERVED[kind]))
    return [record(101, **beside), record(100)] + [
        record(1 + 2 * i + bool(more), **more | {name: value}) for i, value in values for more in ({}, beside)
    ]


def lines(path: Path, rows: list[RequestRecord]) -> list[RequestRecord]:
    with RecordsWriter(path, RecordsHeader(ClockAnchor(1, 2))) as writer:
        for row in rows:
            writer.write(row)
    read = row_reader({"compact": "compact" in path.name, "schema": RECORDS_SCHEMA})
    return [read(line)[0] for line in path.read_bytes().splitlines()[1:]]


def plain(rows: list[RequestRecord]) -> list[dict[str, Any]]:
    return [{name: _listed(getattr(row, name)) for name in NAMES} for row in rows]


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", NAMES)
def test_a_column_comes_back_from_rows_of_every_form(name: str, tmp_path: Path) -> None:
    rows = cases(name)
    assert plain(lines(tmp_path / "a.jsonl", rows)) == plain(rows)
    assert plain(lines(tmp_path / "a.compact.jsonl", rows)) == plain(rows)
    spool = SpoolWriter(tmp_path / "spool")
    for row in rows:
        spool.write(row)
    spool.close()
    assert plain(SpoolReader(tmp_path / "spool").read()) == plain(rows)


@pytest.mark.parametrize("name", [name for name in NAMES if name in RECORDS])
def test_a_column_comes_back_from_arrays_of_every_form(name: str, tmp_path: Path) -> None:
    rows = cases(name)
    records = Records.from_rows(rows)
    lines(tmp_path / "a.compact.jsonl", rows)
    (run,) = read_runs(tmp_path / "a.compact.jsonl").runs
    same(run.records, records)
    spool = SpoolWriter(tmp_path / "spool")
    for row in rows:
        spool.write(row)
    spool.close()
    (columns,) = SpoolReader(tmp_path / "spool").columns()
    log = RecordLog()
    log.extend(Records.from_columns(columns))
    same(log.records(), records)
    with closing(BlockFile()) as file:
        block = block_of(records, file.vocabulary)
        file.append(block)
        same(records_of(file.read(file.places[0]), file.vocabulary), records)
        same(merged(file), records)
    same(Records.from_rows(rows_of(records)), records)


def test_what_was_not_observed_is_neither_zero_nor_empty() -> None:
    nothing = Records.from_rows([record(8)])
    known = {name: getattr(nothing, name) for name in ("index", "request_id", "phase", "class_label")}
    same(nothing, Records.filled(1, known))
    for name in of_kind(Instant, Number):
        given = Records.from_rows([record(8, **{name: 0})])
        assert (getattr(nothing, name).tolist(), getattr(given, name).tolist()) == ([MISSING], [0]), name
    for name in of_kind(Words):
        assert list(getattr(nothing, name)) == [None], name
    with pytest.raises(TypeError, match="submitted_ns"):
        Records(**{name: getattr(nothing, name) for name in RECORDS if name != "submitted_ns"})
    with pytest.raises(AttributeError, match="cannot assign"):
        nothing.index = nothing.index + 1
