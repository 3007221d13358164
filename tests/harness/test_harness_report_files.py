"""The session's report has nothing that must not be in it, and telling GitHub Actions costs no verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.harness.report_files import (
    Written,
    build_report,
    github_wants_to_know,
    head_of,
    tell_github,
)
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.store.entries import entry_from_error


@pytest.fixture
def document() -> dict[str, Any]:
    """A report of one test that never measured."""
    entry = entry_from_error(nodeid="a.py::test_a", test="ttft", section="5.1", error="no answer")
    return build_report(head_of(Settings(), started_ns=0), [entry.plain()]).plain()


def told(document: dict[str, Any], environment: dict[str, str]) -> Written:
    written = Written()
    tell_github(document, environment, written, path=None)
    return written


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"CI": "true"}, False),
        ({"GITHUB_ACTIONS": "false", "GITHUB_STEP_SUMMARY": ""}, False),
        ({"GITHUB_ACTIONS": "true"}, True),
        ({"GITHUB_STEP_SUMMARY": "/tmp/x"}, True),
    ],
    ids=str,
)
def test_who_is_told(environment: dict[str, str], wanted: bool) -> None:
    assert github_wants_to_know(environment) is wanted


def test_the_summary_comes_after_what_is_there(tmp_path: Path, document: dict[str, Any]) -> None:
    path = tmp_path / "summary"
    path.write_text("# Earlier\n", "utf-8")
    for _ in range(2):
        assert told(document, {"GITHUB_STEP_SUMMARY": str(path)}) == Written()
    text = path.read_text("utf-8")
    assert text.startswith("# Earlier\n## ❌ LLM benchmark: ")
    assert text.count("## ❌") == 2, "a second session of the same step"


def test_a_file_that_cannot_be_written(tmp_path: Path, document: dict[str, Any]) -> None:
    environment = {"GITHUB_STEP_SUMMARY": str(tmp_path / "none" / "summary"), "GITHUB_ACTIONS": "true"}
    found = told(document, environment)
    assert found.warnings == [
        f"the summary of the job is not written: {tmp_path}/none/summary: No such file or directory"
    ]
    assert found.annotations == ["::error file=a.py,title=ERROR test_a::no answer"]


def test_what_cannot_be_rendered_is_said(tmp_path: Path) -> None:
    (warning,) = told({"tests": [{}]}, {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}).warnings
    assert warning.startswith("GitHub is not told: KeyError: ")


def test_an_endpoint_s_query_is_in_no_part_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = "https://user:canary-1@host/v1?key=canary-2"
    monkeypatch.setattr("sys.argv", ["pytest", f"--llm-endpoint={endpoint}"])
    head = head_of(Settings(endpoint=endpoint), started_ns=0)
    text = build_report(head, []).model_dump_json() + head.model_dump_json()
    assert "canary" not in text
    assert "--llm-endpoint=https://host/v1?key=" in text
