"""``pytest-llmbench list``, ``compare`` and ``history`` over canned sessions."""

from __future__ import annotations

import csv
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from saved_sessions import BATCH, TTFT, around, measured, nightly, saved

from pytest_llmbench.__main__ import main
from pytest_llmbench.compare.limits import comparisons
from pytest_llmbench.harness.history.comparing import compared_sessions
from pytest_llmbench.harness.history.sessions import read_sessions
from pytest_llmbench.harness.history.trend import Series, series_of
from pytest_llmbench.store.baselines import Standing
from pytest_llmbench.store.files import machine_id

BASE = {"ttft.p50": around(120), "ttft.p99": around(400), "output_token_throughput": around(1843)}
WORSE = {"ttft.p50": around(121), "ttft.p99": around(480, 0.03), "output_token_throughput": around(1900)}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """``main``, a later build ``v1.4`` in which one test has another seed, and another machine's ``old``."""
    folder = tmp_path / "kept"
    batch = measured({"output_token_throughput": around(5000)}, BATCH)
    saved(folder, "main", measured(BASE), batch)
    seeded = measured({"output_token_throughput": around(5000)}, BATCH, seed=7)
    saved(folder, "v1.4", measured(WORSE, sut__software__version="0.12.0"), seeded, day=2)
    saved(folder, "old", measured(BASE, host__cpu="Xeon"), day=3, machine="Darwin-CPython-3.12-64bit")
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, list[str], str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def row(lines: list[str], beginning: str) -> str:
    (found,) = [line for line in lines if line.startswith(beginning)]
    return " ".join(found.split())


