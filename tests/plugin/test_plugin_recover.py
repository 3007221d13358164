"""kill -9 of pytest: what was judged is on disk, and becomes a report that says what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_lines import MEASURING, command_line
from plugin_suite import SMALL_WARMUP, Suite, stored_lines
from pytest_apart import Session
from waiting import wait_for

from pytest_llmbench.__main__ import main
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

KILL = 'os.kill(int(os.environ["CONTROLLER"]), signal.SIGKILL)'
FOUR = f"""
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
    {KILL}

@llmbench.ttft(rate=26, requests=30)
def test_never_begun(): ...
"""
HARMLESS = FOUR.replace(KILL, "...")
LONG = """
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

TINY = SyntheticWorkload("tiny", Fixed(16), Fixed(4))

@llmbench.ttft(concurrency=4, requests=10, workload=TINY)
def test_short(): ...

@llmbench.ttft(rate=50, requests=5000, workload=TINY)
def test_long(): ...
"""

KILLABLE = f"""
{SMALL_WARMUP}
import os

os.environ.setdefault("CONTROLLER", str(os.getpid()))  # a worker of pytest-xdist has that of who starts it
"""
REPORTING = ("--llm-report=out", "--llm-inconclusive=pass")


def run(folder: Path, *more: str) -> Session:
    """It has ended."""
    # A suite that is run by a worker of pytest-xdist must not take itself for one.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    session = Session(folder, "--llm-endpoint=replay", "--llm-scale=quick", *REPORTING, *more, env=own)
    session.wait(timeout=120)
    return session


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report directory of a session that was killed in its third load test. Not to be changed."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", "utf-8")
    (folder / "test_suite.py").write_text(FOUR, "utf-8")
    (folder / "conftest.py").write_text(KILLABLE, "utf-8")
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
    return [file for file in found if len(stored_lines(file)) > 10]


@contextlib.contextmanager
def measuring(suite: Suite, engine: EmbeddedEngine) -> Iterator[Session]:
    """A session in the middle of its second test."""
    suite.write(LONG, SMALL_WARMUP)
    session = Session(suite.path, f"--llm-endpoint={engine.url}", "--llm-workers=1", *REPORTING)

    def is_in_its_second_test() -> bool:
        assert session.poll() is None, session.text()
        return len(long_records(suite)) == 2

    try:
        wait_for(is_in_its_second_test, "the second test did not get to its load")
        yield session
    finally:
        session.kill()
        session.wait()


def test_finished_tests_survive_a_kill(killed: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    assert not (killed.path / "out" / "report.json").exists()

    assert main(["recover", str(killed.path / "out")]) == 1

    report = killed.report
    outcomes = {name: entry["outcome"] for name, entry in killed.entries.items()}
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
    for name in ("report.html", "summary.md", "minimum.txt"):
        text = (killed.path / "out" / name).read_text("utf-8").replace("\\", "")
        assert "INCOMPLETE: the session was killed" in text, name
        assert "test_killed" in text, name
    said = capsys.readouterr().out
    assert "INCOMPLETE: the session was killed" in said
    assert "PASS" in said
    assert "FAIL" in said


def test_what_is_recovered_is_what_a_session_that_ends_writes(killed: Suite) -> None:
    main(["recover", str(killed.path / "out")])
    recovered = killed.report["tests"]
    killed.write(HARMLESS, SMALL_WARMUP)
    assert killed.measure("replay", "--llm-inconclusive=pass").ret == pytest.ExitCode.TESTS_FAILED
    assert killed.report["incomplete"] is None
    assert len(killed.report["tests"]) == 4
    assert not journal_of(killed).exists()

    def results(entry: dict[str, Any]) -> dict[str, Any]:
        return {key: entry[key] for key in ("nodeid", "outcome", "metrics", "gate", "counts")}

    assert [results(entry) for entry in recovered] == [results(entry) for entry in killed.report["tests"][:2]]


def test_a_recovered_report_is_recomputed(killed: Suite) -> None:
    main(["recover", str(killed.path / "out")])
    assert killed.recomputed() == 2


def test_the_journal_goes_with_the_report(killed: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", str(killed.path / "out")]) == 1
    assert not journal_of(killed).exists()
    assert main(["recover", str(killed.path / "out")]) == 2
    assert "nothing to recover" in capsys.readouterr().err


def test_a_line_that_was_cut_off_costs_only_itself(killed: Suite) -> None:
    lines = journal_of(killed).read_bytes().splitlines(keepends=True)
    judged = [number for number, line in enumerate(lines) if line.startswith(b'{"event":"judged"')]
    journal_of(killed).write_bytes(b"".join(lines[: judged[1]]) + lines[judged[1]][:1000])
    assert main(["recover", str(killed.path / "out")]) == 1
    assert list(killed.entries) == ["test_holds"]
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
    assert list(killed.entries) == ["test_breaks"]
    assert killed.report["incomplete"]["damaged_lines"] == 3


@pytest.mark.slow
def test_a_session_at_work_is_left_alone_and_killed_in_its_load_is_recovered(
    suite: Suite, engine: EmbeddedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with measuring(suite, engine) as session:
        before = journal_of(suite).read_bytes()
        assert_refused(suite, engine, session.pid)
        assert main(["recover", str(suite.path / "out")]) == 2
        assert f"process {session.pid}" in capsys.readouterr().err
        # It goes on, undisturbed.
        assert session.poll() is None
        assert journal_of(suite).read_bytes().startswith(before)
        children = psutil.Process(session.pid).children(recursive=True)
        named = list(map(command_line, children))
        session.send_signal(signal.SIGKILL)
    assert any(MEASURING in name for name in named)
    assert psutil.wait_procs(children, timeout=15)[1] == [], "nothing outlives it"
    assert main(["recover", str(suite.path / "out")]) == 1
    assert list(suite.entries) == ["test_short"]
    (unfinished,) = suite.report["incomplete"]["unfinished"]
    assert unfinished["nodeid"].endswith("::test_long")
    (name,) = unfinished["records_files"]
    assert "test-long" in name
    assert len(stored_lines(suite.path / "out" / name)) > 10


def assert_refused(suite: Suite, engine: EmbeddedEngine, holder: int) -> None:
    """The directory that the process ``holder`` works in, and to who sends something alone."""
    arguments = (f"--llm-endpoint={engine.url}", *REPORTING)
    second = suite.run(*arguments)
    assert second.ret == pytest.ExitCode.USAGE_ERROR
    told = str(second.stderr)
    assert f"process {holder}" in told
    assert "name another directory with --llm-report" in told
    assert "--llm-report=out" in told  # the command of the one that holds it
    for more in ("--collect-only", "--llm-plan"):
        assert suite.run(*arguments, more).ret == pytest.ExitCode.OK, more


def test_the_next_session_keeps_what_a_killed_one_left(
    killed: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    killed.write(HARMLESS, SMALL_WARMUP)
    result = killed.measure("replay", "-k", "never_begun", "--llm-inconclusive=pass")
    result.stdout.fnmatch_lines(
        ["llmbench: a session that was killed left results: *recover *out?interrupted-*"]
    )
    assert result.ret == 0
    assert list(killed.entries) == ["test_never_begun"]
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
    killed.write(HARMLESS, SMALL_WARMUP)
    killed.measure("replay", "-k", "never_begun")
    assert list((killed.path / "out").glob("interrupted-*")) == []


def test_reports_that_could_not_be_written_are_recovered(suite: Suite) -> None:
    blocks = "def test_holds():\n    os.makedirs('out/report.html/x')"
    suite.write(HARMLESS.replace("def test_holds(): ...", blocks), SMALL_WARMUP)
    blocked = suite.path / "out" / "report.html"
    result = suite.measure("replay", "-k", "holds", "--llm-inconclusive=pass")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["llmbench: ERROR: *report.html*", "llmbench: ERROR: no judgement*recover *out"]
    )
    (blocked / "x").rmdir()
    blocked.rmdir()
    assert main(["recover", str(suite.path / "out")]) == 0  # it had ended, and all had passed
    assert suite.report["incomplete"] is None
    assert "INCOMPLETE" not in blocked.read_text("utf-8")
    assert not journal_of(suite).exists()


def test_a_full_disk_under_the_output_costs_no_result(suite: Suite) -> None:
    """The terminal's plugin raises as it writes the outcome of the first test."""
    suite.write(
        """
        class Full:
            def write(self, text):
                raise OSError(28, "No space left on device")

            flush = write

        @llmbench.ttft(rate=20, requests=20)
        def test_one(request):
            request.config.pluginmanager.getplugin("terminalreporter")._tw._file = Full()

        @llmbench.ttft(rate=20, requests=20)
        def test_two(): ...
        """,
        SMALL_WARMUP,
    )
    assert run(suite.path).returncode != 0
    (entry,) = suite.report["tests"]
    assert (entry["nodeid"].split("::")[1], entry["outcome"]) == ("test_one", "passed")
    assert suite.report["incomplete"]["unfinished"] == []
    assert len(suite.report["incomplete"]["not_begun"]) == 1


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
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, resource.RLIM_INFINITY))
"""


def test_verdicts_print_on_a_full_disk(suite: Suite) -> None:
    suite.write(HARMLESS, SMALL_WARMUP + FULL_DISK)
    done = run(suite.path, "--capture=sys", "-k", "holds or never_begun")
    told = done.text()
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "2 passed" in told
    assert told.count("  PASS  ") == 2
    errors = [line for line in told.splitlines() if line.startswith("llmbench: ERROR:")]
    for name in (
        "report.html",
        "report.json",
        "the journal is not whole either",
        "records could not",
    ):
        assert any(name in line for line in errors), (name, errors)
    assert "Traceback" not in told


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="xdist's processes are looked at by ppid")
def test_a_killed_controller_of_xdist_had_kept_the_results(suite: Suite) -> None:
    pytest.importorskip("xdist")
    suite.write(FOUR, KILLABLE)
    assert run(suite.path, "-n1").returncode == -signal.SIGKILL
    assert main(["recover", str(suite.path / "out")]) == 1
    assert suite.entries.keys() == {"test_holds", "test_breaks"}
    missing = suite.report["incomplete"]
    assert [test["nodeid"].split("::")[1] for test in missing["unfinished"]] == ["test_killed"]
    assert "test_never_begun" in missing["not_begun"][-1]


@pytest.mark.slow
def test_a_dead_worker_of_xdist_makes_the_report_incomplete(suite: Suite) -> None:
    pytest.importorskip("xdist")
    suite.write(FOUR.replace(KILL, "os.kill(os.getpid(), signal.SIGKILL)"), SMALL_WARMUP)
    done = run(suite.path, "-n1")
    told = done.text()
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, told
    assert (suite.path / "out" / "report.json").exists(), told
    missing = suite.report["incomplete"]
    assert [test["nodeid"].split("::")[1] for test in missing["unfinished"]] == ["test_killed"]
    assert missing["not_begun"] == []
    assert "INCOMPLETE" in told


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
