"""``pytest-llmbench compare A B …``: saved sessions compared with the first of them, by the rules of a gate,
as text tables and as CSV rows.

Nothing is judged here. What has to agree is ``compare/comparability.py``'s business, a change and its verdict
``compare/limits.py``'s: the same code that decides with ``--llm-compare``, so the same figures have the same
verdict.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from pytest_llmbench.compare.comparability import Waiver, matched, output_lengths, waivers_of_option
from pytest_llmbench.compare.limits import SHOWN_MARGIN, RegressionLimit, limits_of_option
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.baselines import Reference
from pytest_llmbench.harness.comparison.identity import lengths_vector
from pytest_llmbench.harness.history.sessions import (
    Session,
    add_common,
    chosen,
    print_lines,
    session_names,
    width,
    wrapped,
)
from pytest_llmbench.model import numbers
from pytest_llmbench.model.judgement import Comparison, ComparisonVerdict
from pytest_llmbench.model.numbers import Entry, shown_unit
from pytest_llmbench.reports import comparisons as words
from pytest_llmbench.reports.terminal import text_table
from pytest_llmbench.store.baselines import (
    Baseline,
    BaselineTest,
    choose_baseline,
    read_baseline,
    read_earlier,
)
from pytest_llmbench.store.files import Cell, write_csv
from pytest_llmbench.store.objects import plain_object

GROUPS = ("test", "metric", "session", "none")
_WORST_FIRST = ("regressed", "unconfirmed", "inconclusive", "not_worse", "equivalent", "improved")
_WIDE = 110


@dataclass(frozen=True)
class Row:
    """One metric of one test in one session."""

    nodeid: str
    session: str
    entry: Entry
    """The comparison as a report stores it."""

    @property
    def worsening(self) -> float:
        """The relative change in the worse direction; minus infinity where it is undefined."""
        point = self.entry["change"]["point"]
        if point is None:
            return -math.inf
        return float(point) if self.entry["better"] == "lower" else -float(point)


COLUMNS: Mapping[str, Callable[[Row], str]] = MappingProxyType(
    {
        "metric": lambda row: str(row.entry["metric"]),
        "test": lambda row: row.nodeid,
        "session": lambda row: row.session,
        "baseline": lambda row: _mean(row.entry, "baseline"),
        "now": lambda row: _mean(row.entry, "candidate"),
        "runs": lambda row: f"{len(row.entry['baseline'])} and {len(row.entry['candidate'])}",
        "change": lambda row: numbers.change(row.entry["change"]),
        "allowed": lambda row: words.allowed_text(row.entry),
        "detectable": lambda row: words.allowed_text(row.entry, "mde"),
        "verdict": lambda row: (str.upper if row.entry["gated"] else str)(words.verdict_text(row.entry)),
        "reason": lambda row: str(row.entry["reason"]),
    }
)
_FIGURES, _MORE = ("baseline", "now", "change"), ("runs", "allowed", "detectable")
SORTS: Mapping[str, Callable[[Row], Any]] = MappingProxyType(
    {
        "metric": lambda row: 0,  # noqa: ARG005 - the order they have
        "change": lambda row: -row.worsening,
        "verdict": lambda row: (_WORST_FIRST.index(row.entry["verdict"]), -row.worsening),
        "session": lambda row: row.session,
        "name": lambda row: (row.nodeid, row.entry["metric"], row.session),
    }
)


def _mean(entry: Entry, arm: str) -> str:
    return numbers.quantity(words.mean_of(entry[arm]), shown_unit(entry["metric"], entry["unit"]))


def heading(first: Session, others: Sequence[Session], *, limited: bool) -> list[str]:
    """Lines on which sessions are compared, and what the verdicts mean."""
    allowed = numbers.percentage(SHOWN_MARGIN)
    meaning = (
        "Verdicts in capitals come from --fail; the others decide nothing."
        if limited
        else f"A worsening of {allowed} is allowed, and nothing fails: --fail sets limits."
    )
    named, *further = [
        f"{session.name} ({', '.join(filter(None, (session.saved, session.commit)))})"
        for session in (first, *others)
    ]
    return [f"{named} is the baseline of", *(f"  {other}" for other in further), meaning]


def grouped(
    rows: Sequence[Row], *, by: str, sort: str, columns: Sequence[str] | None = None, width: int = 80
) -> list[str]:
    """A table for each group, under its name. Verdicts on figures without a limit are shown and do not
    decide."""

    def group(row: Row) -> str:
        return "" if by == "none" else COLUMNS[by](row)

    # What tells the rows of a group apart, and the figures that fit into the width.
    named = ("metric", "test", "session")
    keys = [key for key in named if key != by and len({COLUMNS[key](row) for row in rows}) > 1]
    usual = [*(keys or ["metric"]), *_FIGURES, *(_MORE if width >= _WIDE else ()), "verdict"]
    names, lines = list(columns or usual), list[str]()
    for name in dict.fromkeys(map(group, rows)):
        own = sorted((row for row in rows if group(row) == name), key=SORTS[sort])
        cells = [[COLUMNS[column](row) for column in names] for row in own]
        lines += ["", *([name] if name else []), *text_table(names, cells, width=width, whole=("verdict",))]
    return lines


CSV_COLUMNS = (
    "test", "metric", "unit", "better", "baseline", "session", "baseline_runs", "session_runs",
    "baseline_value", "session_value", "change", "change_lower", "change_upper", "allowed", "detectable",
    "gated", "verdict", "reason",
)  # fmt: skip
"""Columns of the CSV. Shares are numbers from 0 to 1; ``baseline_value`` and ``session_value`` are geometric
means over runs."""


def csv_rows(rows: Sequence[Row], refused: Mapping[tuple[str, str], str]) -> Iterator[list[Cell]]:
    """CSV rows: one for each comparison, and one with the reason for each test that was not compared."""
    for row in rows:
        entry, change = row.entry, row.entry["change"]
        yield [
            row.nodeid, entry["metric"], entry["unit"], entry["better"], entry["baseline_name"], row.session,
            len(entry["baseline"]), len(entry["candidate"]), words.mean_of(entry["baseline"]),
            words.mean_of(entry["candidate"]), change["point"], change["lower"], change["upper"],
            entry["margin"], entry["mde"], entry["gated"], entry["verdict"], entry["reason"],
        ]  # fmt: skip
    for (nodeid, session), why in refused.items():
        yield [nodeid, *[None] * 4, session, *[None] * 10, "not compared", why]


GOOD, NOT_GOOD = 0, 1
NOT_COMPARED = "not compared:"
_NO_WORSE = (ComparisonVerdict.IMPROVED, ComparisonVerdict.EQUIVALENT, ComparisonVerdict.NOT_WORSE)


@dataclass(frozen=True)
class TestComparison:
    """One test of a session against the same test of the first one."""

    __test__ = False  # pytest must not take it for a test class

    nodeid: str
    name: str
    """The name of the session."""
    comparisons: tuple[Comparison, ...] = ()
    refused: tuple[str, ...] = ()
    """Why nothing is compared; empty where it is."""
    notes: tuple[str, ...] = ()
    """Notes on what else differs: waivers, software, lengths of replies."""

    @property
    def good(self) -> bool:
        """Whether all limits are kept. What could not be compared is not good."""
        gated = [each for each in self.comparisons if each.gated]
        return not self.refused and all(each.verdict in _NO_WORSE for each in gated)


def compared_sessions(
    first: Session,
    others: Sequence[Session],
    limits: Sequence[RegressionLimit] = (),
    waivers: Sequence[Waiver] = (),
    earlier: Sequence[Baseline] = (),
) -> list[TestComparison]:
    """Every test of the first session compared with each of the others, in the order of the first.
    ``earlier``: the sessions that the first stands for too."""

    def compared(own: BaselineTest, other: Session) -> TestComparison:
        theirs = other.test(own.nodeid)
        if theirs is None:
            return TestComparison(own.nodeid, other.name, refused=("it has no results of this test",))
        match = matched(own.identity, theirs.identity, waivers)
        if match.mismatches:
            return TestComparison(own.nodeid, other.name, refused=match.mismatches)
        lengths = output_lengths(lengths_vector(own.output_lengths), lengths_vector(theirs.output_lengths))
        notes = [*match.waived, *match.shown]
        if lengths is not None and not lengths.ok:
            notes.insert(0, lengths.message)
        # A metric that is there no more is no reason to be content.
        held = [replace(limit, everywhere=True) for limit in limits if limit.metric in own.by_run]
        before = [test for session in earlier for test in session.tests if test.nodeid == own.nodeid]
        reference = Reference.of([*before, own], theirs.identity, waivers)
        found = reference.compared(theirs.by_run, held, (first.name, other.name))
        notes += map(str, reference.notes(first.baseline.name))
        notes += dict.fromkeys(each.reason for each in found if each.change.point is None)
        return TestComparison(own.nodeid, other.name, found, notes=tuple(notes))

    return [compared(own, other) for own in first.baseline.tests for other in others]


def of_metrics(found: Sequence[TestComparison], patterns: Sequence[str]) -> list[TestComparison]:
    """The comparisons reduced to metrics that match a pattern such as ``ttft.*``; metrics with a limit
    stay.

    SuiteError where nothing fits.
    """
    names = dict.fromkeys(each.metric for test in found for each in test.comparisons)
    if names and not any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
        raise SuiteError(f"--metrics {','.join(patterns)} matches none; there are: {', '.join(names)}")

    def kept(each: Comparison) -> bool:
        return each.gated or any(fnmatchcase(each.metric, pattern) for pattern in patterns)

    return [replace(test, comparisons=tuple(filter(kept, test.comparisons))) for test in found]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench compare",
        description="Compare saved sessions with the first one, by the rules of --llm-compare.",
        epilog="Exit status: 0 compared; 1 with --fail, where a metric is worse by more, is not decided, or "
        "could not be compared; 2 there is no such session, or an option is wrong.",
    )
    parser.add_argument(
        "sessions",
        nargs="+",
        metavar="SESSION",
        help="name (its latest session), number, unique beginning, or file; at least two",
    )
    add_common(parser, COLUMNS)
    many: dict[str, Any] = {"action": "append", "default": []}
    limit = "fail if a metric is worse by more than this, for example ttft.p99:5%%; may be repeated"
    parser.add_argument("--fail", metavar="METRIC:LIMIT", help=limit, **many)
    waiver = "compare in spite of a difference; may be repeated"
    parser.add_argument("--waive", metavar="FIELD=REASON@DATE", help=waiver, **many)
    parser.add_argument("--metrics", metavar="PATTERNS", help="only these, for example ttft.*,tpot.p50")
    parser.add_argument("--group-by", choices=GROUPS, default="test", help="default: test")
    parser.add_argument(
        "--sort",
        choices=tuple(SORTS),
        default="metric",
        help="order within a group (default: metric, in the order of the report)",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(list(arguments))
    columns = None if given.columns is None else chosen("--columns", given.columns, list(COLUMNS))
    limits = limits_of_option(given.fail, "--fail") if given.fail else ()
    waivers = waivers_of_option(given.waive, datetime.now(UTC).date(), "--waive")
    if len(given.sessions) < 2:
        raise SuiteError("compare needs at least two sessions; pytest-llmbench list shows them")
    paths = [choose_baseline(given.storage, name) for name in given.sessions]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise SuiteError(f"{twice} is given twice: {', '.join(given.sessions)}")
    first, *others = [Session(path, read_baseline(path), name) for path, name in session_names(paths).items()]
    named, problems = read_earlier(first.path, given.sessions[0])
    earlier = [named[path] for path in named if all(path != other.path for other in others)]
    found = compared_sessions(first, others, limits, waivers, earlier)
    if given.metrics is not None:
        found = of_metrics(found, [part.strip() for part in given.metrics.split(",")])
    if given.csv is not None:
        told = {(test.nodeid, test.name): "; ".join(test.refused) for test in found if test.refused}
        write_csv(given.csv, CSV_COLUMNS, csv_rows(_entries(found), told))
    lines = heading(first, others, limited=bool(limits))
    lines += grouped(_entries(found), by=given.group_by, sort=given.sort, columns=columns, width=width())
    only_there = [
        f"{other.name}: {first.name} has no results of this test ({test.nodeid})"
        for other in others
        for test in other.baseline.tests
        if first.test(test.nodeid) is None
    ]
    print_lines([*lines, *_told(found, only_there, width()), *problems])
    gated = {each.metric for test in found for each in test.comparisons if each.gated}
    idle = [f"{limit.origin}: {limit.metric} was compared in no test"
            for limit in limits if limit.metric not in gated]  # fmt: skip
    print_lines(idle)
    return NOT_GOOD if idle or (limits and not all(test.good for test in found)) else GOOD


def _entries(found: Sequence[TestComparison]) -> list[Row]:
    return [Row(test.nodeid, test.name, plain_object(each)) for test in found for each in test.comparisons]


def _told(found: Sequence[TestComparison], only_there: Sequence[str], width: int) -> list[str]:
    """Lines on what was not compared and why, then on what else differs, each once with its sessions."""
    lines: list[str] = []
    for title, texts in (
        (NOT_COMPARED, [(why, test) for test in found for why in test.refused]),
        ("notes:", [(note, test) for test in found for note in test.notes]),
    ):
        by_text: dict[tuple[str, str], list[str]] = {}
        for text, test in texts:
            by_text.setdefault((test.name, text), []).append(test.nodeid)
        further = only_there if title == NOT_COMPARED else []
        lines += ["", title] if by_text or further else []
        for (name, text), nodeids in by_text.items():
            tests = nodeids[0] if len(nodeids) == 1 else f"{len(nodeids)} tests, {nodeids[0]} the first"
            said = text if text.startswith(name) else f"{name}: {text}"
            lines += wrapped(f"{said} ({tests})", width)
        lines += [line for text in further for line in wrapped(text, width)]
    return lines
