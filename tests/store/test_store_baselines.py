"""Baseline files: named, numbered, never overwritten; and every way in which one cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_llmbench.errors import StoreError
from pytest_llmbench.store import baselines, files
from pytest_llmbench.store.baselines import (
    Baseline,
    BaselineTest,
    Commit,
    choose_baseline,
    find_baseline,
    read_baseline,
    recent_baselines,
    save_baseline,
    saved_baselines,
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
        machine=machine or files.machine_id(),
        tests=[test],
    )


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    path = save_baseline(tmp_path, baseline())
    assert path == tmp_path / files.machine_id() / "0001_main.json"
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


ELSEWHERE = "Darwin-CPython-3.12-64bit"


def test_a_baseline_is_chosen_by_what_its_name_begins_with(tmp_path: Path) -> None:
    v1, v2 = (save_baseline(tmp_path, baseline(name)) for name in ("v1.4", "v2.0"))
    there = save_baseline(tmp_path, baseline("nightly", machine=ELSEWHERE))
    assert choose_baseline(tmp_path, "v1") == v1
    assert choose_baseline(tmp_path, "0002") == v2
    assert choose_baseline(tmp_path, "0002_v") == v2
    assert choose_baseline(tmp_path, "night") == there
    assert choose_baseline(tmp_path, f"{ELSEWHERE}/0001") == there
    assert choose_baseline(tmp_path, str(v1)) == v1
    assert set(saved_baselines(tmp_path)) == {v1, v2, there}


def test_a_whole_name_comes_before_beginnings_and_this_machine_before_others(tmp_path: Path) -> None:
    save_baseline(tmp_path, baseline("main", machine=ELSEWHERE))
    main = [save_baseline(tmp_path, baseline(name)) for name in ("main", "main-2", "main")]
    assert choose_baseline(tmp_path, "main") == main[2]
    assert choose_baseline(tmp_path, "main-") == main[1]
    save_baseline(tmp_path, baseline("else", machine=ELSEWHERE))
    last = save_baseline(tmp_path, baseline("else", machine=ELSEWHERE))
    save_baseline(tmp_path, baseline("else-2", machine=ELSEWHERE))
    assert choose_baseline(tmp_path, "else") == last


def test_what_could_be_several_is_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("v1.4", "v1.5"):
        save_baseline(tmp_path, baseline(name))
    with pytest.raises(StoreError, match=r"'v1' matches 2 baselines") as caught:
        choose_baseline(tmp_path, "v1")
    assert "/0001_v1.4" in str(caught.value.remedy)
    save_baseline(tmp_path, baseline("main"))
    (tmp_path / files.machine_id() / "0003_main.json").rename(
        tmp_path / files.machine_id() / "0002_main.json"
    )
    for find in (choose_baseline, find_baseline):  # of two branches, merged
        with pytest.raises(StoreError, match="'0002' matches 2 baselines"):
            find(tmp_path, "0002")
        assert find(tmp_path, "0002_main").name == "0002_main.json"
    (tmp_path / files.machine_id() / "0002_main.json").unlink()
    for machine in ("a", "b"):
        save_baseline(tmp_path, baseline("same", machine=machine))
    with pytest.raises(StoreError, match="'same' matches 2"):
        choose_baseline(tmp_path, "same")
    with pytest.raises(StoreError, match="no baseline 'x' in") as caught:
        choose_baseline(tmp_path, "x")
    assert "0001_v1.4, 0002_v1.5" in str(caught.value.remedy)
    with pytest.raises(StoreError, match="no such file"):
        choose_baseline(tmp_path, "none.json")


def test_a_baseline_of_before_has_no_commit(tmp_path: Path) -> None:
    path = save_baseline(
        tmp_path, baseline().model_copy(update={"commit": Commit(id="a" * 40, uncommitted=True)})
    )
    assert read_baseline(path).commit == Commit(id="a" * 40, uncommitted=True)
    before = {name: value for name, value in json.loads(path.read_text("utf-8")).items() if name != "commit"}
    path.write_text(json.dumps(before | {"baseline_version": "1.0"}), "utf-8")
    assert read_baseline(path) == baseline()


@pytest.mark.parametrize("name", ["a/b", "", "..", "x.json", "a b"])
def test_a_name_has_to_fit_into_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is not a name for a baseline"):
        save_baseline(tmp_path, baseline().model_copy(update={"name": name}))


@pytest.mark.parametrize(
    ("version", "said", "remedy"),
    [
        ("0.9", "0.9 is older than 1.3", "save the baseline again"),
        ("1.4", "1.4 is newer than 1.3", "upgrade"),
        ("2.0", "2.0 is newer than 1.3", "upgrade"),
        (None, "not a baseline of pytest-llmbench", "--llm-save"),
        ("new", "not a baseline of pytest-llmbench", "--llm-save"),
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
    with pytest.raises(StoreError, match="not a baseline: expected a JSON object"):
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


def test_a_new_python_keeps_the_baselines(tmp_path: Path) -> None:
    """Earlier versions named their folder after Python's version; an older session's is none of this one."""
    system, bits = files.machine_id().split("-")
    for minor, name in (("3.9", "main"), ("3.11", "main"), ("3.11", "dev")):
        save_baseline(tmp_path, baseline(name, machine=f"{system}-CPython-{minor}-{bits}"))
    assert find_baseline(tmp_path, "main").parent.name == f"{system}-CPython-3.11-{bits}"
    own = save_baseline(tmp_path, baseline("main"))
    assert own == tmp_path / files.machine_id() / "0003_main.json"
    assert find_baseline(tmp_path, "main") == choose_baseline(tmp_path, "main") == own
    assert [path.stem for path in recent_baselines(tmp_path, 3)] == ["0001_main", "0002_dev", "0003_main"]
    assert files.there_are_saved(tmp_path)
