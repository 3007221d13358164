"""The files of a report: each renderer with the name of its file. Imported where a report is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.reporting import Written, shown
from pytest_llmbench.reports.ci.action_benchmark import bigger_is_better, smaller_is_better
from pytest_llmbench.reports.ci.bencher import bencher
from pytest_llmbench.reports.ci.buildkite import buildkite_annotation
from pytest_llmbench.reports.ci.ctrf import ctrf
from pytest_llmbench.reports.ci.github import annotations_text
from pytest_llmbench.reports.ci.gitlab import gitlab_metrics
from pytest_llmbench.reports.entry import Entry
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.job_summary import job_summary
from pytest_llmbench.reports.markdown import markdown_report
from pytest_llmbench.reports.minimum import minimum_report
from pytest_llmbench.store.json_file import write_text
from pytest_llmbench.store.report_file import REPORT_NAME, write_report

_FOR_CI: Mapping[str, Callable[[Entry], str]] = {
    "github-annotations.txt": annotations_text,
    "gitlab-metrics.txt": gitlab_metrics,
    "bencher.json": bencher,
    "github-action-benchmark-smaller.json": smaller_is_better,
    "github-action-benchmark-bigger.json": bigger_is_better,
    "ctrf-report.json": ctrf,
}


def _makers(document: Entry, page: str) -> dict[str, Callable[[Path], None]]:
    """What writes each file, by its name in the directory. ``page``: where ``report.html`` is going to be."""
    return {
        "report.html": _text_file(partial(html_report, document)),
        REPORT_NAME: lambda path: write_report(path, document),
        "report.md": _text_file(partial(markdown_report, document)),
        "summary.md": _text_file(partial(job_summary, document, path=page)),
        "minimum.txt": _text_file(partial(minimum_report, document)),
        "ci/buildkite-annotation.md": _text_file(partial(buildkite_annotation, document, path=page)),
        **{f"ci/{name}": _text_file(partial(render, document)) for name, render in _FOR_CI.items()},
    }


def _text_file(render: Callable[[], str]) -> Callable[[Path], None]:
    return lambda path: write_text(path, render())


REPORT_FILES = tuple(_makers({}, ""))
"""The names of the files of a report, relative to its directory."""


def write_reports(directory: Path, document: Entry) -> Written:
    """Writes every file of the report, given in plain JSON types. One that fails takes no other with it."""
    found = Written()
    for name, make in _makers(document, str(directory / "report.html")).items():
        path = directory / name
        try:
            make(path)
        except LLMBenchError as error:
            found.problems.append(" ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001 - of ours, and must not cost the verdicts and other files
            found.problems.append(f"{path}: cannot be made: {type(error).__name__}: {shown(error)}")
        else:
            found.paths.append(str(path if path.parent == directory else path.parent))
    return replace(found, paths=list(dict.fromkeys(found.paths)))
