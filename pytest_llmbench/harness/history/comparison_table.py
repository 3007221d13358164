"""Comparisons of saved sessions as text tables and as rows of CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pytest_llmbench.compare.limits import SHOWN_MARGIN
from pytest_llmbench.harness.history.sessions import Session
from pytest_llmbench.model.judgement import Comparison
from pytest_llmbench.reports import comparisons as words
from pytest_llmbench.reports import numbers
from pytest_llmbench.reports.entry import Entry
from pytest_llmbench.reports.text_table import text_table
from pytest_llmbench.reports.vocabulary import shown_unit
from pytest_llmbench.store.csv_file import Cell
from pytest_llmbench.store.plain import plain_object

GROUPS = ("test", "metric", "session", "none")
_WORST_FIRST = ("regressed", "inconclusive", "not_worse", "equivalent", "improved")
_WIDE = 110


@dataclass(frozen=True)
class Row:
    """One metric of one test in one session."""

    nodeid: str
    session: str
    entry: Entry
    """The comparison as a report has it."""

    @classmethod
    def of(cls, nodeid: str, session: str, comparison: Comparison) -> Row:
        return cls(nodeid, session, plain_object(comparison))

    @property
    def worsening(self) -> float:
        """The change in the direction that is worse; of an undefined one below every other."""
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
        "change": lambda row: _change(row.entry),
        "allowed": lambda row: words.allowed_text(row.entry),
        "detectable": lambda row: words.detectable_text(row.entry),
        "verdict": lambda row: _verdict(row.entry),
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


def _change(entry: Entry) -> str:
    """``+4.2 % [+1.0, +7.2]``; why there is none is the reason."""
    change = entry["change"]
    if change["point"] is None or change["lower"] is None or change["upper"] is None:
        return "not known"
    lower, upper = 100 * change["lower"], 100 * change["upper"]
    return f"{100 * change['point']:+.1f} % [{lower:+.1f}, {upper:+.1f}]"


def _verdict(entry: Entry) -> str:
    """In capitals where it decides."""
    text = words.verdict_text(entry)
    return text.upper() if entry["gated"] else text


def heading(first: Session, others: Sequence[Session], *, limited: bool) -> list[str]:
    """Which sessions stand against which, and what the verdicts mean."""
    allowed = numbers.percentage(SHOWN_MARGIN)
    meaning = (
        "Verdicts in capitals are those of --fail; the others are shown only."
        if limited
        else f"A worsening of {allowed} is allowed, and nothing fails: --fail sets limits."
    )
    own = [f"{_described(first)} is the baseline of", *(f"  {_described(other)}" for other in others)]
    return [*own, meaning]


def _described(session: Session) -> str:
    about = [session.saved, session.commit]
    return f"{session.name} ({', '.join(part for part in about if part)})"


def grouped(
    rows: Sequence[Row], *, by: str, sort: str, columns: Sequence[str] | None = None, width: int = 80
) -> list[str]:
    """A table for each group, under its name. Verdicts of figures without a limit are shown and decide
    nothing."""
    lines: list[str] = []
    for name in dict.fromkeys(_group(row, by) for row in rows):
        own = sorted((row for row in rows if _group(row, by) == name), key=SORTS[sort])
        names = list(columns or _fitting(rows, by, width))
        cells = [[COLUMNS[column](row) for column in names] for row in own]
        lines += ["", *([name] if name else []), *text_table(names, cells, width=width, whole=("verdict",))]
    return lines


def _group(row: Row, by: str) -> str:
    return "" if by == "none" else COLUMNS[by](row)


def _fitting(rows: Sequence[Row], by: str, width: int) -> list[str]:
    """What tells the rows of a group apart, and the figures that there is room for."""
    several = {
        name for name in ("metric", "test", "session") if len({COLUMNS[name](row) for row in rows}) > 1
    }
    keys = [name for name in ("metric", "test", "session") if name != by and name in several]
    figures = [*_FIGURES, *(_MORE if width >= _WIDE else ()), "verdict"]
    return [*(keys or ["metric"]), *figures]


CSV_COLUMNS = (
    "test", "metric", "unit", "better", "baseline", "session", "baseline_runs", "session_runs",
    "baseline_value", "session_value", "change", "change_lower", "change_upper", "allowed", "detectable",
    "gated", "verdict", "reason",
)  # fmt: skip
"""Shares are numbers from 0 to 1; ``baseline_value`` and ``session_value`` are geometric means over runs."""


def csv_rows(rows: Sequence[Row], refused: Mapping[tuple[str, str], str]) -> Iterator[list[Cell]]:
    """A row for each comparison, and for each test that was not compared, which has its reason only."""
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
