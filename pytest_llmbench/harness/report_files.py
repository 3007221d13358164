"""The files of a report: the name of each with its renderer, which is imported when the report is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.reporting import Written, shown
from pytest_llmbench.reports.entry import Entry
from pytest_llmbench.store.json_file import write_text
from pytest_llmbench.store.report_file import REPORT_NAME, write_report

_HTML = "report.html"
_RENDERERS: Mapping[str, str] = MappingProxyType(
    {
        _HTML: "html.html_report",
        "report.md": "markdown.markdown_report",
        "summary.md": "job_summary.job_summary",
        "minimum.txt": "minimum.minimum_report",
        "ci/buildkite-annotation.md": "ci.buildkite.buildkite_annotation",
        "ci/github-annotations.txt": "ci.github.annotations_text",
        "ci/gitlab-metrics.txt": "ci.gitlab.gitlab_metrics",
        "ci/bencher.json": "ci.bencher.bencher",
        "ci/github-action-benchmark-smaller.json": "ci.action_benchmark.smaller_is_better",
        "ci/github-action-benchmark-bigger.json": "ci.action_benchmark.bigger_is_better",
        "ci/ctrf-report.json": "ci.ctrf.ctrf",
    }
)
"""File → function of ``reports``, from the report in plain JSON types to the text."""
_LINKED = ("summary.md", "ci/buildkite-annotation.md")
"""They tell where ``report.html`` is going to be."""

REPORT_FILES = (_HTML, REPORT_NAME, *(name for name in _RENDERERS if name != _HTML))
"""The names of the files of a report, relative to its directory."""


def write_reports(directory: Path, document: Entry) -> Written:
    """Writes every file of the report, given in plain JSON types. One that fails takes no other with it."""
    found = Written()
    for name in REPORT_FILES:
        path = directory / name
        try:
            if name == REPORT_NAME:
                write_report(path, document)
            else:
                write_text(path, _text(name, document, str(directory / _HTML)))
        except LLMBenchError as error:
            found.problems.append(" ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001 - of ours, and must not cost the verdicts and other files
            found.problems.append(f"{path}: cannot be made: {type(error).__name__}: {shown(error)}")
        else:
            found.paths.append(str(path if path.parent == directory else path.parent))
    return replace(found, paths=list(dict.fromkeys(found.paths)))


def _text(name: str, document: Entry, page: str) -> str:
    module, _, function = _RENDERERS[name].rpartition(".")
    render = getattr(import_module(f"pytest_llmbench.reports.{module}"), function)
    text: str = render(document, path=page) if name in _LINKED else render(document)
    return text
