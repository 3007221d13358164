"""An annotation of a Buildkite build: ``buildkite-agent annotate --style STYLE --context llmbench < FILE``.

CommonMark with GitHub's tables, at most 1 MiB (buildkite.com, "buildkite-agent annotate"). The style is given
to the agent and is not in the file.
"""

from __future__ import annotations

from pytest_llmbench.reports.job_summary import job_summary
from pytest_llmbench.reports.markdown import cut, tests_table
from pytest_llmbench.reports.numbers import Entry
from pytest_llmbench.reports.report_view import ReportView

MAX_BYTES = 100_000
"""Far below the 1 MiB that Buildkite takes: nobody reads that on the page of a build."""


def buildkite_annotation(report: Entry, *, path: str | None = None) -> str:
    """The summary of the job, and the table of all tests; ``path`` as :func:`job_summary` takes it."""
    text = f"{job_summary(report, path=path)}\n{tests_table(ReportView(report))}"
    return text if len(text.encode()) <= MAX_BYTES else cut(text, MAX_BYTES)
