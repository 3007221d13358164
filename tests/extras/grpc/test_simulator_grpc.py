"""The engine over gRPC: vLLM's token stream and KServe's inference stream."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from known_truth import in_order, truth_of
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub
from tritonclient.grpc import service_pb2 as kserve
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from waiting import wait_for

from pytest_llmbench.errors import SUTError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import LoadPlan, SessionSlots
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.simulator.serving.server import require_grpc
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of

DEADLINE_S = 10.0
HELLO = "hello there, sea"
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast?context_limit_tokens=2000", grpc=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def channel(engine: EmbeddedEngine) -> Iterator[grpc.Channel]:
    with dial(engine) as channel:
        yield channel


def dial(engine: EmbeddedEngine) -> grpc.Channel:
    assert engine.grpc_target is not None
    return grpc.insecure_channel(engine.grpc_target, options=[("grpc.enable_http_proxy", 0)])


def generate(channel: grpc.Channel, **fields: Any) -> Any:
    sampling = vllm.SamplingParams(**fields.pop("sampling", {"max_tokens": 4}))
    if "tokenized" not in fields:
        fields.setdefault("text", HELLO)
    request = vllm.GenerateRequest(**{"stream": True, "sampling_params": sampling, **fields})
    return VllmEngineStub(channel).Generate(request, timeout=DEADLINE_S)


def infer(text: str | None = HELLO, **changes: Any) -> Any:
    """A request as tritonclient makes it for Triton's vLLM backend."""
    parameters = changes.pop("parameters", {"max_tokens": 4})
    final, streams = changes.pop("final", True), changes.pop("streams", True)
    inputs = [("stream", "BOOL", bytes([streams])), ("sampling_parameters", "BYTES", _bytes(parameters))]
    if text is not None:
        inputs.append(("text_input", "BYTES", _bytes(text)))
    tensor = kserve.ModelInferRequest.InferInputTensor
    request = kserve.ModelInferRequest(
        **{
            "model_name": "sim-fast",
            "inputs": [tensor(name=name, datatype=kind, shape=[1]) for name, kind, _ in inputs],
            "raw_input_contents": [raw for _, _, raw in inputs],
            **changes,
        }
    )
    if final:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def _bytes(value: Any) -> bytes:
    data = (value if isinstance(value, str) else json.dumps(value)).encode()
    return struct.pack("<I", len(data)) + data


def text_of(response: Any) -> str:
    (raw,) = response.raw_output_contents
    assert struct.unpack("<I", raw[:4]) == (len(raw) - 4,)
    return str(raw[4:].decode())


def infer_all(channel: grpc.Channel, *requests: Any) -> list[Any]:
    return list(GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests), timeout=DEADLINE_S))


def test_vllm_stream(channel: grpc.Channel) -> None:
    messages = list(generate(channel))
    assert [message.WhichOneof("response") for message in messages] == ["chunk"] * 4 + ["complete"]
    chunks, complete = [message.chunk for message in messages[:-1]], messages[-1].complete
    prompt_tokens = reference_tokenizer().count(HELLO)
    # The two traps of the real one: counts are per chunk, and the last token comes twice.
    assert [(len(chunk.token_ids), chunk.completion_tokens) for chunk in chunks] == [(1, 1)] * 4
    assert {chunk.prompt_tokens for chunk in chunks} == {prompt_tokens}
    assert list(complete.output_ids) == list(chunks[-1].token_ids)
    assert (complete.completion_tokens, complete.finish_reason) == (1, "length")
    text = reference_tokenizer().decode([token for chunk in chunks for token in chunk.token_ids])
    assert reference_tokenizer().count(text) == 4


def test_vllm_without_streaming_is_one_message(channel: grpc.Channel) -> None:
    (message,) = generate(channel, stream=False, tokenized=vllm.TokenizedInput(input_ids=[10, 20, 30]))
    complete = message.complete
    assert (len(complete.output_ids), complete.completion_tokens, complete.prompt_tokens) == (4, 4, 3)


