"""Every metric that a result may hold and a limit may name: one row each.

A **family** is a distribution and is named with a statistic, ``ttft.p99``. A **scalar** stands alone,
``output_token_throughput``. Both take a qualifier in brackets that says which part of a test they belong to:
an input length bucket (``ttft[0-256].p99``), a load level (``itl[90%].p99``), a class of requests
(``starvation_rate[short]``), a configuration (``e2e[full@50%].p99``), the number of a turn in its session
(``turn_ttft[2+].p95``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.metrics.buckets import LABELS
from pytest_llmbench.metrics.definitions import ROWS, MetricDefinition, Unit

_NAME = re.compile(r"(?P<base>\w+)(?:\[(?P<qualifier>[^\]]*)\])?(?:\.(?P<statistic>\w+))?")
_RANGE = re.compile(r"\d+(-\d+|\+)")
_TURN = re.compile(r"[1-9]\d*\+?")


METRICS: Mapping[str, MetricDefinition] = MappingProxyType({row.name: row for row in ROWS})


def definition(name: str) -> MetricDefinition:
    """The row that a full name such as ``ttft[0-256].p99`` belongs to. SuiteError, with hints, for none."""
    found = _find(name)
    if found is None:
        close = suggestions(name)
        remedy = f"did you mean {' or '.join(close)}?" if close else f"metrics: {', '.join(METRICS)}"
        raise SuiteError(f"no metric is called {name!r}", remedy=remedy)
    return found


def metric_unit(name: str) -> Unit:
    """Canonical unit of a full metric name. SuiteError, with hints, for an unknown one."""
    return definition(name).unit


def is_metric(name: str) -> bool:
    """True for a complete name: family with statistic, or scalar."""
    return _find(name) is not None


def suggestions(name: str, most: int = 3) -> tuple[str, ...]:
    """The full names most like ``name``, best first; those of a family for its bare name."""
    if name in METRICS and METRICS[name].is_family:
        return METRICS[name].full_names()[:most]
    every = [full for row in ROWS for full in row.full_names()]
    return tuple(difflib.get_close_matches(name, every, n=most))


def _find(name: str) -> MetricDefinition | None:
    match = _NAME.fullmatch(name)
    row = METRICS.get(match["base"]) if match else None
    if match is None or row is None or not _takes(row, match["qualifier"]):
        return None
    statistic = match["statistic"]
    known = statistic in row.statistics if row.is_family else statistic is None
    return row if known else None


def _takes(row: MetricDefinition, qualifier: str | None) -> bool:
    """Levels, classes and configurations are named by the test; a range of lengths has to be a bucket."""
    if row.by_turn:
        return qualifier is not None and _TURN.fullmatch(qualifier) is not None
    if qualifier is None:
        return True
    if _RANGE.fullmatch(qualifier):
        return row.by_input_length and qualifier in LABELS
    return bool(qualifier.strip())
