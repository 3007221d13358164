"""``pytest-llmbench history METRIC``: metrics over the saved sessions and where their level changed, as text
tables, as rows of CSV and as a drawing.

A point is a session: the geometric mean of its runs with the interval of Student's t on their logarithms.
Runs of one session share its weather, so change points are looked for among sessions
(``stats/change_points.py``), on logarithms, and the change between two levels is judged as one between two
builds is, a session in the place of a run.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_llmbench.compare.comparability import Waiver, made_alike, matched, waivers_of_option
from pytest_llmbench.compare.limits import SHOWN_MARGIN
from pytest_llmbench.compare.regression import better_of, compared
from pytest_llmbench.compare.systems import of_runs
from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.harness.history.sessions import (
    Session,
    add_common,
    print_lines,
    read_sessions,
    width,
    wrapped,
)
from pytest_llmbench.metrics.definitions import definition, metric_unit
from pytest_llmbench.model import numbers
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import Comparison
from pytest_llmbench.model.numbers import shown_unit
from pytest_llmbench.redaction import outward_value
from pytest_llmbench.reports import comparisons as words
from pytest_llmbench.reports import plots
from pytest_llmbench.reports.comparisons import metric_label
from pytest_llmbench.reports.terminal import text_table
from pytest_llmbench.stats.change_points import MOST_VALUES, SIGNIFICANCE, change_points, fewest_values
from pytest_llmbench.store.baselines import Standing
from pytest_llmbench.store.files import Cell, write_csv, write_text
from pytest_llmbench.store.objects import plain_object


@dataclass(frozen=True)
class Point:
    """The value of a metric in one session."""

    session: Session
    estimate: Estimate
    runs: int
    standing: Standing | None = None
    """What keeps later sessions from being compared with it; None: nothing does."""


@dataclass(frozen=True)
class Change:
    """A change to a new level."""

    at: int
    """Index of the first point on the new level."""
    p_value: float
    comparison: Comparison | None
    """Comparison of the new level with the one before; None where the metric has no better direction."""


@dataclass(frozen=True)
class Series:
    """One metric of one test over the sessions that measured the same thing as the latest one."""

    nodeid: str
    metric: str
    points: tuple[Point, ...]
    """The points, oldest first."""
    changes: tuple[Change, ...]
    left_out: Mapping[str, tuple[str, ...]]
    """What differs → names of the sessions that were left out because they measured something else."""
    doubt: str | None = None
    """Why no change points were looked for; None if they were."""


def series_of(
    sessions: Sequence[Session],
    nodeid: str,
    metric: str,
    *,
    waivers: Sequence[Waiver] = (),
    significance: float = SIGNIFICANCE,
    last: int | None = None,
) -> Series | None:
    """The series of one metric of one test; None where the test never measured it. ``sessions``: oldest
    first. ``last``: the most points."""
    having = [
        (session, test)
        for session in sessions
        if (test := session.test(nodeid)) is not None and metric in test.by_run
    ]
    if not having:
        return None
    latest = having[-1][1].identity
    points: list[Point] = []
    left_out: dict[str, tuple[str, ...]] = {}
    for session, test in having:
        how = made_alike(metric, test.identity, latest, waivers)
        match = matched(test.identity, latest, waivers)
        if why := "; ".join((*match.mismatches, *how.mismatches)):
            left_out[why] = (*left_out.get(why, ()), session.name)
        else:
            values = test.by_run[metric]
            standing = None if test.counts else test.standing or Standing.FAILED
            own = _of_session(values, metric_unit(metric))
            points.append(Point(session, own, len(values), standing))
    points = points[-last:] if last else points
    changes, doubt = _changes(metric, points, significance)
    return Series(nodeid, metric, tuple(points), changes, left_out, doubt)


def _of_session(values: Sequence[float | None], unit: str) -> Estimate:
    """The estimate for a session from the values of its runs. Without an interval for fewer than three runs,
    whose noise cannot be told, and for a plain mean, taken where a value has no logarithm."""
    known = [value for value in values if value is not None]
    if known and len(known) == len(values) and min(known) <= 0:
        mean = math.fsum(value / len(known) for value in known)
        return Estimate(mean, None, None, 0.95, len(known), "one of its runs is 0 or less", unit)
    found = of_runs(values, unit)
    return found if len(values) >= FEWEST_RUNS else replace(found, lower=None, upper=None)


def _changes(
    metric: str, points: Sequence[Point], significance: float
) -> tuple[tuple[Change, ...], str | None]:
    places = [at for at, point in enumerate(points) if point.estimate.point is not None]
    values = [value for point in points if (value := point.estimate.point) is not None]
    if len(values) > MOST_VALUES:
        return (), f"too many for change points: {len(values)} sessions, follow the last {MOST_VALUES:,}"
    fewest = fewest_values(significance)
    if len(values) < fewest:
        return (), f"too few for change points: {len(values)} of at least {fewest} sessions"
    scale = [math.log(value) for value in values] if min(values) > 0 else values
    found, better = change_points(scale, significance=significance), better_of(metric)
    cuts, changes = [0, *(point.at for point in found), len(values)], []
    for point, first, end in zip(found, cuts, cuts[2:], strict=False):
        step = None if better is None else compared(
            metric, metric_unit(metric), better, values[first : point.at], values[point.at : end],
            margin=SHOWN_MARGIN, names=("the sessions before", "those after"), paired=False, of="session",
        )  # fmt: skip
        changes.append(Change(places[point.at], point.p_value, step))
    return tuple(changes), None


def every_series(
    sessions: Sequence[Session],
    metrics: Sequence[str],
    test: str | None,
    *,
    waivers: Sequence[Waiver] = (),
    significance: float = SIGNIFICANCE,
    last: int | None = None,
) -> list[Series]:
    """The series of these metrics for every test whose node id contains ``test``; None: every test.
    SuiteError, naming what exists, where there is none."""
    for metric in metrics:
        definition(metric)  # a name that is none is told as that
    nodeids = dict.fromkeys(own.nodeid for session in sessions for own in session.baseline.tests)
    wanted = [nodeid for nodeid in nodeids if test is None or test in nodeid]
    if not wanted:
        raise SuiteError(f"--test {shown(test)} matches no test; there are: {', '.join(nodeids)}")
    how: dict[str, Any] = {"waivers": waivers, "significance": significance, "last": last}
    every = (series_of(sessions, nodeid, metric, **how) for nodeid in wanted for metric in metrics)
    if found := [series for series in every if series is not None]:
        return found
    measured = dict.fromkeys(
        name
        for session in sessions
        for own in session.baseline.tests
        if own.nodeid in wanted
        for name in own.by_run
    )
    raise SuiteError(f"no test measured {', '.join(metrics)}; there are: {', '.join(sorted(measured))}")


_COLUMNS = ("#", "session", "saved", "commit", "value", "interval", "runs", "level", "standing")
_WHOLE = ("saved", "commit", "level", "standing")
_WIDE = 100
_SHOWN_REASONS = 4


def table(series: Series, *, width: int = 80) -> list[str]:
    """Lines of text: the points, then the changes, then the sessions that were left out."""
    new = {change.at for change in series.changes}
    rows = [
        _row(number, point, series.metric, new=number in new, wide=width >= _WIDE)
        for number, point in enumerate(series.points)
    ]
    filled = [at for at in range(len(_COLUMNS)) if at < 3 or any(row[at] for row in rows)]
    columns = [_COLUMNS[at] for at in filled]
    count = len(series.points)
    head = f"{series.metric} of {series.nodeid}: {count} session{'' if count == 1 else 's'}"
    cells = [[row[at] for at in filled] for row in rows]
    return [head, *text_table(columns, cells, width=width, whole=_WHOLE), *_told(series, width)]


def _row(number: int, point: Point, metric: str, *, new: bool, wide: bool) -> list[str]:
    estimate, unit = point.estimate, shown_unit(metric, point.estimate.unit)
    interval = (
        "" if estimate.point is None else numbers.interval(estimate.lower, estimate.upper, unit, estimate.n)
    )
    return [
        str(number + 1),
        point.session.name,
        point.session.saved if wide else point.session.day,
        point.session.commit,
        numbers.quantity(estimate.point, unit),
        interval,
        str(point.runs),
        "new" if new else "",
        point.standing or "",
    ]


def _told(series: Series, width: int) -> Iterator[str]:
    if series.doubt is not None:
        yield from wrapped(series.doubt, width)
    elif not series.changes:
        yield from wrapped("no change point", width)
    for change in series.changes:
        yield from wrapped(_change_text(change, series), width)
    reasons = list(series.left_out.items())
    for why, names in reasons[:_SHOWN_REASONS]:
        told = names[0] if len(names) == 1 else f"{len(names)} sessions, {names[0]} to {names[-1]}"
        yield from wrapped(f"left out, they measured something else: {told}: {why}", width)
    if rest := sum(len(names) for _, names in reasons[_SHOWN_REASONS:]):
        yield from wrapped(f"left out for further differences: {rest} more", width)


def _change_text(change: Change, series: Series) -> str:
    first = series.points[change.at].session
    built = f", commit {first.commit}" if first.commit else ""
    text = f"new level from {first.name} on ({first.saved}{built}), p = {numbers.number(change.p_value)}"
    if change.comparison is None:
        return text
    entry = plain_object(change.comparison)
    before, after = len(change.comparison.baseline), len(change.comparison.candidate)
    judged = f"{words.change_text(entry)}, {words.verdict_text(entry)}"
    return f"{text}: {judged} ({before} sessions before, {after} after)"


CSV_COLUMNS = (
    "test", "metric", "unit", "session", "saved", "commit", "runs", "value", "lower", "upper", "new_level",
    "p_value", "standing",
)  # fmt: skip


def csv_rows(found: Sequence[Series]) -> Iterator[list[Cell]]:
    """CSV rows, one for each point."""
    for series in found:
        changes = {change.at: change.p_value for change in series.changes}
        for number, point in enumerate(series.points):
            own = point.estimate
            yield [
                series.nodeid, series.metric, own.unit, point.session.name, point.session.baseline.saved,
                point.session.commit, point.runs, own.point, own.lower, own.upper, number in changes,
                changes.get(number), point.standing,
            ]  # fmt: skip


def drawing(series: Series) -> str:
    """An SVG drawing: the value of each session by its number, with the band of the intervals and the new
    levels."""
    marks: dict[str, float] = {}
    for change in series.changes:
        name = series.points[change.at].session.name
        step = None if change.comparison is None else change.comparison.change.point
        marks[name if step is None else f"{name} {numbers.signed(step)}"] = float(change.at + 1)
    label = metric_label(series.metric)
    points = [(number + 1, point.estimate) for number, point in enumerate(series.points)]
    unit = points[0][1].unit
    known = [(float(at), own.point) for at, own in points if own.point is not None]
    test = series.nodeid.rpartition("::")[2]
    band = [(float(at), own.lower, own.upper) for at, own in points if own.closed]
    plot = {
        "title": f"{series.metric} of {series.nodeid}",
        "heading": f"{label} of {test}",
        "x_label": "Session",
        "x_names": [point.session.day for point in series.points],
        "y_label": f"{label} ({unit})",
        "series": {label: {"x": [x for x, _ in known], "y": [y for _, y in known]}},
        "bands": {
            label: {
                "x": [x for x, _, _ in band],
                "lower": [lower for _, lower, _ in band],
                "upper": [upper for _, _, upper in band],
            }
        },
        "marks": marks,
    }
    return plots.render(outward_value(plot), "history")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench history",
        description="Follow metrics over the saved sessions, with the points where their level changed.",
        epilog="Exit status: 0 shown, 2 there is nothing to show, or an option is wrong.",
    )
    parser.add_argument(
        "metrics", nargs="+", metavar="METRIC", help="for example ttft.p99 or output_token_throughput"
    )
    add_common(parser)
    parser.add_argument("--test", metavar="TEXT", help="only tests whose node id contains this")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N sessions")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw one metric of one test")
    parser.add_argument(
        "--waive",
        action="append",
        default=[],
        metavar="FIELD=REASON@DATE",
        help="include sessions in spite of a difference; may be repeated",
    )
    parser.add_argument(
        "--significance",
        type=float,
        default=SIGNIFICANCE,
        metavar="P",
        help=f"how often a series without a change may show one (default: {SIGNIFICANCE})",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(list(arguments))
    if given.last is not None and given.last < 1:
        raise SuiteError(f"--last must be 1 or more, got {given.last}")
    if not 0.001 <= given.significance <= 0.5:
        raise SuiteError(f"--significance must lie from 0.001 to 0.5, got {given.significance}")
    waivers = waivers_of_option(given.waive, datetime.now(UTC).date(), "--waive")
    sessions, problems = read_sessions(given.storage)
    how: dict[str, Any] = {"significance": given.significance, "last": given.last}
    found = every_series(sessions, given.metrics, given.test, waivers=waivers, **how)
    if given.csv is not None:
        write_csv(given.csv, CSV_COLUMNS, csv_rows(found))
    if given.svg is not None:
        if len(found) > 1:
            names = "; ".join(f"{series.metric} of {series.nodeid}" for series in found[:10])
            raise SuiteError(
                f"--svg draws one metric of one test, not {len(found)}: {names}",
                remedy="choose with --test TEXT",
            )
        write_text(given.svg, drawing(found[0]))
    lines = [line for series in found for line in ("", *table(series, width=width()))]
    print_lines(lines[1:], problems)
    return 0
