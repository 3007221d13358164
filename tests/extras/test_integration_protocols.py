"""What runs over WebSocket and gRPC are judged to be, and what is said of what there is not over them."""

from __future__ import annotations

from typing import Any

import grpc  # noqa: F401  (as the next: runs within this process forget what they have loaded)
import pytest
import tritonclient.grpc.service_pb2_grpc  # noqa: F401
from embedded_chain import measured, run_in_process

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

AT_THE_ENGINE = '[sut]\nboundary = "model_engine"\n'
FIRST_TOKEN = """
from pytest_llmbench import llmbench

@llmbench.ttft()
def test_first_token(): ...
"""
BY_HAND = """
import pytest

@pytest.mark.asyncio
async def test_by_hand(llm_client):
    await llm_client.complete("hello")
"""


def statuses(entry: dict[str, Any]) -> dict[str, str]:
    return {clause["id"]: clause["status"] for clause in entry["compliance"]["requirements"]}


@pytest.mark.usefixtures("however_late")
def test_clauses_name_websocket(pytester: pytest.Pytester, grpc_engine: EmbeddedEngine) -> None:
    entry = measured(pytester, grpc_engine.url.replace("http://", "ws://"), "--llm-workers=2")
    clauses = {clause["id"]: clause for clause in entry["compliance"]["requirements"]}
    for clause in ("M-4.2.2-streaming-support", "M-4.6.2-protocol-stated"):
        assert clauses[clause]["status"] == "met", clauses[clause]
    assert clauses["M-4.2.2-streaming-support"]["reason"] == "websocket is supported"


@pytest.mark.slow
@pytest.mark.usefixtures("however_late")
def test_the_advice_for_the_engine_s_boundary_is_met_over_grpc_alone(
    pytester: pytest.Pytester, grpc_engine: EmbeddedEngine
) -> None:
    (pytester.path / "sut.toml").write_text(AT_THE_ENGINE, "utf-8")
    over_grpc, over_http = (
        statuses(measured(pytester, url, "--llm-sut=sut.toml", "--llm-workers=2"))
        for url in (f"grpc://{grpc_engine.grpc_target}", grpc_engine.url)
    )
    assert over_grpc["S-4.6.1-grpc-for-engine"] == "met"
    assert over_http["S-4.6.1-grpc-for-engine"] == "unmet"
    for clause in ("M-4.2.2-streaming-support", "M-4.6.2-protocol-stated", "P-B.1.2-grpc-points"):
        assert over_grpc[clause] == "met"
    assert over_grpc.get("P-B.1.1-submit-point") != "unmet"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "ws://h/v1",
            ["*--llm-api: openai-chat is not spoken over WebSocket*", "*--llm-api=openai-responses*"],
        ),
        (
            "grpc://h:1",
            ["*--llm-api: openai-chat is not spoken over gRPC*", "*vllm-grpc, sglang-grpc, kserve-grpc*"],
        ),
    ],
)
def test_a_dialect_without_a_form_there_is_a_usage_error(
    pytester: pytest.Pytester, url: str, said: list[str]
) -> None:
    result = run_in_process(pytester, FIRST_TOKEN, f"--llm-endpoint={url}", "--llm-api=openai-chat")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for line in said:
        result.stderr.fnmatch_lines([line])


@pytest.mark.parametrize("kind", ["WebSockets", "gRPC"])
def test_llm_client_says_that_it_asks_over_http(
    pytester: pytest.Pytester, grpc_engine: EmbeddedEngine, kind: str
) -> None:
    url = (
        f"grpc://{grpc_engine.grpc_target}" if kind == "gRPC" else grpc_engine.url.replace("http://", "ws://")
    )
    result = run_in_process(pytester, BY_HAND, f"--llm-endpoint={url}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*llm_client sends requests over HTTP, but --llm-endpoint is {kind}*"])
