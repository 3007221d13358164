"""The whole chain against known truth, over what extras speak."""

from __future__ import annotations

import json
import statistics

import grpc  # noqa: F401  (as the next: runs within this process forget what they have loaded)
import pytest
import tritonclient.grpc.service_pb2_grpc  # noqa: F401
from embedded_chain import beside_truth, least_disturbed, measured, run_in_process
from measured_rows import counted_rows

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("however_late")]

DOCUMENTS = """
import pytest
from pytest_llmbench import SyntheticWorkload, Uniform, WarmupPolicy, llmbench

SHORT = SyntheticWorkload("short", Uniform(128, 512), Uniform(1, 2))

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=10, output_tokens=0, probes=3)

@llmbench.non_generative(rate=90, requests=45, workload=SHORT)
def test_documents(): ...
"""


def test_over_websocket(pytester: pytest.Pytester, grpc_engine: EmbeddedEngine) -> None:
    entry = measured(pytester, grpc_engine.url.replace("http://", "ws://"), requests=45)
    found = list(beside_truth(pytester.path / "out", entry, grpc_engine))
    assert entry["facts"]["streaming.protocol"]["value"] == "websocket"
    assert all(row["input_tokens"] == true.prompt_tokens for row, true, _ in found)
    errors_ms = [error_ms for *_, error_ms in found]
    assert len(errors_ms) == 45
    assert -0.2 < least_disturbed(errors_ms) < 2.0, statistics.quantiles(errors_ms, n=20)


@pytest.mark.parametrize(("api", "requests"), [("vllm-grpc", 45), ("kserve-grpc", 30)])
def test_over_grpc(pytester: pytest.Pytester, grpc_engine: EmbeddedEngine, api: str, requests: int) -> None:
    url = f"grpc://{grpc_engine.grpc_target}"
    entry = measured(pytester, url, f"--llm-api={api}", requests=requests)
    found = list(beside_truth(pytester.path / "out", entry, grpc_engine))
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
        span_errors_ms.append(abs(row["last_content_ns"] - row["first_content_ns"] - true_span_ns) / 1e6)
    errors_ms = [error_ms for *_, error_ms in found]
    assert len(errors_ms) == requests
    # The engine's stamps lie before grpcio's own threads, which take a millisecond or two.
    assert -0.2 < least_disturbed(errors_ms) < 3.0, statistics.quantiles(errors_ms, n=20)
    assert least_disturbed([abs(error) for error in span_errors_ms]) < 1.5, statistics.quantiles(
        span_errors_ms, n=20
    )


@pytest.mark.parametrize("api", ["openai-embeddings", "rerank", "score", "logprobs"])
def test_documents_without_a_token(pytester: pytest.Pytester, grpc_engine: EmbeddedEngine, api: str) -> None:
    options = ("--llm-report=out", f"--llm-endpoint={grpc_engine.url}", f"--llm-api={api}")
    run_in_process(pytester, DOCUMENTS, *options).assert_outcomes(passed=1)
    truth = {true.request_id: true for true in grpc_engine.ground_truth()}
    (entry,) = json.loads((pytester.path / "out" / "report.json").read_text("utf-8"))["tests"]
    errors_ms = []
    for row in counted_rows(pytester.path / "out", entry):
        true = truth[row["request_id"]]
        assert true.first_write_ns is not None
        assert row["submitted_ns"] <= true.received_ns
        assert true.first_write_ns <= row["finished_ns"]
        assert (row["input_tokens"], row["output_tokens"]) == (true.prompt_tokens, None)
        true_ns = true.first_write_ns - true.received_ns
        errors_ms.append((row["finished_ns"] - row["submitted_ns"] - true_ns) / 1e6)
    assert len(errors_ms) == 45
    # The document is made and written behind the engine's stamp.
    assert -0.2 < least_disturbed(errors_ms) < 3.0, statistics.quantiles(errors_ms, n=20)


def test_with_prefill_and_decode_apart(pytester: pytest.Pytester) -> None:
    with EmbeddedEngine.start("fast?prefill_workers=2&decode_workers=2") as engine:
        entry = measured(pytester, engine.url, rate=100, requests=75, longest=32)
        found = list(beside_truth(pytester.path / "out", entry, engine))
    assert {true.decode_replica for _, true, _ in found} == {2, 3}
    for _, true, _ in found:
        instants = (true.admitted_ns, true.prefilled_ns, true.transfer_ended_ns, true.first_token_ns)
        assert list(instants) == sorted(instants)
    errors_ms = [error_ms for *_, error_ms in found]
    assert len(errors_ms) == 75
    assert -0.2 < least_disturbed(errors_ms) < 2.0, statistics.quantiles(errors_ms, n=20)
