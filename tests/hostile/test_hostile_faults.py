"""Every fault of the catalogue × each of the ten tests: nothing hangs, is lost or left, or passes wrongly."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import fault_matrix
import pytest
from fault_matrix import FAULTS, SUITE, TESTS, measured, objections, scenario
from watched_session import watched

from pytest_llmbench.simulator.engine.faults import FaultKind

STRUCK: list[FaultKind] = [
    "http_error", "rate_limit", "overloaded", "in_band_error", "reset", "half_close", "truncate", "crash",
]  # fmt: skip
LATE: list[FaultKind] = ["stall", "buffering"]
IN_THE_BYTES: list[FaultKind] = ["drip", "malformed_json", "invalid_utf8", "huge_line"]
ONE_TEST = SUITE.partition("@llmbench.throughput")[0]


def test_no_fault_is_left_out() -> None:
    assert sorted([*STRUCK, *LATE, *IN_THE_BYTES]) == sorted(FAULTS)
    assert sorted(f"def test_{test}()" for test in TESTS) == sorted(
        line.partition(":")[0] for line in SUITE.splitlines() if line.startswith("def ")
    )


@pytest.mark.parametrize(
    ("faults", "share"),
    [
        pytest.param(STRUCK, 0.3, id="struck"),
        pytest.param(LATE, 1.0, id="late", marks=pytest.mark.slow),
    ],
)
def test_ten_tests_in_virtual_time(faults: list[FaultKind], share: float) -> None:
    ended = measured(f"replay:{scenario(faults, share=share)}")
    assert objections(ended, TESTS) == [], ended.terminal
    assert {entry["outcome"] for entry in ended.tests.values()} == {"error"}
    _objected_to(ended)


def _objected_to(ended: fault_matrix.Ended) -> None:
    """What must not be, put into a session that was as it should be."""
    spoiled = deepcopy(ended)
    spoiled.tests["ttft"]["outcome"] = "passed"
    spoiled.tests["itl"]["validity"]["findings"] = []
    spoiled.tests["itl"]["gate"]["objectives"] = []
    assert spoiled.report is not None
    spoiled.report["tests"] = [entry for entry in spoiled.report["tests"] if entry["test"] != "guardrail"]
    assert [text.partition(" ")[0] for text in objections(spoiled, TESTS)] == ["ttft", "itl", "guardrail"]


@pytest.mark.parametrize("fault", IN_THE_BYTES)
def test_a_fault_that_a_replay_cannot_have_is_said(fault: FaultKind, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=ONE_TEST)
    ran = pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--llm-endpoint=replay:{scenario([fault])}")
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines([f"*the fault {fault} changes the bytes of the stream*"])


def test_every_fault_over_http() -> None:
    ended = measured(f"sim:{scenario(FAULTS)}", ONE_TEST)
    assert objections(ended, ["ttft"]) == [], ended.terminal
    assert ended.tests["ttft"]["outcome"] == "error"


LEAKS = """
import asyncio, socket, subprocess, tempfile

def test_leaks():
    global kept
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(100))
    kept = [socket.create_server(("127.0.0.1", 0)), loop, task, tempfile.mkdtemp()]
    subprocess.Popen(["sleep", "100"])
    print("Traceback (most recent call last)")
    assert False
"""


def test_what_is_left_is_found(tmp_path: Path) -> None:
    ended = watched(tmp_path, LEAKS)
    for text in (
        "a process is left: sleep 100",
        "a temporary file is left: tmp",
        "left in the process: processes: sleep 100",
        "left in the process: sockets: ",
        "left in the process: tasks: ",
        "'Traceback (most recent' is said",
        "summary.md was not written",
        "FileNotFoundError",
    ):
        assert any(found.startswith(text) for found in ended.problems), (text, ended.problems)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_ten_tests_over_http(fault: FaultKind) -> None:
    ended = measured(f"sim:{scenario([fault])}")
    assert objections(ended, TESTS) == [], ended.terminal
