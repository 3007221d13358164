"""Preflight of gRPC servers: what they say of themselves, the small reply, and all that can be wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest
import trustme
from scripted_server import ScriptedServer, plain, reply
from smg_grpc_proto.generated import sglang_scheduler_pb2 as sglang
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from tritonclient.grpc import service_pb2 as kserve

from pytest_llmbench.errors import NotReadyError, SuiteError, SUTError
from pytest_llmbench.probes.access import Access, Credentials, RequestForm
from pytest_llmbench.probes.endpoint import examine, refuse_while_loading
from pytest_llmbench.probes.token_count import ServerTokenCount
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

CANARY = "sk-canary-0123456789"
KEY = Credentials(
    {"Authorization": f"Bearer {CANARY}"}, frozenset({CANARY}), "environment variable LLM_API_KEY"
)
HASTY = Access(connect_s=0.5, answer_s=0.5)
VLLM, SGLANG, KSERVE = (
    "/vllm.grpc.engine.VllmEngine/", "/sglang.grpc.scheduler.SglangScheduler/",
    "/inference.GRPCInferenceService/",
)  # fmt: skip
CODE = grpc.StatusCode
Answers = Callable[[bytes, Any], Iterator[Any]]
"""What a method does with a request and its context."""
Serve = Callable[..., str]


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio has no types
    def __init__(self, methods: Mapping[str, Answers]) -> None:
        self._methods = methods

    def service(self, details: Any) -> Any:
        answers = self._methods.get(details.method)
        if answers is None:
            return None

        def answer(request: bytes, context: Any) -> Iterator[bytes]:
            for message in answers(request, context):
                yield message if isinstance(message, bytes) else message.SerializeToString()

        return grpc.unary_stream_rpc_method_handler(answer)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves methods by their paths; the URL of the server."""
    servers: list[Any] = []

    def start(methods: Mapping[str, Answers], tls: Any = None) -> str:
        server = grpc.server(ThreadPoolExecutor(2), handlers=(_Methods(methods),))
        servers.append(server)
        port = server.add_secure_port("127.0.0.1:0", tls) if tls else server.add_insecure_port("127.0.0.1:0")
        server.start()
        return f"{'grpcs' if tls else 'grpc'}://127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast?context_limit_tokens=2000", grpc=True) as engine:
        yield engine


def saying(*messages: Any) -> Answers:
    return lambda _, __: iter(messages)


def failing(code: Any, said: str) -> Answers:
    def fail(_: bytes, context: Any) -> Iterator[Any]:
        context.abort(code, said)
        yield b""

    return fail


def vllm_reply(*ids: int, reason: str = "length") -> list[Any]:
    chunks = [
        vllm.GenerateResponse(chunk=vllm.GenerateStreamChunk(token_ids=[each], prompt_tokens=1))
        for each in ids
    ]
    end = vllm.GenerateComplete(output_ids=ids[-1:], finish_reason=reason, prompt_tokens=1)
    return [*chunks, vllm.GenerateResponse(complete=end)]


def a_vllm(**changes: Answers) -> dict[str, Answers]:
    methods = {
        "GetModelInfo": saying(
            vllm.GetModelInfoResponse(model_path="/models/small", served_model_name="org/small")
        ),
        "Generate": saying(*vllm_reply(5, 6)),
        **changes,
    }
    return {VLLM + name: answers for name, answers in methods.items()}


def url_of(engine: EmbeddedEngine) -> str:
    return f"grpc://{engine.grpc_target}"


# ------------------------------------------------------------------------- the engines, one by one


def test_the_embedded_engine_as_vllm(engine: EmbeddedEngine) -> None:
    report = examine(url_of(engine), asking=RequestForm(ignore_eos=True, extra_body={"min_tokens": 2}))
    assert (report.base_url, report.model, report.models) == (url_of(engine), "sim-fast", ("sim-fast",))
    assert (report.api, report.counts_tokens, report.proxy) == ("vllm-grpc", True, None)
    told = {key: fact.value for key, fact in report.facts.items()}
    assert told["streaming.protocol"] == "grpc"
    assert told["endpoint.url"] == url_of(engine)
    assert told["endpoint.models"] == ["sim-fast"]
    assert (told["sut.software.engine"], told["sut.context_limit_tokens"]) == ("vLLM", 2000)
    assert told["sut.software.version"]
    version = report.facts["sut.software.version"]
    assert version.source == f"{url_of(engine)}{VLLM}GetModelInfo"


def test_the_embedded_engine_as_kserve(engine: EmbeddedEngine) -> None:
    report = examine(url_of(engine), api="kserve-grpc")
    assert (report.model, report.api, report.counts_tokens) == ("sim-fast", "kserve-grpc", False)
    with pytest.raises(SUTError, match=r"(?s)no model 'sim-fat'.*did you mean sim-fast"):
        examine(url_of(engine), api="kserve-grpc", model="sim-fat")


