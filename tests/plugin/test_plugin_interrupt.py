"""Ctrl-C: the load ends at once, what was measured is on disk, in the report and void."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_lines import MEASURING as MEASURING_PROCESS
from command_lines import command_line
from plugin_suite import SMALL_WARMUP, Suite, stored_lines
from pytest_apart import Session
from waiting import wait_for

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

pytestmark = pytest.mark.usefixtures("however_late")


TINY = """
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

TINY = SyntheticWorkload("tiny", Fixed(16), Fixed(4))
"""
BODY = f"""
{TINY}
@llmbench.ttft(p99_ms=500, rate=50, requests=5000, workload=TINY)
def test_long(): ...

def test_never_reached(): ...
"""
QUICK = """
@llmbench.ttft(p50_ms=5000, rate=50, requests=10, workload=TINY)
def test_quick(): ...

"""
MEASURING = ("--llm-report=out", "--llm-workers=1")


def lines_so_far(directory: Path) -> int:
    return sum(len(stored_lines(file)) for file in directory.glob("records/*.jsonl.gz"))


@pytest.mark.slow
def test_sigterm_keeps_what_was_measured(suite: Suite, engine: EmbeddedEngine) -> None:
    """As Ctrl-C does, of which below."""
    suite.write(BODY, SMALL_WARMUP)
    run = Session(suite.path, f"--llm-endpoint={engine.url}", *MEASURING)
    try:
        wait_for(lambda: lines_so_far(suite.path / "out") >= 40, "no records appeared")
        run.send_signal(signal.SIGTERM)
        text = run.text(timeout=60)
    finally:
        run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, text
    (entry,) = suite.report["tests"]
    assert entry["counts"]["ok"] >= 20
    assert_told_of(entry, suite, text)


def assert_told_of(entry: dict[str, Any], suite: Suite, text: str) -> None:
    """The test that was interrupted is void, for this cause, and the report says that it is not whole."""
    assert entry["outcome"] == "error"
    assert entry["validity"]["verdict"] == "invalid"
    assert any("Ctrl-C" in finding["message"] for finding in entry["validity"]["findings"])
    assert "LLM serving benchmarks" in text
    assert suite.report["incomplete"]["why"] == "the session was interrupted"
    assert suite.report["incomplete"]["unfinished"] == []  # it has an entry
    assert not (suite.path / "out" / "journal.jsonl").exists()


HELD_UP = """
import pathlib, sys, time
import pytest
from pytest_llmbench.harness.sut.launched import Launch, LaunchedServer, free_port

@pytest.fixture(scope="session", autouse=True)
def slow_to_clean_up():
    port = free_port()
    serve = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    server = LaunchedServer.start(Launch("own", serve, f"http://127.0.0.1:{port}/", 60))
    yield server
    pathlib.Path("held").write_text("")
    time.sleep(600)
