"""``summary.md``: the comment on a pull request and the summary of a CI job. What is broken and by how much,
then all tests, then details.

Platforms refuse comments from 64 KB on, and nobody reads half of that. What does not fit is left out, the
least important part first, and the text says so. The six sections of appendix C.2 are in ``report.html``.

GitHub takes it as a comment and as the summary of a job, Buildkite as an annotation (CommonMark with GitHub's
tables, at most 1 MiB; buildkite.com, "buildkite-agent annotate").

It is built from values: text stays text, whatever a server wrote into it.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry, counted
from pytest_llmbench.reports import comparisons, summaries
from pytest_llmbench.reports.document import ReportView, TestView, warnings_of
from pytest_llmbench.reports.first_screen import (
    WORST_FIRST,
    Card,
    FirstScreen,
    Held,
    has_systems,
    limits_of,
)

MAX_BYTES = 20_000
ICONS: Mapping[str, str] = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "⚠️", "INVALID": "🚫", "ERROR": "🚫",
    "SKIPPED": "⏭️", "XFAIL": "⏭️", "XPASS": "⚠️"}  # fmt: skip
"""Headline of a test → its icon."""
_OF_TONES = {"bad": "❌ ", "warn": "⚠️ ", "good": "✅ "}
_OF_STATES = {"broken": "❌ ", "undecided": "⚠️ ", "kept": ""}
_SHOWN_CARDS = 10
_SHOWN_LIMITS = 4
_SHOWN_WARNINGS = 6
_COLUMNS = ("Verdict", "Test", "Limit: measured, interval", "Compliance")
_SHOWN_CHANGES = 20
_WORST = {"regressed": 0, "unconfirmed": 1, "inconclusive": 1}
"""Verdict of a comparison → its place in the list; others follow."""
_LONGEST_CELL = 200
_LONGEST_COMMAND = 1_000
_NOT_WRITTEN = "No report was written (`--llm-report DIR`)."
_WHERE = "The plots, every table, level and clause, and how to reproduce it: {}."


@dataclass(frozen=True)
class _Part:
    """A part of the text. If there is no room for all parts, those with the highest ``rank`` are left out."""

    rank: int
    name: str
    """How the text names the part if it is left out; empty for one that is not worth mentioning."""
    render: Callable[[], str]
    """Makes the text. Called only if there is room: a report may have thousands of tests."""


def markdown_report(report: Entry, *, path: str | None = "", max_bytes: int = MAX_BYTES) -> str:
    """The comment, at most ``max_bytes`` of UTF-8.

    :param path: where ``report.html`` is; empty: beside the text; None: it was not written.
    """
    screen = FirstScreen(ReportView(report))
    parts = [
        _Part(0, "", partial(head, screen)),
        *_cards(screen),
        *_changes(screen),
        *_of_tests(screen.view),
    ]
    where = f"{code(path)}" if path else "`report.html`, beside this file"
    return _fit(parts, max_bytes, _WHERE.format(where) if path is not None else _NOT_WRITTEN)


def head(screen: FirstScreen) -> str:
    """The head of the comment: banner, what was measured, and compliance classes."""
    view = screen.view
    said = "".join(
        f"**{escape(clipped(text, 1_500))}**\n\n" for text in (view.incomplete, view.simulated) if text
    )
    facts = " · ".join(f"{name} {plain(clipped(text, _LONGEST_CELL))}" for name, text in screen.facts)
    compliance = escape(screen.compliance or "")
    if compliance:
        compliance = f"**{compliance}**\n" if screen.compliance_demanded else f"{compliance}\n"
    told = "".join(
        f"{bold}{escape(clipped(text, 500))}{bold}\n\n"
        for text, bold in ((screen.change, "**"), (screen.about, ""))
        if text
    )
    return f"## {banner(screen)}\n\n{told}{said}{facts}\n\n{compliance}"


def banner(screen: FirstScreen) -> str:
    """The banner with its icon: ``❌ LLM benchmark: 1 of 6 limits broken``."""
    return f"{_OF_TONES.get(screen.tone, '')}LLM benchmark: {screen.banner}"


def held_text(held: Held) -> str:
    """A limit with the measured value and its distance, as Markdown."""
    measured = held.measured + (f", {held.distance}" if held.distance is not None else "")
    return f"{code(clipped(held.limit, _LONGEST_CELL))}: {escape(clipped(measured, _LONGEST_CELL))}"


def _part(rank: int, name: str, text: str) -> _Part:
    return _Part(rank, name, lambda: text)


def _cards(screen: FirstScreen) -> Iterator[_Part]:
    cards = screen.cards
    if not cards:
        return
    yield _part(1, "", f"\n### {counted(len(cards), 'test')} did not pass\n")
    for card in cards[:_SHOWN_CARDS]:
        yield _Part(1, "tests that did not pass", partial(_card, card))
    if len(cards) > _SHOWN_CARDS:
        yield _part(1, "", f"\n… and {len(cards) - _SHOWN_CARDS} more\n")
    if len(screen.command) <= _LONGEST_COMMAND:
        yield _part(
            1, "", f"\n{'Run it' if len(cards) == 1 else 'Run them'} again:\n\n{fence(screen.command, 'sh')}"
        )


def _card(card: Card) -> str:
    test = card.test
    name = code(clipped(test.name, _LONGEST_CELL))
    lines = [f"\n#### {ICONS[test.headline]} {test.headline} {name}\n"]
    if card.deciding is not None:
        more = f" (and {card.more} more not kept)" if card.more else ""
        lines.append(f"- Limit: {held_text(card.deciding)}{more}")
    lines.append(f"- Cause: {escape(clipped(card.cause, 500))}")
    return "\n".join(lines) + "\n"


def _changes(screen: FirstScreen) -> Iterator[_Part]:
    """The comparisons that decide, the worst first, one of each shared load; where none does, those that show
    a change. Then how many more there are."""
    yield from (_part(2, "", _systems(*each)) for each in screen.systems)
    tests = [test for test in screen.tests if test.comparisons and not has_systems(test)]
    captions = dict.fromkeys(comparisons.caption(test.comparisons) for test in tests)
    if not captions:
        return
    rows: dict[bool, dict[tuple[str, ...], str]] = {True: {}, False: {}}
    for test in tests:
        for one in test.comparisons:
            gated = bool(one.get("gated"))
            told = comparisons.brief_row(one, test.comparisons)
            if gated or one["verdict"] in ("regressed", "improved"):
                rows[gated].setdefault(told, test.name)
    gates = sorted(rows[True].items(), key=lambda each: _WORST.get(each[0][0], 2))
    shown = dict(gates or sorted(rows[False].items())[:_SHOWN_CHANGES])
    said = escape(clipped("; ".join(captions), 500))
    columns = (*comparisons.BRIEF_COLUMNS, "Test")
    yield _part(2, "", f"\n### Changes\n\n{said}\n\n{row(columns)}{row(['---'] * len(columns))}")
    for told, name in shown.items():
        yield _part(2, "changes", row([escape(clipped(cell, _LONGEST_CELL)) for cell in (*told, name)]))
    beside = sum(not one.get("gated") for test in tests for one in test.comparisons)
    more = beside - (0 if rows[True] else len(shown))
    if more:
        yield _part(2, "", f"\n… and {more} more, which decide nothing\n")


def _systems(test: TestView, made: comparisons.Systems) -> str:
    """The systems of a test side by side; what changed is below each value."""
    columns, rows = made.columns, []
    for metric, values, changes in made.rows:
        below = [
            f"{escape(value)}<br>{escape(change)} "
            + ("**regressed**" if verdict == "regressed" else escape(verdict))
            for value, (change, verdict) in zip(values[1:], changes, strict=True)
        ]
        rows.append(row([escape(metric), escape(values[0]), *below]))
    head = f"\n### Systems: {code(clipped(test.name, _LONGEST_CELL))}\n\n"
    more = f"\n… and {counted(made.more, 'more metric')}\n" if made.more else ""
    return f"{head}{row(map(escape, columns))}{row(['---'] * len(columns))}{''.join(rows)}{more}"


def _row_of(test: TestView) -> str:
    held = sorted(limits_of(test), key=lambda one: WORST_FIRST.index(one.state))
    told = []
    for one in held[:_SHOWN_LIMITS]:
        icon = "" if len(held) == 1 else _OF_STATES[one.state]
        limit = bar(code(clipped(one.limit, _LONGEST_CELL)))
        told.append(f"{icon}{limit}: {escape(clipped(one.measured, _LONGEST_CELL))}")
    if len(held) > _SHOWN_LIMITS:
        told.append(f"and {len(held) - _SHOWN_LIMITS} more")
    if not held and not (test.measured and test.valid):
        told = ["not judged" if test.measured else numbers.NOT_MEASURED]
    elif not held:
        told = [f"no limit: {escape(clipped(test.first_figure, _LONGEST_CELL))}"]
    return row(
        (
            f"{ICONS[test.headline]} {test.headline}",
            bar(code(clipped(test.name, _LONGEST_CELL))),
            "<br>".join(told),
            test.compliance_text if test.measured else "",
        )
    )


def _of_tests(view: ReportView) -> Iterator[_Part]:
    """A row for each test, the warnings, and details of each; those of tests that passed are left out
    first."""
    if view.tests:
        yield _part(3, "", f"\n### Tests: {view.tally}\n\n{table(_COLUMNS, ())}")
    for test in view.tests:
        passed = test.headline in ("PASS", "SKIPPED", "XFAIL")
        yield _Part(4 if passed else 3, "tests", partial(_row_of, test))
    found = warnings_of(view.tests)
    texts = [clipped(text, 500) for text in found[:_SHOWN_WARNINGS]]
    if len(found) > _SHOWN_WARNINGS:
        texts.append(f"… and {len(found) - _SHOWN_WARNINGS} more")
    if texts:
        yield _part(5, "warnings", f"\n### Warnings\n\n{bullets(texts)}")
    yield _Part(7, "headline figures", partial(_headline_figures, view))
    yield _Part(
        7,
        "test harness",
        lambda: "\n" + folded("Test harness", text_table(("Item", "Value"), summaries.harness(view))),
    )
    told: dict[str, str] = {}
    for test in view.tests:
        if test.measured:
            rank = 9 if test.headline == "PASS" else 8
            yield _Part(rank, "details of tests", partial(_details, test, told))


def _headline_figures(view: ReportView) -> str:
    found = summaries.headline_rows(view.tests)
    if not found.rows:
        return ""
    return "\n" + folded("Headline figures", text_table(found.columns, found.rows))


def _details(test: TestView, told: dict[str, str]) -> str:
    """Details of a test: load, completion, notes, and the tables of the draft.

    :param told: table or note → the test whose details have it. Tests that share a load have the same ones.
    """
    tables: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    for entry in test.tables.values():
        table = f"\n{escape(entry['title'])}\n\n{text_table(entry['columns'], entry['rows'])}"
        owner = told.setdefault(table, test.name)
        if owner == test.name:
            tables.append(table)
        else:
            elsewhere.setdefault(owner, []).append(entry["title"])
    load = (test.load_text, test.completion) if test.measured_by == test.nodeid else ()
    own = [*filter(None, (test.attempt, test.kind)), *load, *test.sharing]
    own += [note for note in test.entry.get("notes") or () if told.setdefault(note, test.name) == test.name]
    own += [f"{', '.join(titles)}: as in the details of {owner}" for owner, titles in elsewhere.items()]
    return "\n" + folded(clipped(test.name, _LONGEST_CELL), bullets(own) + "".join(tables))


def _fit(parts: Sequence[_Part], max_bytes: int, where: str) -> str:
    left_out = Counter(part.name for part in parts)
    room = max_bytes - len(_foot(left_out, where).encode())
    texts: dict[int, str] = {}
    # Of equally important parts the last is left out: earlier tests keep theirs longest.
    for i in sorted(range(len(parts)), key=lambda i: (parts[i].rank, i)):
        text = parts[i].render()
        room -= len(text.encode())
        if room < 0 and texts:
            break
        texts[i] = text
        left_out[parts[i].name] -= 1
    whole = "".join(texts[i] for i in sorted(texts)) + _foot(left_out, where)
    return whole if len(whole.encode()) <= max_bytes else cut(whole, max_bytes)


def _foot(left_out: Mapping[str, int], where: str) -> str:
    counts = ", ".join(f"{name} ({count})" for name, count in left_out.items() if name and count)
    told = f" Left out here to stay short: {counts}." if counts else ""
    return f"\n_{where}{told}_\n"


def cut(text: str, max_bytes: int) -> str:
    """The first whole lines of ``text`` that fit into ``max_bytes``, with a line that says that it was
    cut."""
    note = "\n\n_Cut to stay short._\n"
    whole = text.encode()[: max_bytes - len(note.encode())].decode(errors="ignore")
    return whole.rpartition("\n")[0] + note


_SHOWN_ERROR_CHARACTERS = 1_500
_LIVE = re.compile(r"(?i)(?<=[a-z])(?=://)|(?<=\bwww)(?=\.)|(?<=@)|(?<=[#!$])(?=\d)|(?<=\bGH-)(?=\d)")
"""Where sites that show Markdown see the beginning of a link, a mention, or the number of an issue. They look
for these in the finished page, so a backslash does not help; a space without width does."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Cells have to be Markdown already."""
    return "".join([row(columns), row(["---"] * len(columns)), *map(row, rows)])


