"""How far a test has got: a live line on a terminal, a heartbeat in a log, and pytest's own line put back."""

from __future__ import annotations

import os
import pty
import re
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from plugin_suite import SMALL_WARMUP, Suite
from pytest_apart import Session, read_again

from pytest_llmbench.generator.loop_thread import Progress
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, Looks
from pytest_llmbench.plugin.progress import (
    Heartbeat,
    LiveLine,
    Output,
    ProgressReporter,
    display_for,
    own_output,
    progress_text,
)
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.workloads.catalogue import WORKLOADS

BODY = """
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

TINY = SyntheticWorkload("tiny", Fixed(16), Fixed(40))

@llmbench.ttft(concurrency=2, workload=TINY)
def test_first_token(): ...
"""


def seen_on_a_terminal(suite: Suite, endpoint: str) -> str:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "wb", 0) as terminal:
        arguments = (f"--llm-endpoint={endpoint}", "--llm-scale=quick", "--llm-inconclusive=pass")
        run = Session(suite.path, "--color=no", "--llm-workers=1", *arguments, output=terminal)
    text = "".join(iter(reader(ours), ""))
    os.close(ours)
    assert run.wait(timeout=60) == 0, text
    return text


def reader(descriptor: int) -> Callable[[], str]:
    def read() -> str:
        try:
            return os.read(descriptor, 4096).decode("utf-8", "replace")
        except OSError:  # Linux: the other end has been closed
            return ""

    return read


@pytest.mark.usefixtures("however_late")
def test_progress_is_shown_and_put_back(suite: Suite, engine: EmbeddedEngine) -> None:
    suite.write(BODY, SMALL_WARMUP)
    text = seen_on_a_terminal(suite, engine.url)
    assert "\r\x1b[2K  test 1 of 1, measure: " in text
    assert re.search(r"measure: \d+ of \d+ done, 0 failed, \d in flight, [\d.]+ req/s, ", text)
    assert "\r\x1b[2Ktest_suite.py ." in text


@pytest.mark.parametrize(("variable", "is_live"), [("", True), ("true", False)], ids=["by hand", "in CI"])
def test_ci_logs_are_left_alone(monkeypatch: pytest.MonkeyPatch, variable: str, is_live: bool) -> None:
    """A terminal too: a job may have one, and the same text is a log to whoever reads it."""
    monkeypatch.setenv("CI", variable)
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", terminal)
        output = own_output()
    assert output is not None
    os.close(output.descriptor)
    assert output.is_live is is_live
    assert isinstance(display_for(output, 0, "a", (1, 1), ""), LiveLine if is_live else Heartbeat)


PLAN = LoadPlan("measure", WORKLOADS["synthetic-uniform"], ClosedLoop(4), requests=1000, seed=1)
RUNNING = Progress(submitted=120, ok=114, failed=2, in_flight=4, planned=1000, elapsed_s=6.0)


