"""pytester with the habits of the plugin's tests: a suite of files in, outcomes and report out."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.store.records_reader import records_lines

WITHOUT_PICTURES = """
import pytest_llmbench.reports.plots

pytest_llmbench.reports.plots.render = lambda plot, plot_id, salt="": "<svg></svg>"
"""
"""For the conftest of a session in a process of its own whose subject is not the report: to load matplotlib
and to draw takes a third of it. Sessions in this process: the fixture ``without_pictures``."""

SMALL_WARMUP = """
import pytest
from pytest_llmbench import WarmupPolicy

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=2, output_tokens=0, probes=0)
"""
"""For the conftest of a session whose subject is not the warm-up, which is a hundred requests."""

_OTHERS = ("hypothesispytest", "html", "metadata", "timeout")
"""Plugins that those sessions do not need, and which would take time to load."""
_WITHOUT = [word for name in _OTHERS for word in ("-p", f"no:{name}")]


def pytest_command(*arguments: str) -> list[str]:
    """pytest in a process of its own, and only with the plugins that belong to the subject."""
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *_WITHOUT, *arguments]


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A session in a process of its own, to be killed or interrupted."""
    return subprocess.Popen(
        pytest_command(*arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(happened: Callable[[], bool], what: str) -> None:
    """Until it has happened. ``what`` is said where it does not."""
    deadline = time.monotonic() + 90
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def stored_lines(path: Path) -> list[str]:
    """The lines of a records file, which may still be written to."""
    with records_lines(path) as lines:
        return [line.decode() for line in lines]


@dataclass
class Suite:
    """pytester with the habits of these tests."""

    pytester: pytest.Pytester

    def write(self, body: str, conftest: str | None = None) -> None:
        self.pytester.makepyfile(test_suite=textwrap.dedent(body))
        if conftest is not None:
            self.pytester.makeconftest(textwrap.dedent(conftest))

    def run(self, *arguments: str) -> pytest.RunResult:
        # Workers of pytest-xdist are processes.
        without = _WITHOUT if any(argument.startswith("-n") for argument in arguments) else ()
        return self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *without, *arguments)

    def measure(self, endpoint: str, *arguments: str, scale: str = "quick") -> pytest.RunResult:
        return self.run(f"--llm-endpoint={endpoint}", f"--llm-scale={scale}", "--llm-report=out", *arguments)

    @property
    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.path / "out" / "report.json").read_text("utf-8"))
        return loaded

    @property
    def path(self) -> Path:
        return self.pytester.path
