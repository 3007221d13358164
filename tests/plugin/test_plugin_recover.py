"""kill -9 of pytest: what was judged is on disk, and becomes a report that says what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plugin_suite import Suite, stored_lines

from pytest_llmbench.__main__ import main
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

FOUR = """
import os, signal
from pytest_llmbench import llmbench

@llmbench.ttft(rate=20, requests=30)
def test_holds(): ...

@llmbench.ttft(rate=30, requests=30)
def test_breaks():
    assert False, "as its body says"

def test_unmarked(): ...

@llmbench.ttft(rate=25, requests=30)
def test_killed(llm_result):
    os.kill(os.getpid() if "PYTEST_XDIST_WORKER" not in os.environ else os.getppid(), signal.SIGKILL)

@llmbench.ttft(rate=26, requests=30)
def test_never_begun(): ...
"""
LONG = """
import pytest
from pytest_llmbench import WarmupPolicy, llmbench

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=2, output_tokens=0, probes=0)

@llmbench.ttft(rate=50, requests=20)
def test_short(): ...

@llmbench.ttft(rate=20, requests=4000)
def test_long(): ...
"""


def pytest_of(endpoint: str, *more: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--llm-endpoint={endpoint}"]
    return [*command, "--llm-report=out", "--llm-inconclusive=pass", *more]


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = pytest_of("replay", "--llm-scale=quick", *more)
    # A suite that is run by a worker of pytest-xdist must not take itself for one.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report directory of a session that was killed in its third load test. Not to be changed."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", "utf-8")
    (folder / "test_suite.py").write_text(FOUR, "utf-8")
    assert run(folder).returncode == -signal.SIGKILL
    return folder / "out"


@pytest.fixture
def killed(suite: Suite, left_behind: Path) -> Suite:
    shutil.copytree(left_behind, suite.path / "out")
    return suite


def journal_of(suite: Suite) -> Path:
    return suite.path / "out" / "journal.jsonl"


def long_records(suite: Suite) -> list[Path]:
    found = suite.path.glob("out/records/*.jsonl.gz")
    return [file for file in found if len(stored_lines(file)) > 20]


@contextlib.contextmanager
def measuring(suite: Suite, engine: EmbeddedEngine) -> Iterator[subprocess.Popen[str]]:
    """A session in the middle of its second test."""
    suite.write(LONG)
    session = subprocess.Popen(
        pytest_of(engine.url, "--llm-workers=1"),
        cwd=suite.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 90
        while len(long_records(suite)) < 2:
            assert session.poll() is None, session.communicate()[0]
            assert time.monotonic() < deadline, "the second test did not get to its load"
            time.sleep(0.1)
        yield session
    finally:
        session.kill()
        session.communicate()


def test_finished_tests_survive_a_kill(killed: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    assert not (killed.path / "out" / "report.json").exists()

    assert main(["recover", str(killed.path / "out")]) == 1

    report = killed.report
    outcomes = {entry["nodeid"].split("::")[1]: entry["outcome"] for entry in report["tests"]}
    assert outcomes == {"test_holds": "passed", "test_breaks": "failed"}
    missing = report["incomplete"]
    assert missing["why"] == "the session was killed before its end"
    assert [test["nodeid"].split("::")[1] for test in missing["unfinished"]] == ["test_killed"]
    assert [
        Path(killed.path, "out", name).exists() for name in missing["unfinished"][0]["records_files"]
    ] == [True]
    assert [nodeid.split("::")[1] for nodeid in missing["not_begun"]] == ["test_never_begun"]
    assert missing["damaged_lines"] == 0
    assert report["environment"]["settings"]["scale"] == "quick"
    assert report["sut"]["endpoint"] == "replay"
    for name in ("report.html", "report.md", "minimum.txt"):
        text = (killed.path / "out" / name).read_text("utf-8").replace("\\", "")
        assert "INCOMPLETE: the session was killed" in text, name
        assert "test_killed" in text, name
    said = capsys.readouterr().out
    assert "INCOMPLETE: the session was killed" in said
    assert "PASS" in said
    assert "FAIL" in said


def test_what_is_recovered_is_what_the_session_would_have_written(killed: Suite) -> None:
    main(["recover", str(killed.path / "out")])
    recovered = killed.report["tests"]
    killed.write(FOUR.replace("os.kill(", "print("))
    assert run(killed.path).returncode == pytest.ExitCode.TESTS_FAILED
    assert killed.report["incomplete"] is None

    def results(entry: dict[str, Any]) -> dict[str, Any]:
        return {key: entry[key] for key in ("nodeid", "outcome", "metrics", "gate", "counts")}

    assert [results(entry) for entry in recovered] == [results(entry) for entry in killed.report["tests"][:2]]


def test_a_recovered_report_is_recomputed(killed: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    main(["recover", str(killed.path / "out")])
    capsys.readouterr()
    assert main(["recompute", str(killed.path / "out")]) == 0
    assert "identical" in capsys.readouterr().out


def test_the_journal_goes_with_the_report(killed: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", str(killed.path / "out")]) == 1
    assert not journal_of(killed).exists()
    assert main(["recover", str(killed.path / "out")]) == 2
    assert "nothing to recover" in capsys.readouterr().err


def test_a_session_that_ends_leaves_no_journal(suite: Suite) -> None:
    suite.write(FOUR.replace("os.kill(", "print("))
    suite.measure("replay")
    assert len(suite.report["tests"]) == 4
    assert suite.report["incomplete"] is None
    assert not journal_of(suite).exists()


def test_a_line_that_was_cut_off_costs_only_itself(killed: Suite) -> None:
    lines = journal_of(killed).read_bytes().splitlines(keepends=True)
    judged = [number for number, line in enumerate(lines) if line.startswith(b'{"event":"judged"')]
    journal_of(killed).write_bytes(b"".join(lines[: judged[1]]) + lines[judged[1]][:1000])
    assert main(["recover", str(killed.path / "out")]) == 1
    assert [entry["nodeid"].split("::")[1] for entry in killed.report["tests"]] == ["test_holds"]
    missing = killed.report["incomplete"]
    assert missing["damaged_lines"] == 1
    assert [test["nodeid"].split("::")[1] for test in missing["unfinished"]] == ["test_breaks"]


def test_damage_in_the_middle_costs_only_its_line(killed: Suite) -> None:
    lines = journal_of(killed).read_bytes().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith(b'{"event":"judged"'))
    lines[first] = b"\0" * 500 + b'{"event":"judged","entry":{"nodeid":"x"}}\n'
    lines.insert(first, b'{"event":"judged","entry":{"nodeid":"no entry"}}\n')
    lines.insert(first, b"[" * 100_000 + b"\n")
    journal_of(killed).write_bytes(b"".join(lines))
    assert main(["recover", str(killed.path / "out")]) == 1
    assert [entry["nodeid"].split("::")[1] for entry in killed.report["tests"]] == ["test_breaks"]
    assert killed.report["incomplete"]["damaged_lines"] == 3


def test_a_real_session_killed_in_its_load(suite: Suite, engine: EmbeddedEngine) -> None:
    with measuring(suite, engine) as session:
        session.send_signal(signal.SIGKILL)
    assert main(["recover", str(suite.path / "out")]) == 1
    assert [entry["nodeid"].split("::")[1] for entry in suite.report["tests"]] == ["test_short"]
    (unfinished,) = suite.report["incomplete"]["unfinished"]
    assert unfinished["nodeid"].endswith("::test_long")
    (name,) = unfinished["records_files"]
    assert "test-long" in name
    assert len((suite.path / "out" / name).read_bytes().splitlines()) > 10


def test_a_directory_in_which_a_session_works_is_refused(
    suite: Suite, engine: EmbeddedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with measuring(suite, engine) as session:
        before = journal_of(suite).read_bytes()
        second = subprocess.run(
            pytest_of(engine.url), cwd=suite.path, capture_output=True, text=True, timeout=60
        )
        assert second.returncode == pytest.ExitCode.USAGE_ERROR
        assert f"process {session.pid}" in second.stderr
        assert "name another directory with --llm-report" in second.stderr
        assert "--llm-report=out" in second.stderr  # the command of the one that holds it
        assert main(["recover", str(suite.path / "out")]) == 2
        assert f"process {session.pid}" in capsys.readouterr().err
        # Whoever sends nothing is refused nowhere.
        for more in ("--collect-only", "--llm-plan"):
            other = pytest_of(engine.url, more)
            assert subprocess.run(other, cwd=suite.path, capture_output=True, timeout=60).returncode == 0, (
                more
            )
        # It goes on, undisturbed.
        assert session.poll() is None
        assert journal_of(suite).read_bytes().startswith(before)


def test_the_next_session_keeps_what_a_killed_one_left(
    killed: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    killed.write(FOUR.replace("os.kill(", "print("))
    result = killed.measure("replay", "-k", "never_begun", "--llm-inconclusive=pass")
    result.stdout.fnmatch_lines(
        ["llmbench: a session that was killed left results: *recover *out?interrupted-*"]
    )
    assert result.ret == 0
    assert [entry["nodeid"].split("::")[1] for entry in killed.report["tests"]] == ["test_never_begun"]
    assert main(["recover", str(killed.path / "out")]) == 2
    assert "interrupted-" in capsys.readouterr().err

    (aside,) = (killed.path / "out").glob("interrupted-*")
    assert main(["recover", str(aside)]) == 1
    recovered = json.loads((aside / "report.json").read_text("utf-8"))
    assert [entry["nodeid"].split("::")[1] for entry in recovered["tests"]] == ["test_holds", "test_breaks"]
    assert all((aside / entry["records_file"]).is_file() for entry in recovered["tests"])
    assert recovered["incomplete"]["unfinished"][0]["records_files"]
    assert len(killed.report["tests"]) == 1  # the newer report stays what it is


def test_a_session_that_had_judged_nothing_leaves_nothing_behind(killed: Suite) -> None:
    lines = journal_of(killed).read_bytes().splitlines(keepends=True)
    journal_of(killed).write_bytes(lines[0] + lines[1])
    killed.write(FOUR.replace("os.kill(", "print("))
    killed.measure("replay", "-k", "never_begun")
    assert list((killed.path / "out").glob("interrupted-*")) == []


def test_reports_that_could_not_be_written_are_recovered(suite: Suite) -> None:
    suite.write(FOUR.replace("os.kill(", "print("))
    blocked = suite.path / "out" / "report.html"
    (blocked / "x").mkdir(parents=True)
    result = suite.measure("replay", "-k", "holds", "--llm-inconclusive=pass")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["llmbench: ERROR: *report.html*", "llmbench: ERROR: nothing*recover *out"])
    (blocked / "x").rmdir()
    blocked.rmdir()
    assert main(["recover", str(suite.path / "out")]) == 0  # it had ended, and all had passed
    assert suite.report["incomplete"] is None
    assert "INCOMPLETE" not in blocked.read_text("utf-8")
    assert not journal_of(suite).exists()


def test_an_interrupted_session_without_a_report_stays_incomplete(killed: Suite) -> None:
    with journal_of(killed).open("a", encoding="utf-8") as file:
        file.write(
            '{"event":"ended","nodeid":"test_suite.py::test_killed"}\n{"event":"finished","exit_status":2}\n'
        )
    assert main(["recover", str(killed.path / "out")]) == 1
    assert killed.report["incomplete"]["why"] == "the session was interrupted"


FULL_DISK = """
import resource

