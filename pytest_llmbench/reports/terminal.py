"""The terminal section of a session: plain lines with markup names for those who have colours.

By default a few lines for each test that did not pass, and a table of all; :func:`section_lines` has
everything about one test, for ``-v``.

Tables fit a terminal: names are cut in their middle before numbers are.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pytest_llmbench.model import numbers
from pytest_llmbench.model.judgement import THIS_SESSION
from pytest_llmbench.model.numbers import Entry, counted
from pytest_llmbench.reports import comparisons
from pytest_llmbench.reports.comparisons import metric_label
from pytest_llmbench.reports.document import (
    TONES,
    ReportView,
    TestView,
    finding_word,
    measured_text,
    objective_text,
    views,
    warnings_of,
    words,
)
from pytest_llmbench.reports.first_screen import FirstScreen, first_of, has_systems, limits_of

BRIEF_REASONS = 4
SHOWN_WARNINGS = 6
_CALIBRATION = "calibration"
"""Id of a table for whose sake a session is run."""
_KNOWN_ROOM = 17
_NO_LIMIT = "no limit"
_NOT_A_LIMIT = "test body"
_ROOM_OF_ERROR = 40
_QUIET = ("PASS", "SKIPPED", "XFAIL", "XPASS")
_MARKUP: Mapping[str, Mapping[str, bool]] = {
    "good": {"green": True},
    "bad": {"red": True},
    "warn": {"yellow": True},
    "neutral": {},
}
_PIECE = 4_096
"""Characters of a long word that are wrapped together."""
_MOST_TABLE_ROWS = 24
_FEW_COLUMNS = 4


class Line(NamedTuple):
    """One line; ``markup`` are keywords of pytest's ``write_line``."""

    text: str
    markup: Mapping[str, bool] = {}


def section_lines(entry: Entry, *, width: int = 80) -> list[Line]:
    """All lines on one test, none longer than ``width`` (from 40 on)."""
    test = TestView(entry)
    width = max(width, 40)
    lines = _head(test, width)
    if test.entry.get("error"):
        parts = [part for line in test.entry["error"].splitlines() for part in _wrap(line, width)]
        lines += [Line(""), *(Line(part, {"red": True}) for part in parts)]
    for block in (
        _objectives(test, width),
        _comparisons(test, width, verbose=True),
        _headlines(test, width),
        *(_table(table, width) for table in test.tables.values()),
        _findings(test, width),
        _compliance(test, width),
        _bullets("next:", test.next_steps, width),
        _notes(test, width),
    ):
        if block:
            lines += [Line(""), *block]
    return lines


def brief_lines(entry: Entry, *, width: int = 80, failure_told: bool = False) -> list[Line]:
    """Some ten lines on a test that did not pass: what decided, why, and what to do; for a test that compares
    or calibrates its table. Empty for any other test.

    ``failure_told``: pytest has told above why it failed, which is not told again; of a void load it tells
    only the cause.
    """
    test = TestView(entry)
    failure_told = failure_told and (test.valid or not test.measured)
    width = max(width, 40)
    asked_for = [_table(table, width) for id_, table in test.tables.items() if id_ == _CALIBRATION]
    unconfirmed = any(one["verdict"] == "unconfirmed" for one in test.comparisons)
    if has_systems(test):
        compared = _systems(comparisons.systems(test.tables[comparisons.SYSTEMS]), width)
    elif failure_told or (test.headline in _QUIET and limits_of(test) and not unconfirmed):
        compared = []  # The table of all tests has what decided, but not why a worsening passes.
    else:
        compared = _comparisons(test, width, verbose=False)
    # These say which session it was compared with, and what of it was not.
    said = asked_for or any(one["candidate_name"] == THIS_SESSION for one in test.comparisons)
    notes = _notes(test, width) if said else []
    if (test.headline in _QUIET or failure_told) and not (compared or asked_for or notes):
        return []
    markup = {**_MARKUP[TONES[test.headline]], "bold": True}
    lines = _wrapped(f"{test.headline} · {TestView(entry, with_file=True).name}", width, "  ", markup)
    told = [] if failure_told else _decisive(test, width)
    lines += [line for block in told[:BRIEF_REASONS] for line in block]
    if len(told) > BRIEF_REASONS:
        lines.append(Line(f"    … and {len(told) - BRIEF_REASONS} more (-v, or the report)"))
    lines += [*compared, *(line for table in asked_for for line in table)]
    lines += notes
    ok, of = test.completed
    if ok < of and not failure_told:
        lines += _wrapped(test.completion, width, "    ")
    return lines


