"""What a run over gRPC is judged to be, and what is said of what there is not over gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc  # noqa: F401  (as the next: runs within this process forget what they have loaded)
import pytest
import tritonclient.grpc.service_pb2_grpc  # noqa: F401

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

SUITE = """
import pytest
from pytest_llmbench import SyntheticWorkload, Uniform, WarmupPolicy, llmbench

SHORT = SyntheticWorkload("short-replies", Uniform(128, 512), Uniform(8, 16))

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=10, output_tokens=0, probes=3)

@llmbench.ttft(rate=15, requests=30, workload=SHORT)
def test_open_loop(): ...
"""
OPTIONS = ["-p", "no:cacheprovider", "--llm-report=out", "--llm-remeasure=6"]
AT_THE_ENGINE = '[sut]\nboundary = "model_engine"\n'


@pytest.fixture
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast", grpc=True) as engine:
        yield engine


def grpc_url(engine: EmbeddedEngine) -> str:
    return f"grpc://{engine.grpc_target}"


def run(pytester: pytest.Pytester, suite: str, *options: str) -> dict[str, Any]:
    """The report of the only test."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_suite=suite)
    pytester.runpytest_inprocess(*OPTIONS, *options).assert_outcomes(passed=1)
    tests = json.loads((pytester.path / "out" / "report.json").read_text("utf-8"))["tests"]
    (test,) = tests
    return dict(test)


@pytest.mark.timing
def test_the_advice_for_the_engine_s_boundary_is_met_over_grpc_alone(
    pytester: pytest.Pytester, engine: EmbeddedEngine
) -> None:
    (pytester.path / "sut.toml").write_text(AT_THE_ENGINE, "utf-8")
    found = {}
    for url in (grpc_url(engine), engine.url):
        test = run(pytester, SUITE, "--llm-sut=sut.toml", "--llm-workers=2", f"--llm-endpoint={url}")
        clauses = {entry["id"]: entry["status"] for entry in test["compliance"]["requirements"]}
        found[url.partition(":")[0]] = clauses
    assert found["grpc"]["S-4.6.1-grpc-for-engine"] == "met"
    assert found["http"]["S-4.6.1-grpc-for-engine"] == "unmet"
    for clause in ("M-4.2.2-streaming-support", "M-4.6.2-protocol-stated", "P-B.1.2-grpc-points"):
        assert found["grpc"][clause] == "met"
    assert "P-B.1.1-submit-point" not in {name for name, status in found["grpc"].items() if status == "unmet"}


def test_a_dialect_of_http_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_suite=SUITE)
    result = pytester.runpytest_inprocess("--llm-endpoint=grpc://h:1", "--llm-api=openai-chat")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--llm-api: openai-chat is not spoken over gRPC*"])
    result.stderr.fnmatch_lines(["*vllm-grpc, sglang-grpc, kserve-grpc*"])


def test_llm_client_says_that_it_asks_over_http(pytester: pytest.Pytester, engine: EmbeddedEngine) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(
        test_suite="""
import pytest

@pytest.mark.asyncio
async def test_by_hand(llm_client):
    await llm_client.complete("hello")
"""
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--llm-endpoint={grpc_url(engine)}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*llm_client asks over HTTP, and --llm-endpoint is one of gRPC*"])
