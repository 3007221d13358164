"""Worker processes of pytest-xdist with a server each: they take turns on the machine."""

from __future__ import annotations

import itertools
import json

import pytest
from plugin_suite import SMALL_WARMUP, Suite

pytest.importorskip("xdist")

STAMPS = """
import json, os, time
from contextlib import contextmanager
from pathlib import Path

def note(what, began, ended):
    worker = os.environ["PYTEST_XDIST_WORKER"]
    with (Path(__file__).parent / "stamps.jsonl").open("a") as file:
        file.write(json.dumps([what, worker, began, ended]) + "\\n")

def pytest_llmbench_result(item, result):
    runs = [run for run in result.observations if run.shared_from is None]
    note("load", min(run.started_ns for run in runs), max(run.ended_ns for run in runs))
"""

LAUNCHING = (
    STAMPS
    + """
import pytest
from pytest_llmbench import SUT
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

@pytest.fixture(scope="session")
def llm_sut():
    began = time.monotonic_ns()
    with EmbeddedEngine.start("fast") as server:
        time.sleep(0.3)
        note("start", began, time.monotonic_ns())
        yield SUT(server.url)
"""
    + SMALL_WARMUP
)

TWO = """
import pytest
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

@pytest.mark.parametrize("rate", [20, 30])
@llmbench.ttft(requests=10, workload=SyntheticWorkload("tiny", Fixed(16), Fixed(4)))
def test_x(rate): ...
"""


def stamps(suite: Suite) -> list[tuple[str, str, int, int]]:
    lines = (suite.path / "stamps.jsonl").read_text("utf-8").splitlines()
    return sorted((tuple(json.loads(line)) for line in lines), key=lambda stamp: stamp[2])


@pytest.mark.slow
def test_servers_start_and_are_loaded_one_at_a_time(suite: Suite) -> None:
    suite.write(TWO, conftest=LAUNCHING)
    outcomes = suite.run("-n2", "--llm-scale=quick").parseoutcomes()
    assert outcomes.get("passed", 0) + outcomes.get("errors", 0) == 2, outcomes  # the host may be too busy
    seen = stamps(suite)
    assert sorted(what for what, *_ in seen) == ["load"] * 2 + ["start"] * 2
    assert {worker for _, worker, *_ in seen} == {"gw0", "gw1"}
    for earlier, later in itertools.pairwise(seen):
        assert earlier[3] <= later[2], (earlier, later)


@pytest.mark.slow
def test_replays_do_not_wait(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to wait for: the folder of the lock stays empty."""
    folder = suite.path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    suite.write(TWO, conftest=STAMPS + SMALL_WARMUP)
    suite.run("-n1", "--llm-scale=quick", "--llm-endpoint=replay").assert_outcomes(passed=2)
    assert not list(folder.glob("*.lock"))
