"""The terminal section of a test: plain lines with markup names for those who have colours.

Short by default, some 35 lines; ``verbose`` shows every finding and every unmet requirement.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_llmbench.reports.document import (
    TONES,
    Entry,
    ReportView,
    TestView,
    measured_text,
    objective_text,
    words,
)

SHOWN_REQUIREMENTS = 3
SHOWN_ERROR_LINES = 8
_MARKUP: Mapping[str, Mapping[str, bool]] = {
    "good": {"green": True},
    "bad": {"red": True},
    "warn": {"yellow": True},
    "neutral": {},
}
_MOST_TABLE_ROWS = 24


class Line(NamedTuple):
    """One line; ``markup`` are keywords of pytest's ``write_line``."""

    text: str
    markup: Mapping[str, bool] = {}


def section_lines(entry: Entry, *, width: int = 80, verbose: bool = False) -> list[Line]:
    """All lines of one test, no line longer than ``width`` (from 40 on)."""
    test = TestView(entry)
    width = max(width, 40)
    lines = [*_head(test, width), *_error(test, width, verbose)]
    for block in (
        _objectives(test, width),
        *(_table(table, width) for table in test.tables.values()),
        _findings(test, width, verbose),
        _compliance(test, width, verbose),
        _next_steps(test, width),
        _notes(test, width),
    ):
        if block:
            lines += [Line(""), *block]
    return lines


def overview(report: Entry, *, width: int = 80) -> list[Line]:
    """One line per test, worst last where the eye is."""
    view = ReportView(report)
    order = ("PASS", "SKIPPED", "INCONCLUSIVE", "FAIL", "INVALID", "ERROR")
    lines = []
    for test in sorted(view.tests, key=lambda test: order.index(test.headline)):
        first = next(iter(test.objectives), None)
        detail = f"  {objective_text(first)}: {measured_text(first)}" if first is not None else ""
        text = f"{test.headline:<13}{test.name}{detail}"
        lines.append(Line(_cut(text, width), _MARKUP[TONES[test.headline]]))
    return lines


def _head(test: TestView, width: int) -> list[Line]:
    markup = {**_MARKUP[TONES[test.headline]], "bold": True}
    lines = [Line(part, {"bold": True}) for part in _wrap(test.nodeid, width, "", "  ")]
    lines += [Line(part, markup) for part in _wrap(f"{test.headline} · {test.kind}", width)]
    lines += [Line(part) for part in _wrap(test.judgements, width)]
    if test.entry["load"] is not None:
        duration = f"{test.entry['load']['duration_s']:.1f} s"
        lines += [Line(part) for part in _wrap(f"{test.load_text}, {duration}", width)]
        lines += [Line(part) for part in _wrap(test.completion, width)]
    return lines


def _error(test: TestView, width: int, verbose: bool) -> list[Line]:
    error = test.entry.get("error")
    if not error:
        return []
    parts = [part for line in error.splitlines() for part in _wrap(line, width)]
    shown = parts if verbose else parts[:SHOWN_ERROR_LINES]
    rest = [Line(f"  … {len(parts) - len(shown)} more lines (-v)")] if len(parts) > len(shown) else []
    return [Line(""), *(Line(part, {"red": True}) for part in shown), *rest]


def _objectives(test: TestView, width: int) -> list[Line]:
    lines = []
    for objective in test.objectives if test.measured else ():
        verdict = objective["verdict"]
        text = f"{verdict:<13}{objective_text(objective)}: {measured_text(objective)}"
        lines += [Line(part, _MARKUP[TONES[verdict]]) for part in _wrap(text, width, "  ", " " * 15)]
        if verdict != "pass" and objective.get("reason"):
            lines += [Line(part) for part in _wrap(objective["reason"], width, " " * 15, " " * 15)]
    return lines


def _table(table: Entry, width: int) -> list[Line]:
    """Left-aligned first column, right-aligned others; the widest column gives way if there is no room."""
    rows = [table["columns"], *table["rows"][:_MOST_TABLE_ROWS]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table["columns"]))]
    while sum(widths) + 2 * len(widths) > width and max(widths) > 6:
        widths[widths.index(max(widths))] -= 1
    head, *body = ["  " + _row(row, widths) for row in rows]
    lines = [Line(f"  {table['title']}", {"bold": True}), Line(head), *(Line(row) for row in body)]
    left_out = len(table["rows"]) - len(body)
    return [*lines, Line(f"  … {left_out} more rows")] if left_out > 0 else lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *aligned]).rstrip()


def _findings(test: TestView, width: int, verbose: bool) -> list[Line]:
    findings = test.findings if verbose else test.noteworthy_findings
    if not test.measured:  # the error above says it already
        return []
    lines = []
    for finding in findings:
        state = "ok" if finding["ok"] else "VOID" if finding["voids"] else "warning"
        tone = "good" if finding["ok"] else "bad" if finding["voids"] else "warn"
        text = f"{state:<9}{finding['check']}: {finding['message']}"
        lines += [Line(part, _MARKUP[tone]) for part in _wrap(text, width, "  ", " " * 11)]
    return lines


def _compliance(test: TestView, width: int, verbose: bool) -> list[Line]:
    compliance = test.entry["compliance"]
    if not compliance["requirements"]:
        return []
    verdict, literal = compliance["verdict"], compliance["verdict_literal"]
    reading = f" (literal reading: {words(literal)})" if literal != verdict else ""
    blocking, downgrading = test.unmet("blocks"), test.unmet("downgrades")
    applicable = sum(r["status"] != "not_applicable" for r in test.requirements)
    met = sum(r["status"] == "met" for r in test.requirements)
    text = f"compliance: {words(verdict)}{reading}; {applicable} requirements apply: {met} met, " + (
        f"{len(blocking)} unmet that block it, {len(downgrading)} unmet that lower it"
    )
    lines = [Line(part, _MARKUP[TONES[verdict]]) for part in _wrap(text, width)]
    listed = test.unmet() if verbose else (blocking or downgrading)
    shown = listed if verbose else listed[:SHOWN_REQUIREMENTS]
    for requirement in shown:
        text = f"{requirement['id']}: {requirement['reason']}"
        lines += [Line(part) for part in _wrap(text, width, "    ", "      ")]
    if len(listed) > len(shown):
        lines.append(Line(f"    … and {len(listed) - len(shown)} more (-v, or the report)"))
    return lines


def _next_steps(test: TestView, width: int) -> list[Line]:
    return _bullets("next:", test.next_steps, width)


def _notes(test: TestView, width: int) -> list[Line]:
    return _bullets("notes:", test.entry.get("notes") or (), width)


def _bullets(title: str, texts: Iterable[str], width: int) -> list[Line]:
    lines = [Line(part) for text in texts for part in _wrap(text, width, "    - ", "      ")]
    return [Line(f"  {title}"), *lines] if lines else []


def _wrap(text: str, width: int, first: str = "  ", rest: str = "  ") -> list[str]:
    options: dict[str, Any] = {"break_long_words": True, "break_on_hyphens": False}
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, **options) or [""]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


__all__ = ["Line", "overview", "section_lines"]