"""


def family_of(pid: int, *programs: str) -> list[psutil.Process]:
    """All that it has started; these are among them."""
    family = psutil.Process(pid).children(recursive=True)
    names = list(map(command_line, family))
    assert all(any(program in name for name in names) for program in programs), names
    return family


def has_ended(process: psutil.Process) -> bool:
    """Nobody may be there to hear of the end of one whose parent has ended before it."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGTERM, signal.SIGINT),
        pytest.param(signal.SIGINT, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_second_signal_of_either_kind_stops_at_once_and_leaves_no_process(
    suite: Suite, first: signal.Signals, second: signal.Signals
) -> None:
    suite.write(BODY, SMALL_WARMUP + HELD_UP)
    run = Session(suite.path, "--llm-endpoint=sim", *MEASURING)
    try:
        wait_for(lambda: lines_so_far(suite.path / "out") >= 20, "no records appeared")
        family = family_of(run.pid, "simulator", MEASURING_PROCESS, "http.server")
        run.send_signal(first)
        wait_for((suite.path / "held").exists, "the session did not come to its end")
        run.send_signal(second)
        text = run.text(timeout=60)  # and not after ten minutes
    finally:
        run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert "a second signal: stopped at once" in text
    wait_for(lambda: all(map(has_ended, family)), "a process is left")


@pytest.mark.slow
def test_a_signal_to_the_controller_of_xdist_reports_what_is_finished(suite: Suite) -> None:
    """To it alone, as a supervisor sends it; its workers hear of it from it."""
    suite.write(BODY.replace("@llmbench.ttft(p99_ms=500", QUICK + "@llmbench.ttft(p99_ms=500"), SMALL_WARMUP)
    run = Session(suite.path, "-p", "xdist", "-n", "1", "--llm-endpoint=sim", *MEASURING)
    try:
        wait_for(lambda: lines_so_far(suite.path / "out") >= 60, "no records appeared")
        family = family_of(run.pid, "readline", "simulator", MEASURING_PROCESS)  # the first is a worker
        run.send_signal(signal.SIGTERM)
        text = run.text(timeout=90)
    finally:
        run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, text
    wait_for(lambda: all(map(has_ended, family)), "a process is left")
    assert suite.report["tests"][0]["nodeid"].endswith("test_quick"), text


LAUNCHING = """
from pytest_llmbench import LoadPlan, OpenLoop

def test_by_hand(llm_bench, llm_workload):
    workload = llm_workload(input_tokens=32, output_tokens=8)
    llm_bench.run(LoadPlan("x", workload, OpenLoop(20), requests=4000, seed=1, variant="launched"))
"""


def test_a_launched_server_does_not_outlive_a_pytest_that_is_killed(
    suite: Suite, engine: EmbeddedEngine
) -> None:
    suite.write(LAUNCHING, SMALL_WARMUP)
    command = (
        f'["{sys.executable}", "-m", "pytest_llmbench.simulator", "--preset", "fast", "--port", "{{port}}"]'
    )
    (suite.path / "sut.toml").write_text(f"[variants.launched]\ncommand = {command}\n", "utf-8")
    run = Session(suite.path, "--llm-sut=sut.toml", f"--llm-endpoint={engine.url}", "--llm-workers=1")
    family: list[psutil.Process] = []

    def is_launched() -> bool:
        assert run.poll() is None
        family[:] = psutil.Process(run.pid).children(recursive=True)
        return any("simulator" in command_line(each) for each in family)

    try:
        wait_for(is_launched, "no server was launched")
    finally:
        run.kill()
        run.wait()
    assert psutil.wait_procs(family, timeout=60)[1] == []


@pytest.mark.slow
def test_the_next_session_removes_what_killed_processes_left(
    suite: Suite, engine: EmbeddedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at once, as when memory runs out: then no worker clears up after its session."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    suite.write(BODY, SMALL_WARMUP)
    arguments = (f"--llm-endpoint={engine.url}", *MEASURING)
    run = Session(suite.path, *arguments)
    try:
        wait_for(lambda: lines_so_far(suite.path / "out") >= 10, "no records appeared")
        family = [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]
    finally:
        for process in family:
            process.kill()
        run.wait()
    assert psutil.wait_procs(family, timeout=15)[1] == []
    assert list(tmp_path.rglob("*.spool"))
    (suite.path / "out" / ".report.json.12345.llmbench.tmp").write_text("{", "utf-8")
    suite.write(BODY.replace("p99_ms=500, rate=50, requests=5000", "concurrency=2, requests=10"))
    Session(suite.path, *arguments).wait(timeout=120)  # whatever its verdict on a busy machine
    assert suite.report["tests"][0]["counts"]["ok"] == 10
    (user,) = tmp_path.glob("pytest-llmbench-*")
    assert list(user.iterdir()) == []
    assert [path.name for path in (suite.path / "out").glob(".*")] == []


SEARCH = f"""
{TINY}
@llmbench.throughput(min_rate=5, max_rate=40, rate_step=5, probe_s=2, workload=TINY)
def test_search(): ...

@llmbench.ttft(p50_ms=500, rate=20, requests=20)
def test_never_reached(): ...
"""


def labels_so_far(directory: Path) -> set[str]:
    lines = [line for file in directory.glob("records/*.jsonl.gz") for line in stored_lines(file)]
    rows = [json.loads(line) for line in lines if line.endswith("}\n")]
    return {row["label"] for row in rows if row.get("phase") == "measure"}


@pytest.mark.slow
def test_ctrl_c_in_a_search_keeps_its_levels_and_leaves_nothing_running(suite: Suite) -> None:
    suite.write(SEARCH, SMALL_WARMUP)
    run = Session(suite.path, "--llm-endpoint=sim", "--llm-scale=quick", *MEASURING)
    try:
        wait_for(
            lambda: len(labels_so_far(suite.path / "out")) >= 2, "the search did not get to its second level"
        )
        engines = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        text = run.text(timeout=60)
    finally:
        run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, text
    assert engines
    assert psutil.wait_procs(engines, timeout=10)[1] == []
    assert [entry["nodeid"].split("::")[1] for entry in suite.report["tests"]] == ["test_search"]
    assert [nodeid.split("::")[1] for nodeid in suite.report["incomplete"]["not_begun"]] == [
        "test_never_reached"
    ]
    entry = suite.report["tests"][0]
    assert_told_of(entry, suite, text)
    # What was measured is all there: in the counts, and in the records, which name the level of each request.
    file = suite.path / "out" / entry["records_file"]
    rows = [json.loads(line) for line in stored_lines(file)[1:]]
    measured = [row for row in rows if row["phase"] == "measure"]
    assert entry["counts"]["submitted"] == len(measured)
    assert {row["label"] for row in measured} == {"5 req/s", "40 req/s"}
