"""``summary.md``, a report in a dozen lines for the summary page of a CI job; and with the table of all tests
an annotation of a Buildkite build: ``buildkite-agent annotate --style STYLE --context llmbench < FILE``.

That takes CommonMark with GitHub's tables, at most 1 MiB (buildkite.com, "buildkite-agent annotate"). The
style is given to the agent and is not in the file.
"""

from __future__ import annotations

from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports.first_screen import Card, FirstScreen
from pytest_llmbench.reports.markdown import ICONS, cut, head, held_text, tests_table
from pytest_llmbench.reports.markdown_text import clipped, code, escape
from pytest_llmbench.reports.report_view import ReportView

_SHOWN = 6
_LONGEST_NAME = 200


def job_summary(report: Entry, *, path: str | None = None) -> str:
    """The summary: banner, what was measured, compliance classes, a line for each test that did not pass (six
    at most), names of warnings. ``path``: where the whole report is; None if it was not written."""
    screen = FirstScreen(ReportView(report))
    lines = [_line(card) for card in screen.cards[:_SHOWN]]
    more = len(screen.cards) - len(lines)
    if more > 0:
        lines.append(f"- … and {more} more")
    warned = dict.fromkeys(str(each["check"]) for test in screen.view.tests for each in test.warnings)
    if warned:
        lines.append(f"- Warnings: {', '.join(code(clipped(name, _LONGEST_NAME)) for name in warned)}")
    told = "\n".join(lines) + "\n\n" if lines else ""
    where = f"Report: {code(path)}" if path is not None else "No report was written (`--llm-report DIR`)."
    return f"{head(screen)}\n{told}{where}\n"


def _line(card: Card) -> str:
    name = code(clipped(card.test.name, _LONGEST_NAME))
    told = escape(clipped(card.cause, 300)) if card.deciding is None else held_text(card.deciding)
    return f"- {ICONS[card.test.headline]} {card.test.headline} {name}: {told}"


MAX_BYTES = 100_000
"""Largest annotation, far below the 1 MiB that Buildkite takes: nobody reads that on the page of a build."""


def buildkite_annotation(report: Entry, *, path: str | None = None) -> str:
    """The annotation: the summary of the job, and the table of all tests. ``path`` as in
    :func:`job_summary`."""
    text = f"{job_summary(report, path=path)}\n{tests_table(ReportView(report))}"
    return text if len(text.encode()) <= MAX_BYTES else cut(text, MAX_BYTES)
