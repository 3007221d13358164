"""A metric of a test over the saved sessions, and where its level changed.

A point is a session: the geometric mean of its runs with the interval of Student's t on their logarithms.
Runs of one session share its weather, so change points are looked for among sessions
(``stats/change_points.py``), on logarithms, and the change between two levels is judged as one between two
builds is, a session in the place of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.compare.identity import Waiver, matched
from pytest_llmbench.compare.limits import SHOWN_MARGIN
from pytest_llmbench.compare.regression import better_of, compared
from pytest_llmbench.compare.systems import of_runs
from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.harness.history.sessions import Session
from pytest_llmbench.metrics.definitions import definition, metric_unit
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import FEWEST_RUNS, Comparison
from pytest_llmbench.stats.change_points import MOST_VALUES, SIGNIFICANCE, change_points, fewest_values


@dataclass(frozen=True)
class Point:
    """A session's value."""

    session: Session
    estimate: Estimate
    runs: int


@dataclass(frozen=True)
class Change:
    """A new level, from a point on."""

    at: int
    """Index of its first point."""
    p_value: float
    comparison: Comparison | None
    """The level before against this one; None where neither more nor less of the metric is better."""


@dataclass(frozen=True)
class Series:
    """One metric of one test over the sessions that measured the same thing as the latest one."""

    nodeid: str
    metric: str
    points: tuple[Point, ...]
    """Oldest first."""
    changes: tuple[Change, ...]
    left_out: Mapping[str, tuple[str, ...]]
    """Sessions that measured another thing: what differs, to their names."""
    doubt: str | None = None
    """Why no change points were looked for."""


def series_of(
    sessions: Sequence[Session],
    nodeid: str,
    metric: str,
    *,
    waivers: Sequence[Waiver] = (),
    significance: float = SIGNIFICANCE,
    last: int | None = None,
) -> Series | None:
    """``sessions``: oldest first; ``last``: no more points than that. None where the test never measured the
    metric."""
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
        if why := "; ".join(matched(test.identity, latest, waivers).mismatches):
            left_out[why] = (*left_out.get(why, ()), session.name)
        else:
            values = test.by_run[metric]
            points.append(Point(session, _of_session(values, metric_unit(metric)), len(values)))
    points = points[-last:] if last else points
    changes, doubt = _changes(metric, points, significance)
    return Series(nodeid, metric, tuple(points), changes, left_out, doubt)


def _of_session(values: Sequence[float | None], unit: str) -> Estimate:
    """Open of fewer than three runs, whose noise cannot be told, and of a plain mean where a value has no
    logarithm."""
    known = [value for value in values if value is not None]
    if known and len(known) == len(values) and min(known) <= 0:
        mean = math.fsum(value / len(known) for value in known)
        return Estimate(mean, None, None, 0.95, len(known), "mean of runs, one of which is 0 or less", unit)
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
    found = change_points(scale, significance=significance)
    cuts = [0, *(point.at for point in found), len(values)]
    return tuple(
        Change(
            places[point.at],
            point.p_value,
            _step(metric, values[cuts[number] : point.at], values[point.at : cuts[number + 2]]),
        )
        for number, point in enumerate(found)
    ), None


def _step(metric: str, before: Sequence[float], after: Sequence[float]) -> Comparison | None:
    better = better_of(metric)
    if better is None:
        return None
    return compared(
        metric, metric_unit(metric), better, before, after,
        margin=SHOWN_MARGIN, names=("the sessions before", "those after"), paired=False,
    )  # fmt: skip


def every_series(
    sessions: Sequence[Session],
    metrics: Sequence[str],
    test: str | None,
    *,
    waivers: Sequence[Waiver] = (),
    significance: float = SIGNIFICANCE,
    last: int | None = None,
) -> list[Series]:
    """Of every test whose node id holds ``test``. SuiteError, with what there is, where there is none."""
    for metric in metrics:
        definition(metric)  # a name that is none is told as that
    nodeids = dict.fromkeys(own.nodeid for session in sessions for own in session.baseline.tests)
    wanted = [nodeid for nodeid in nodeids if test is None or test in nodeid]
    if not wanted:
        raise SuiteError(f"--test {shown(test)} is part of no test; there are: {', '.join(nodeids)}")
    found = [
        series
        for nodeid in wanted
        for metric in metrics
        if (
            series := series_of(
                sessions, nodeid, metric, waivers=waivers, significance=significance, last=last
            )
        )
    ]
    if found:
        return found
    measured = dict.fromkeys(
        name
        for session in sessions
        for own in session.baseline.tests
        if own.nodeid in wanted
        for name in own.by_run
    )
    raise SuiteError(f"no test measured {', '.join(metrics)}; there are: {', '.join(sorted(measured))}")
