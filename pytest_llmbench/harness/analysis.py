"""``pytest-llmbench records``: the single requests of a report as CSV or Parquet."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import StoreError, SuiteError, shown
from pytest_llmbench.harness.execution import StoredRecords
from pytest_llmbench.metrics.latency import FAMILIES, per_request
from pytest_llmbench.model import records
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import BLOCK, IN_RAGGED, KINDS, MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.redaction import outward_value
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.store.files import REPORT_NAME, Cell, read_report, whole_file, write_csv
from pytest_llmbench.store.records_file import read_runs
from pytest_llmbench.store.schema import LevelEntry, ObjectiveEntry, Report, TestEntry

if TYPE_CHECKING:
    import pandas as pd


TextColumn = npt.NDArray[np.object_]
NO_PANDAS = "pip install 'pytest-llmbench[pandas]', or use the arrays"

LATENCIES = tuple(f"{family}_ms" for family in FAMILIES)
"""The latency columns in milliseconds, defined as the metrics of the same name; NaN for a request that has
none."""
TEXTS = frozenset(("label", *KINDS, *records.TEXTS))
COLUMNS = (
    "load",
    "label",
    *(name for name in Records.__dataclass_fields__ if name not in IN_RAGGED),
    "ok",
    *LATENCIES,
)
"""Names of all columns with one entry per request, as in the records file."""


class LoadRequests(NamedTuple):
    """The requests of one load."""

    load: int
    """Index of the load among the loads of its test."""
    label: str
    records: Records


class RequestTable:
    """Requests in the order of their loads, in each as submitted.

    A column is an attribute, or an item by its name: ``table.ttft_ms``, ``table["output_tokens"]``.
    """

    ok: BoolColumn
    """Whether each request ended well; latencies have only those."""
    label: TextColumn
    """The label of the load that each request belongs to: ``run 1 of 3``, ``90% of saturation``."""
    load: IntColumn
    """Index of each request's load in the ``loads`` of the test; tells loads with the same label apart."""
    outcome: TextColumn
    ttft_ms: FloatArray
    tpot_ms: FloatArray
    e2e_ms: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray

    def __init__(self, parts: Sequence[LoadRequests]) -> None:
        self.records = Records.concatenate([part.records for part in parts])
        """The requests as the metrics of this package take them."""
        self._parts = parts
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<RequestTable of {len(self)} requests>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *COLUMNS]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in COLUMNS:
            raise KeyError(f"{name}; there are: {', '.join(COLUMNS)}")
        if name not in self._columns:
            self._columns[name] = self._column(name)
            self._columns[name].setflags(write=False)
        return self._columns[name]

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        if name not in COLUMNS:
            raise AttributeError(f"unknown column {name!r}; there are: {', '.join(COLUMNS)}")
        return self[name]

    @cached_property
    def chunk_ns(self) -> list[IntColumn]:
        """The instants of the content chunks of each request, in nanoseconds."""
        return np.split(self.records.chunk_ns, self.records.chunk_offsets[1:-1]) if len(self) else []

    @cached_property
    def chunk_tokens(self) -> list[IntColumn]:
        """The tokens of each of those chunks; -1 where they are not known."""
        return np.split(self.records.chunk_tokens, self.records.chunk_offsets[1:-1]) if len(self) else []

    def select(self, mask: npt.ArrayLike) -> RequestTable:
        """The requests where ``mask`` is true: ``table.select(table.input_tokens > 1000)``."""
        kept = np.asarray(mask, dtype=bool)
        if kept.shape != (len(self),):
            raise ValueError(f"a mask of {len(self)} requests is needed, not one of shape {kept.shape}")
        parts, first = [], 0
        for part in self._parts:
            last = first + len(part.records)
            parts.append(part._replace(records=part.records.select(kept[first:last])))
            first = last
        return RequestTable(parts)

    def to_frame(self) -> pd.DataFrame:
        """A row for each request. Instants that were not observed are ``<NA>``. SuiteError without pandas."""
        pandas = import_pandas()
        columns: dict[str, Any] = {name: self[name] for name in COLUMNS}
        for name in COLUMNS:
            if name.endswith("_ns"):
                own = self[name]
                columns[name] = pandas.arrays.IntegerArray(own.copy(), own == MISSING)
        return pandas.DataFrame(columns)

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name == "label":
            return _texts([part.label for part in self._parts for _ in range(len(part.records))])
        if name == "load":
            counts = [len(part.records) for part in self._parts]
            return np.repeat(np.array([part.load for part in self._parts], dtype=np.int64), counts)
        if name == "ok":
            return self.records.ok.copy()
        if name in LATENCIES:
            return per_request(name.removesuffix("_ms"), self.records)
        if name in KINDS:
            codes: npt.NDArray[np.int8] = getattr(self.records, name)
            return _texts([str(kind) for kind in KINDS[name]])[codes]
        own: Any = getattr(self.records, name)
        if name in TEXTS:
            return _texts(own)
        if name == "index" or name.endswith("_ns"):
            return np.array(own)
        numbers: FloatArray = np.where(own == MISSING, np.nan, own.astype(np.float64))
        return numbers


