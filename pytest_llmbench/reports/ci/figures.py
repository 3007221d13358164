"""The numbers of a report that a dashboard follows, in the formats that take numbers alone.

- **benchmark-action/github-action-benchmark**, a file for each direction. ``tool: customSmallerIsBetter`` or
  ``customBiggerIsBetter``: an array of ``name``, ``unit``, ``value`` and, as text, ``range`` and ``extra``
  (README and ``src/extract.ts`` of that repository). The action fails on an empty array, so a workflow names
  only the file that its tests fill.
- **Bencher Metric Format**: JSON with a value and the ends of its interval (bencher.dev, reference, "Bencher
  Metric Format (BMF)").
- **GitLab's metrics report**: OpenMetrics text, shown in a merge request beside the values of the target
  branch. ``artifacts: reports: metrics:`` (docs.gitlab.com, "Metrics reports"). GitLab compares values **as
  text**, so those that were measured are rounded to three significant digits. The form is that of OpenMetrics
  1.0: no blank line, the samples of a family together, ``# EOF`` at the end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.metrics.definitions import METRICS, Direction
from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports.document import TestView
from pytest_llmbench.reports.report_view import ReportView
from pytest_llmbench.reports.vocabulary import metric_name


@dataclass(frozen=True)
class Figure:
    """A measured number; undefined ones are not among them."""

    nodeid: str
    metric: str
    unit: str
    value: float
    lower: float | None
    upper: float | None
    """Upper end of its interval, as the one above is the lower; None if it is open."""
    limits: Mapping[str, float]
    """Operator (``<=``) → the strictest limit that the test was held to."""
    better: Direction


def figures(report: Entry) -> list[Figure]:
    """The figures of each test whose numbers are judged, each once: metrics with a limit, those of a
    comparison that decides, and those that the test is about.

    A percentile that the report does not state, for want of samples, is left out as what is undefined is."""
    return [figure for test in ReportView(report).tests if test.valid for figure in _figures_of(test)]


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


def smaller_is_better(report: Entry) -> str:
    """The figures that should be low: latencies, failures, overheads."""
    return _benchmarks(report, "lower")


def bigger_is_better(report: Entry) -> str:
    """The figures that should be high: throughput, capacity, shares that succeed."""
    return _benchmarks(report, "higher")


def _benchmarks(report: Entry, better: Direction) -> str:
    found = [_benchmark(figure) for figure in figures(report) if figure.better == better]
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _benchmark(figure: Figure) -> dict[str, str | float]:
    found: dict[str, str | float] = {
        "name": f"{figure.nodeid} {figure.metric}",
        "unit": figure.unit,
        "value": figure.value,
    }
    ends = _range(figure)
    limits = ", ".join(f"{op} {limit:g}" for op, limit in figure.limits.items())
    return found | ({"range": ends} if ends else {}) | ({"extra": f"limit {limits}"} if limits else {})


def _range(figure: Figure) -> str:
    """The interval as text, ``449.5 to 491.7``, in the unit of the value; empty if it is open at both
    ends."""
    if figure.lower is None:
        return "" if figure.upper is None else f"< {figure.upper:.6g}"
    return f"> {figure.lower:.6g}" if figure.upper is None else f"{figure.lower:.6g} to {figure.upper:.6g}"


_LONGEST_BENCHMARK = 1024
_LONGEST_MEASURE = 64
"""Longest name of a measure, in characters; Bencher refuses longer ones."""


def bencher(report: Entry) -> str:
    """The figures for Bencher: ``{test: {"ttft.p99 (ms)": {"value", "lower_value", "upper_value"}}}``,
    without open ends.

    A measure has no unit of its own in this format, so its name has it. Of names that are the same once they
    are cut the first counts.
    """
    found: dict[str, dict[str, Any]] = {}
    for figure in figures(report):
        values = {"value": figure.value, "lower_value": figure.lower, "upper_value": figure.upper}
        measures = found.setdefault(figure.nodeid[:_LONGEST_BENCHMARK] or "test", {})
        name = f"{figure.metric} ({figure.unit})"[:_LONGEST_MEASURE]
        measures.setdefault(name, {key: value for key, value in values.items() if value is not None})
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


_FAMILIES = {
    "llmbench_value": "What was measured.",
    "llmbench_lower": "Lower end of the confidence interval.",
    "llmbench_upper": "Upper end of the confidence interval.",
    "llmbench_limit": "The limit that the test holds the metric to.",
}


def gitlab_metrics(report: Entry) -> str:
    """The figures for GitLab: four families of gauges with labels ``metric``, ``test`` and ``unit``, for
    limits also ``op``.

    What is undefined, and an end of an interval that is open, has no sample.
    """
    found = figures(report)
    lines = []
    for family, text in _FAMILIES.items():
        lines += [f"# TYPE {family} gauge", f"# HELP {family} {text}"]
        lines += [line for figure in found for line in _samples(family, figure)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _samples(family: str, figure: Figure) -> Iterator[str]:
    labels = [("metric", figure.metric), ("test", figure.nodeid), ("unit", figure.unit)]
    if family == "llmbench_limit":
        for op, limit in figure.limits.items():
            yield f"{family}{_labels([*labels, ('op', op)])} {float(limit)!r}"
        return
    value = getattr(figure, family.removeprefix("llmbench_"))
    if value is not None:
        yield f"{family}{_labels(labels)} {float(f'{value:.3g}')!r}"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