def test_vllm_several_on_one_channel_and_the_ground_truth(
    engine: EmbeddedEngine, channel: grpc.Channel
) -> None:
    begun_ns = time.monotonic_ns()
    calls = [
        generate(channel, request_id=f"several-{tokens}", sampling={"max_tokens": tokens})
        for tokens in (5, 6, 7)
    ]
    assert [len(list(call)) for call in calls] == [6, 7, 8]
    ended_ns = time.monotonic_ns()
    for tokens in (5, 6, 7):
        truth = truth_of(engine, f"several-{tokens}")
        assert (truth.output_tokens, truth.finish_reason, truth.aborted) == (tokens, "length", False)
        assert in_order(begun_ns, truth, ended_ns)


def test_vllm_cancelling_frees_the_slot(engine: EmbeddedEngine, channel: grpc.Channel) -> None:
    call = generate(channel, request_id="grpc-gone", sampling={"max_tokens": 1900})
    next(call)
    assert call.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is CODE.CANCELLED
    wait_for(lambda: any(truth.request_id == "grpc-gone" for truth in engine.ground_truth()))
    truth = truth_of(engine, "grpc-gone")
    assert truth.aborted
    assert truth.output_tokens < 1900
    (load,) = VllmEngineStub(channel).GetLoads(vllm.GetLoadsRequest(), timeout=DEADLINE_S).loads
    assert (load.num_running_reqs, load.num_total_reqs) == (0, 0)


def test_vllm_abort_ends_the_stream(engine: EmbeddedEngine, channel: grpc.Channel) -> None:
    call = generate(channel, request_id="grpc-abort", sampling={"max_tokens": 1900})
    next(call)
    request = vllm.AbortRequest(request_ids=["grpc-abort", "unknown"])
    VllmEngineStub(channel).Abort(request, timeout=DEADLINE_S)
    *_, last = list(call)
    assert last.complete.finish_reason == "abort"
    wait_for(lambda: any(truth.request_id == "grpc-abort" for truth in engine.ground_truth()))
    assert truth_of(engine, "grpc-abort").aborted


