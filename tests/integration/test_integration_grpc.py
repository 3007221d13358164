"""The whole chain over gRPC against known truth: what we measure is what the embedded engine did."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import grpc  # noqa: F401  (as the next three: runs within this process forget what they have loaded)
import pytest
import tritonclient.grpc.service_pb2_grpc  # noqa: F401
from measured_rows import counted_rows

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

SUITE = """
import pytest
from pytest_llmbench import SyntheticWorkload, Uniform, WarmupPolicy, llmbench

SHORT = SyntheticWorkload("short-replies", Uniform(128, 512), Uniform(8, 16))

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=10, output_tokens=0, probes=3)

@llmbench.ttft(rate=15, requests=75, workload=SHORT)
def test_open_loop(llm_result):
    seen = llm_result.observations[-1]
    assert seen.facts.value("streaming.protocol") == "grpc"
    assert seen.selfcheck.transport == "grpc"
"""
OPTIONS = ["-p", "no:cacheprovider", "--llm-report=out", "--llm-remeasure=6"]


@pytest.fixture
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast", grpc=True) as engine:
        yield engine


@pytest.mark.timing
@pytest.mark.parametrize("api", ["vllm-grpc", "kserve-grpc"])
def test_measured_ttft_and_itl_are_the_engine_s_own(
    pytester: pytest.Pytester, engine: EmbeddedEngine, api: str
) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_suite=SUITE)
    url = f"grpc://{engine.grpc_target}"
    result = pytester.runpytest_inprocess(*OPTIONS, f"--llm-api={api}", f"--llm-endpoint={url}")
    result.assert_outcomes(passed=1)
    truth = {entry.request_id: entry for entry in engine.ground_truth()}
    ttft_errors_ms, span_errors_ms = [], []
    out: Path = pytester.path / "out"
    report = json.loads((out / "report.json").read_text("utf-8"))
    for row in counted_rows(out, report["tests"][0]):
        true = truth[row["request_id"]]
        assert true.output_tokens == row["output_tokens"]
        if api == "vllm-grpc":  # the other has no counts
            assert true.prompt_tokens == row["input_tokens"]
            assert row["attribution"] == "exact"
        # Same clock: the server cannot have read the request before we sent it, nor written after we read.
        assert true.first_write_ns is not None
        assert true.last_write_ns is not None
        assert true.first_write_ns <= row["first_content_ns"]
        assert row["submitted_ns"] <= true.received_ns
        true_ttft_ns = true.first_write_ns - true.received_ns
        ttft_errors_ms.append((row["first_content_ns"] - row["submitted_ns"] - true_ttft_ns) / 1e6)
        # The mean ITL of a reply is this span by the number of its gaps.
        true_span_ns = true.last_write_ns - true.first_write_ns
        span_ns = row["last_content_ns"] - row["first_content_ns"]
        span_errors_ms.append((span_ns - true_span_ns) / 1e6)
    assert len(ttft_errors_ms) == 75
    # Bounds as over HTTP, for a busy shared machine.
    assert -0.2 < statistics.median(ttft_errors_ms) < 3.0, statistics.quantiles(ttft_errors_ms, n=20)
    assert abs(statistics.median(span_errors_ms)) < 1.5, statistics.quantiles(span_errors_ms, n=20)