def row(cells: Iterable[str]) -> str:
    """A row of a table. Cells have to be Markdown already."""
    return "| " + " | ".join(cells) + " |\n"


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are plain text."""
    return table([escape(column) for column in columns], [[plain(cell) for cell in row] for row in rows])


def bullets(texts: Iterable[str]) -> str:
    return "".join(f"- {escape(text)}\n" for text in texts)


def folded(title: str, body: str) -> str:
    """A folded part. Its title is in a block of HTML, where a backslash would be shown; entities are safe
    there, and where a site reads Markdown in it all the same."""
    told = _LIVE.sub("\u200b", html.escape(" ".join(title.split()), quote=False))
    told = re.sub(r"[\\`*\[\]]", lambda found: f"&#x{ord(found[0]):x};", told)
    return f"<details><summary>{told}</summary>\n\n{body}\n</details>\n"


def escape(text: str) -> str:
    """The text escaped: no markup, no mentions, no links, one line."""
    flat = " ".join(text.split())
    escaped = re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", flat.replace("&", "&amp;"))
    return _LIVE.sub("\u200b", escaped.replace("<", "&lt;").replace(">", "&gt;"))


def plain(text: str) -> str:
    """The text escaped; one with a URL as a code span, which can be copied and leads nowhere. For tables
    too."""
    return bar(code(text)) if "://" in text else escape(text)


def code(text: str) -> str:
    """The text as a code span, on one line; a code span cannot be empty."""
    flat = " ".join(text.split()) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def bar(text: str) -> str:
    """The text with bars escaped for a table cell: a bar ends it even inside a code span, and after a
    backslash of its own."""
    return text.replace("\\|", "\\ |").replace("|", "\\|")


def clipped(text: str, most: int) -> str:
    """The text on one line and cut to ``most`` characters, before anything is escaped."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def fence(text: str, language: str = "text") -> str:
    """The text as a fenced block; a very long one is cut."""
    shown = text if len(text) <= _SHOWN_ERROR_CHARACTERS else text[:_SHOWN_ERROR_CHARACTERS] + " …"
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    return f"{ticks}{language}\n{shown}\n{ticks}\n"
