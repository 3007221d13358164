"""The measuring process is really stopped while it measures: what is measured again, kept and told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_lines import measuring_processes
from however_late import LIMITS
from plugin_suite import SMALL_WARMUP, Suite, refused
from whole_records import whole_records

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

BODY = """
@llmbench.ttft(p50_ms=2000, rate=20)
def test_first_token(): ...
"""
STILL_S = 2.0
PATIENT = LIMITS.replace("send_lag_ns=1e18", "send_lag_ns=1e9")
"""Half of that: no other machine stands still so long of itself."""


def measured_rows(out: Path) -> list[dict[str, Any]]:
    rows = [row for file in out.glob("records/*.jsonl.gz") for row in whole_records(file)]
    return [row for row in rows if row["phase"] == "measure"]


@contextmanager
def standing_still(out: Path, *attempts: str) -> Generator[None, None, None]:
    """Stops the measuring process for a while in every attempt of these labels, once that has begun."""
    over = threading.Event()
    done: set[str] = set()

    def watch() -> None:
        while not over.wait(0.02):
            for label in {row["label"] for row in measured_rows(out)} & (set(attempts) - done):
                done.add(label)
                for process in measuring_processes(recursive=True):
                    process.send_signal(signal.SIGSTOP)
                    over.wait(STILL_S)
                    process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(suite: Suite, engine: EmbeddedEngine, *more: str) -> pytest.RunResult:
    suite.write(BODY, SMALL_WARMUP)
    return suite.measure(
        engine.url, "--llm-workers=1", "--llm-inconclusive=pass", f"--llm-host-limits={PATIENT}", *more
    )


def test_a_spoiled_load_is_measured_again_kept_and_told(suite: Suite, engine: EmbeddedEngine) -> None:
    out = suite.path / "out"
    with standing_still(out, "measure"):
        result = run(suite, engine)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*warning: 1 load was void because of this machine*"])
    (entry,) = suite.report["tests"]
    assert entry["validity"]["verdict"] == "valid"
    (void,) = entry["void_loads"]
    assert (void["label"], void["attempt"], void["requests"]) == ("measure", 1, 50)
    assert "sends were late by" in void["causes"][0]
    assert entry["counts"]["submitted"] == 50, "the figures are of the second attempt alone"
    rows = measured_rows(out)
    by_label = {label: [row for row in rows if row["label"] == label] for label in {r["label"] for r in rows}}
    assert {label: len(of) for label, of in by_label.items()} == {"measure": 50, "measure (attempt 2)": 50}
    assert sorted(row["index"] for row in by_label["measure (attempt 2)"]) == list(range(50, 100))
    assert entry["selfcheck"]["priority"].startswith("nice ")
    for name in ("report.html", "summary.md"):
        assert "measured again" in (out / name).read_text("utf-8")
    assert suite.recomputed() == 1


@pytest.mark.slow
def test_a_machine_that_stands_still_every_time_is_one_line(suite: Suite, engine: EmbeddedEngine) -> None:
    with standing_still(suite.path / "out", "measure", "measure (attempt 2)"):
        result = run(suite, engine, "--llm-remeasure=1")
    result.assert_outcomes(errors=1)
    text = str(result.stdout)
    (line,) = {
        line.strip() for line in text.splitlines() if line.strip().startswith("- this machine woke up")
    }
    assert " late, measured by: sends behind their schedule by " in line
    assert "; 2 attempts void: free its CPU" in line
    assert "could not keep its schedule" not in line
    (entry,) = suite.report["tests"]
    assert (entry["validity"]["verdict"], entry["gate"]["verdict"]) == ("invalid", "inconclusive")
    assert len(entry["void_loads"]) == 1


def test_it_may_be_switched_off(suite: Suite, engine: EmbeddedEngine) -> None:
    with standing_still(suite.path / "out", "measure"):
        result = run(suite, engine, "--llm-remeasure=0")
    result.assert_outcomes(errors=1)
    assert "; 1 attempt void: " in str(result.stdout)
    assert {row["label"] for row in measured_rows(suite.path / "out")} == {"measure"}


@pytest.mark.slow
def test_a_closed_loop_that_stood_still_is_void_or_says_what_it_may_be_off_by(
    suite: Suite, engine: EmbeddedEngine
) -> None:
    """It has no schedule: what tells are chunks that ran together and slots that stood empty."""
    suite.write(BODY.replace("rate=20", "concurrency=4"), SMALL_WARMUP)
    with standing_still(suite.path / "out", "measure"):
        suite.measure(engine.url, "--llm-workers=1", "--llm-inconclusive=pass")
    (entry,) = suite.report["tests"]
    if entry["void_loads"]:
        causes = " ".join(entry["void_loads"][0]["causes"])
        assert "were read late, together with later ones" in causes or "slots were empty for" in causes
        return
    check = entry["selfcheck"]
    assert check["unresolved_chunks"] > 0
    assert check["empty_slot_share"] > 0
    told = entry["metrics"]
    assert told["request_throughput"]["too_low_by"] > 0
    assert any(told[f"ttft.{name}"]["too_high_by"] > 0 for name in ("p99_9", "max", "p99"))


@pytest.mark.parametrize("given", ["-1", "21", "often"])
def test_a_number_that_makes_no_sense(suite: Suite, given: str) -> None:
    suite.write(BODY)
    refused(suite.measure("replay", f"--llm-remeasure={given}")).fnmatch_lines(["*--llm-remeasure*"])


def test_every_load_of_a_session_is_held_to_the_limits_of_its_host(suite: Suite) -> None:
    suite.write(BODY)
    result = suite.measure("replay", "--llm-remeasure=1", "--llm-host-limits=rate_share=1.5")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*requests left at * of the scheduled rate (limit 150 %)*"])
    (entry,) = suite.report["tests"]
    assert [void["attempt"] for void in entry["void_loads"]] == [1]
