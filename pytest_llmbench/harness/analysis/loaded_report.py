"""``load_report``: a finished report for notebooks, with types, estimates and records as arrays.

report = load_report("llm-report")
report.tests[0].metrics["ttft.p99"].upper
report.tests[0].records.ttft_ms
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import StoreError, SuiteError, shown
from pytest_llmbench.harness.analysis.request_table import LoadRequests, RequestTable, import_pandas
from pytest_llmbench.harness.execution.stored_records import StoredRecords
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.record import Phase
from pytest_llmbench.store.files import REPORT_NAME, read_report
from pytest_llmbench.store.records_reader import read_runs
from pytest_llmbench.store.schema import LevelEntry, ObjectiveEntry, Report, TestEntry

if TYPE_CHECKING:
    import pandas as pd


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
                remedy="keep them with --llm-records=compact (the default) or full, and the folder records "
                "beside report.json",
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
        what = f"{shown(name)} is part of {len(found)} tests" if found else f"no test is called {shown(name)}"
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
    """Read ``report.json``, or that of a directory. Records are read when they are first asked for.

    Reports of this major version of the schema are read, of no newer minor one. StoreError for any other, and
    for a file that is missing or damaged.
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
