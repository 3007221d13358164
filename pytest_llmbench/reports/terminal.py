"""The terminal section of a test: plain lines with markup names for those who have colours.

Short by default, some 50 lines; ``verbose`` shows every finding, headline and unmet requirement.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_llmbench.reports import comparisons
from pytest_llmbench.reports.document import TONES, TestView, measured_text, objective_text, words
from pytest_llmbench.reports.entry import Entry
from pytest_llmbench.reports.report_view import ReportView
from pytest_llmbench.reports.vocabulary import metric_label

SHOWN_REQUIREMENTS = 8
SHOWN_HEADLINES = 8
SHOWN_ERROR_LINES = 8
_MARKUP: Mapping[str, Mapping[str, bool]] = {
    "good": {"green": True},
    "bad": {"red": True},
    "warn": {"yellow": True},
    "neutral": {},
}
_MOST_TABLE_ROWS = 24
_FEW_COLUMNS = 4


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
        _comparisons(test, width, verbose),
        _headlines(test, width, verbose),
        *_tables(test, width, verbose),
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
    order = ("PASS", "SKIPPED", "XFAIL", "XPASS", "INCONCLUSIVE", "FAIL", "INVALID", "ERROR")
    lines = []
    for test in sorted(view.tests, key=lambda test: order.index(test.headline)):
        first = next(iter(test.objectives), None)
        detail = (
            f"  {objective_text(first)}: {measured_text(first)}"
            if first is not None
            else f"  {test.first_figure}"
        )
        text = f"{test.headline:<13}{test.name}{detail}"
        lines.append(Line(_cut(text, width), _MARKUP[TONES[test.headline]]))
    return lines


def _head(test: TestView, width: int) -> list[Line]:
    markup = {**_MARKUP[TONES[test.headline]], "bold": True}
    lines = [Line(part, {"bold": True}) for part in _wrap(test.nodeid, width, "", "  ")]
    lines += [Line(part, markup) for part in _wrap(f"{test.headline} · {test.kind}", width)]
    if test.attempt is not None:
        lines += [Line(part, _MARKUP["warn"]) for part in _wrap(test.attempt, width)]
    lines += [Line(part) for part in _wrap(test.judgements, width)]
    if test.entry["load"] is not None:
        duration = f"{test.entry['load']['duration_s']:.1f} s"
        lines += [Line(part) for part in _wrap(f"{test.load_text}, {duration}", width)]
        lines += [Line(part) for part in _wrap(test.completion, width)]
    return lines + [Line(part) for text in (*test.sharing, *test.void_loads) for part in _wrap(text, width)]


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


def _comparisons(test: TestView, width: int, verbose: bool) -> list[Line]:
    """The comparisons that decide, and of the others those that found a difference."""
    found = test.comparisons
    if not found:
        return []
    shown = [c for c in found if verbose or c.get("gated") or c["verdict"] in ("regressed", "improved")]
    lines = [Line(part, {"bold": True}) for part in _wrap(comparisons.caption(found), width)]
    for comparison in sorted(shown, key=lambda c: not c.get("gated")):
        verdict = comparisons.verdict_text(comparison)
        only = "" if comparison.get("gated") else " (shown only)"
        subject = comparisons.system_of(comparison, found) + comparison["metric"]
        text = f"{verdict:<13}{subject}{only} {comparisons.change_text(comparison)}"
        if only:
            lines += [Line(part, _MARKUP["neutral"]) for part in _wrap(text, width, "  ", " " * 15)]
            continue
        allowed = comparisons.allowed_text(comparison)
        arms = f"{comparisons.means_text(comparison, 'baseline')} → " + (
            comparisons.means_text(comparison, "candidate")
        )
        markup = _MARKUP[comparisons.TONES[comparison["verdict"]]]
        lines += [Line(part, markup) for part in _wrap(text, width, "  ", " " * 15)]
        detail = f"{arms}, {allowed} allowed, minimum detectable effect " + (
            comparisons.detectable_text(comparison)
        )
        lines += [Line(part) for part in _wrap(detail, width, " " * 15, " " * 15)]
        if comparison["verdict"] in ("inconclusive", "regressed"):
            lines += [Line(part) for part in _wrap(comparison["reason"], width, " " * 15, " " * 15)]
    rest = len(found) - len(shown)
    return [*lines, Line(f"  … and {rest} more comparisons (-v, or the report)")] if rest else lines


def _headlines(test: TestView, width: int, verbose: bool) -> list[Line]:
    """What the test is about, less what a limit above shows already."""
    limited = {objective["metric"] for objective in test.objectives}
    names = [name for name in test.headlines if name not in limited]
    shown = names if verbose else names[:SHOWN_HEADLINES]
    labels = [metric_label(name) for name in shown]
    column = min(max(map(len, labels), default=0), width // 2)
    lines = []
    for name, label in zip(shown, labels, strict=True):
        indent = " " * (column + 4)
        text = f"{_cut(label, column):<{column}}  {test.claim(name)}"
        lines += [Line(part) for part in _wrap(text, width, "  ", indent)]
    rest = len(names) - len(shown)
    return [*lines, Line(f"  … and {rest} more (-v, or the report)")] if rest else lines


def _tables(test: TestView, width: int, verbose: bool) -> list[list[Line]]:
    """All tables of the test; of those that come once per level only as many as there is room for."""
    repeated = Counter(_draft_id(id_) for id_ in test.tables)
    blocks, left_out = [], []
    for id_, table in test.tables.items():
        alike = [other for key, other in test.tables.items() if _draft_id(key) == _draft_id(id_)]
        rows = sum(len(other["rows"]) for other in alike)
        if repeated[_draft_id(id_)] > 1 and rows > _MOST_TABLE_ROWS and not verbose:
            left_out.append(table["title"])
        else:
            blocks.append(_table(table, width))
    if left_out:
        text = f"{len(left_out)} more tables (-v, or the report): {'; '.join(left_out)}"
        blocks.append([Line(part) for part in _wrap(text, width)])
    return blocks


def _draft_id(id_: str) -> str:
    return re.sub(r"\.\d+$", "", id_)


def _table(table: Entry, width: int) -> list[Line]:
    """Left-aligned first column, right-aligned others. What has no room goes below, with the first column."""
    rows = [table["columns"], *table["rows"][:_MOST_TABLE_ROWS]]
    widths = _widths([max(len(row[i]) for row in rows) for i in range(len(table["columns"]))], width)
    lines = [Line(part, {"bold": True}) for part in _wrap(table["title"], width)]
    for i, columns in enumerate(_columns_that_fit(widths, width)):
        chosen = [widths[column] for column in columns]
        lines += [Line("")] if i else []
        lines += [Line(_cut("  " + _row([row[column] for column in columns], chosen), width)) for row in rows]
    left_out = len(table["rows"]) + 1 - len(rows)
    return [*lines, Line(f"  … {left_out} more rows")] if left_out > 0 else lines


def _widths(natural: Sequence[int], width: int) -> list[int]:
    """The widths of the columns: of few the widest gives way, of many each is held to a third of the
    terminal."""
    widths = list(natural)
    if len(widths) > _FEW_COLUMNS:
        return [min(own, max(width // 3, 12)) for own in widths]
    while sum(widths) + 2 * len(widths) > width and max(widths) > 6:
        widths[widths.index(max(widths))] -= 1
    return widths


def _columns_that_fit(widths: Sequence[int], width: int) -> list[list[int]]:
    """Columns in groups no wider than the terminal, each beginning with the first column."""
    groups = [[0]]
    for column in range(1, len(widths)):
        wanted = sum(widths[i] + 2 for i in groups[-1]) + widths[column] + 2
        if wanted > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(column)
    return groups


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
    text = f"compliance: {test.compliance_text}{reading}; {applicable} requirements apply: {met} met, " + (
        f"{len(blocking)} unmet that block it, {len(downgrading)} unmet that lower it"
    )
    lines = [Line(part, _MARKUP[TONES[verdict]]) for part in _wrap(text, width)]
    return lines + _missing(test, width, verbose)


def _missing(test: TestView, width: int, verbose: bool) -> list[Line]:
    """What keeps the run from the next class, and what would meet it."""
    if test.next_class is None:
        return []
    better, listed = test.next_class
    shown = listed if verbose else listed[:SHOWN_REQUIREMENTS]
    lines = [Line(f"  to be {better}:")] if shown else []
    for requirement in shown:
        text = f"{requirement['id']}: {requirement['reason']}"
        lines += [Line(part) for part in _wrap(text, width, "    ", "      ")]
        if requirement.get("statement"):
            lines += [Line(part) for part in _wrap(requirement["statement"], width, "      → ", "        ")]
    if len(listed) > len(shown):
        lines.append(Line(f"    … and {len(listed) - len(shown)} more (-v, or the report)"))
    if verbose:
        later = [requirement for requirement in test.unmet() if requirement not in listed]
        texts = [f"also unmet, {r['id']}: {r['reason']}" for r in later]
        lines += [Line(part) for text in texts for part in _wrap(text, width, "    ", "      ")]
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
    text = re.sub(r"\s", " ", text)  # of a name with a line break in it
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