def test_vllm_cuts_max_tokens_to_the_context(channel: grpc.Channel) -> None:
    ids = list(range(1990))
    messages = list(
        generate(channel, tokenized=vllm.TokenizedInput(input_ids=ids), sampling={"max_tokens": 5000})
    )
    assert sum(len(message.chunk.token_ids) for message in messages) == 10


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokenized": vllm.TokenizedInput(input_ids=range(2000))}, "maximum context length is 2000"),
        ({"tokenized": vllm.TokenizedInput(input_ids=[])}, "the prompt is empty"),
        ({"tokenized": vllm.TokenizedInput(input_ids=[200_000])}, "input_ids must be below"),
        ({"text": None}, "neither text nor tokenized"),
        ({"sampling": {"max_tokens": 0}}, "max_tokens must be at least 1"),
        ({"sampling": {"n": 2}}, "one output"),
        ({"sampling": {"temperature": -1.0}}, "temperature must be non-negative"),
        ({"sampling": {"max_tokens": 2, "min_tokens": 3}}, "min_tokens must be at most"),
    ],
)
def test_vllm_bad_requests(channel: grpc.Channel, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(generate(channel, **fields))
    assert caught.value.code() is CODE.INVALID_ARGUMENT
    assert words in caught.value.details()


def test_vllm_information(engine: EmbeddedEngine, channel: grpc.Channel) -> None:
    stub = VllmEngineStub(channel)
    assert stub.HealthCheck(vllm.HealthCheckRequest(), timeout=DEADLINE_S).healthy
    model = stub.GetModelInfo(vllm.GetModelInfoRequest(), timeout=DEADLINE_S)
    assert (model.served_model_name, model.max_context_length) == (engine.model, 2000)
    server = stub.GetServerInfo(vllm.GetServerInfoRequest(), timeout=DEADLINE_S)
    assert (server.server_type, server.max_num_seqs) == ("vllm-grpc", engine.config.max_num_seqs)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Embed(vllm.EmbedRequest(), timeout=DEADLINE_S)
    assert caught.value.code() is CODE.UNIMPLEMENTED


def test_kserve_stream(engine: EmbeddedEngine, channel: grpc.Channel) -> None:
    *chunks, final = infer_all(channel, infer(id="kserve-1"))
    assert len(chunks) == 4
    assert all(not chunk.error_message for chunk in chunks)
    assert {(chunk.infer_response.id, chunk.infer_response.model_name) for chunk in chunks} == {
        ("kserve-1", engine.model)
    }
    flags = [each.infer_response.parameters["triton_final_response"].bool_param for each in [*chunks, final]]
    assert flags == [False] * 4 + [True]
    assert not final.infer_response.outputs
    text = "".join(text_of(chunk.infer_response) for chunk in chunks)
    assert reference_tokenizer().count(text) == 4
    truth = truth_of(engine, "kserve-1")
    assert (truth.output_tokens, truth.finish_reason) == (4, "length")
    assert truth.prompt_tokens == reference_tokenizer().count(HELLO)


def test_kserve_requests_of_one_stream_interleave(channel: grpc.Channel) -> None:
    lengths = {"a": 30, "b": 40, "c": 20}
    requests = [infer(id=name, parameters={"max_tokens": size}) for name, size in lengths.items()]
    names = [message.infer_response.id for message in infer_all(channel, *requests)]
    assert {name: names.count(name) - 1 for name in lengths} == lengths
    assert names != sorted(names)


def test_kserve_without_streaming(channel: grpc.Channel) -> None:
    (message,) = infer_all(channel, infer(final=False, streams=False))
    assert reference_tokenizer().count(text_of(message.infer_response)) == 4
    response = GRPCInferenceServiceStub(channel).ModelInfer(infer(), timeout=DEADLINE_S)
    assert reference_tokenizer().count(text_of(response)) == 4


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (infer(model_name="other"), CODE.NOT_FOUND, "the model 'other' does not exist"),
        (infer("sea " * 3000), CODE.INVALID_ARGUMENT, "maximum context length is 2000"),
        (infer(None), CODE.INVALID_ARGUMENT, "text_input is missing"),
        (infer(parameters={"max_tokens": "x"}), CODE.INVALID_ARGUMENT, "max_tokens must be"),
        (infer(parameters=[]), CODE.INVALID_ARGUMENT, "JSON object"),
    ],
)
def test_kserve_errors(channel: grpc.Channel, request_: Any, code: grpc.StatusCode, words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        GRPCInferenceServiceStub(channel).ModelInfer(request_, timeout=DEADLINE_S)
    assert caught.value.code() is code
    assert words in caught.value.details()
    request_.id = "wrong"
    messages = infer_all(channel, request_, infer(id="right"))
    errors = [
        (each.infer_response.id, words in each.error_message) for each in messages if each.error_message
    ]
    assert errors == [("wrong", True)]
    assert [each.infer_response.id for each in messages].count("right") == 5


def test_kserve_cancelling_aborts_all(engine: EmbeddedEngine, channel: grpc.Channel) -> None:
    requests = [infer(id=f"kserve-gone-{n}", parameters={"max_tokens": 1900}) for n in range(2)]
    call = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests), timeout=DEADLINE_S)
    next(call)
    wait_for(lambda: engine.status()["running"] == 2)  # the second is read after the first
    call.cancel()
    with pytest.raises(grpc.RpcError):
        list(call)
    wait_for(lambda: engine.status()["running"] == 0)
    gone = [truth for truth in engine.ground_truth() if truth.request_id.startswith("kserve-gone-")]
    assert [truth.aborted for truth in gone] == [True, True]


