"""The metrics of replies that are documents: how long one takes."""

from __future__ import annotations

from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.metrics.summary import STATISTICS

LATENCY = MetricDefinition(
    "latency", "Latency", "ms", "lower", "last byte of the reply - T_submit", "non_generative", STATISTICS
)
LATENCY_SCHEDULED = MetricDefinition(
    "latency_scheduled", "Latency from the schedule", "ms", "lower", "last byte of the reply - T_scheduled",
    "non_generative", STATISTICS,
)  # fmt: skip
