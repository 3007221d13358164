"""In a job of GitHub Actions a session tells what did not pass by itself, with and without a report."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_suite import Suite

BODY = """
@llmbench.ttft(p50_ms=0.01, concurrency=4, requests=60)
def test_too_slow(): ...

@llmbench.ttft(concurrency=4, requests=60)
def test_without_a_limit(): ...
"""
REPLAY = ("--llm-endpoint=replay", "--llm-scale=quick", "-p", "no:html")


@pytest.fixture
def job(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the job's summary, to which an earlier part of the step has written."""
    summary = suite.path / "step_summary"
    summary.write_text("# Earlier\n\n", "utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    suite.write(BODY)
    return summary


def commands(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("::")]


def test_without_a_report(suite: Suite, job: Path) -> None:
    result = suite.run(*REPLAY)
    result.assert_outcomes(passed=1, failed=1)
    (command,) = commands(result)
    assert command.startswith(
        "::error file=test_suite.py,line=3,title=FAIL test_too_slow::ttft.p50 <= 0.01 ms: "
    )
    text = job.read_text("utf-8")
    assert text.startswith("# Earlier\n\n## ❌ LLM benchmark: the limit broken\n")
    assert text.count("\n## ❌") == 1
    assert "#### ❌ FAIL `test_too_slow`\n\n- Limit: `ttft.p50 <= 0.01 ms`: " in text
    assert "No report was written" in text


def test_a_test_of_a_base_class_elsewhere_has_no_line(suite: Suite, job: Path) -> None:
    suite.pytester.makepyfile(
        base="""
        from pytest_llmbench import llmbench

        class Base:
            @llmbench.ttft(p50_ms=0.01, concurrency=4, requests=60)
            def test_too_slow(self): ...
        """
    )
    suite.write("from base import Base\n\nclass TestIt(Base): ...")
    (command,) = commands(suite.run(*REPLAY))
    assert command.startswith("::error file=test_suite.py,title=FAIL TestIt%3A%3Atest_too_slow::")


def test_with_a_report_the_summary_names_it_and_files_for_ci_are_beside_it(suite: Suite, job: Path) -> None:
    suite.run(*REPLAY, "--llm-report=out", "-k", "without_a_limit").assert_outcomes(passed=1, deselected=1)
    written = (suite.path / "out" / "summary.md").read_text("utf-8")
    told = job.read_text("utf-8").removeprefix("# Earlier\n\n").removesuffix("\n")
    assert told == written.replace("`report.html`, beside this file", "`out/report.html`")
    assert {path.name for path in (suite.path / "out" / "ci").iterdir()} == {
        "github-annotations.txt",
        "bencher.json",
        "github-action-benchmark-smaller.json",
        "github-action-benchmark-bigger.json",
        "ctrf-report.json",
    }


def test_a_summary_that_cannot_be_written_fails_no_session(
    suite: Suite, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(suite.path))
    result = suite.run(*REPLAY, "-k", "without_a_limit")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["llmbench: WARNING: the summary of the job is not written: *: Is a directory"]
    )
    assert commands(result) == []


def test_elsewhere_nothing_is_told(suite: Suite, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    result = suite.run(*REPLAY, "-k", "too_slow")
    assert commands(result) == []
    assert job.read_text("utf-8") == "# Earlier\n\n"
