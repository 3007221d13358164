"""``pytest-llmbench records``: the single requests of a report as CSV or Parquet."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytest_llmbench.errors import LLMBenchError, StoreError, SuiteError
from pytest_llmbench.harness.analysis.loaded_report import (
    COLUMNS,
    LATENCIES,
    TEXTS,
    LoadedReport,
    LoadedTest,
    RequestTable,
    load_report,
)
from pytest_llmbench.harness.history.sessions import refused
from pytest_llmbench.model.records import BLOCK, MISSING
from pytest_llmbench.redaction import outward_value
from pytest_llmbench.store.files import Cell, whole_file, write_csv

CSV_COLUMNS = ("nodeid", "attempt", *COLUMNS)
CHUNKS = ("chunk_ns", "chunk_tokens")
"""Columns that hold lists, which only Parquet has."""
_NO_PYARROW = "pip install 'pytest-llmbench[parquet]', or write --csv"


def tables(
    report: LoadedReport, test: str | None, *, everything: bool
) -> Iterator[tuple[LoadedTest, RequestTable]]:
    """Each test with its requests, load by load. ``everything``: warm-ups, probes and void loads too.

    A load that several tests used is that of the one that measured it. SuiteError where no test holds
    ``test``.
    """
    wanted = [own for own in report.tests if test is None or test in own.nodeid]
    if not wanted:
        names = ", ".join(own.nodeid for own in report.tests)
        raise SuiteError(f"--test {test!r} matches no test; there are: {names or 'none'}")
    for own in wanted:
        if own.entry.loads_file is None:
            if own.entry.records_file is not None:  # of a session that was killed
                yield own, own.records
            continue
        for load in own.loads:
            counted = load.counts and load.phase == "measure"
            if load.shared_from is None and (counted or everything):
                yield own, load.records


def plain_columns(test: LoadedTest, table: RequestTable) -> dict[str, list[Any]]:
    """The columns as Python values, with None for what was not observed."""
    columns: dict[str, list[Any]] = {
        "nodeid": [test.nodeid] * len(table),
        "attempt": [test.entry.attempts] * len(table),
    }
    for name in COLUMNS:
        own = table[name]
        if name in TEXTS or name == "ok":
            columns[name] = own.tolist()
            continue
        absent = np.isnan(own) if own.dtype.kind == "f" else own == MISSING
        whole = own.dtype.kind == "f" and name not in LATENCIES
        columns[name] = [
            None if gone else int(value) if whole else value
            for value, gone in zip(own.tolist(), absent.tolist(), strict=True)
        ]
    return columns


def csv_rows(found: Iterator[tuple[LoadedTest, RequestTable]]) -> Iterator[Sequence[Cell]]:
    for test, table in found:
        yield from zip(*plain_columns(test, table).values(), strict=True)


def write_parquet(path: Path, found: Iterator[tuple[LoadedTest, RequestTable]]) -> None:
    """Write the same columns as Parquet, with the chunks of each request as lists.

    SuiteError without pyarrow, StoreError where the file cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise SuiteError("Parquet files need pyarrow, which is not installed", remedy=_NO_PYARROW) from error
    schema = pyarrow.schema([(name, _arrow_type(pyarrow, name)) for name in (*CSV_COLUMNS, *CHUNKS)])
    with whole_file(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for test, table in found:
            columns: dict[str, list[Any]] = outward_value(plain_columns(test, table))
            columns |= {name: [own.tolist() for own in getattr(table, name)] for name in CHUNKS}
            writer.write_table(pyarrow.table(columns, schema=schema), row_group_size=BLOCK)


def _arrow_type(pyarrow: Any, name: str) -> Any:
    if name in CHUNKS:
        return pyarrow.list_(pyarrow.int64())
    if name in TEXTS or name == "nodeid":
        return pyarrow.string()
    if name == "ok":
        return pyarrow.bool_()
    return pyarrow.float64() if name in LATENCIES else pyarrow.int64()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench records",
        description="Write the requests of a report as a table, one row each.",
        epilog="Exit status: 0 written; 2 there is no report, it has no records, or nothing can be written.",
    )
    parser.add_argument("report", type=Path, help="report.json, or its directory")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument(
        "--parquet", type=Path, metavar="FILE", help="write Parquet, with the chunks; needs pyarrow"
    )
    parser.add_argument("--test", metavar="TEXT", help="only tests whose node id contains this")
    parser.add_argument("--all", action="store_true", help="include warm-ups, probes and void loads")
    given = parser.parse_args(list(arguments))
    try:
        for path, rows in _written(given):
            print(f"{path}: {rows} requests")
    except LLMBenchError as error:
        return refused(error)
    return 0


def _written(given: argparse.Namespace) -> Iterator[tuple[Path, int]]:
    if given.csv is None and given.parquet is None:
        raise SuiteError("nothing to write: give --csv FILE or --parquet FILE, or both")
    report = load_report(given.report)

    def found() -> Iterator[tuple[LoadedTest, RequestTable]]:
        return tables(report, given.test, everything=given.all)

    count = sum(len(table) for _, table in found())
    if not count:
        raise StoreError(
            "there are no records of single requests", where=str(report.path),
            remedy="measure with --llm-records=compact (the default) or full, and keep the folder records "
            "next to the report",
        )  # fmt: skip
    if given.csv is not None:
        write_csv(given.csv, CSV_COLUMNS, csv_rows(found()))
        yield given.csv, count
    if given.parquet is not None:
        write_parquet(given.parquet, found())
        yield given.parquet, count
