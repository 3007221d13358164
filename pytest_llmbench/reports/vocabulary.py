"""Names of metrics as people read them, their units on paper, and the figures that a test is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pytest_llmbench.metrics.definitions import METRICS
from pytest_llmbench.registry import named

_NAME = re.compile(r"(?P<base>[^\[.]+)(?:\[(?P<qualifier>[^\]]*)\])?(?:\.(?P<statistic>\w+))?")
_LENGTHS = re.compile(r"\d+(-\d+|\+)")
_STATISTICS = {"p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "p99_9": "P99.9"}
_ABBREVIATED = ("ttft", "tpot", "e2e", "itl")
_TAKEN_AS_TTFT = ("scheduled", "any", "first_event")

HEADLINES: Mapping[str, tuple[str, ...]] = {
    "ttft": ("ttft.p99", "tpot.p99", "output_token_throughput"),
    "throughput": (
        "max_output_token_throughput", "constrained_output_token_throughput", "sustainable_rate",
        "sustainable_concurrency", "output_tokens_per_gpu_second",
    ),
    "tradeoff": (
        "operating_point_rate", "operating_point_throughput", "knee_rate", "saturation_rate",
        "max_output_token_throughput",
    ),
    "itl": ("itl[*].p99", "itl_tail_ratio[*]"),
    "capacity": ("max_concurrency", "max_sessions", "output_token_throughput", "tokens_in_flight"),
    "fairness": ("jain_index", "class_jain_index", "starvation_rate[*]", "ttft_inflation[*].p50"),
    "prefix_cache": ("ttft_reduction[*].p50", "cache_hit_rate[*]", "throughput_improvement[*]"),
    "memory_pressure": (
        "fail_rate[*]", "preemption_rate[*]", "preemption_recovery_rate[*]", "recovery_time[*]",
    ),
    "long_context": ("prefill_exponent", "prefill_exponent_fit", "prefill_slope", "prefill_linear_fit"),
    "guardrail": (
        "input_filter_overhead[*].p50", "guardrail_overhead[*].p50", "throughput_reduction[*]",
    ),
}  # fmt: skip
"""Test → its main metrics, the most telling first; ``[*]`` stands for every qualifier and for none."""


class MetricName(NamedTuple):
    """A metric name taken apart, such as ``itl[90%].p99``; empty where a part is not there."""

    base: str
    qualifier: str
    statistic: str

    @property
    def family(self) -> str:
        """The family with its qualifier: ``itl[90%]``."""
        return f"{self.base}[{self.qualifier}]" if self.qualifier else self.base

    @property
    def is_bucket(self) -> bool:
        """Whether the metric is for one range of input lengths."""
        return bool(_LENGTHS.fullmatch(self.qualifier))


def metric_name(name: str) -> MetricName:
    match = _NAME.fullmatch(name)
    if match is None:
        return MetricName(name, "", "")
    return MetricName(match["base"], match["qualifier"] or "", match["statistic"] or "")


def metric_label(name: str, *, qualified: bool = True) -> str:
    """The label of a metric: ``ttft.p99_9`` becomes ``TTFT P99.9``, ``starvation_rate[short]`` ``Starvation
    rate [short]``."""
    base, qualifier, statistic = metric_name(name)
    shown = _STATISTICS.get(statistic, statistic.replace("_", " ").capitalize())
    of = f" [{qualifier}]" if qualifier and qualified else ""
    return f"{_base_label(base)}{of} {shown}".strip()


def _base_label(base: str) -> str:
    stem, _, variant = base.partition("_")
    if stem in _ABBREVIATED and (not variant or variant in _TAKEN_AS_TTFT):
        return stem.upper() + (f" ({variant.replace('_', ' ')})" if variant else "")
    known = METRICS.get(base)
    return known.title if known is not None else base.replace("_", " ").capitalize()


def statistic_label(statistic: str) -> str:
    """The label of a statistic: ``p99_9`` becomes ``P99.9``."""
    return _STATISTICS.get(statistic, statistic.replace("_", " ").capitalize())


def headline_names(test: str, names: Iterable[str]) -> list[str]:
    """The ``names`` that are main metrics of the test, in the order of :data:`HEADLINES`."""
    measured = [(name, metric_name(name)) for name in names]
    found: list[str] = []
    for pattern in HEADLINES.get(test) or named("main_metrics", test) or ():
        base, qualifier, statistic = metric_name(pattern)
        found += [
            name
            for name, parts in measured
            if (parts.base, parts.statistic) == (base, statistic)
            and (not parts.qualifier or (qualifier == "*" and not parts.is_bucket))
        ]
    return found
