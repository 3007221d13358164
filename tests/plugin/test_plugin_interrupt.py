"""Ctrl-C: the load ends at once, what was measured is on disk, in the report and void."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugin_suite import Suite

from pytest_llmbench.simulator.process import EmbeddedEngine

BODY = """
from pytest_llmbench import WarmupPolicy, llmbench
import pytest

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=5, output_tokens=0, probes=0)

@llmbench.ttft(p99_ms=500, rate=20, requests=2000)
def test_long(): ...

def test_never_reached(): ...
"""


def lines_so_far(directory: Path) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in directory.glob("records/*.jsonl"))


def test_ctrl_c_keeps_what_was_measured(suite: Suite, engine: EmbeddedEngine) -> None:
    suite.write(BODY)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    command += [f"--llm-endpoint={engine.url}", "--llm-report=out"]
    run = subprocess.Popen(
        command, cwd=suite.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while lines_so_far(suite.path / "out") < 40:
            assert time.monotonic() < deadline, "no records appeared"
            time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, text
    entry = suite.report["tests"][0]
    assert entry["outcome"] == "error"
    assert entry["validity"]["verdict"] == "invalid"
    assert any("Ctrl-C" in finding["message"] for finding in entry["validity"]["findings"])
    assert entry["counts"]["ok"] >= 20
    assert "LLM serving benchmarks" in text