def test_the_list_names_each_session_once(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = told(capsys, "list", "--storage", storage)
    assert code == 0
    folders = [line for line in lines if line.startswith(str(storage))]
    assert max(len(line) for line in lines if line not in folders) <= 80
    assert {Path(folder).name for folder in folders} == {machine_id(), "Darwin-CPython-3.12-64bit"}
    assert row(lines, "0002_v1.4").startswith("0002_v1.4 2026-01-02 tiny-7b ")
    assert row(lines, "0001_main").endswith(" 2 3")


def test_a_wide_list_says_build_endpoint_and_machine(
    storage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    _, lines, _ = told(capsys, "list", "--storage", storage)
    assert row(lines, "0001_old") == (
        "0001_old 2026-01-03 09:30 3aaaaaaaaaaa tiny-7b vllm 0.11.0 https://host/v1 Xeon × 16 1 3"
    )
    assert "vllm 0.12.0, vllm 0.11.0" in row(lines, "0002_v1.4")


def test_columns_and_order_are_the_users(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--columns", "seed,name", "--sort", "name")
    _, lines, _ = told(capsys, "list", "--storage", storage, *asked)
    assert [line.split() for line in lines if "_" in line and not line.startswith(str(storage))] == [
        ["42", "0001_main"], ["42,", "7", "0002_v1.4"], ["42", "0001_old"],
    ]  # fmt: skip
    code, _, error = told(capsys, "list", "--storage", storage, "--columns", "sed,nothing")
    assert code == 2
    assert "'sed' is not known; did you mean seed?" in error
    assert "'nothing' is not known; there are: name" in error


def test_a_damaged_file_costs_no_other(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (storage / machine_id() / "0009_cut.json").write_text('{"baseline_version": "1.1", "name"')
    code, lines, error = told(capsys, "list", "--storage", storage)
    assert code == 0
    assert row(lines, "0001_main")
    assert "0009_cut.json: not a complete JSON file" in " ".join(error.split())


def test_an_empty_storage_says_how_to_fill_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = told(capsys, "list", "--storage", tmp_path / "none")
    assert code == 2
    assert "no session has been saved here" in error
    assert "--llm-autosave" in error


def test_the_verdicts_are_those_of_a_gate(storage: Path) -> None:
    sessions, _ = read_sessions(storage)
    main_, later = (next(s for s in sessions if s.baseline.name == name) for name in ("main", "v1.4"))
    found = compared_sessions(main_, [later])[0]
    own, theirs = (session.test(TTFT) for session in (main_, later))
    assert own is not None
    assert theirs is not None
    names = ("0001_main", "0002_v1.4")
    assert found.comparisons == comparisons(own.by_run, theirs.by_run, names=names, paired=False)
    assert [each.verdict for each in found.comparisons] == ["equivalent", "regressed", "improved"]


def test_a_table_shows_changes_and_says_what_is_not_compared(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = told(capsys, "compare", "main", "v1", "old", "--storage", storage)
    assert code == 0
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "0001_main (2026-01-01 09:30, 1aaaaaaaaaaa) is the baseline of" in text
    assert "400.0 ms 480.0 ms +20 % [+12.16 %, +28.39 %] regressed" in text
    assert f"0002_v1.4: seed was 42, now it is 7 ({BATCH})" in text
    assert f"0001_old: host.cpu was EPYC 7B13, now it is Xeon ({TTFT})" in text
    assert f"0001_old: it has no results of this test ({BATCH})" in text
    assert f"0002_v1.4: sut.software.version was 0.11.0, now it is 0.12.0 ({TTFT})" in text


def test_groups_order_metrics_and_columns_are_the_users(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("compare", "main", "v1.4", "--storage", storage)
    _, lines, _ = told(capsys, *asked, "--group-by", "metric", "--columns", "test,change")
    assert [line for line in lines if line in BASE] == list(BASE)
    _, lines, _ = told(capsys, *asked, "--group-by", "none", "--sort", "change", "--columns", "metric,reason")
    first = lines.index("") + 3
    metrics = [line.split()[0] for line in lines[first : first + 3]]
    assert metrics == ["ttft.p99", "ttft.p50", "output_token_throughput"]
    _, lines, _ = told(capsys, *asked, "--metrics", "ttft.p5*,tpot.*")
    assert [line.split()[0] for line in lines if " ms " in line] == ["ttft.p50"]
    code, _, error = told(capsys, *asked, "--metrics", "tpot.*")
    assert code == 2
    assert "matches none; there are: ttft.p50" in error


def test_the_csv_has_every_number(storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out" / "compared.csv"
    told(capsys, "compare", "main", "v1.4", "--storage", storage, "--csv", path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    p99 = next(row for row in rows if row["metric"] == "ttft.p99")
    assert float(p99["change"]) == pytest.approx(0.2)
    assert float(p99["change_lower"]) < 0.2 < float(p99["change_upper"])
    assert (p99["baseline_runs"], p99["verdict"], p99["gated"]) == ("3", "regressed", "False")
    assert rows[-1]["verdict"] == "not compared"
    assert rows[-1]["change"] == ""
    assert rows[-1]["reason"] == "seed was 42, now it is 7"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("main", "main2", "--fail", "ttft.p99:50%"), 0),
        (("main", "main2", "--fail", "ttft.p99:5%"), 1),  # regressed
        (("main", "single", "--fail", "ttft.p99:5%"), 1),  # not decided
        (("main", "old", "--fail", "ttft.p99:5%"), 1),  # not compared
        (("main", "old", "--fail", "ttft.p99:5%", "--waive", "host.cpu=as fast@2999-12-31"), 0),
        (("main", "main2"), 0),
        (("main", "less", "--fail", "ttft.p99:5%"), 1),  # a metric that is there no more
        (("main", "main2", "--fail", "e2e.p99:5%"), 1),  # a limit for nothing
        (("main",), 2),
        (("main", "0001"), 2),
        (("main", "x"), 2),
        (("main", "main2", "--fail", "ttft.p99"), 2),
        (("main", "old", "--waive", "host.cpu=as fast@2020-12-31"), 2),
    ],
)
def test_the_exit_status_says_whether_a_limit_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int
) -> None:
    saved(tmp_path, "main", measured(BASE))
    saved(tmp_path, "main2", measured(WORSE), day=2)
    saved(tmp_path, "single", measured({"ttft.p99": [400.0]}), day=3)
    saved(tmp_path, "old", measured(BASE, host__cpu="Xeon"), day=4)
    saved(tmp_path, "less", measured({"ttft.p50": around(120)}), day=5)
    assert told(capsys, "compare", *arguments, "--storage", tmp_path)[0] == code


def test_too_few_runs_and_other_lengths_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "main", measured(BASE))
    saved(tmp_path, "short", measured({"ttft.p99": [400.0]}, lengths=20))
    _, lines, _ = told(capsys, "compare", "main", "short", "--storage", tmp_path)
    text = " ".join(" ".join(lines).split())
    assert "400 ms not measured inconclusive" in text
    assert "0002_short has 1 run: at least 3 of each are needed" in text
    assert "20 output tokens per request, 64 in the baseline" in text


def drifting(level: float, sessions: int, seed: int) -> list[float]:
    """Session values around a level with noise of 2 %."""
    noise = random.Random(seed)
    return [level * math.exp(noise.gauss(0.0, 0.02)) for _ in range(sessions)]


def test_history_finds_the_session_from_which_on_a_metric_is_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly(tmp_path, [*drifting(400, 12, 1), *drifting(480, 8, 2)])
    svg, table = tmp_path / "trend.svg", tmp_path / "trend.csv"
    code, lines, _ = told(capsys, "history", "ttft.p99", "--storage", tmp_path, "--svg", svg, "--csv", table)
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"ttft.p99 of {TTFT}: 20 sessions"
    assert [line for line in lines if line.endswith("new")] == [line for line in lines if line[:2] == "13"]
    text = " ".join(" ".join(lines).split())
    assert "new level from 0013_night-13 on (2026-01-13 09:30, commit daaaaaaaaaaa), p = 0.001: +" in text
    assert "regressed (12 sessions before, 8 after)" in text
    drawn = svg.read_text("utf-8")
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert re.search(r"0013_night-13 \+\d\d\.?\d* %", drawn)
    assert "2026-01-01" in drawn
    assert f"TTFT P99 of {TTFT.rpartition('::')[2]}" in drawn
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["session"] for row in rows if row["new_level"] == "True"] == ["0013_night-13"]
    assert float(rows[0]["lower"]) < float(rows[0]["value"]) < float(rows[0]["upper"])


def test_history_shows_the_drift_of_what_does_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day, standing in enumerate((None, "counts", "waived", "behind"), start=1):
        test = measured({"ttft.p99": around(400 + 50 * day)}).model_copy(
            update={"standing": standing and Standing(standing)}
        )
        saved(tmp_path, "main", test, day=day)
    table = tmp_path / "trend.csv"
    code, lines, _ = told(capsys, "history", "ttft.p99", "--storage", tmp_path, "--csv", table)
    assert code == 0
    assert [line.split()[-1] for line in lines if line[:1].isdigit()][2:] == ["waived", "behind"]
    with table.open(encoding="utf-8", newline="") as file:
        assert [row["standing"] for row in csv.DictReader(file)] == ["", "", "waived", "behind"]


def test_history_of_an_unchanged_system_has_no_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly(tmp_path, drifting(400, 16, 3))
    _, lines, _ = told(capsys, "history", "ttft.p99", "--storage", tmp_path)
    assert lines[-1] == "  no change point"
    _, lines, _ = told(capsys, "history", "ttft.p99", "--storage", tmp_path, "--last", "5")
    assert lines[0].endswith("5 sessions")
    assert lines[-1] == "  too few for change points: 5 of at least 11 sessions"


def test_another_thing_is_no_part_of_a_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "other", measured(BASE, seed=7), day=1)
    saved(tmp_path, "main", measured(BASE), day=2)
    _, lines, _ = told(capsys, "history", "ttft.p99", "--storage", tmp_path)
    assert lines[0].endswith(": 1 session")
    assert lines[-1] == "  left out, they measured something else: 0001_other: seed was 7, now it is 42"
    waived = "seed=the same law@2999-12-31"
    _, lines, _ = told(capsys, "history", "ttft.p99", "--storage", tmp_path, "--waive", waived)
    assert lines[0].endswith(": 2 sessions")
    for day in (3, 4):
        saved(tmp_path, "other", measured(BASE, seed=7), day=day)
    saved(tmp_path, "main", measured(BASE), day=5)
    _, lines, _ = told(capsys, "history", "ttft.p99", "--storage", tmp_path, "--last", "1")
    assert lines[0].endswith(": 1 session")  # of those that are part of it
    text = " ".join(" ".join(lines).split())
    assert "3 sessions, 0001_other to 0004_other: seed was 7, now it is 42" in text


def followed(folder: Path, *values: list[Any]) -> Series:
    """The series of sessions with these values, a day each."""
    for day, own in enumerate(values, start=1):
        saved(folder, f"n{day}", measured({"ttft.p99": own}), day=day)
    series = series_of(read_sessions(folder)[0], TTFT, "ttft.p99")
    assert series is not None
    return series


@pytest.mark.parametrize(
    ("values", "point", "closed"),
    [
        ([400.0, None, 400.0], None, False),  # which is no zero
        ([0.0, 2.0, 4.0], 2.0, False),
        ([400.0, 400.0], 400.0, False),
        ([400.0, 400.0, 400.0], 400.0, True),
    ],
)
def test_a_session_has_the_mean_and_the_interval_of_three_runs(
    tmp_path: Path, values: list[float | None], point: float | None, closed: bool
) -> None:
    (own,) = followed(tmp_path, values).points
    assert own.estimate.point == (None if point is None else pytest.approx(point))
    assert own.estimate.closed is closed


def test_enormous_values_have_open_intervals(tmp_path: Path) -> None:
    assert followed(tmp_path, [1e-300, 1e300, 1e308]).points[0].estimate.upper is None


def test_a_value_that_is_missing_moves_no_change_point(tmp_path: Path) -> None:
    levels = [*drifting(400, 8, 1), *drifting(480, 8, 2)]
    days = enumerate(levels, start=1)
    series = followed(tmp_path, *([None, level] if day == 3 else around(level) for day, level in days))
    (change,) = series.changes
    assert series.points[change.at].session.name == "0009_n9"
    assert change.comparison is not None
    assert len(change.comparison.baseline) == 7


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("ttft.p98",), "no metric is called 'ttft.p98'"),
        (("e2e.p50",), "no test measured e2e.p50; there are: ttft.p99"),
        (("ttft.p99", "--test", "nothing"), "'nothing' matches no test; there are: gates/"),
        (("ttft.p99", "--last", "0"), "--last must be 1 or more"),
        (("ttft.p99", "--significance", "0"), "must lie from 0.001 to 0.5"),
        (("ttft.p99", "tpot.p50", "--svg", "x.svg"), "draws one metric of one test, not 2"),
    ],
)
def test_mistakes_say_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], error: str
) -> None:
    batch = measured({"ttft.p99": around(5), "tpot.p50": around(5)}, BATCH)
    saved(tmp_path, "main", measured({"ttft.p99": around(400)}), *([batch] if "--svg" in arguments else []))
    given = ("--test", BATCH) if "--svg" in arguments else ()
    code, _, said = told(capsys, "history", *arguments, "--storage", tmp_path, *given)
    assert code == 2
    assert error in said