def test_prompts_as_token_ids(engine: EmbeddedEngine) -> None:
    assert examine(url_of(engine), asking=RequestForm("token_ids")).api == "vllm-grpc"


def test_vllm_itself_tells_its_version_and_no_type(serve: Serve) -> None:
    info, loads = vllm.GetServerInfoResponse(max_num_seqs=8), vllm.GetLoadsResponse(version="0.32.0")
    facts = examine(serve(a_vllm(GetServerInfo=saying(info), GetLoads=saying(loads)))).facts
    assert (facts.value("sut.software.engine"), facts.value("sut.software.version")) == ("vLLM", "0.32.0")


def test_vllm_without_the_methods_that_came_later(serve: Serve) -> None:
    heard: list[tuple[bytes, dict[str, str]]] = []

    def generate(request: bytes, context: Any) -> Iterator[Any]:
        heard.append((request, dict(context.invocation_metadata())))
        yield from vllm_reply(5, 6)

    report = examine(serve(a_vllm(Generate=generate)), access=Access(KEY))
    assert (report.model, report.models) == ("org/small", ("org/small",))
    assert "sut.software.engine" not in report.facts
    assert "sut.software.version" not in report.facts
    assert "sut.context_limit_tokens" not in report.facts
    assert report.facts.value("endpoint.models") == ["org/small", "/models/small"]
    ((request, metadata),) = heard
    sent = vllm.GenerateRequest.FromString(request)
    assert UUID(sent.request_id).version == 4
    assert (sent.sampling_params.max_tokens, sent.stream) == (4, True)
    assert metadata["authorization"] == f"Bearer {CANARY}"


def test_the_path_of_a_model_is_a_name_of_it(serve: Serve) -> None:
    assert examine(serve(a_vllm()), model="/models/small").model == "/models/small"
    with pytest.raises(SUTError, match=r"(?s)no model 'tiny'.*it serves org/small"):
        examine(serve(a_vllm()), model="tiny")


def test_an_sglang(serve: Serve) -> None:
    heard: list[bytes] = []

    def generate(request: bytes, _: Any) -> Iterator[Any]:
        heard.append(request)
        yield sglang.GenerateResponse(chunk=sglang.GenerateStreamChunk(token_ids=[5], completion_tokens=1))
        yield sglang.GenerateResponse(complete=sglang.GenerateComplete(output_ids=[5], finish_reason="stop"))

    info = sglang.GetModelInfoResponse(served_model_name="small", max_context_length=4096)
    url = serve(
        {
            f"{SGLANG}GetModelInfo": saying(info),
            f"{SGLANG}GetServerInfo": saying(sglang.GetServerInfoResponse(sglang_version="0.5.9")),
            f"{SGLANG}Generate": generate,
        }
    )
    report = examine(url, asking=RequestForm("token_ids"))
    assert (report.api, report.model, report.counts_tokens) == ("sglang-grpc", "small", True)
    assert report.facts.value("sut.software.engine") == "SGLang"
    assert report.facts.value("sut.software.version") == "0.5.9"
    assert report.facts.value("sut.context_limit_tokens") == 4096
    assert list(sglang.GenerateRequest.FromString(heard[0]).tokenized.input_ids) == [300]
    with pytest.raises(SuiteError, match=r"(?s)sglang-grpc takes token ids.*request.prompt"):
        examine(url)


def a_triton(*names: str, metadata: Answers, **changes: Answers) -> dict[str, Answers]:
    models = [kserve.RepositoryIndexResponse.ModelIndex(name=name, state="READY") for name in names]
    methods = {
        "ServerLive": saying(kserve.ServerLiveResponse(live=True)),
        "ServerMetadata": saying(kserve.ServerMetadataResponse(name="triton", version="2.60.0")),
        "RepositoryIndex": saying(kserve.RepositoryIndexResponse(models=models)),
        "ModelMetadata": metadata,
        **changes,
    }
    return {KSERVE + name: answers for name, answers in methods.items()}


