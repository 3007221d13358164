"""Every metric that a result may hold and a limit may name: one row each.

A **family** is a distribution and is named with a statistic, ``ttft.p99``; TTFT also by input length,
``ttft[0-256].p99``. A **scalar** stands alone, ``output_token_throughput``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.metrics.buckets import LABELS
from pytest_llmbench.metrics.summary import STATISTICS

Unit = Literal["ms", "ratio", "tok/s", "req/s"]
Direction = Literal["lower", "higher"]
_NAME = re.compile(r"(?P<base>\w+)(?:\[(?P<bucket>[^\]]*)\])?(?:\.(?P<statistic>\w+))?")


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    name: str
    title: str
    unit: Unit
    better: Direction
    formula: str
    section: str
    """Of the draft, or the decision that defines it."""
    statistics: tuple[str, ...] = ()
    """Of a family; empty for a scalar."""
    by_input_length: bool = False

    @property
    def is_family(self) -> bool:
        return bool(self.statistics)

    def full_names(self) -> tuple[str, ...]:
        """All metric names that this row stands for."""
        if not self.is_family:
            return (self.name,)
        labels = LABELS if self.by_input_length else ()
        stems = (self.name, *(f"{self.name}[{label}]" for label in labels))
        return tuple(f"{stem}.{statistic}" for stem in stems for statistic in self.statistics)


def _latency(
    name: str, title: str, formula: str, section: str, *, by_input_length: bool = False
) -> MetricDefinition:
    return MetricDefinition(name, title, "ms", "lower", formula, section, STATISTICS, by_input_length)


_ROWS = (
    _latency(
        "ttft", "Time to first token", "T_first - T_submit, T_first the first non-whitespace content",
        "5.1.3", by_input_length=True,
    ),
    _latency("ttft_scheduled", "Time to first token from the schedule", "T_first - T_scheduled", "5.1.3"),
    _latency(
        "ttft_any", "Time to first output of any kind",
        "first output, whitespace and reasoning included, - T_submit", "5.1.3.1",
    ),
    _latency("ttft_first_event", "Time to first event", "first event of any kind - T_submit", "5.1.3.1"),
    _latency("tpot", "Time per output token", "(T_last - T_first) / (N_out - 1), N_out >= 2", "AMB-44"),
    _latency("e2e", "End-to-end latency", "T_last - T_submit", "AMB-45"),
    _latency("e2e_scheduled", "End-to-end latency from the schedule", "T_last - T_scheduled", "AMB-45"),
    MetricDefinition(
        "output_token_throughput", "Output token throughput", "tok/s", "higher",
        "output tokens arrived in the window / duration", "5.2.4.1",
    ),
    MetricDefinition(
        "input_token_throughput", "Input token throughput", "tok/s", "higher",
        "input tokens (cached ones included) of requests with first content in the window / duration",
        "5.2.4.1",
    ),
    MetricDefinition(
        "request_throughput", "Request throughput", "req/s", "higher",
        "requests completed in the window / duration", "5.2.4.1",
    ),
    MetricDefinition(
        "completion_rate", "Completion rate", "ratio", "higher", "ok / submitted", "AMB-46"
    ),
)  # fmt: skip

METRICS: Mapping[str, MetricDefinition] = MappingProxyType({row.name: row for row in _ROWS})


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
    every = [full for row in _ROWS for full in row.full_names()]
    return tuple(difflib.get_close_matches(name, every, n=most))


def _find(name: str) -> MetricDefinition | None:
    match = _NAME.fullmatch(name)
    row = METRICS.get(match["base"]) if match else None
    return row if row is not None and name in row.full_names() else None


__all__ = [
    "METRICS",
    "Direction",
    "MetricDefinition",
    "Unit",
    "definition",
    "is_metric",
    "metric_unit",
    "suggestions",
]
