"""Bencher Metric Format: JSON with a value and the ends of its interval.

bencher.dev, reference, "Bencher Metric Format (BMF)".
"""

from __future__ import annotations

import json
from typing import Any

from pytest_llmbench.reports.ci.figures import figures
from pytest_llmbench.reports.numbers import Entry

_LONGEST_BENCHMARK = 1024
_LONGEST_MEASURE = 64
"""Characters; Bencher refuses longer names."""


def bencher(report: Entry) -> str:
    """``{test: {"ttft.p99 (ms)": {"value", "lower_value", "upper_value"}}}``, without an end that is open.

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