def metadata_of(
    inputs: tuple[str, ...] = ("text_input",), outputs: tuple[str, ...] = ("text_output",)
) -> Answers:
    tensor = kserve.ModelMetadataResponse.TensorMetadata

    def tell(request: bytes, context: Any) -> Iterator[Any]:
        name = kserve.ModelMetadataRequest.FromString(request).name
        if name not in ("llm", "encoder"):
            context.abort(CODE.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        yield kserve.ModelMetadataResponse(
            name=name,
            inputs=[tensor(name=each, datatype="BYTES") for each in inputs],
            outputs=[tensor(name=each, datatype="BYTES") for each in outputs],
        )

    return tell


def triton_reply(text: str = "hey") -> Answers:
    response = kserve.ModelInferResponse(model_name="llm")
    output = response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    output.contents.bytes_contents.append(text.encode())
    return saying(kserve.ModelStreamInferResponse(infer_response=response))


def test_a_triton(serve: Serve) -> None:
    url = serve(a_triton("llm", metadata=metadata_of(), ModelStreamInfer=triton_reply()))
    report = examine(url)
    assert (report.api, report.model, report.models) == ("kserve-grpc", "llm", ("llm",))
    assert report.facts.value("sut.software.engine") == "Triton"
    assert report.facts.value("sut.software.version") == "2.60.0"
    with pytest.raises(SUTError, match=r"(?s)no model 'lln': Request for unknown model.*did you mean llm"):
        examine(url, model="lln")


def test_a_triton_with_several_models(serve: Serve) -> None:
    url = serve(a_triton("encoder", "llm", metadata=metadata_of(), ModelStreamInfer=triton_reply()))
    with pytest.raises(SUTError, match=r"(?s)serves 2 models: choose one of encoder, llm"):
        examine(url)
    assert examine(url, model="llm").model == "llm"


def test_a_model_without_text(serve: Serve) -> None:
    url = serve(a_triton("llm", metadata=metadata_of(("input_ids",), ("logits",))))
    with pytest.raises(
        SUTError, match=r"llm takes input_ids and gives logits, not text_input and text_output"
    ):
        examine(url, model="llm")


def test_a_server_that_lists_no_model_is_not_ready(serve: Serve) -> None:
    url = serve(a_triton(metadata=metadata_of()))
    with pytest.raises(NotReadyError, match=r"(?s)lists no model.*--llm-model"):
        examine(url)


# ------------------------------------------------------------------------------- what can be wrong


def test_a_server_without_an_api_that_we_know(serve: Serve) -> None:
    with pytest.raises(
        SUTError, match=r"gRPC status 12 UNIMPLEMENTED.*not the API of vllm-grpc, sglang-grpc, kserve-grpc"
    ):
        examine(serve({}))


def test_another_dialect_than_the_one_that_is_spoken(engine: EmbeddedEngine) -> None:
    with pytest.raises(SUTError, match=r"(?s)not the API of sglang-grpc.*it speaks vllm-grpc"):
        examine(url_of(engine), api="sglang-grpc")
    with pytest.raises(SuiteError, match="openai-chat is not spoken over gRPC"):
        examine(url_of(engine), api="openai-chat")


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (CODE.UNAUTHENTICATED, SUTError, "16 UNAUTHENTICATED.*the key from environment variable LLM_API_KEY"),
        (CODE.PERMISSION_DENIED, SUTError, "7 PERMISSION_DENIED"),
        (CODE.UNAVAILABLE, NotReadyError, "14 UNAVAILABLE.*takes no requests now"),
        (CODE.RESOURCE_EXHAUSTED, NotReadyError, "8 RESOURCE_EXHAUSTED"),
        (CODE.INTERNAL, NotReadyError, "13 INTERNAL"),
        (CODE.INVALID_ARGUMENT, SUTError, "3 INVALID_ARGUMENT"),
    ],
)
@pytest.mark.parametrize("method", ["GetModelInfo", "Generate"])
def test_refusals(serve: Serve, method: str, code: Any, kind: type[SUTError], told: str) -> None:
    url = serve(a_vllm(**{method: failing(code, f"nö, {CANARY}")}))
    with pytest.raises(SUTError, match=rf"(?s){told}") as caught:
        examine(url, access=Access(KEY))
    assert type(caught.value) is kind
    assert caught.value.where == f"{url}{VLLM}{method}"
    assert CANARY not in str(caught.value)


def test_an_error_within_the_reply(serve: Serve) -> None:
    def generate(_: bytes, context: Any) -> Iterator[Any]:
        yield vllm_reply(5)[0]
        context.abort(CODE.INTERNAL, "out of memory")

    with pytest.raises(SUTError, match=r"13 INTERNAL \(out of memory\)"):
        examine(serve(a_vllm(Generate=generate)))


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (vllm_reply(reason="stop"), "answers without streaming"),
        (vllm_reply(5, 6)[:-1], "ends without a finish reason"),
        ([], "without a completion in it"),
        ([b"\xff"], "without a completion in it"),
    ],
)
def test_replies_that_cannot_be_measured(serve: Serve, messages: list[Any], told: str) -> None:
    with pytest.raises(SUTError, match=told):
        examine(serve(a_vllm(Generate=saying(*messages))))


def test_a_reply_that_does_not_end(serve: Serve) -> None:
    free = threading.Event()

    def generate(_: bytes, __: Any) -> Iterator[Any]:
        yield vllm_reply(5)[0]
        free.wait(10.0)

    url = serve(a_vllm(Generate=generate))
    try:
        with pytest.raises(SUTError, match="does not end: still open after 1 events, for 4 tokens at most"):
            examine(url, access=HASTY)
    finally:
        free.set()


