"""A metric over sessions as a text table, as rows of CSV and as a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench.harness.history.series import Change, Point, Series
from pytest_llmbench.harness.history.sessions import wrapped
from pytest_llmbench.redaction import outward_value
from pytest_llmbench.reports import comparisons as words
from pytest_llmbench.reports import numbers, plots
from pytest_llmbench.reports.text_table import text_table
from pytest_llmbench.reports.vocabulary import metric_label, shown_unit
from pytest_llmbench.store.csv_file import Cell
from pytest_llmbench.store.plain import plain_object

_COLUMNS = ("#", "session", "saved", "commit", "value", "interval", "runs", "level")
_WHOLE = ("saved", "commit", "level")
_WIDE = 100


def table(series: Series, *, width: int = 80) -> list[str]:
    """The points, then what changed, then what is not part of it."""
    new = {change.at for change in series.changes}
    rows = [
        _row(number, point, series.metric, new=number in new, wide=width >= _WIDE)
        for number, point in enumerate(series.points)
    ]
    filled = [at for at in range(len(_COLUMNS)) if at < 3 or any(row[at] for row in rows)]
    columns = [_COLUMNS[at] for at in filled]
    head = f"{series.metric} of {series.nodeid}: {_counted(len(series.points))}"
    cells = [[row[at] for at in filled] for row in rows]
    return [head, *text_table(columns, cells, width=width, whole=_WHOLE), *_told(series, width)]


def _row(number: int, point: Point, metric: str, *, new: bool, wide: bool) -> list[str]:
    estimate, unit = point.estimate, shown_unit(metric, point.estimate.unit)
    interval = "" if estimate.point is None else numbers.interval(estimate.lower, estimate.upper, unit)
    return [
        str(number + 1),
        point.session.name,
        point.session.saved if wide else point.session.day,
        point.session.commit,
        numbers.quantity(estimate.point, unit),
        interval,
        str(point.runs),
        "new" if new else "",
    ]


def _told(series: Series, width: int) -> Iterator[str]:
    if series.doubt is not None:
        yield from wrapped(series.doubt, width)
    elif not series.changes:
        yield from wrapped("no change point", width)
    for change in series.changes:
        yield from wrapped(_change_text(change, series), width)
    for why, names in series.left_out.items():
        told = names[0] if len(names) == 1 else f"{len(names)} sessions, {names[0]} to {names[-1]}"
        yield from wrapped(f"left out, another thing was measured: {told}: {why}", width)


def _change_text(change: Change, series: Series) -> str:
    first = series.points[change.at].session
    built = f", commit {first.commit}" if first.commit else ""
    text = f"new level from {first.name} on ({first.saved}{built}), p = {change.p_value:.3g}"
    if change.comparison is None:
        return text
    entry = plain_object(change.comparison)
    before, after = len(change.comparison.baseline), len(change.comparison.candidate)
    judged = f"{words.change_text(entry)}, {words.verdict_text(entry)}"
    return f"{text}: {judged} ({before} sessions before, {after} after)"


def _counted(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


CSV_COLUMNS = (
    "test", "metric", "unit", "session", "saved", "commit", "runs", "value", "lower", "upper", "new_level",
    "p_value",
)  # fmt: skip


def csv_rows(found: Sequence[Series]) -> Iterator[list[Cell]]:
    """A row for each point."""
    for series in found:
        changes = {change.at: change.p_value for change in series.changes}
        for number, point in enumerate(series.points):
            own = point.estimate
            yield [
                series.nodeid, series.metric, own.unit, point.session.name, point.session.baseline.saved,
                point.session.commit, point.runs, own.point, own.lower, own.upper, number in changes,
                changes.get(number),
            ]  # fmt: skip


def drawing(series: Series) -> str:
    """SVG: the value of each session by its number, with the band of its intervals and the new levels."""
    return plots.render(outward_value(_plot(series)), "history")


def _plot(series: Series) -> dict[str, Any]:
    label = metric_label(series.metric)
    points = [(number + 1, point.estimate) for number, point in enumerate(series.points)]
    unit = points[0][1].unit
    known = [(float(at), own.point) for at, own in points if own.point is not None]
    band = [(float(at), own.lower, own.upper) for at, own in points if own.closed]
    return {
        "title": f"{series.metric} of {series.nodeid}",
        "x_label": "Session, oldest first",
        "y_label": f"{label} ({unit})",
        "series": {label: {"x": [x for x, _ in known], "y": [y for _, y in known]}},
        "bands": {
            label: {
                "x": [x for x, _, _ in band],
                "lower": [lower for _, lower, _ in band],
                "upper": [upper for _, _, upper in band],
            }
        },
        "marks": {series.points[change.at].session.name: float(change.at + 1) for change in series.changes},
    }
