"""The live line on a terminal: a pseudo-terminal sees it, and the test's own line is put back."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest
from plugin_suite import Suite

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

BODY = """
from pytest_llmbench import llmbench

@llmbench.ttft(concurrency=2)  # no schedule that a busy machine could spoil
def test_first_token(): ...
"""


def seen_on_a_terminal(suite: Suite, endpoint: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no"]
    command += [f"--llm-endpoint={endpoint}", "--llm-scale=quick", "--llm-workers=1"]
    ours, theirs = pty.openpty()
    run = subprocess.Popen(command, cwd=suite.path, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
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


def test_progress_is_shown_and_put_back(suite: Suite, engine: EmbeddedEngine) -> None:
    suite.write(BODY)
    text = seen_on_a_terminal(suite, engine.url)
    assert "\r\x1b[2K  measure: " in text
    assert " in flight, " in text
    assert "\r\x1b[2Ktest_suite.py ." in text


def test_ci_logs_are_left_alone(
    suite: Suite, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.write(BODY)
    assert "\x1b[2K" not in seen_on_a_terminal(suite, engine.url)
