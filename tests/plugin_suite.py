"""pytester with the habits of the plugin's tests: a suite of files in, outcomes and report out."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pytest_apart import WITHOUT_OTHERS

from pytest_llmbench.harness.recompute import recompute, rendered
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.store.records_file import records_lines

SMALL_WARMUP = """
import pytest
from pytest_llmbench import WarmupPolicy

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=2, output_tokens=0, probes=0)
"""
"""For the conftest of a session whose subject is not the warm-up, which is a hundred requests."""


def stored_lines(path: Path) -> list[str]:
    """The lines of a records file, which may still be written to."""
    with records_lines(path) as lines:
        return [line.decode() for line in lines]


@dataclass
class Suite:
    """pytester with the habits of these tests."""

    pytester: pytest.Pytester

    def write(self, body: str, conftest: str | None = None) -> None:
        """A test file, which imports the markers where it does not do so itself, and its conftest."""
        text = textwrap.dedent(body).strip()
        if "llmbench." in text and not re.search(
            r"^ *from pytest_llmbench import .*\bllmbench\b", text, re.M
        ):
            text = f"from pytest_llmbench import llmbench\n\n{text}"
        self.pytester.makepyfile(test_suite=text)
        if conftest is not None:
            self.pytester.makeconftest(textwrap.dedent(conftest))

    def run(self, *arguments: str) -> pytest.RunResult:
        others = any(argument.startswith(("--html", "--timeout")) for argument in arguments)
        without = () if others else WITHOUT_OTHERS
        return self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *without, *arguments)

    def measure(self, endpoint: str, *arguments: str, scale: str = "quick") -> pytest.RunResult:
        return self.run(f"--llm-endpoint={endpoint}", f"--llm-scale={scale}", "--llm-report=out", *arguments)

    @property
    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.path / "out" / "report.json").read_text("utf-8"))
        return loaded

    @property
    def entry(self) -> dict[str, Any]:
        """The only test of the report."""
        (found,) = self.report["tests"]
        return dict(found)

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Name of a test → its entry in the report."""
        every = self.report["tests"]
        found = {entry["nodeid"].partition("::")[2]: entry for entry in every}
        assert len(found) == len(every)
        return found

    def recomputed(self) -> int:
        """The number of tests that were recomputed; all of them, and the texts beside the report, are the
        same from what was stored."""
        path = self.path / "out" / "report.json"
        found = recompute(path)
        assert [line for each in (*found, *rendered(path)) if not each.good for line in each.lines()] == []
        return sum(each.identical > 0 for each in found)

    @property
    def path(self) -> Path:
        return self.pytester.path


def refused(result: pytest.RunResult) -> pytest.LineMatcher:
    """What is told where an option or a marker is wrong and nothing runs."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    return result.stderr


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    # The keys of whoever runs these tests must not leak into what the tests send.
    for name in (
        "LLM_API_KEY",
        "OPENAI_API_KEY",
        "CI",
        "GITHUB_ACTIONS",
        "GITHUB_STEP_SUMMARY",
        "GITLAB_CI",
        "BUILDKITE",
    ):
        monkeypatch.delenv(name, raising=False)
    # Within the one process: these tests are about the plugin, and each would start another. Those about
    # the measuring process itself ask for it.
    pytester.makeini(
        """
        [pytest]
        asyncio_default_fixture_loop_scope = function
        llm_workers = 0
        """
    )
    return Suite(pytester)


@pytest.fixture(scope="session")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast") as running:
        yield running
