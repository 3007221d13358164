"""Baseline files: named, numbered, never overwritten; and every way in which one cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_llmbench.errors import StoreError
from pytest_llmbench.store import baselines
from pytest_llmbench.store.baselines import (
    Baseline,
    BaselineTest,
    find_baseline,
    read_baseline,
    save_baseline,
)


def baseline(name: str = "main", machine: str | None = None) -> Baseline:
    test = BaselineTest(
        nodeid="a.py::t", test="ttft", identity={"seed": 42}, runs=3, by_run={"ttft.p99": [1.0, None, 3.0]},
        metrics={},
    )  # fmt: skip
    return Baseline(
        name=name,
        saved="2026-01-20T09:30:00.125Z",
        generator_version="0.1.0",
        machine=machine or baselines.machine_id(),
        tests=[test],
    )


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    path = save_baseline(tmp_path, baseline())
    assert path == tmp_path / baselines.machine_id() / "0001_main.json"
    assert read_baseline(path) == baseline()
    assert list(path.parent.iterdir()) == [path]  # nothing temporary is left


def test_numbers_count_up_over_all_names_and_nothing_is_overwritten(tmp_path: Path) -> None:
    names = [save_baseline(tmp_path, baseline(name)).name for name in ("main", "v1.4", "main")]
    assert names == ["0001_main.json", "0002_v1.4.json", "0003_main.json"]


def test_a_number_that_is_taken_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save_baseline(tmp_path, baseline())
    content = first.read_bytes()
    monkeypatch.setattr(baselines, "_listed", lambda folder: [])  # what the other session sees
    assert save_baseline(tmp_path, baseline()).name == "0002_main.json"
    assert first.read_bytes() == content


def test_a_baseline_is_found_by_name_number_and_path(tmp_path: Path) -> None:
    first, second = (save_baseline(tmp_path, baseline()) for _ in range(2))
    assert find_baseline(tmp_path, "main") == second
    assert find_baseline(tmp_path, "0001") == first
    assert find_baseline(tmp_path, "0001_main") == first
    assert find_baseline(tmp_path, str(first)) == first


def test_a_missing_baseline_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"--llm-save NAME"):
        find_baseline(tmp_path, "main")
    save_baseline(tmp_path, baseline("mian"))
    elsewhere = save_baseline(tmp_path, baseline("main", machine="Darwin-CPython-3.12-64bit"))
    with pytest.raises(StoreError, match=r"there are: 0001_mian, ") as caught:
        find_baseline(tmp_path, "main")
    assert str(elsewhere) in str(caught.value)


@pytest.mark.parametrize("name", ["a/b", "", "..", "x.json", "a b"])
def test_a_name_has_to_fit_into_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is no name of a baseline"):
        save_baseline(tmp_path, baseline().model_copy(update={"name": name}))


@pytest.mark.parametrize(
    ("version", "said", "remedy"),
    [
        ("0.9", "0.9 is older than 1.0", "save the baseline again"),
        ("1.1", "1.1 is newer than 1.0", "upgrade"),
        ("2.0", "2.0 is newer than 1.0", "upgrade"),
        (None, "no baseline of pytest-llmbench", "--llm-save"),
        ("new", "no baseline of pytest-llmbench", "--llm-save"),
    ],
)
def test_another_version_is_refused(tmp_path: Path, version: str | None, said: str, remedy: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(baseline().plain() | {"baseline_version": version}))
    with pytest.raises(StoreError, match=said) as caught:
        read_baseline(path)
    assert remedy in str(caught.value.remedy)


def test_damage_is_named(tmp_path: Path) -> None:
    path = save_baseline(tmp_path, baseline())
    whole = path.read_text("utf-8")
    path.write_text(whole[:-40])
    with pytest.raises(StoreError, match="perhaps truncated"):
        read_baseline(path)
    path.write_text("[]")
    with pytest.raises(StoreError, match="no baseline: a JSON list"):
        read_baseline(path)
    path.write_text(whole.replace('"runs": 3', '"runs": "three"'))
    with pytest.raises(StoreError, match=r"tests\.0\.runs: Input should be"):
        read_baseline(path)
    with pytest.raises(StoreError, match="cannot read the baseline"):
        read_baseline(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write the baseline") as caught:
        save_baseline(tmp_path / "file", baseline())
    assert "--llm-storage" in str(caught.value)