def test_kserve_information(engine: EmbeddedEngine, channel: grpc.Channel) -> None:
    stub = GRPCInferenceServiceStub(channel)
    assert stub.ServerLive(kserve.ServerLiveRequest(), timeout=DEADLINE_S).live
    assert stub.ServerReady(kserve.ServerReadyRequest(), timeout=DEADLINE_S).ready
    assert stub.ModelReady(kserve.ModelReadyRequest(name=engine.model), timeout=DEADLINE_S).ready
    assert not stub.ModelReady(kserve.ModelReadyRequest(name="other"), timeout=DEADLINE_S).ready
    metadata = stub.ModelMetadata(kserve.ModelMetadataRequest(name=engine.model), timeout=DEADLINE_S)
    assert [output.name for output in metadata.outputs] == ["text_output"]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("http_error", CODE.INTERNAL),
        ("http_error&fault_status=504", CODE.DEADLINE_EXCEEDED),
        ("http_error&fault_status=418", CODE.INVALID_ARGUMENT),
        ("rate_limit", CODE.RESOURCE_EXHAUSTED),
        ("overloaded", CODE.UNAVAILABLE),
        ("in_band_error", CODE.INTERNAL),
        ("reset", CODE.UNAVAILABLE),
        ("crash", CODE.UNAVAILABLE),
        ("stall", CODE.UNIMPLEMENTED),
    ],
)
def test_faults_have_a_status(fault: str, code: grpc.StatusCode) -> None:
    with (
        EmbeddedEngine.start(f"fast?fault={fault}&retry_after_s=2", grpc=True) as engine,
        dial(engine) as channel,
    ):
        chunks = []
        with pytest.raises(grpc.RpcError) as caught:
            chunks.extend(generate(channel, sampling={"max_tokens": 500}))
        assert caught.value.code() is code
        pushback = dict(caught.value.trailing_metadata()).get("grpc-retry-pushback-ms")
        assert pushback == ("2000" if fault in ("rate_limit", "overloaded") else None)


def test_a_truncated_stream_ends_without_complete() -> None:
    scenario = "fast?fault=truncate&fault_after_tokens=3"
    with EmbeddedEngine.start(scenario, grpc=True) as engine, dial(engine) as channel:
        messages = list(generate(channel, sampling={"max_tokens": 500}))
        assert [message.WhichOneof("response") for message in messages] == ["chunk"] * 3


def test_a_fault_in_a_stream_of_kserve_strikes_after_its_tokens() -> None:
    scenario = "fast?fault=in_band_error&fault_after_tokens=3"
    with EmbeddedEngine.start(scenario, grpc=True) as engine, dial(engine) as channel:
        *chunks, failed = infer_all(channel, infer(parameters={"max_tokens": 20}))
    assert len(chunks) == 3
    assert failed.error_message


def test_without_being_asked_there_is_no_grpc() -> None:
    with EmbeddedEngine.start() as engine:
        assert engine.grpc_target is None


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "pytest_llmbench.simulator", "--port", "0", "--grpc-port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 1
    assert f"127.0.0.1:{port}: cannot listen for gRPC" in ended.stderr
    assert "--grpc-port" in ended.stderr


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smg_grpc_proto", None)
    with pytest.raises(SUTError, match=r"pytest-llmbench\[grpc\]") as caught:
        require_grpc()
    assert "smg_grpc_proto" in str(caught.value)


@pytest.mark.parametrize("name", ["vllm-grpc", "kserve-grpc"])
def test_turns_of_a_session_stay_on_one_of_several_replicas(name: str) -> None:
    chat = SessionWorkload("chat", Fixed(4), Fixed(12), Fixed(3))
    plan = LoadPlan("chats", chat, SessionSlots(3), turns_of(chat, 9, 1), seed=1)
    # A session's first turn goes by load: slow steps, so that the turns of all three slots overlap.
    with EmbeddedEngine.start("fast?replicas=3&router=session&step_base_us=20000", grpc=True) as engine:
        target = Target.parse(f"grpc://{engine.grpc_target}")
        with LoadGenerator(target, dialect_at("grpc://h:1", name), model=engine.model) as generator:
            records = generator.run(plan).records
        home = {truth.request_id: truth.replica for truth in engine.ground_truth()}
        with dial(engine) as channel:
            loads = VllmEngineStub(channel).GetLoads(vllm.GetLoadsRequest(), timeout=DEADLINE_S)
    assert records.ok.all()
    homes = {
        (session, home[i]) for session, i in zip(records.session.tolist(), records.request_id, strict=True)
    }
    assert len(homes) == 9
    assert {number for _, number in homes} == {0, 1, 2}
    assert loads.dp_rank_count == 3
    assert [load.dp_rank for load in loads.loads] == [0, 1, 2]
