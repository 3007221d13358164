"""The figures of a session for a collector of OpenTelemetry, by its library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from pytest_llmbench.errors import StoreError, SuiteError
from pytest_llmbench.registry import Extra

EXTRA = Extra(receivers={"otlp": "pytest_llmbench.extras.otlp:receiver"})

_TIMEOUT_S = 20.0
"""How long the library tries, with pauses that grow."""


def receiver(where: str) -> Callable[[Sequence[Mapping[str, Any]]], int]:
    """A function that sends the metrics of all tests to a collector's ``/v1/metrics``, or to the one that the
    environment names (``env``), and returns the number of points; StoreError if they did not arrive.

    SuiteError where the library is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
        from opentelemetry.sdk.resources import Resource
    except ModuleNotFoundError as error:
        raise SuiteError(
            f"--llm-send=otlp needs a package that is not installed: {error.name}",
            remedy='pip install "pytest-llmbench[otlp]"',
        ) from error

    def send(entries: Sequence[Mapping[str, Any]]) -> int:
        about = {"service.name": "pytest-llmbench", "service.version": version("pytest-llmbench")}
        # The library's own periodic reader tells nobody whether an export arrived.
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader], Resource.create(about), shutdown_on_exit=False)
        exporter = OTLPMetricExporter(None if where == "env" else where, timeout=_TIMEOUT_S)
        found = list(points(entries))
        try:
            meter = provider.get_meter("pytest_llmbench")
            for point in found:
                meter.create_gauge(point.name, unit=point.unit).set(point.value, dict(point.attributes))
            data = reader.get_metrics_data()
            if data is not None and exporter.export(data) is not MetricExportResult.SUCCESS:
                raise StoreError(f"the collector {where} did not take the metrics")
        finally:
            exporter.shutdown()
            provider.shutdown()
        return len(found)

    return send


_ENDS = ("point", "lower", "upper")
_FAMILY = re.compile(r"[A-Za-z0-9_]+")


class Point(NamedTuple):
    name: str
    """The name of the gauge, ``llmbench.ttft``: one of a family, as a name may hold no ``[90%]``."""
    unit: str
    value: float
    attributes: Mapping[str, str]


def points(entries: Sequence[Mapping[str, Any]]) -> Iterator[Point]:
    """The points of the metrics of all tests. What is undefined, and an end that is open, has none; figures
    of a void test say that they are."""
    for entry in entries:
        of_test = {
            "llmbench.test": entry["nodeid"],
            "llmbench.outcome": entry["outcome"],
            "llmbench.validity": entry["validity"]["verdict"],
            "llmbench.gate": entry["gate"]["verdict"],
        }
        if model := (entry["identity"] or {}).get("model"):
            of_test["gen_ai.request.model"] = str(model)
        for metric, estimate in entry["metrics"].items():
            family = _FAMILY.match(metric)
            for end in _ENDS:
                if family is not None and estimate[end] is not None:
                    about = {"llmbench.metric": metric, "llmbench.end": end}
                    yield Point(f"llmbench.{family[0]}", estimate["unit"], estimate[end], of_test | about)