def test_a_file_is_a_session_too(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next((storage / machine_id()).glob("0002*"))
    code, lines, _ = told(capsys, "compare", "main", path, "--storage", storage)
    assert code == 0
    assert "0002_v1.4" in " ".join(lines)


def test_sessions_of_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "main", measured(BASE))
    saved(tmp_path, "main", measured(WORSE), machine="elsewhere")
    here = f"{machine_id()}/0001_main"
    _, lines, _ = told(capsys, "compare", here, "elsewhere/0001", "--storage", tmp_path)
    assert lines[0].startswith(f"{here} (")
    assert lines[1].startswith("  elsewhere/0001_main (")
    folder = tmp_path / "copy" / machine_id()
    folder.mkdir(parents=True)
    copy = folder / "0001_main.json"
    copy.write_bytes((tmp_path / f"{here}.json").read_bytes())
    _, lines, _ = told(capsys, "compare", here, copy, "--storage", tmp_path)
    assert lines[1].startswith(f"  {copy} (")


def test_odd_words_in_a_file_reach_no_terminal_and_break_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodeid = "t.py::t[\x1b[2J\ud800\n=1+1]"
    levels = [*drifting(400, 8, 1), *drifting(480, 8, 2)]
    for day, level in enumerate(levels, start=1):
        saved(tmp_path, "n", measured({"ttft.p99": around(level)}, nodeid, model="\x1b]0;x\x07=m"), day=day)
    svg, table = tmp_path / "a.svg", tmp_path / "a.csv"
    assert told(capsys, "list", "--storage", tmp_path, "--csv", table)[0] == 0
    for arguments in (
        ("list",),
        ("compare", "0001", "0002", "--csv", table),
        ("history", "ttft.p99", "--csv", table, "--svg", svg),
    ):
        code, lines, error = told(capsys, *arguments, "--storage", tmp_path)
        assert code == 0, error
        assert all(line.isprintable() for line in lines), lines
    assert ElementTree.fromstring(svg.read_text("utf-8")) is not None
    assert "\x1b" not in table.read_text("utf-8")


def test_a_reader_that_goes_away_is_no_traceback(storage: Path) -> None:
    command = f"{sys.executable} -m pytest_llmbench list --storage {storage} | true"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr == ""


def test_the_commands_are_told_and_load_nothing_that_they_do_not_need() -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pytest_llmbench", "list", "--storage", "/nonexistent"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if "|" in line}
    assert "pytest_llmbench.store.baselines" in loaded
    assert not {name.split(".")[0] for name in loaded} & {"matplotlib", "httpx", "scipy", "uvicorn", "pytest"}
