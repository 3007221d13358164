"""The numbers of a report that a dashboard follows, as every CI format takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_llmbench.metrics.definitions import METRICS, Direction
from pytest_llmbench.reports.document import TestView
from pytest_llmbench.reports.numbers import Entry
from pytest_llmbench.reports.report_view import ReportView
from pytest_llmbench.reports.vocabulary import metric_name


@dataclass(frozen=True)
class Figure:
    """A number that was measured; one that is undefined is no figure."""

    nodeid: str
    metric: str
    unit: str
    value: float
    lower: float | None
    upper: float | None
    """The ends of its interval; None for one that is open there."""
    limits: Mapping[str, float]
    """What the test was held to, by operator (``<=``); of several the strictest."""
    better: Direction


def figures(report: Entry) -> list[Figure]:
    """Of each test whose numbers are judged: the metrics with a limit, those of a comparison that decides,
    and those that the test is about, each once. Of a test that was run again those of the last attempt.

    A percentile that the report does not state, for want of samples, is left out as what is undefined is."""
    tests = [test for _, test in ReportView(report).last_attempts]
    return [figure for test in tests if test.valid for figure in _figures_of(test)]


def _figures_of(test: TestView) -> Iterator[Figure]:
    held = {str(one["metric"]): one for one in test.objectives}
    gated = [str(one["metric"]) for one in test.comparisons if one.get("gated")]
    for name in dict.fromkeys([*held, *gated, *test.headlines]):
        found = test.metric(name) or held.get(name)
        value = None if found is None else _finite(found["point"])
        if found is None or value is None or (name not in held and test.unsupported(name)):
            continue
        limits = _limits(one for one in test.objectives if one["metric"] == name)
        yield Figure(
            nodeid=test.nodeid,
            metric=name,
            unit=str(found["unit"]),
            value=value,
            lower=_finite(found["lower"]),
            upper=_finite(found["upper"]),
            limits=limits,
            better=_better(name, limits),
        )


def _limits(objectives: Iterable[Entry]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in objectives:
        op, limit = str(one["op"]), float(one["limit"])
        strictest = min if op.startswith("<") else max
        found[op] = strictest(limit, found.get(op, limit))
    return found


def _better(name: str, limits: Mapping[str, float]) -> Direction:
    known = METRICS.get(metric_name(name).base)
    if known is not None:
        return known.better
    return "higher" if any(op.startswith(">") for op in limits) else "lower"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
