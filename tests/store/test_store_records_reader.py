"""Records files become Records again, exactly, and in bounded memory."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_results import make_record
from stored_rows import HEADER, rows_of, written

from pytest_llmbench.columns import StoredRecords
from pytest_llmbench.errors import StoreError
from pytest_llmbench.methodology.measuring.levels import level_of
from pytest_llmbench.metrics import itl, latency, throughput
from pytest_llmbench.metrics.server_side import PARTS_OF_TTFT
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.store import records_file
from pytest_llmbench.store.records_file import RecordsWriter, read_runs
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

SHORT = SyntheticWorkload("short", Uniform(8, 16), Uniform(40, 70))
SCENARIO = "fast?fault=reset&fault_rate=0.03&server_timestamps=true&eos_mean_tokens=60"


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Observation]:
    """A run with failures and every kind of column, and its file."""
    path = tmp_path_factory.mktemp("records") / "r.jsonl"
    with RecordsWriter(path, HEADER) as writer:
        plan = LoadPlan("measure", SHORT, OpenLoop(60.0), 600, seed=4)
        seen = ReplayEngine(parse_scenario(SCENARIO)).run(plan, lambda row: writer.write(row, "measure"))
    return path, seen


def _figures(seen: Observation) -> dict[str, Any]:
    found: dict[str, Any] = {"counts": seen.records.counts(), "level": level_of(seen, seed=1).level}
    for family in latency.FAMILIES:
        found |= latency.distribution_of(family, [seen.records])
    for family, measure in PARTS_OF_TTFT.items():
        found |= distribution(family, measure(seen.records))
    for option in ("direct", "A", "B", "C"):
        gaps = itl.itl_samples(seen.records, option, min_output_tokens=20)
        found |= itl.itl_distribution(gaps, family=f"itl_{option}")
    return found | throughput.rates([seen], seed=1)


@pytest.fixture(scope="module")
def figures(replayed: tuple[Path, Observation]) -> dict[str, Any]:
    """Of the run itself."""
    return _figures(replayed[1])


def _same(one: Records, other: Records) -> None:
    for column in fields(Records):
        left, right = getattr(one, column.name), getattr(other, column.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, column.name
            np.testing.assert_array_equal(left, right, column.name)
        else:
            assert list(left) == list(right), column.name


@pytest.fixture(scope="module", params=["r.jsonl", "r.jsonl.gz", "r.compact.jsonl.gz", "r.compact.jsonl"])
def stored(request: pytest.FixtureRequest, replayed: tuple[Path, Observation]) -> tuple[Path, Observation]:
    """The same run in a file of each kind."""
    plain, seen = replayed
    path = plain.with_name(f"stored-{request.param}")
    return written(path, [row for row, _ in rows_of(plain)]), seen


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1000])
def test_every_metric_comes_out_the_same(
    stored: tuple[Path, Observation],
    memory_bytes: int,
    figures: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, seen = stored
    monkeypatch.setattr(records_file, "MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(records_file, "ROWS", 70)
    flush, at_once = records_file._Filling._flush, list[int]()
    monkeypatch.setattr(
        records_file._Filling, "_flush", lambda filling: (at_once.append(len(filling.rows)), flush(filling))
    )
    (run,) = read_runs(path).runs
    assert max(at_once) == 70
    assert run.label == "measure"
    again = run.records
    assert isinstance(again, StoredRecords) == (memory_bytes == 1000)
    _same(again, seen.records)
    assert seen.records.counts()["ok"] < 600, "no failures: the test has lost its point"
    told = {name: getattr(seen, name) for name in seen.__dataclass_fields__} | {"records": again}
    assert _figures(Observation(**told)) == figures


def test_each_kind_of_file_is_smaller_than_the_one_before(replayed: tuple[Path, Observation]) -> None:
    plain, _ = replayed
    sizes = []
    for name in ("s.jsonl", "s.compact.jsonl", "s.jsonl.gz", "s.compact.jsonl.gz"):
        path = written(plain.with_name(name), [row for row, _ in rows_of(plain)])
        sizes.append(path.stat().st_size)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < sizes[0] / 4


def test_a_packed_file_is_read_up_to_any_cut(tmp_path: Path) -> None:
    path, cut = tmp_path / "r.jsonl.gz", tmp_path / "cut.jsonl.gz"
    with RecordsWriter(path, HEADER, flush_interval_s=0.01) as writer:
        begun = path.stat().st_size
        for index in range(4):
            writer.write(make_record(index), "measure")
            before = path.stat().st_size
            while path.stat().st_size == before:
                time.sleep(0.005)
        held = path.stat().st_size
    whole = path.read_bytes()
    found = []
    for size in range(begun, len(whole)):
        cut.write_bytes(whole[:size])
        told = read_runs(cut)
        assert told.dropped is not None
        found.append(sum(len(run.records) for run in told.runs))
    assert found == sorted(found)
    assert set(found[held - begun :]) == {4}, "when a line has been written, it is there whatever comes"
    assert read_runs(path).dropped is None


def test_damage_in_a_packed_file_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl.gz", map(make_record, range(50)))
    whole = bytearray(path.read_bytes())
    whole[-6] ^= 1  # of the checksum
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="it cannot be decompressed"):
        read_runs(path)
    path.write_bytes(b"not packed at all")
    with pytest.raises(StoreError, match="it cannot be decompressed"):
        read_runs(path)


def test_runs_are_told_apart_by_their_labels(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with RecordsWriter(path, HEADER) as writer:
        for index, label in enumerate(["probe", "run 1", "run 1", "run 2", "probe"]):
            writer.write(make_record(index), label)
    told = read_runs(path)
    assert [(run.label, len(run.records)) for run in told.runs] == [
        ("probe", 1),
        ("run 1", 2),
        ("run 2", 1),
        ("probe", 1),
    ]
    assert told.header["nodeid"] == "a.py::a"
    assert told.dropped is None


def test_a_cut_end_is_left_out_and_other_damage_raises(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", map(make_record, range(3)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    told = read_runs(path)
    assert len(told.runs[0].records) == 2
    assert told.dropped is not None
    assert "the last line (4) was cut off" in told.dropped
    lines = whole.splitlines(keepends=True)
    for broken in (b"{}\n", lines[2][:50] + b"\n"):
        path.write_bytes(b"".join([*lines[:2], broken, *lines[3:]]))
        with pytest.raises(StoreError, match="line 3 is not a record"):
            read_runs(path)
    with pytest.raises(StoreError, match="cannot read the records"):
        read_runs(tmp_path / "none.jsonl")
