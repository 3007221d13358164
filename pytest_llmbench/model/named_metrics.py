"""Metrics of a result by attribute: ``result.ttft.p99``.

Type checkers and editors read ``named_metrics.pyi`` instead, which ``marks/stub.py`` makes of the metrics'
definitions, so that they know the names.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pytest_llmbench.model.estimate import Estimate


class NamedMetrics:
    """What has metrics by their full names in ``metrics`` has them as attributes, too."""

    metrics: Mapping[str, Estimate]

    def __getattr__(self, name: str) -> Estimate | MetricView:
        if name.startswith("_") or "metrics" not in self.__dict__:
            raise AttributeError(name)
        __tracebackhide__ = True
        return MetricView(self.metrics, "")._lookup(name)


class MetricView:
    """Attribute access to the metrics below a prefix; for a misspelt name the error lists what there is."""

    def __repr__(self) -> str:
        return f"<metrics {self._prefix}*>"

    def __init__(self, metrics: Mapping[str, Estimate], prefix: str) -> None:
        self._metrics = metrics
        self._prefix = prefix

    def __getattr__(self, name: str) -> Estimate | MetricView:
        if name.startswith("__"):
            raise AttributeError(name)
        __tracebackhide__ = True
        return self._lookup(name)

    def _lookup(self, name: str) -> Estimate | MetricView:
        __tracebackhide__ = True
        full = self._prefix + name
        if full in self._metrics:
            return self._metrics[full]
        if any(metric.startswith(full + ".") for metric in self._metrics):
            return MetricView(self._metrics, full + ".")
        size = len(self._prefix.split("."))
        there = {
            ".".join(metric.split(".")[:size]) for metric in self._metrics if metric.startswith(self._prefix)
        }
        close = difflib.get_close_matches(full, there, n=3)
        hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(sorted(there))}"
        raise AttributeError(f"no metric {full!r} in this result; {hint}")
