"""The dialects of gRPC: what is asked, what a message says, and what a whole reply comes to."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smg_grpc_proto.generated import sglang_scheduler_pb2 as sglang
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from tritonclient.grpc import service_pb2 as kserve

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.extras.grpc import OVER_GRPC
from pytest_llmbench.http_client import is_grpc
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import DIALECTS, dialect, dialect_at
from pytest_llmbench.wire.chunk import Chunk, increments
from pytest_llmbench.wire.dialect import CallDialect, EncodeOptions
from pytest_llmbench.wire.reply import Ended, StreamSummary, read_stream
from pytest_llmbench.wire.sse import SSEEvent
from pytest_llmbench.wire.stream import decode

REQUEST = PlannedRequest(4, max_tokens=7, input_tokens=3, text="hello, sea", token_ids=(5, 6, 70_000))
Encoded = Callable[..., Any]


def asked(name: str, kind: Any, **options: Any) -> Any:
    """The message that asks, as a server reads it."""
    spoken = dialect_at("grpc://h:1", name)
    body = spoken.encode(REQUEST, EncodeOptions("small", **options))
    return kind.FromString(spoken.message(body, "run-4"))


def from_vllm(**options: Any) -> Any:
    return asked("vllm-grpc", vllm.GenerateRequest, **options)


def from_sglang(**options: Any) -> Any:
    return asked("sglang-grpc", sglang.GenerateRequest, prompt_form="token_ids", **options)


def from_kserve(**options: Any) -> Any:
    return asked("kserve-grpc", kserve.ModelInferRequest, **options)


def events(messages: Sequence[bytes]) -> list[SSEEvent]:
    return [
        SSEEvent(data.decode("latin-1"), "message", 100 + at, at) for at, data in enumerate(messages, start=1)
    ]


def summary(name: str, *messages: Any, ended: Ended = "eof") -> StreamSummary:
    """What a reply of these messages comes to; the n-th arrived at 100 + n."""
    spoken = dialect_at("grpc://h:1", name)
    chunks = decode(events([message.SerializeToString() for message in messages]), spoken)
    return read_stream(list(increments(chunks) if spoken.accumulates else chunks), ended=ended)


def vllm_chunk(*ids: int, index: int = 0) -> Any:
    told = {"prompt_tokens": 3, "completion_tokens": len(ids), "cached_tokens": 2, "index": index}
    return vllm.GenerateResponse(chunk=vllm.GenerateStreamChunk(token_ids=ids, **told))


def vllm_complete(*ids: int, reason: str = "length", index: int = 0) -> Any:
    told = {"prompt_tokens": 3, "completion_tokens": len(ids), "cached_tokens": 2, "index": index}
    return vllm.GenerateResponse(complete=vllm.GenerateComplete(output_ids=ids, finish_reason=reason, **told))


def sglang_chunk(so_far: int, *ids: int) -> Any:
    chunk = sglang.GenerateStreamChunk(token_ids=ids, prompt_tokens=3, completion_tokens=so_far)
    return sglang.GenerateResponse(request_id="a", chunk=chunk)


def said(text: str | bytes, *, final: bool | None = None, raw: bool = True) -> Any:
    """A response of Triton with this text."""
    data = text.encode() if isinstance(text, str) else text
    response = kserve.ModelInferResponse(model_name="m", id="a")
    output = response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    if raw:
        response.raw_output_contents.append(struct.pack("<I", len(data)) + data)
    else:
        output.contents.bytes_contents.append(data)
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
    return kserve.ModelStreamInferResponse(infer_response=response)


def final() -> Any:
    response = kserve.ModelInferResponse(model_name="m", id="a")
    response.parameters["triton_final_response"].bool_param = True
    return kserve.ModelStreamInferResponse(infer_response=response)


# ---------------------------------------------------------------------------------------- requests


def test_a_request_to_vllm() -> None:
    sent = from_vllm(ignore_eos=True)
    assert (sent.request_id, sent.text, sent.stream) == ("run-4", "hello, sea", True)
    sampling = sent.sampling_params
    assert (sampling.max_tokens, sampling.temperature, sampling.ignore_eos) == (7, 0.0, True)
    assert sampling.HasField("temperature")  # else vLLM takes 1
    assert not from_vllm().sampling_params.ignore_eos


def test_a_request_to_vllm_by_token_ids() -> None:
    sent = from_vllm(prompt_form="token_ids")
    assert sent.WhichOneof("input") == "tokenized"
    assert list(sent.tokenized.input_ids) == [5, 6, 70_000]


def test_a_request_to_sglang_states_what_must_not_be_zero() -> None:
    sent = from_sglang(ignore_eos=True)
    assert (sent.request_id, sent.stream, list(sent.tokenized.input_ids)) == ("run-4", True, [5, 6, 70_000])
    sampling = sent.sampling_params
    assert (sampling.max_new_tokens, sampling.temperature, sampling.ignore_eos) == (7, 0.0, True)
    assert (sampling.top_p, sampling.top_k, sampling.repetition_penalty, sampling.n) == (1.0, -1, 1.0, 1)


def test_sglang_takes_no_text() -> None:
    with pytest.raises(SuiteError, match=r'(?s)takes token ids, not text.*prompt = "token_ids"'):
        dialect_at("grpc://h:1", "sglang-grpc").encode(REQUEST, EncodeOptions("small"))


def test_a_request_to_kserve() -> None:
    sent = from_kserve(ignore_eos=True, extra_body={"min_tokens": 2, "seed": None})
    assert (sent.model_name, sent.id) == ("small", "run-4")
    assert sent.parameters["triton_enable_empty_final_response"].bool_param
    raw = {tensor.name: data for tensor, data in zip(sent.inputs, sent.raw_input_contents, strict=True)}
    kinds = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in sent.inputs}
    assert kinds == {
        "text_input": ("BYTES", [1]), "stream": ("BOOL", [1]), "sampling_parameters": ("BYTES", [1])
    }  # fmt: skip
    assert raw["text_input"] == b"\x0a\0\0\0hello, sea"
    assert raw["stream"] == b"\x01"
    sampling = raw["sampling_parameters"]
    assert struct.unpack("<I", sampling[:4]) == (len(sampling) - 4,)
    assert json.loads(sampling[4:]) == {
        "max_tokens": 7, "temperature": 0.0, "ignore_eos": True, "min_tokens": 2
    }  # fmt: skip


def test_kserve_takes_no_token_ids() -> None:
    with pytest.raises(GeneratorError, match="takes text, not token ids"):
        from_kserve(prompt_form="token_ids")


@pytest.mark.parametrize("sent", [from_vllm, from_sglang])
def test_further_fields_go_where_the_proto_has_them(sent: Encoded) -> None:
    fields = {
        "top_k": 4, "stop": ["x", "y"], "logit_bias": {"7": -1.5}, "data_parallel_rank": 1, "stream": True,
        "min_p": None, "sampling_params": {"frequency_penalty": 0.5},
    }  # fmt: skip
    request = sent(extra_body=fields)
    sampling = request.sampling_params
    assert (sampling.top_k, list(sampling.stop)) == (4, ["x", "y"])
    assert {str(token): bias for token, bias in sampling.logit_bias.items()} == {"7": -1.5}
    assert (request.data_parallel_rank, sampling.frequency_penalty, sampling.min_p) == (1, 0.5, 0.0)


def test_min_tokens_has_another_name_at_sglang() -> None:
    assert from_vllm(extra_body={"min_tokens": 3}).sampling_params.min_tokens == 3
    assert from_sglang(extra_body={"min_new_tokens": 3}).sampling_params.min_new_tokens == 3
    with pytest.raises(SuiteError, match="sglang-grpc has no field min_tokens"):
        from_sglang(extra_body={"min_tokens": 3})


def test_fields_that_the_proto_has_not_are_refused_all_at_once() -> None:
    wrong = {"stream_options": {"include_usage": True}, "top_k": "many", "request_id": "mine", "seed": 5}
    with pytest.raises(SuiteError) as caught:
        from_vllm(extra_body=wrong)
    told = str(caught.value)
    assert "vllm-grpc has no field stream_options" in told
    assert "vllm-grpc cannot send top_k" in told
    assert "vllm-grpc has no field request_id" in told
    assert "seed" not in told
    assert "vllm.grpc.engine.SamplingParams" in told


@pytest.mark.parametrize("sent", [from_vllm, from_sglang, from_kserve])
def test_streaming_cannot_be_switched_off(sent: Encoded) -> None:
    with pytest.raises(SuiteError, match="stream to false"):
        sent(extra_body={"stream": False})


@pytest.mark.parametrize("name", ["vllm-grpc", "kserve-grpc"])
def test_a_prompt_that_is_no_utf8(name: str) -> None:
    broken = PlannedRequest(9, max_tokens=1, input_tokens=1, text="a\ud800")
    with pytest.raises(GeneratorError, match=r"request 9: the prompt cannot be sent as UTF-8"):
        dialect_at("grpc://h:1", name).encode(broken, EncodeOptions("small"))


# ----------------------------------------------------------------------------------------- replies


def test_a_reply_of_vllm_has_the_tokens_of_its_chunks() -> None:
    """``complete`` repeats the last one, and ``completion_tokens`` counts a chunk alone."""
    told = summary("vllm-grpc", vllm_chunk(5), vllm_chunk(6, 7), vllm_chunk(8), vllm_complete(8))
    assert (told.outcome, told.finish_reason) == (Outcome.OK, "length")
    assert (told.output_tokens, told.token_source) == (4, TokenSource.CHUNK_USAGE)
    assert (told.chunk_ns, told.chunk_tokens, told.attribution) == ([101, 102, 103], [1, 2, 1], "exact")
    assert (told.input_tokens, told.cached_tokens) == (3, 2)
    assert (told.text, told.reasoning) == ("", "")


def test_the_first_token_is_in_the_first_message_with_one() -> None:
    """Appendix B.1. A message without a token is none, though it is the first event."""
    told = summary("vllm-grpc", vllm_chunk(), vllm_chunk(5), vllm_chunk(6), vllm_complete(6))
    assert (told.first_event_ns, told.first_content_ns, told.first_nonempty_ns) == (101, 102, 102)
    assert (told.last_content_ns, told.output_tokens) == (103, 2)


def test_several_outputs_of_one_request() -> None:
    messages = [
        vllm_chunk(5), vllm_chunk(6, index=1), vllm_chunk(7), vllm_complete(7, reason="stop"),
        vllm_chunk(8, index=1), vllm_complete(8, index=1),
    ]  # fmt: skip
    told = summary("vllm-grpc", *messages)
    assert (told.outcome, told.output_tokens, told.chunk_ns) == (Outcome.OK, 4, [101, 102, 103, 105])
    assert summary("vllm-grpc", *messages[:-1]).outcome is Outcome.TRUNCATED
    aborted = summary("vllm-grpc", *messages[:-1], vllm_complete(8, index=1, reason="abort"))
    assert aborted.outcome is Outcome.IN_BAND_ERROR


def test_a_reply_of_vllm_that_does_not_end_well() -> None:
    aborted = summary("vllm-grpc", vllm_chunk(5), vllm_complete(5, reason="abort"))
    assert (aborted.outcome, aborted.finish_reason) == (Outcome.IN_BAND_ERROR, "abort")
    assert summary("vllm-grpc", vllm_chunk(5)).outcome is Outcome.TRUNCATED
    cut = summary("vllm-grpc", vllm_chunk(5), ended="cut")
    assert (cut.outcome, cut.output_tokens, cut.input_tokens) == (Outcome.DISCONNECTED, 1, 3)


def test_a_reply_in_one_piece_is_no_stream() -> None:
    """Its tokens have no instants, and the last message of a stream looks the same."""
    told = summary("vllm-grpc", vllm_complete(5, 6, 7, reason="stop"))
    assert (told.outcome, told.output_tokens, told.chunk_ns) == (Outcome.EMPTY, None, [])


def test_a_reply_of_sglang_counts_all_so_far_and_its_thoughts() -> None:
    end = sglang.GenerateComplete(
        output_ids=[7, 8], finish_reason="stop", prompt_tokens=3, completion_tokens=4, cached_tokens=1,
        reasoning_tokens=2,
    )  # fmt: skip
    last = sglang.GenerateResponse(request_id="a", complete=end)
    told = summary("sglang-grpc", sglang_chunk(1, 5), sglang_chunk(2, 6), sglang_chunk(4, 7, 8), last)
    assert (told.outcome, told.output_tokens, told.attribution) == (Outcome.OK, 4, "exact")
    assert (told.chunk_ns, told.chunk_tokens) == ([101, 102, 103], [1, 1, 2])
    assert (told.first_content_ns, told.input_tokens, told.cached_tokens) == (101, 3, 1)
    assert (told.reasoning_tokens, told.reasoning_token_source) == (2, TokenSource.SERVER_USAGE)


def test_a_reply_of_kserve_ends_with_its_final_response_and_the_call() -> None:
    told = summary("kserve-grpc", said(" \n", final=False), said("hey ", final=False), said("you"), final())
    assert (told.outcome, told.text) == (Outcome.OK, " \nhey you")
    assert (told.first_nonempty_ns, told.first_content_ns, told.last_content_ns) == (101, 102, 103)
    assert (told.output_tokens, told.token_source) == (3, TokenSource.CHUNK_COUNT)
    lost = summary("kserve-grpc", said("hey", final=True), ended="cut")
    assert (lost.outcome, lost.text) == (Outcome.DISCONNECTED, "hey")  # a call without a status


def test_a_reply_of_kserve_without_a_final_response_ends_with_the_call() -> None:
    assert summary("kserve-grpc", said("hey"), said(" you")).outcome is Outcome.OK
    assert summary("kserve-grpc", said("hey"), ended="cut").outcome is Outcome.DISCONNECTED


def test_a_backend_that_repeats_all_so_far() -> None:
    told = summary("kserve-grpc", said("hey"), said("hey you"), said("hey you all"), final())
    assert told.text == "hey you all"


def test_typed_contents_and_other_outputs() -> None:
    response = said("hey", raw=False)
    assert summary("kserve-grpc", response, final()).text == "hey"
    two = kserve.ModelInferResponse()
    for name, data in (("score", b"\0\0\0\0"), ("text_output", b"\x01\0\0\0a\x02\0\0\0bc")):
        two.outputs.add(name=name)
        two.raw_output_contents.append(data)
    assert summary("kserve-grpc", kserve.ModelStreamInferResponse(infer_response=two), final()).text == "abc"


def test_an_error_of_kserve_is_one_within_the_stream() -> None:
    error = kserve.ModelStreamInferResponse(error_message="out of memory")
    told = summary("kserve-grpc", said("hey"), error)
    assert (told.outcome, told.error) == (Outcome.IN_BAND_ERROR, "out of memory")
    policy = kserve.ModelStreamInferResponse(error_message="blocked by a guardrail")
    assert summary("kserve-grpc", policy).outcome is Outcome.REFUSED


def raw_output(data: bytes, name: str = "text_output") -> bytes:
    response = kserve.ModelInferResponse(raw_output_contents=[data])
    response.outputs.add(name=name)
    return bytes(kserve.ModelStreamInferResponse(infer_response=response).SerializeToString())


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("vllm-grpc", b"", "neither a chunk nor the end"),
        ("vllm-grpc", b"\xff\xff", "not a GenerateResponse"),
        ("vllm-grpc", b"\x9a\x01\x00", "neither a chunk nor the end"),  # a field that nobody knows
        ("sglang-grpc", b"\x0a\x01\xff", "not a GenerateResponse"),  # an id that is no UTF-8
        ("kserve-grpc", b"{}", "not a ModelStreamInferResponse"),
        ("kserve-grpc", raw_output(b"\x05\0\0\0hey"), "text_output that is shorter than it says"),
        ("kserve-grpc", raw_output(b"hey"), "text_output whose elements have no lengths"),
        ("kserve-grpc", raw_output(b"\x01\0\0\0\xff"), "text_output that is not UTF-8"),
        ("kserve-grpc", raw_output(b"\x01\0\0\0a", "logits"), "without text_output: logits"),
    ],
)
def test_a_message_that_cannot_be_read_is_a_problem(name: str, data: bytes, problem: str) -> None:
    (event,) = events([data])
    chunk = dialect_at("grpc://h:1", name).decode(event)
    assert problem in chunk.problem
    assert read_stream([chunk]).outcome is Outcome.UNDECODABLE


@pytest.mark.parametrize("name", OVER_GRPC)
def test_what_the_transport_could_not_read(name: str) -> None:
    spoken = dialect_at("grpc://h:1", name)
    compressed = SSEEvent("", "message", 7, 2, problem="a compressed message")
    assert spoken.decode(compressed) == Chunk(7, 2, problem="a compressed message")
    cut = SSEEvent("\x0a", "message", 7, 2, terminated=False, problem="a message that was cut off")
    assert spoken.decode(cut) == Chunk(7, 2)  # the reply is truncated, which its end says
    assert spoken.decode(SSEEvent("\u0100", "message", 7, 2)).problem


MESSAGES = {
    "vllm-grpc": [vllm_chunk(5, 70_000), vllm_complete(7)],
    "sglang-grpc": [
        sglang_chunk(2, 5, 70_000),
        sglang.GenerateResponse(complete=sglang.GenerateComplete(output_ids=[7], finish_reason="stop")),
    ],
    "kserve-grpc": [said("hey", final=False), said("hey", raw=False), final()],
}


@pytest.mark.parametrize("name", OVER_GRPC)
def test_one_odd_byte_anywhere_is_no_crash(name: str) -> None:
    spoken, seen = dialect_at("grpc://h:1", name), 0
    for whole in (message.SerializeToString() for message in MESSAGES[name]):
        cut = [whole[:length] for length in range(len(whole))]
        odd = [
            whole[:at] + bytes([byte]) + whole[at + 1 :] for at in range(len(whole)) for byte in range(256)
        ]
        for event in events([*cut, *odd]):
            chunk = spoken.decode(event)
            assert isinstance(chunk.text, str)
            assert chunk.finish_reason is None or isinstance(chunk.finish_reason, str)
            read_stream([chunk])
            seen += 1
    assert seen > 2_000


@settings(max_examples=100)
@given(st.sampled_from(OVER_GRPC), st.binary(max_size=80))
def test_any_bytes_are_no_crash(name: str, data: bytes) -> None:
    (event,) = events([data])
    read_stream([dialect_at("grpc://h:1", name).decode(event)])


# --------------------------------------------------------------------------------------- catalogue


def test_dialects_by_name() -> None:
    assert OVER_GRPC == ("vllm-grpc", "sglang-grpc", "kserve-grpc")
    for name in OVER_GRPC:
        spoken = dialect_at("grpc://h:1", name)
        assert isinstance(spoken, CallDialect)
        assert (spoken.name, spoken.protocol, spoken.rooted) == (name, "grpc", True)
        assert dialect_at("grpc://h:1", name) is spoken
        assert name not in DIALECTS
    assert dialect_at("grpc://h:1", "auto") is dialect_at("grpc://h:1", "vllm-grpc")
    assert dialect_at("http://h/v1", "chat") is dialect("chat")
    assert dialect_at("wss://h/v1", "auto") is dialect_at("ws://h", "auto")


def test_the_port_and_the_dialect_have_to_fit() -> None:
    for url in ("http://h", "ws://h"):
        with pytest.raises(SuiteError, match=r"(?s)vllm-grpc is spoken over gRPC alone.*grpc://host:port"):
            dialect_at(url, "vllm-grpc")
    with pytest.raises(SuiteError, match=r"(?s)openai-chat is not spoken over gRPC.*vllm-grpc, sglang-grpc"):
        dialect_at("grpcs://h:1", "openai-chat")


def test_urls() -> None:
    assert [is_grpc(url) for url in ("grpc://h:1", " grpcs://h", "http://grpc", "sim", "")] == [
        True, True, False, False, False
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "package"),
    [("vllm-grpc", "smg_grpc_proto"), ("kserve-grpc", "tritonclient"), ("sglang-grpc", "h2")],
)
def test_without_the_packages_the_extra_is_named(name: str, package: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.wire.catalogue import dialect_at
try:
    dialect_at("grpc://h:1", {name!r})
except SuiteError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"needs a package that is not installed: {package}" in run.stdout
    assert 'pip install "pytest-llmbench[grpc]"' in run.stdout