def _decisive(test: TestView, width: int) -> list[list[Line]]:
    """Lines on what decided the test, the worst first: an error, reasons why it is void, limits."""
    if not test.measured or (test.headline in ("FAIL", "ERROR") and test.entry.get("error")):
        error = str(test.entry.get("error") or "nothing was measured").splitlines()
        return [_wrapped(line, width, "    ", {"red": True}) for line in error if line.strip()]
    if not test.valid:
        void = [finding for finding in test.noteworthy_findings if finding["voids"]]
        return [_wrapped(finding["message"], width, "    ", _MARKUP["bad"]) for finding in void]
    limits = [one for one in test.objectives if one["verdict"] != "pass"]
    found = []
    for one in sorted(limits, key=lambda one: one["verdict"] != "fail"):
        reason = f"; {one['reason']}" if one.get("reason") else ""
        text = f"{one['verdict']:<13}{objective_text(one)}: {measured_text(one)}{reason}"
        found.append(_wrapped(text, width, "    ", _MARKUP[TONES[one["verdict"]]]))
    return found


def closing_lines(entries: Sequence[Entry], *, width: int = 80) -> list[Line]:
    """A row for each test: verdict, limits, what was measured, completion, compliance class.

    Verdicts, limits and figures are never cut. Where there is no room the last two columns go first, then
    names are shortened, then limit and figure stand below the name; failures within the error budget of a
    test that passed, of which nothing else tells, have a line below.
    """
    width = max(width, 40)
    tests = views(entries)
    rows = [["test", "verdict", "limit", "measured", "completed", "class"]]
    for test in tests:
        class_ = words(test.compliance) + (" (sim)" if test.simulated else "") if test.measured else ""
        rows.append([test.name, test.headline, *_held_to(test), test.completed_text, class_])
    markup = [{"bold": True}, *(_MARKUP[TONES[test.headline]] for test in tests)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = 6 if sum(widths) <= width - 14 else 4
    if columns == 4:
        # Names are shortened, and where that does not do no columns are left.
        room = min(widths[0], width - 10 - sum(widths[1:4]))
        widths = [room, *widths[1:4]] if room == widths[0] or room >= _KNOWN_ROOM else []
    lines = []
    for row, its in zip(rows, markup, strict=True) if widths else ():
        cells = (cut_within(cell, room).ljust(room) for cell, room in zip(row, widths, strict=False))
        lines.append(Line("  " + "  ".join(cells).rstrip(), its))
    for row, its in zip(rows[1:], markup[1:], strict=True) if not widths else ():
        lines += _wrapped(f"{row[1]:<13}{row[0]}", width, "  ", its)
        lines += _wrapped(": ".join(filter(None, row[2:4])), width, "    ")
    if columns != 6:
        for test in tests:
            ok, of = test.completed
            # Levels that a search overloads may have some.
            if test.headline in _QUIET and test.measured and not test.levels and ok < of:
                lines += _wrapped(f"{test.name}: {test.completion}", width, "  ", _MARKUP["warn"])
    found = warnings_of(tests)
    for text in found[:SHOWN_WARNINGS]:
        lines += _wrapped(f"warning: {text}", width, "  ", _MARKUP["warn"])
    rest = len(found) - SHOWN_WARNINGS
    lines += [Line(f"  … and {rest} more warnings")] if rest > 0 else []
    return [*lines, Line(_cut("  everything measured, every clause and note: -v, or the report", width))]


def opening_lines(entries: Sequence[Entry], *, width: int = 80) -> list[Line]:
    """What was measured on what, and the change that decides, each in a sentence. Of the SUT that is what the
    tests know."""
    report = {"sut": {"facts": {}, "model": None}, "tests": entries}
    screen = FirstScreen(ReportView(report))
    texts = filter(None, (screen.about, screen.change))
    return [line for text in texts for line in _wrapped(text, max(width, 40), "  ")]


def _held_to(test: TestView) -> tuple[str, str]:
    """The limit or the comparison that decides; else the main figure of the test."""
    if not test.measured:
        return "", numbers.NOT_MEASURED
    if not test.valid:
        return "not judged", ""
    held = first_of(test)
    if test.headline == "FAIL" and (held is None or held.state == "kept"):
        error = str(test.entry.get("error") or "").strip()
        return _NOT_A_LIMIT, cut_within(
            error.partition("\n")[0].removeprefix("AssertionError: "), _ROOM_OF_ERROR
        )
    return (_NO_LIMIT, test.first_figure) if held is None else (held.limit, held.measured)


def overview(report: Entry, *, width: int = 80) -> list[Line]:
    """A line for each test, the worst last, where the eye is."""
    view = ReportView(report)
    order = ("PASS", "SKIPPED", "XFAIL", "XPASS", "INCONCLUSIVE", "FAIL", "INVALID", "ERROR")
    lines = []
    for test in sorted(view.tests, key=lambda test: order.index(test.headline)):
        detail = ": ".join(part for part in _held_to(test) if part and part != _NO_LIMIT)
        text = f"{test.headline:<13}{test.name}  {detail}"
        lines.append(Line(_cut(text, width), _MARKUP[TONES[test.headline]]))
    return lines


def _head(test: TestView, width: int) -> list[Line]:
    markup = {**_MARKUP[TONES[test.headline]], "bold": True}
    lines = _wrapped(test.nodeid, width, "", {"bold": True})
    lines += _wrapped(f"{test.headline} · {test.kind}", width, "  ", markup, rest="  ")
    if test.attempt is not None:
        lines += _wrapped(test.attempt, width, "  ", _MARKUP["warn"], rest="  ")
    lines += _wrapped(test.judgements, width, rest="  ")
    if test.entry["load"] is not None:
        duration = numbers.duration(test.entry["load"]["duration_s"])
        lines += _wrapped(f"{test.load_text}, {duration}", width, rest="  ")
        lines += _wrapped(test.completion, width, rest="  ")
    return lines + [Line(part) for text in (*test.sharing, *test.void_loads) for part in _wrap(text, width)]


def _objectives(test: TestView, width: int) -> list[Line]:
    lines = []
    every = ((False, one) for one in test.objectives), ((True, one) for one in test.advisory)
    for decides_nothing, objective in chain(*every) if test.measured else ():
        verdict = test.judged(objective["verdict"])
        advisory = " (advisory)" if decides_nothing else ""
        text = f"{words(verdict):<13}{objective_text(objective)}{advisory}: {measured_text(objective)}"
        lines += _wrapped(text, width, "  ", _MARKUP[TONES[verdict]], rest=" " * 15)
        if verdict not in ("pass", "not_judged") and objective.get("reason"):
            lines += _wrapped(objective["reason"], width, " " * 15, rest=" " * 15)
    return lines


def _comparisons(test: TestView, width: int, verbose: bool) -> list[Line]:
    """The comparisons that decide, and others that found a difference."""
    found = test.comparisons
    if not found:
        return []
    decisive = any(c.get("gated") for c in found)
    shown = [
        c
        for c in found
        if verbose or c.get("gated") or (not decisive and c["verdict"] in ("regressed", "improved"))
    ]
    lines = _wrapped(comparisons.caption(found), width, "  ", {"bold": True}, rest="  ")
    for comparison in sorted(shown, key=lambda c: not c.get("gated")):
        verdict = comparisons.verdict_text(comparison)
        only = "" if comparison.get("gated") else " (shown only)"
        subject = comparisons.system_of(comparison, found) + comparison["metric"]
        text = f"{verdict:<13}{subject}{only} {comparisons.change_text(comparison)}"
        if only:
            lines += _wrapped(text, width, "  ", _MARKUP["neutral"], rest=" " * 15)
            continue
        allowed = comparisons.allowed_text(comparison)
        arms = f"{comparisons.means_text(comparison, 'baseline')} → " + (
            comparisons.means_text(comparison, "candidate")
        )
        markup = _MARKUP[comparisons.TONES[comparison["verdict"]]]
        lines += _wrapped(text, width, "  ", markup, rest=" " * 15)
        detail = f"{arms}, {allowed} allowed, minimum detectable effect " + (
            comparisons.allowed_text(comparison, "mde")
        )
        lines += _wrapped(detail, width, " " * 15, rest=" " * 15)
        if comparison["verdict"] in ("inconclusive", "regressed", "unconfirmed"):
            lines += _wrapped(comparison["reason"], width, " " * 15, rest=" " * 15)
    rest = len(found) - len(shown)
    return [*lines, Line(f"  … and {rest} more comparisons (-v, or the report)")] if rest else lines


def _systems(made: comparisons.Systems, width: int) -> list[Line]:
    """Systems side by side: below each metric a line for each of them."""
    first, *others = made.names
    lines = _wrapped(f"{', '.join(others)} against {first}", width, "  ", {"bold": True}, rest="  ")
    every = [value for _, values, _ in made.rows for value in values]
    names, figures = max(map(len, made.names)), max(map(len, every), default=0)
    for metric, values, changes in made.rows:
        lines.append(Line(f"  {metric}"))
        for name, value, (change, verdict) in zip(made.names, values, [("", ""), *changes], strict=True):
            text = f"{name:<{names}}  {value:<{figures}}  {change}  {verdict}".rstrip()
            markup = _MARKUP["warn" if verdict == "regressed" else "neutral"]
            lines += _wrapped(text, width, "    ", markup)
    return (
        [*lines, Line(f"  … and {counted(made.more, 'more metric')} (-v, or the report)")]
        if made.more
        else lines
    )


def _headlines(test: TestView, width: int) -> list[Line]:
    """The main figures of the test, without those that a limit above shows already."""
    limited = {objective["metric"] for objective in test.objectives}
    names = [name for name in test.headlines if name not in limited]
    labels = [metric_label(name) for name in names]
    column = min(max(map(len, labels), default=0), width // 2)
    lines = []
    for name, label in zip(names, labels, strict=True):
        text = f"{_cut(label, column):<{column}}  {test.claim(name)}"
        lines += _wrapped(text, width, rest=" " * (column + 4))
    return lines


def _table(table: Entry, width: int) -> list[Line]:
    """The lines of a table: first column flush left, others flush right. Columns without room go below, with
    the first column."""
    rows = [table["columns"], *table["rows"][:_MOST_TABLE_ROWS]]
    natural = [max(len(row[i]) for row in rows) for i in range(len(table["columns"]))]
    if len(natural) > _FEW_COLUMNS:  # each gets at most a third of the terminal
        widths = [min(own, max(width // 3, 12)) for own in natural]
    else:
        widths = [min(own, max(width, 6)) for own in natural]  # a cell may have a megabyte
        while sum(widths) + 2 * len(widths) > width and max(widths) > 6:
            widths[widths.index(max(widths))] -= 1
    lines = _wrapped(table["title"], width, "  ", {"bold": True}, rest="  ")
    groups = [[0]]  # of columns, no wider than the terminal
    for column in range(1, len(widths)):
        wanted = sum(widths[i] + 2 for i in groups[-1]) + widths[column] + 2
        if wanted > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(column)
    for i, columns in enumerate(groups):
        lines += [Line("")] if i else []
        for row in rows:
            others = (_cut(row[at], widths[at]).rjust(widths[at]) for at in columns[1:])
            cells = [_cut(row[0], widths[0]).ljust(widths[0]), *others]
            lines.append(Line(_cut("  " + "  ".join(cells).rstrip(), width)))
    left_out = len(table["rows"]) + 1 - len(rows)
    return [*lines, Line(f"  … {left_out} more rows")] if left_out > 0 else lines


def _findings(test: TestView, width: int) -> list[Line]:
    if not test.measured:  # the error above says it already
        return []
    lines = []
    for finding in test.findings:
        state, tone = finding_word(finding)
        state = "VOID" if tone == "bad" else state
        text = f"{state:<9}{finding['check']}: {finding['message']}"
        lines += _wrapped(text, width, "  ", _MARKUP[tone], rest=" " * 11)
    return lines


def _compliance(test: TestView, width: int) -> list[Line]:
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
    lines = _wrapped(text, width, "  ", _MARKUP[TONES[verdict]], rest="  ")
    return lines + _missing(test, width)


def _missing(test: TestView, width: int) -> list[Line]:
    """Lines on what keeps the run from the next class and would meet it; then on what else is unmet."""
    if test.next_class is None:
        return []
    better, listed = test.next_class
    lines = [Line(f"  to be {better}:")] if listed else []
    for requirement in listed:
        text = f"{requirement['id']}: {requirement['reason']}"
        lines += _wrapped(text, width, "    ")
        if requirement.get("statement"):
            lines += _wrapped(requirement["statement"], width, "      → ", rest=" " * 8)
    later = [requirement for requirement in test.unmet() if requirement not in listed]
    texts = [f"also unmet, {r['id']}: {r['reason']}" for r in later]
    return lines + [Line(part) for text in texts for part in _wrap(text, width, "    ", "      ")]


def _notes(test: TestView, width: int) -> list[Line]:
    return _bullets("notes:", test.entry.get("notes") or (), width)


def _bullets(title: str, texts: Iterable[str], width: int) -> list[Line]:
    lines = [Line(part) for text in texts for part in _wrap(text, width, "    - ", "      ")]
    return [Line(f"  {title}"), *lines] if lines else []


def _wrapped(
    text: str, width: int, first: str = "  ", markup: Mapping[str, bool] = {}, rest: str | None = None
) -> list[Line]:
    """``first``, ``rest``: what the lines begin with; default: further ones are two spaces further in."""
    rest = " " * (len(first) + 2) if rest is None else rest
    return [Line(part, markup) for part in _wrap(text, width, first, rest)]


def _wrap(text: str, width: int, first: str = "  ", rest: str = "  ") -> list[str]:
    return _Wrapper(width, first, rest, break_on_hyphens=False).wrap(text) or [""]


class _Wrapper(textwrap.TextWrapper):
    """The base class copies what is left of a word for each line of it: one of a megabyte, thousands of
    times. In pieces longer than a line it is broken at the same places."""

    def _split(self, text: str) -> list[str]:
        size = max(self.width + 1, _PIECE)
        pieces = []
        for chunk in super()._split(text):
            whole = len(chunk) <= 2 * size or chunk.isspace()  # a gap stays whole
            last = 0 if whole else (len(chunk) - size - 1) // size * size
            pieces += [*(chunk[at : at + size] for at in range(0, last, size)), chunk[last:]]
        return pieces


def _cut(text: str, width: int) -> str:
    text = re.sub(r"\s", " ", text)  # of a name with a line break in it
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


_GAP = 2
_NAME_ROOM, _LEAST_ROOM = 16, 6
"""Widths down to which names are shortened, first to the one, then to the other; only then is anything else
shortened."""
_NUMBER = re.compile(r"[-+<>]?\s?\d[\d.,]*(\s\S+)?(\s[\[(].*)?|\[.*\]")
"""Cells that are numbers: ``3``, ``524 ms``, ``+4.2 % [+1.0, +7.2]``, ``[498, 561]``."""


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, whole: Collection[str] = ()
) -> list[str]:
    """The lines of a table: head, rule and a line for each row; numbers are flush right.

    Where ``width`` is too small, names are cut, the longest first; after them numbers and the columns
    ``whole``. A table of very many columns may be wider all the same.
    """
    flat = [[re.sub(r"\s", " ", cell) for cell in row] for row in rows]
    numeric = []
    for at in range(len(columns)):  # where most cells are numbers, perhaps with a unit or an interval
        filled = [row[at] for row in flat if row[at]]
        numeric.append(2 * sum(bool(_NUMBER.fullmatch(cell)) for cell in filled) > len(filled))
    kept = [own or name in whole for own, name in zip(numeric, columns, strict=True)]
    widths = [max(map(len, column)) for column in zip(columns, *flat, strict=True)]
    room = width - _GAP * (len(columns) - 1)
    for least, everything in ((_NAME_ROOM, False), (_LEAST_ROOM, False), (_LEAST_ROOM, True)):
        while sum(widths) > room:
            large = [at for at, own in enumerate(widths) if own > least and (everything or not kept[at])]
            if not large:
                break
            widths[max(large, key=widths.__getitem__)] -= 1
    lines = [_line(columns, widths, numeric), "-" * (sum(widths) + _GAP * (len(widths) - 1))]
    return [*lines, *(_line(row, widths, numeric) for row in flat)]


def cut_within(text: str, width: int) -> str:
    """The text cut in its middle: names differ at their ends, and a limit has its number there."""
    text = re.sub(r"\s", " ", text)
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    shown = (
        cut_within(cell, width).rjust(width) if right else cut_within(cell, width).ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    )
    return (" " * _GAP).join(shown).rstrip()
