"""``load_report`` and ``pytest-llmbench records`` over a session in virtual time."""

from __future__ import annotations

import csv
import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin_suite import Suite

from pytest_llmbench import SuiteError, load_report
from pytest_llmbench.__main__ import main
from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.analysis import COLUMNS, CSV_COLUMNS, _measured_again
from pytest_llmbench.harness.execution import read_loads
from pytest_llmbench.metrics.latency import FAMILIES
from pytest_llmbench.store.files import write_text

SUITE = """
@llmbench.ttft(rate=20, requests=60, p50_ms=5000)
def test_first(): ...

@llmbench.ttft(rate=20, requests=60)
def test_the_same_load(): ...
"""
DOCS = Path(__file__).parents[2] / "docs"
MADE: dict[str, Path] = {}


@pytest.fixture
def finished(suite: Suite, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """A copy of the report directory of one session, two runs of each test."""
    if not MADE:
        suite.write(SUITE)
        suite.measure("replay", "--llm-runs=2", "--llm-save=main", "--llm-inconclusive=pass").assert_outcomes(
            passed=2
        )
        MADE["out"] = tmp_path_factory.mktemp("finished") / "out"
        shutil.copytree(suite.path / "out", MADE["out"])
    copy = tmp_path / "copy"
    shutil.copytree(MADE["out"], copy)
    return copy


def changed(folder: Path, **values: Any) -> None:
    """The report with other values, and those of ``tests`` in each test."""
    path = folder / "report.json"
    document = json.loads(path.read_text("utf-8"))
    of_tests = values.pop("tests", {})
    document |= values
    document["tests"] = [test | of_tests for test in document["tests"]]
    path.write_text(json.dumps(document), "utf-8")


def test_figures_have_types_and_the_records_give_them_again(finished: Path) -> None:
    report = load_report(finished)
    assert load_report(str(finished / "report.json")).path == report.path
    first = report.test("test_first")
    assert (first.test, first.outcome, first.valid, first.verdict) == ("ttft", "passed", True, first.verdict)
    p50 = first.metrics["ttft.p50"]
    assert p50.point is not None
    assert p50.lower is not None
    assert p50.lower < p50.point
    assert np.nanpercentile(first.records.ttft_ms, 50) == pytest.approx(p50.point)
    assert np.nanpercentile(first.records.tpot_ms, 99) == pytest.approx(first.metrics["tpot.p99"].point)
    assert [own.metric for own in first.objectives] == ["ttft.p50"]
    assert len(first.by_run["ttft.p50"]) == 2
    assert repr(first) == "<LoadedTest 'test_suite.py::test_first': ttft, passed>"
    assert "2 tests" in repr(report)


def test_records_are_those_that_were_measured(finished: Path) -> None:
    test = load_report(finished).test("test_first")
    records = test.records
    assert len(records) == test.entry.counts["submitted"] == 100
    assert set(records.label) == {"run 1 of 2", "run 2 of 2"}
    assert set(records["phase"]) == {"measure"}
    assert records.ok.all()
    assert {load.phase for load in test.loads} == {"probe", "warmup", "measure"}
    assert sum(len(load.records) for load in test.loads if load.phase == "warmup") == 10
    assert len(records.chunk_ns) == len(records.chunk_tokens) == 100
    assert [instants[0] for instants in records.chunk_ns] == records.first_content_ns.tolist()
    assert len(repr(test.loads)) < 1000


def test_a_shared_load_has_the_records_of_the_test_that_measured_it(finished: Path) -> None:
    report = load_report(finished)
    own, shared = (report.test(name) for name in ("test_first", "test_the_same_load"))
    assert {load.shared_from for load in shared.loads} == {own.nodeid}
    assert shared.records.submitted_ns.tolist() == own.records.submitted_ns.tolist()


def test_every_column_has_an_entry_for_each_request_and_is_not_written_to(finished: Path) -> None:
    records = load_report(finished).tests[0].records
    for name in COLUMNS:
        assert len(records[name]) == len(records), name
        assert getattr(records, name) is records[name]
        assert name in dir(records)
    for family, measure in FAMILIES.items():
        column = records[f"{family}_ms"]
        assert column[~np.isnan(column)].tolist() == measure(records.records).tolist()
    assert np.isnan(records["cached_tokens"]).all()  # this engine says nothing of them
    assert (records["first_reasoning_ns"] == -1).all()
    with pytest.raises(ValueError, match="read-only"):
        records.ttft_ms[0] = 0.0
    with pytest.raises(AttributeError, match="unknown column 'ttft'; there are: load, label"):
        _ = records.ttft
    with pytest.raises(KeyError, match="ttft_ms"):
        _ = records["ttft"]


def test_some_of_the_requests(finished: Path) -> None:
    records = load_report(finished).tests[0].records
    second = records.select(records.label == "run 2 of 2")
    assert second.e2e_ms.tolist() == records.e2e_ms[50:].tolist()
    assert set(second.label) == {"run 2 of 2"}
    assert len(records.select(np.zeros(100, dtype=bool)).chunk_ns) == 0
    with pytest.raises(ValueError, match="a mask of 100 requests"):
        records.select([True])


def test_tests_are_found_by_a_part_of_their_name(finished: Path) -> None:
    report = load_report(finished)
    assert report.test("same").nodeid == "test_suite.py::test_the_same_load"
    with pytest.raises(SuiteError, match=r"'test_' matches 2 tests; there are: test_suite.py::test_first"):
        report.test("test_")
    with pytest.raises(SuiteError, match="there is no test 'none'"):
        report.test("none")


@pytest.mark.parametrize(
    ("version", "said"),
    [("2.0", "newer than 1.6"), ("1.9", "newer than 1.6"), ("0.9", "older"), (None, "not a report")],
)
def test_reports_of_unknown_versions_are_refused(finished: Path, version: str | None, said: str) -> None:
    changed(finished, schema_version=version)
    with pytest.raises(StoreError, match=said):
        load_report(finished)


def test_reports_of_earlier_versions_are_read(finished: Path) -> None:
    changed(finished, schema_version="1.0")
    assert len(load_report(finished).tests) == 2


def test_what_is_not_there_is_said(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read the report"):
        load_report(tmp_path / "none")
    shutil.rmtree(finished / "records")
    with pytest.raises(StoreError, match=r"loads\.json"):
        _ = load_report(finished).tests[0].records
    changed(finished, tests={"loads_file": None, "records_file": None})
    report = load_report(finished)
    assert report.tests[0].metrics  # figures need no records
    with pytest.raises(StoreError, match=r"there are no records of test_suite.py::test_first"):
        _ = report.tests[0].records


@pytest.mark.parametrize("loads", [None, {}, [{}], [{"label": "a", "rows": 1, "key": "k", "seen": []}]])
def test_a_damaged_file_of_loads_is_said(finished: Path, loads: Any) -> None:
    found = list((finished / "records").glob("*.loads.json.gz"))
    assert found
    for path in found:
        write_text(path, json.dumps(read_loads(path) | {"loads": loads}))
    with pytest.raises(StoreError, match="its description of the loads is damaged"):
        _ = load_report(finished).tests[0].records


def test_of_a_killed_session_the_records_are_read_all_the_same(finished: Path) -> None:
    whole = load_report(finished).tests[0].records.ttft_ms
    changed(finished, tests={"loads_file": None})
    assert load_report(finished).tests[0].records.ttft_ms.tolist() == whole.tolist()


def test_a_load_that_was_measured_again_does_not_count() -> None:
    loads = [
        {"label": label, "attempt": attempt}
        for label, attempt in [("a", 1), ("warm-up", 1), ("a", 2), ("b", 1), ("a", 1)]
    ]
    assert [_measured_again(loads, index) for index in range(5)] == [True, False, False, False, False]


def test_data_frames(finished: Path) -> None:
    report = load_report(finished)
    try:
        import pandas as pd
    except ImportError:
        with pytest.raises(SuiteError, match=r"pytest-llmbench\[pandas\]"):
            report.to_frame()
        with pytest.raises(SuiteError, match="data frames need pandas"):
            report.tests[0].records.to_frame()
        return
    metrics = report.to_frame().set_index(["nodeid", "metric"])
    row = metrics.loc[("test_suite.py::test_first", "ttft.p50")]
    assert row.point == report.tests[0].metrics["ttft.p50"].point
    frame = report.tests[0].records.to_frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame.groupby("label").ttft_ms.count().to_dict() == {"run 1 of 2": 50, "run 2 of 2": 50}
    assert frame["first_reasoning_ns"].isna().all()
    assert frame["submitted_ns"].dtype == pd.Int64Dtype()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_records_as_csv(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records.csv"
    assert main(["records", str(finished), "--csv", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 100 requests\n"  # those of the shared load once
    rows = rows_of(path)
    records = load_report(finished).tests[0].records
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [float(row["ttft_ms"]) for row in rows] == records.ttft_ms.tolist()
    assert [int(row["submitted_ns"]) for row in rows] == records.submitted_ns.tolist()
    assert [int(row["output_tokens"]) for row in rows] == records.output_tokens.tolist()
    assert {row["cached_tokens"] for row in rows} == {row["error"] for row in rows} == {""}
    assert main(["records", str(finished), "--csv", str(path), "--all", "--test", "first"]) == 0
    assert {row["phase"] for row in rows_of(path)} == {"probe", "warmup", "measure"}


def test_records_as_parquet(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records.parquet"
    code = main(["records", str(finished), "--parquet", str(path)])
    try:
        from pyarrow import parquet
    except ImportError:
        assert code == 2
        assert "pytest-llmbench[parquet]" in capsys.readouterr().err
        assert list(tmp_path.glob("*.parquet")) == list(tmp_path.glob(".*.tmp")) == []
        return
    assert code == 0
    table = parquet.read_table(path).to_pydict()
    records = load_report(finished).tests[0].records
    assert table["ttft_ms"] == records.ttft_ms.tolist()
    assert table["cached_tokens"] == [None] * 100
    assert table["chunk_ns"] == [own.tolist() for own in records.chunk_ns]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--csv", "x.csv", "--test", "none"], "'none' matches no test; there are: test_suite.py::"),
        ([], "nothing to write"),
    ],
)
def test_mistakes_are_told(
    finished: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["records", str(finished), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_report_without_records_is_told(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(finished, tests={"loads_file": None, "records_file": None})
    assert main(["records", str(finished), "--csv", "x.csv"]) == 2
    assert "there are no records of single requests" in capsys.readouterr().err


def run_cells(cells: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that they leave behind, run one after another beside ``llm-report``."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    folder.rename(folder.with_name("llm-report"))
    monkeypatch.chdir(folder.parent)
    names: dict[str, Any] = {}
    for cell in cells:
        exec(compile(cell, "<cell>", "exec"), names)
    return names


def test_the_notebook_runs(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = json.loads((DOCS / "examples" / "analyse_a_report.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    with_pandas = [cell for cell in code if "pandas" in cell["metadata"].get("tags", ())]
    runnable = [cell for cell in code if find_spec("pandas") or cell not in with_pandas]
    names = run_cells(["".join(cell["source"]) for cell in runnable], finished, monkeypatch)
    assert len(names["figure"].axes[0].lines) == 2  # runs
    names["plt"].close("all")
    out = capsys.readouterr().out
    assert "100 requests, 100 of them ended well" in out
    assert "loads: ['run 1 of 2', 'run 2 of 2']" in out


def test_the_examples_of_its_page_run(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "how-to" / "analyse-in-a-notebook.md").read_text("utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names = run_cells(blocks, finished, monkeypatch)
    assert len(blocks) == 2
    assert names["p99"].unit == "ms"
    assert len(names["slow"]) < 50