def _texts(values: Sequence[Any]) -> TextColumn:
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column


def import_pandas() -> Any:
    """The module pandas. SuiteError, which says how to get it, where it is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise SuiteError("data frames need pandas, which is not installed", remedy=NO_PANDAS) from error
    return pandas


@dataclass(frozen=True, repr=False)
class LoadedLoad:
    """One load that a test asked for: a run, a level, a warm-up, a probe."""

    label: str
    phase: str
    """``probe``, ``warmup`` or ``measure``."""
    variant: str
    """SUT variant on which the load ran; empty for the SUT itself."""
    shared_from: str | None
    """Node id of the test that measured the load, if this test only used it; else None."""
    counts: bool
    """Whether the load counts; False for an attempt that was void and was measured again."""
    _stored: StoredRecords
    _entry: TestEntry
    _index: int

    def __repr__(self) -> str:
        return f"<LoadedLoad {self.label!r}: {self.phase}>"

    @cached_property
    def records(self) -> RequestTable:
        """The requests of the load. StoreError if its file is missing or damaged."""
        noted = self._stored.loads(self._entry)[self._index]
        records = self._stored.of_load(self._entry, self._index, noted)
        return RequestTable([LoadRequests(self._index, self.label, records)])


@dataclass(frozen=True, repr=False)
class LoadedLevel:
    """One load level or one configuration of a test that has several."""

    entry: LevelEntry
    """The level as it stands in the report."""

    def __repr__(self) -> str:
        return f"<LoadedLevel {self.label!r}>"

    @property
    def label(self) -> str:
        return self.entry.label

    @cached_property
    def metrics(self) -> Mapping[str, Estimate]:
        return dict(self.entry.metrics)


@dataclass(frozen=True, repr=False)
class LoadedTest:
    """One test of a report."""

    entry: TestEntry
    """The test as it stands in the report, by the names of the schema."""
    _stored: StoredRecords

    def __repr__(self) -> str:
        return f"<LoadedTest {self.nodeid!r}: {self.test}, {self.outcome}>"

    @property
    def nodeid(self) -> str:
        return self.entry.nodeid

    @property
    def test(self) -> str:
        """One of the ten tests: ``ttft``, ``throughput``, …"""
        return self.entry.test

    @property
    def outcome(self) -> str:
        """The outcome that pytest reported: ``passed``, ``failed``, ``error`` …"""
        return self.entry.outcome

    @property
    def valid(self) -> bool:
        """Whether the figures may be judged at all."""
        return self.entry.validity.verdict == "valid"

    @property
    def verdict(self) -> str:
        """The verdict on the limits of the test: ``pass``, ``fail`` or ``inconclusive``."""
        return self.entry.gate.verdict

    @property
    def objectives(self) -> tuple[ObjectiveEntry, ...]:
        """The limits of the test, each with what was measured and the verdict."""
        return tuple(self.entry.gate.objectives)

    @property
    def advisory(self) -> tuple[ObjectiveEntry, ...]:
        """Limits that were judged in the same way, and decided nothing."""
        return tuple(self.entry.gate.advisory)

    @cached_property
    def metrics(self) -> Mapping[str, Estimate]:
        """Metric name → estimate: ``metrics["ttft.p99"].lower``; ``point`` is None where a metric is
        undefined."""
        return dict(self.entry.metrics)

    @cached_property
    def levels(self) -> tuple[LoadedLevel, ...]:
        return tuple(map(LoadedLevel, self.entry.levels))

    @property
    def by_run(self) -> Mapping[str, list[float | None]]:
        """Metric name → its value in each run; empty for a single run."""
        return self.entry.by_run

    @cached_property
    def loads(self) -> tuple[LoadedLoad, ...]:
        """Every load in the order in which they ran, warm-ups and probes included.

        StoreError where the session kept no records, and where the files beside the report are missing.
        """
        if self.entry.loads_file is None:
            raise StoreError(
                f"there are no records of {self.nodeid}",
                where=str(self._stored.directory),
                remedy="measure with --llm-records=compact (the default) or full, and keep the folder "
                "records next to report.json",
            )
        noted = self._stored.loads(self.entry)
        return tuple(
            LoadedLoad(
                load["label"], load.get("phase", "measure"), load.get("variant", ""),
                load["seen"]["shared_from"], not _measured_again(noted, index),
                self._stored, self.entry, index,
            )
            for index, load in enumerate(noted)
        )  # fmt: skip

    @cached_property
    def records(self) -> RequestTable:
        """The measured requests: no warm-ups, no probes, and no loads that were void and measured again.

        A test that searches or has levels has many loads, told apart by ``records.label``. A test that was
        repeated as a whole has several loads of each label, told apart by ``records.load``; its metrics are
        those of the first. For a session that was killed these are all requests in its file. StoreError as
        for :attr:`loads`.
        """
        if self.entry.loads_file is None and self.entry.records_file is not None:
            runs = read_runs(self._stored.directory / self.entry.records_file).runs
            table = RequestTable([LoadRequests(at, run.label, run.records) for at, run in enumerate(runs)])
            return table.select(table["phase"] == Phase.MEASURE)
        return RequestTable(
            [
                LoadRequests(number, load.label, load.records.records)
                for number, load in enumerate(self.loads)
                if load.phase == Phase.MEASURE and load.counts
            ]
        )


@dataclass(frozen=True, repr=False)
class LoadedReport:
    """A report, and what lies beside it."""

    path: Path
    entry: Report
    """The report as read, by the names of the schema."""
    tests: tuple[LoadedTest, ...]
    """The tests in the order in which they ended; a test that ran again is there with each attempt."""

    def __repr__(self) -> str:
        return f"<LoadedReport {str(self.path)!r}: {len(self.tests)} tests>"

    def test(self, name: str) -> LoadedTest:
        """The test whose node id is ``name``, or the only one whose node id contains it; with several
        attempts, the last.

        SuiteError, which names the tests, for none and for several.
        """
        last = {test.nodeid: test for test in self.tests}
        found = [last[name]] if name in last else [test for nodeid, test in last.items() if name in nodeid]
        if len(found) == 1:
            return found[0]
        what = f"{shown(name)} matches {len(found)} tests" if found else f"there is no test {shown(name)}"
        raise SuiteError(f"{what}; there are: {', '.join(last)}", where=str(self.path))

    def to_frame(self) -> pd.DataFrame:
        """A row for each metric of each test, with its interval. SuiteError without pandas."""
        rows = [
            {
                "nodeid": test.nodeid, "test": test.test, "outcome": test.outcome, "valid": test.valid,
                "metric": name, "point": own.point, "lower": own.lower, "upper": own.upper, "unit": own.unit,
                "level": own.level, "n": own.n, "method": own.method,
            }
            for test in self.tests
            for name, own in test.metrics.items()
        ]  # fmt: skip
        return import_pandas().DataFrame(rows, columns=list(_FRAME))


_FRAME = (
    "nodeid", "test", "outcome", "valid", "metric", "point", "lower", "upper", "unit", "level", "n", "method",
)  # fmt: skip


def load_report(path: str | os.PathLike[str]) -> LoadedReport:
    """Read ``report.json``, given its path or its directory. Records are read on first use.

    Reads reports of this major version of the schema, up to this minor version. Raises StoreError for any
    other version, and for a file that is missing or damaged.
    """
    given = Path(path)
    file = given / REPORT_NAME if given.is_dir() else given
    report = read_report(file)
    stored = StoredRecords(file.parent, report)
    return LoadedReport(file, report, tuple(LoadedTest(entry, stored) for entry in report.tests))


def _measured_again(loads: list[dict[str, Any]], index: int) -> bool:
    """Whether the next load with the same label is a further attempt of this one."""
    own = loads[index]
    later = (load for load in loads[index + 1 :] if load["label"] == own["label"])
    following = next(later, None)
    return following is not None and following.get("attempt", 1) == own.get("attempt", 1) + 1


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
    kinds = dict.fromkeys(CSV_COLUMNS, pyarrow.int64()) | dict.fromkeys(LATENCIES, pyarrow.float64())
    kinds |= dict.fromkeys(("nodeid", *TEXTS), pyarrow.string()) | {"ok": pyarrow.bool_()}
    kinds |= dict.fromkeys(CHUNKS, pyarrow.list_(pyarrow.int64()))
    schema = pyarrow.schema([(name, kinds[name]) for name in (*CSV_COLUMNS, *CHUNKS)])
    with whole_file(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for test, table in found:
            columns: dict[str, list[Any]] = outward_value(plain_columns(test, table))
            columns |= {name: [own.tolist() for own in getattr(table, name)] for name in CHUNKS}
            writer.write_table(pyarrow.table(columns, schema=schema), row_group_size=BLOCK)


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
        print(f"{given.csv}: {count} requests")
    if given.parquet is not None:
        write_parquet(given.parquet, found())
        print(f"{given.parquet}: {count} requests")
    return 0