def pytest_llmbench_result(item, result):
    # As on a full disk, every file that grows beyond this fails from now on.
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, resource.RLIM_INFINITY))
"""


def test_verdicts_print_on_a_full_disk(suite: Suite) -> None:
    suite.write(FOUR.replace("os.kill(", "print("), conftest=FULL_DISK)
    done = run(suite.path, "--capture=sys", "-k", "holds or never_begun")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "2 passed" in done.stdout
    assert done.stdout.count("  PASS  ") == 2
    errors = [line for line in done.stdout.splitlines() if line.startswith("llmbench: ERROR:")]
    for name in (
        "report.html",
        "report.json",
        "the journal is not whole either",
        "records could not",
    ):
        assert any(name in line for line in errors), (name, errors)
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="xdist's processes are looked at by ppid")
def test_a_killed_controller_of_xdist_had_kept_the_results(suite: Suite) -> None:
    pytest.importorskip("xdist")
    suite.write(FOUR)
    assert run(suite.path, "-n1").returncode == -signal.SIGKILL
    assert main(["recover", str(suite.path / "out")]) == 1
    assert {entry["nodeid"].split("::")[1] for entry in suite.report["tests"]} == {
        "test_holds",
        "test_breaks",
    }
    missing = suite.report["incomplete"]
    assert [test["nodeid"].split("::")[1] for test in missing["unfinished"]] == ["test_killed"]
    assert "test_never_begun" in missing["not_begun"][-1]


def test_a_dead_worker_of_xdist_makes_the_report_incomplete(suite: Suite) -> None:
    pytest.importorskip("xdist")
    suite.write(FOUR.replace("os.getppid()", "os.getpid()"))
    done = run(suite.path, "-n1")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    missing = suite.report["incomplete"]
    assert [test["nodeid"].split("::")[1] for test in missing["unfinished"]] == ["test_killed"]
    assert missing["not_begun"] == []
    assert "INCOMPLETE" in done.stdout


def test_recover_names_what_it_does_not_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", str(tmp_path / "absent")]) == 2
    assert "--llm-report" in capsys.readouterr().err
    (tmp_path / "journal.jsonl").write_text("{}\n", "utf-8")
    assert main(["recover", str(tmp_path)]) == 2
    assert "does not say what session" in capsys.readouterr().err
    head = {"schema": "pytest-llmbench/journal/9.0"}
    (tmp_path / "journal.jsonl").write_text(json.dumps(head) + "\n", "utf-8")
    assert main(["recover", str(tmp_path / "journal.jsonl")]) == 2
    assert "with the version of pytest-llmbench that wrote it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["journal.jsonl"]
