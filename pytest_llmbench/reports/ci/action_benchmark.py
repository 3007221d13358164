"""Files for benchmark-action/github-action-benchmark, one for each direction.

``tool: customSmallerIsBetter`` or ``customBiggerIsBetter``: an array of ``name``, ``unit``, ``value`` and, as
text, ``range`` and ``extra`` (README and ``src/extract.ts`` of that repository). The action fails on an empty
array, so a workflow names only the file that its tests fill.
"""

from __future__ import annotations

import json

from pytest_llmbench.metrics.definitions import Direction
from pytest_llmbench.reports.ci.figures import Figure, figures
from pytest_llmbench.reports.numbers import Entry


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
    """``449.5 to 491.7``, in the unit of the value; nothing for an interval that is open at both ends."""
    if figure.lower is None:
        return "" if figure.upper is None else f"< {figure.upper:.6g}"
    return f"> {figure.lower:.6g}" if figure.upper is None else f"{figure.lower:.6g} to {figure.upper:.6g}"
