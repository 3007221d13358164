"""The whole chain against known truth: over each transport, we measure what the embedded engine did."""

from __future__ import annotations

import statistics

import grpc  # noqa: F401  (as the next: runs within this process forget what they have loaded)
import pytest
import tritonclient.grpc.service_pb2_grpc  # noqa: F401
from embedded_chain import beside_truth, measured

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

pytestmark = pytest.mark.timing


def test_measured_ttft_is_the_engine_s_own(pytester: pytest.Pytester) -> None:
    with EmbeddedEngine.start("fast") as engine:
        entry = measured(pytester, engine.url, rate=50, requests=150, longest=32)
        found = list(beside_truth(pytester.path / "out", entry, engine))
    assert all(row["input_tokens"] == true.prompt_tokens for row, true, _ in found)
    errors_ms = [error_ms for *_, error_ms in found]
    assert len(errors_ms) == 150
    # Bounds for a busy shared machine; on a quiet one the median is about a tenth of a millisecond.
    assert -0.2 < statistics.median(errors_ms) < 1.5, statistics.quantiles(errors_ms, n=20)


def test_over_websocket(pytester: pytest.Pytester) -> None:
    with EmbeddedEngine.start("fast") as engine:
        entry = measured(pytester, engine.url.replace("http://", "ws://"), requests=75)
        found = list(beside_truth(pytester.path / "out", entry, engine))
    assert entry["facts"]["streaming.protocol"]["value"] == "websocket"
    assert all(row["input_tokens"] == true.prompt_tokens for row, true, _ in found)
    errors_ms = [error_ms for *_, error_ms in found]
    assert len(errors_ms) == 75
    assert -0.2 < statistics.median(errors_ms) < 1.5, statistics.quantiles(errors_ms, n=20)


@pytest.mark.parametrize(("api", "requests"), [("vllm-grpc", 75), ("kserve-grpc", 30)])
def test_over_grpc(pytester: pytest.Pytester, api: str, requests: int) -> None:
    with EmbeddedEngine.start("fast", grpc=True) as engine:
        url = f"grpc://{engine.grpc_target}"
        entry = measured(pytester, url, f"--llm-api={api}", requests=requests)
        found = list(beside_truth(pytester.path / "out", entry, engine))
    assert entry["facts"]["streaming.protocol"]["value"] == "grpc"
    span_errors_ms = []
    for row, true, _ in found:
        if api == "vllm-grpc":  # the other has no counts
            assert true.prompt_tokens == row["input_tokens"]
            assert row["attribution"] == "exact"
        assert true.first_write_ns is not None
        assert true.last_write_ns is not None
        # The mean ITL of a reply is this span by the number of its gaps.
        true_span_ns = true.last_write_ns - true.first_write_ns
        span_errors_ms.append((row["last_content_ns"] - row["first_content_ns"] - true_span_ns) / 1e6)
    errors_ms = [error_ms for *_, error_ms in found]
    assert len(errors_ms) == requests
    # The engine's stamps lie before grpcio's own threads, which take a millisecond or two.
    assert -0.2 < statistics.median(errors_ms) < 3.0, statistics.quantiles(errors_ms, n=20)
    assert abs(statistics.median(span_errors_ms)) < 1.5, statistics.quantiles(span_errors_ms, n=20)
