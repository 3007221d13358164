"""``--llm-send=otlp:URL``: OTLP over HTTP, by the OpenTelemetry library, which also reads its environment:
headers, certificates, attributes of the resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pytest_llmbench.errors import StoreError, SuiteError
from pytest_llmbench.extras.otlp.points import points

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
