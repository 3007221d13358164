"""A session whose figures go to a collector, which decodes them by the published protocol."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from plugin_suite import Suite, refused

ONE = """
@llmbench.ttft(rate=20, requests=30)
def test_first_token(): ...
"""


def _installed() -> Any:
    return pytest.importorskip(
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
        reason="the extra otlp is not installed",
    )


@pytest.fixture
def collector() -> Iterator[tuple[list[bytes], str]]:
    taken: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200 if self.path == "/v1/metrics" else 400)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield taken, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_figures_of_a_session_arrive(suite: Suite, collector: tuple[list[bytes], str]) -> None:
    protocol = _installed()
    taken, url = collector
    suite.write(ONE)
    result = suite.measure("replay", f"--llm-send=otlp:{url}/v1/metrics")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*points sent to otlp:http*"])
    (body,) = taken
    (resource,) = protocol.ExportMetricsServiceRequest.FromString(body).resource_metrics
    gauges = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    found = {
        attributes["llmbench.metric"]: point.as_double
        for point in gauges["llmbench.ttft"].gauge.data_points
        if (attributes := {each.key: each.value.string_value for each in point.attributes})["llmbench.end"]
        == "point"
    }
    assert found["ttft.p99"] == suite.report["tests"][0]["metrics"]["ttft.p99"]["point"]
    assert gauges["llmbench.ttft"].unit == "ms"


def test_a_collector_that_refuses_turns_no_verdict(suite: Suite, collector: tuple[list[bytes], str]) -> None:
    _installed()
    suite.write(ONE)
    result = suite.measure("replay", f"--llm-send=otlp:{collector[1]}/elsewhere")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*WARNING: the collector http*/elsewhere did not take the metrics*"])


def test_a_receiver_that_nobody_has_is_a_mistake_before_any_load(suite: Suite) -> None:
    for given in ("otpl:http://host", "otlp", "otlp:"):
        refused(suite.measure("replay", f"--llm-send={given}")).fnmatch_lines(
            [f"*--llm-send '{given}' names no receiver*"]
        )


def test_a_library_that_is_not_installed_is_told_before_any_load(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    refused(suite.measure("replay", "--llm-send=otlp:http://host")).fnmatch_lines(
        ["*needs a package that is not installed: opentelemetry*", "*[[]otlp]*"]
    )