@contextmanager
def written(*, is_live: bool) -> Iterator[tuple[Output, Callable[[], str]]]:
    """An output, and what has been written into it."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    def text() -> str:
        try:
            return os.read(reading, 65536).decode()
        except BlockingIOError:
            return ""

    try:
        yield Output(writing, is_live), text
    finally:
        os.close(reading)
        os.close(writing)


def test_what_is_said_of_a_load() -> None:
    told = progress_text(PLAN, RUNNING)
    assert told == (
        "measure: 116 of 1000 done, 2 failed, 4 in flight, 19.3 req/s, 6 s, about 46 s left"
    )  # 116 / 6 s; 884 more at that rate take 45.7 s


def test_the_rest_of_a_load_is_told_where_it_is_known() -> None:
    def left(plan: LoadPlan, progress: Progress) -> str:
        return progress_text(plan, progress).partition(" s, ")[2]

    timed = PLAN.with_(duration_s=60.0, requests=10)
    assert left(timed, replace(RUNNING, planned=120)) == "about 54 s left"
    assert left(PLAN.with_(duration_s=300.0), RUNNING) == "about 294 s left"
    assert left(PLAN.with_(looks=Looks((), 0.01)), RUNNING) == "at most 46 s left"
    assert left(PLAN, replace(RUNNING, planned=100_000)) == "about 86 min left"
    assert left(PLAN, replace(RUNNING, planned=1_000_000)) == "about 14.4 h left"
    assert left(PLAN, replace(RUNNING, ok=0, failed=0)) == "", "no reply yet: no rate"
    assert left(PLAN, replace(RUNNING, submitted=1000)) == "", "the last replies come when they come"


def test_nothing_is_divided_by_a_load_that_has_not_begun() -> None:
    opening = Progress(submitted=0, ok=0, failed=0, in_flight=0, planned=1000, elapsed_s=0.0)
    assert progress_text(PLAN, opening) == "measure: 0 of 1000 done, 0 failed, 0 in flight"
    assert progress_text(None, opening) == "0 of 1000 done, 0 failed, 0 in flight"
    assert progress_text(PLAN, "shared with test_a, nothing is sent") == (
        "measure: shared with test_a, nothing is sent"
    )


def test_a_log_gets_lines_of_its_own() -> None:
    with written(is_live=False) as (output, text):
        beat = Heartbeat(output, "test 3 of 12 (test_a.py::test_p99)", "test_a.py ..")
        beat.draw(None, None)
        beat.draw(PLAN, RUNNING)
        beat.end()
        assert text() == (
            "\nllmbench: test 3 of 12 (test_a.py::test_p99), for 30 s: nothing is sent yet\n"
            f"llmbench: test 3 of 12 (test_a.py::test_p99), for 60 s: {progress_text(PLAN, RUNNING)}\n"
            "test_a.py .."
        )


def test_a_test_shorter_than_a_beat_leaves_the_log_alone() -> None:
    with written(is_live=False) as (output, text):
        Heartbeat(output, "test 1 of 1", "test_a.py ").end()
        assert text() == ""


def test_a_live_line_does_not_wrap() -> None:
    with written(is_live=True) as (output, text):
        line = LiveLine(output, "test 1 of 1", "test_a.py .")
        line.draw(None, None)
        assert text() == ""
        line.draw(PLAN.with_(label="m" * 200), RUNNING)
        assert len(text().removeprefix("\r\x1b[2K")) == 79  # no terminal: taken for one of 80 columns
        line.end()
        assert text() == "\r\x1b[2Ktest_a.py ."


def test_a_worker_writes_only_while_it_measures() -> None:
    with written(is_live=True) as (output, text):
        beat = display_for(output, 0, "test_a.py::test_p99", (3, 12), "", "gw1")
        assert isinstance(beat, Heartbeat)
        beat.draw(None, None)
        assert text() == ""
        beat.draw(PLAN, RUNNING)
        beat.draw(PLAN, RUNNING)
        beat.end()
        now = progress_text(PLAN, RUNNING)
        assert text() == (
            f"\nllmbench: gw1, test 3 of 12 (test_a.py::test_p99), for 60 s: {now}\n"
            f"llmbench: gw1, test 3 of 12 (test_a.py::test_p99), for 90 s: {now}\n"
        )
    assert display_for(output, -1, "test_a.py::test_p99", (3, 12), "", "gw1") is None


@pytest.mark.usefixtures("however_late")
def test_what_a_worker_writes_reaches_the_output_of_the_controller(
    suite: Suite, engine: EmbeddedEngine
) -> None:
    pytest.importorskip("xdist")
    often = """
    from pytest_llmbench.plugin.progress import Heartbeat

    Heartbeat.interval_s = 0.02
    """
    conftest = SMALL_WARMUP + textwrap.dedent(often)
    suite.write(BODY.replace("concurrency=2", "concurrency=4, requests=12"), conftest)
    arguments = (f"--llm-endpoint={engine.url}", "--llm-scale=quick", "--llm-inconclusive=pass")
    with tempfile.TemporaryFile() as file:
        run = Session(suite.path, "-n1", *arguments, errors=file)
        output, errors = run.text(timeout=120), read_again(file)
    assert run.returncode == 0, output
    beats = [line for line in errors.splitlines() if line]
    assert re.match(r"llmbench: gw0, test 1 of 1 \(test_suite.py::test_first_token\), for ", beats[0])
    assert re.search(r"measure: \d+ of \d+ done, 0 failed, ", errors)
    assert "llmbench: gw0" not in output


@pytest.mark.parametrize(
    ("is_live", "verbosity", "kind"),
    [
        (True, 0, LiveLine),
        (True, -1, LiveLine),
        (False, 0, Heartbeat),
        (False, 1, Heartbeat),
        (False, -1, None),
    ],
)
def test_where_what_is_shown(is_live: bool, verbosity: int, kind: type | None) -> None:
    shown = display_for(Output(1, is_live), verbosity, "test_a.py::test_p99", (3, 12), "")
    assert shown is None if kind is None else isinstance(shown, kind)
    assert display_for(None, 0, "test_a.py::test_p99", (3, 12), "") is None


def test_beats_come_at_their_interval_with_what_is_known_then() -> None:
    waited, ended = [], threading.Event()

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) == 2:
            reporter(PLAN, RUNNING)
        if len(waited) == 3:
            ended.set()
        return len(waited) == 3

    with written(is_live=False) as (output, text):
        begun = threading.Event()
        reporter = ProgressReporter(
            Heartbeat(output, "test 1 of 1", ""), lambda seconds: begun.wait() and wait(seconds)
        )
        begun.set()
        assert ended.wait(60)
        reporter.end()
        first, second = text().splitlines()
    assert waited == [30.0] * 3
    assert first.endswith("nothing is sent yet")
    assert " 116 of 1000 done" in second