def test_an_error_of_kserve_comes_within_its_stream(serve: Serve) -> None:
    error = saying(kserve.ModelStreamInferResponse(error_message="unexpected inference input"))
    url = serve(a_triton("llm", metadata=metadata_of(), ModelStreamInfer=error))
    with pytest.raises(SUTError, match="the streamed reply is an error: unexpected inference input"):
        examine(url)


def test_nothing_listens_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"grpc://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(NotReadyError, match=rf"{url}: connection refused"):
        examine(url)


def test_a_server_of_http(engine: EmbeddedEngine) -> None:
    url = engine.url.replace("http://", "grpc://").removesuffix("/v1")
    with pytest.raises(SUTError, match=r"(?s)no gRPC there: .*HTTP/1\.1.*--llm-endpoint=http://127"):
        examine(url)


def test_a_server_that_says_nothing_or_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(NotReadyError, match=r"connected, but no answer within 0\.5 s"):
            examine(url, access=HASTY)
    closing = ScriptedServer(lambda conversation: conversation.close(), read_body=False)
    try:
        with pytest.raises(SUTError, match="no gRPC answer"):
            examine(closing.url.replace("http", "grpc").removesuffix("/v1"), access=HASTY)
    finally:
        closing.stop()


@pytest.mark.parametrize(
    "url", ["grpc://h:1/v1", "grpc://h:1?a=b", "grpc://h", "grpc://:1", "grpc://u:key@h:1", "grpc://[::1"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(SuiteError, match=r"--llm-endpoint|credentials"):
        examine(url)


# --------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def credentials(authority: trustme.CA, *, demanding: bool = False) -> Any:
    issued = authority.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    trusted = authority.cert_pem.bytes() if demanding else None
    return grpc.ssl_server_credentials([(issued.private_key_pem.bytes(), chain)], trusted, demanding)


def test_tls_with_a_custom_authority(serve: Serve, authority: trustme.CA, tmp_path: Path) -> None:
    url = serve(a_vllm(), credentials(authority))
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    report = examine(url, access=Access(ca_file=ca_file))
    assert report.facts.value("endpoint.certificate_checked") is True
    assert examine(url, access=Access(insecure=True)).facts.value("endpoint.certificate_checked") is False
    with pytest.raises(SUTError, match=r"TLS: the server's certificate"):
        examine(url)
    with pytest.raises(SUTError, match=r"(?s)speaks TLS.*write grpcs://127\.0\.0\.1:\d+$"):
        examine(url.replace("grpcs", "grpc"), access=HASTY)


def test_tls_asked_of_a_server_without_it(serve: Serve) -> None:
    url = serve(a_vllm()).replace("grpc:", "grpcs:")
    with pytest.raises(SUTError, match=r"(?s)TLS: the handshake failed"):
        examine(url, access=HASTY)


# ------------------------------------------------------------------------------ readiness, counting


def test_readiness(serve: Serve, engine: EmbeddedEngine) -> None:
    refuse_while_loading(url_of(engine), Access())
    refuse_while_loading(serve({}), Access())  # whoever asks for more says more
    refuse_while_loading("grpc://127.0.0.1:1", HASTY)
    for health in (
        saying(vllm.HealthCheckResponse(healthy=False, message="loading")),
        failing(CODE.UNAVAILABLE, "loading"),
    ):
        with pytest.raises(NotReadyError, match=r"VllmEngine/HealthCheck: its health method says"):
            refuse_while_loading(serve({f"{VLLM}HealthCheck": health}), Access())
    with pytest.raises(NotReadyError, match="ServerReady"):
        refuse_while_loading(serve({f"{KSERVE}ServerReady": saying(kserve.ServerReadyResponse())}), Access())


def test_prompts_are_counted_by_replies_of_one_token(engine: EmbeddedEngine) -> None:
    with ServerTokenCount(url_of(engine), "sim-fast", "vllm-grpc") as count:
        assert count("Hello there") == 2
        assert count.leaves_traces
        assert count.source == f"usage of one-token completions, {url_of(engine)}{VLLM}Generate"
    with (
        ServerTokenCount(url_of(engine), "sim-fast", "kserve-grpc") as count,
        pytest.raises(SUTError, match="does not say how many"),
    ):
        count("Hello")


def test_a_server_in_between_that_is_no_grpc() -> None:
    """Its HTTP/1.1 is told before anything is sent a second time."""
    server = ScriptedServer(reply(plain("502 Bad Gateway")), read_body=False)
    try:
        with pytest.raises(SUTError, match="no gRPC"):
            examine(server.url.replace("http", "grpc").removesuffix("/v1"), access=HASTY)
    finally:
        server.stop()
