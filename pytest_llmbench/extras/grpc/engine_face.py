"""The embedded engine as gRPC services, on a port of their own: token streams of the same engine.

vLLM's ``vllm.grpc.engine.VllmEngine`` is a stream of token ids, with the ways of the real servicer:
``completion_tokens`` of a chunk counts that chunk only, the closing ``complete`` of a stream repeats the ids
of the last chunk, ``max_tokens`` beyond the context is cut without a word, and there is no model name. Token
ids are those of cl100k_base.

KServe's inference protocol v2, as Triton serves a vLLM model, is text in, text out. Inputs: ``text_input``
(BYTES), ``stream`` (BOOL), ``sampling_parameters`` (BYTES, a JSON object with max_tokens, min_tokens,
ignore_eos). Output: ``text_output`` (BYTES), one response per chunk; the one that
``triton_enable_empty_final_response`` asks for has no output and ``triton_final_response`` true. There are no
token counts. Errors of a stream travel in its messages, and the stream goes on.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import grpc
from grpc import aio
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineServicer, add_VllmEngineServicer_to_server
from tritonclient.grpc import service_pb2 as kserve_pb
from tritonclient.grpc.service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.grpc.messages import HTTP_STATUS
from pytest_llmbench.model.request import SESSION_HEADER
from pytest_llmbench.simulator.engine.config import shown
from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.scenario import software_version
from pytest_llmbench.simulator.serving.asgi import BODY_LIMIT_BYTES
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.generation import Generation, Tokenizer
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import ChunkedReply, Face, Reply
from pytest_llmbench.simulator.serving.request_body import VOCABULARY_SIZE, Fields, require_model


class GrpcServer:
    """A running gRPC server beside the HTTP server; made by :meth:`start` on the loop of the engine."""

    def __init__(self, server: aio.Server, port: int) -> None:
        self._server = server  # one that nobody refers to any more stops serving
        self.port = port

    @classmethod
    async def start(
        cls, generation: Generation, driver: EngineDriver, tokenizer: Tokenizer, host: str, port: int
    ) -> GrpcServer:
        """Listen on ``port``; 0 takes a free one. :raises SUTError: the port cannot be listened on."""
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", BODY_LIMIT_BYTES)]
        server = aio.server(options=options)
        add_VllmEngineServicer_to_server(VllmFace(generation, driver, tokenizer), server)
        add_GRPCInferenceServiceServicer_to_server(KServeFace(generation, driver), server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(address)
            await server.start()
        except RuntimeError as error:
            raise SUTError(
                f"cannot listen for gRPC: {error}",
                where=address,
                remedy="choose another --grpc-port (0 takes a free one)",
            ) from error
        return cls(server, bound)


# ruff: noqa: ARG002, N802 - signatures and names are those of the protocol


class VllmFace(VllmEngineServicer):  # type: ignore[misc] # generated code has no types
    """The service: Generate, Abort, HealthCheck, GetModelInfo, GetServerInfo, GetLoads; the other calls are
    UNIMPLEMENTED."""

    def __init__(self, generation: Generation, driver: EngineDriver, tokenizer: Tokenizer) -> None:
        self._generation = generation
        self._driver = driver
        self._tokenizer = tokenizer
        self._calls: dict[str, set[_VllmCall]] = {}
        self._begun_ns = driver.clock()

    async def Generate(self, request: Any, context: Any) -> None:
        received_ns = self._driver.clock()
        call = _VllmCall(context, self._driver, self._tokenizer, stream=request.stream)
        own_id = request.request_id or None
        calls = self._calls.setdefault(request.request_id, set())
        calls.add(call)
        try:
            self._generation.require_up()
            read = _read_vllm(request)
            await self._generation.answer(call, read, received_ns, own_id, session_of(context))
        except RefusalError as refusal:
            await abort_with(context, refusal)
        finally:
            calls.discard(call)
            if not calls:
                self._calls.pop(request.request_id, None)

    async def Abort(self, request: Any, context: Any) -> Any:
        for name in filter(None, request.request_ids):
            for call in self._calls.get(name, ()):
                await call.abort()
        return vllm_pb.AbortResponse()

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        try:
            self._generation.require_up()
        except RefusalError as refusal:
            return vllm_pb.HealthCheckResponse(healthy=False, message=refusal.message)
        return vllm_pb.HealthCheckResponse(healthy=True, message="Healthy")

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        config = self._driver.config
        return vllm_pb.GetModelInfoResponse(
            model_path=config.model,
            served_model_name=config.model,
            is_generation=True,
            max_context_length=config.context_limit_tokens,
            vocab_size=VOCABULARY_SIZE,
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        driver = self._driver
        return vllm_pb.GetServerInfoResponse(
            active_requests=driver.running + driver.waiting,
            uptime_seconds=(driver.clock() - self._begun_ns) / 1e9,
            last_receive_timestamp=time.time(),
            server_type="vllm-grpc",
            data_parallel_size=len(driver.replicas),
            max_num_seqs=driver.config.max_num_seqs,
        )

    async def GetLoads(self, request: Any, context: Any) -> Any:
        loads = [
            vllm_pb.SchedulerLoad(
                dp_rank=replica.number,
                num_running_reqs=engine.running,
                num_waiting_reqs=engine.waiting,
                num_total_reqs=engine.running + engine.waiting,
                token_usage=engine.kv_usage,
                max_running_requests=engine.config.max_num_seqs,
            )
            for replica in self._driver.replicas
            for engine in [replica.engine]
        ]
        now = datetime.now(UTC).isoformat()
        return vllm_pb.GetLoadsResponse(
            timestamp=now, version=software_version(), dp_rank_count=len(loads), loads=loads
        )


class _VllmCall(Face):
    def __init__(self, context: Any, driver: EngineDriver, tokenizer: Tokenizer, *, stream: bool) -> None:
        self._context, self._driver = context, driver
        self.tokenizer, self.stream = tokenizer, stream
        self.outbox = Outbox()
        self._reply: _IdsReply | None = None

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int], /) -> Reply:
        sizes = chunk_tokens if self.stream else None
        self._reply = made = _IdsReply(texts, truth, sizes, self._driver.clock)
        made.call = self
        return made

    async def until_over(self) -> None:
        async for message in self.outbox.messages():
            await self._context.write(message)

    async def abort(self) -> None:
        """End the reply with what there is."""
        if self._reply is not None:
            await self._reply.finish("abort")

    def end(self) -> None:
        self.outbox.end()

    def reset(self) -> None:
        """End the stream alone: its connection is shared with other calls."""
        self.outbox.end(RefusalError(503, "the connection was lost"))


class _IdsReply(ChunkedReply):
    call: _VllmCall
    _ids: Sequence[int] = ()
    """Token ids of the last chunk."""

    async def finish(self, reason: str) -> bool:
        await self._chunk()
        last = self._counted(vllm_pb.GenerateComplete, output_ids=self._ids, finish_reason=reason)
        self.call.outbox.put(vllm_pb.GenerateResponse(complete=last))
        self.call.outbox.end()
        return False

    async def fail(self, message: str) -> None:
        self.call.outbox.end(RefusalError(500, message))

    async def _send_texts(self, texts: list[str]) -> None:
        """Hand tokens to gRPC, which writes them at once if the client reads."""
        self.truth.note_write(self._clock())
        self._ids = [self.call.tokenizer.encode(text)[0] for text in texts]
        if self.call.stream:
            chunk = self._counted(vllm_pb.GenerateStreamChunk, token_ids=self._ids)
            self.call.outbox.put(vllm_pb.GenerateResponse(chunk=chunk))

    def _counted(self, kind: Any, **more: Any) -> Any:
        return kind(
            prompt_tokens=self.truth.prompt_tokens,
            completion_tokens=len(self._ids),
            cached_tokens=self.truth.cached_tokens or 0,
            **more,
        )


def _read_vllm(request: Any) -> GenerationRequest:
    """The request as the engine takes it. RefusalError 400 for what is not possible here."""
    parameters = request.sampling_params
    tokenized = request.WhichOneof("input") == "tokenized"
    ids = list(request.tokenized.input_ids) if tokenized else None
    mistakes = []
    if request.WhichOneof("input") is None:
        mistakes.append("the request has neither text nor tokenized input")
    if ids and max(ids) >= VOCABULARY_SIZE:
        mistakes.append(f"input_ids must be below {VOCABULARY_SIZE}")
    if parameters.n > 1:
        mistakes.append(f"n is {parameters.n}; this server gives one output")
    if parameters.HasField("max_tokens") and parameters.max_tokens < 1:
        mistakes.append("max_tokens must be at least 1, got 0")
    if parameters.temperature < 0:
        mistakes.append(f"temperature must be non-negative, got {shown(parameters.temperature)}")
    if parameters.HasField("max_tokens") and parameters.min_tokens > parameters.max_tokens:
        mistakes.append(f"min_tokens must be at most max_tokens={parameters.max_tokens}")
    if mistakes:
        raise RefusalError(400, "; ".join(mistakes))
    return GenerationRequest(
        texts=() if tokenized else (request.text,),
        token_ids=ids,
        stream=request.stream,
        max_tokens=parameters.max_tokens if parameters.HasField("max_tokens") else None,
        min_tokens=parameters.min_tokens,
        ignore_eos=parameters.ignore_eos,
        caps=True,
    )


_FINAL = "triton_final_response"
_WANTS_FINAL = "triton_enable_empty_final_response"


class KServeFace(GRPCInferenceServiceServicer):  # type: ignore[misc] # generated code has no types
    """The service: ModelStreamInfer, ModelInfer, ServerLive, ServerReady, ModelReady, ModelMetadata."""

    def __init__(self, generation: Generation, driver: EngineDriver) -> None:
        self._generation = generation
        self._driver = driver
        self._model = driver.config.model

    async def ModelStreamInfer(self, request_iterator: AsyncIterator[Any], context: Any) -> None:
        outbox, session = Outbox(), session_of(context)

        async def answer(request: Any, received_ns: int) -> None:
            try:
                await self._answer(request, received_ns, outbox, session, stream=True)
            except RefusalError as refusal:
                response = kserve_pb.ModelInferResponse(id=request.id)
                outbox.put(
                    kserve_pb.ModelStreamInferResponse(error_message=refusal.message, infer_response=response)
                )

        async def answer_all() -> None:
            """Answer all requests concurrently; the stream ends when the last answer has ended."""
            try:
                async with asyncio.TaskGroup() as group:
                    async for request in request_iterator:
                        group.create_task(answer(request, self._driver.clock()))
            finally:
                outbox.end()

        reading = asyncio.create_task(answer_all())
        try:
            async for message in outbox.messages():
                await context.write(message)
        except RefusalError as refusal:
            await abort_with(context, refusal)
        finally:
            reading.cancel()

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        outbox = Outbox()
        received_ns = self._driver.clock()
        try:
            call = await self._answer(request, received_ns, outbox, session_of(context), stream=False)
        except RefusalError as refusal:
            await abort_with(context, refusal)
        return call.response

    async def _answer(
        self, request: Any, received_ns: int, outbox: Outbox, session: str | None, *, stream: bool
    ) -> _KServeCall:
        self._generation.require_up()
        require_model(request.model_name or None, self._model)
        call = _KServeCall(request, outbox, self._driver, stream=stream)
        read = _read_kserve(request)
        await self._generation.answer(call, read, received_ns, request.id or None, session)
        return call

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return kserve_pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return kserve_pb.ServerReadyResponse(ready=self._ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return kserve_pb.ModelReadyResponse(ready=self._ready and request.name == self._model)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        tensor = kserve_pb.ModelMetadataResponse.TensorMetadata
        inputs = [("text_input", "BYTES"), ("stream", "BOOL"), ("sampling_parameters", "BYTES")]
        return kserve_pb.ModelMetadataResponse(
            name=self._model,
            versions=["1"],
            platform="pytest-llmbench",
            inputs=[tensor(name=name, datatype=kind, shape=[1]) for name, kind in inputs],
            outputs=[tensor(name="text_output", datatype="BYTES", shape=[-1])],
        )

    @property
    def _ready(self) -> bool:
        return self._driver.clock() >= self._driver.loop.down_until_ns


class _KServeCall(Face):
    def __init__(self, request: Any, outbox: Outbox, driver: EngineDriver, *, stream: bool) -> None:
        self._request = request
        self._outbox = outbox
        self._driver = driver
        self._stream = stream
        self._over = asyncio.Event()
        self.one_chunk = not stream or _input(request, "stream") in (None, b"\x00")
        """Whether the whole text goes into one response."""
        self._failure: RefusalError | None = None
        self.response = self._response("")
        """The only response of a call that is not a stream."""

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int], /) -> Reply:
        sizes = None if self.one_chunk else chunk_tokens
        made = _TextReply(texts, truth, sizes, self._driver.clock)
        made.call = self
        return made

    async def until_over(self) -> None:
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        self._over.set()

    def reset(self) -> None:
        """End the stream with all its requests, because the connection itself is shared with others."""
        lost = RefusalError(503, "the connection was lost")
        if self._stream:
            self._outbox.end(lost)
            self._over.set()
        else:
            self.fail(lost)

    def fail(self, refusal: RefusalError) -> None:
        """Send an error in place of what would have come."""
        self._failure = refusal
        self._over.set()

    def send_text(self, text: str) -> None:
        """Send one chunk; in a call that is not a stream, the whole text."""
        response = self._response(text)
        if self._stream:
            self._outbox.put(kserve_pb.ModelStreamInferResponse(infer_response=response))
        else:
            self.response = response

    def finish(self) -> None:
        if self._stream and self._request.parameters[_WANTS_FINAL].bool_param:
            response = kserve_pb.ModelInferResponse(model_name=self._driver.config.model, model_version="1")
            response.id = self._request.id
            response.parameters[_FINAL].bool_param = True
            self._outbox.put(kserve_pb.ModelStreamInferResponse(infer_response=response))
        self._over.set()

    def _response(self, text: str) -> Any:
        data = text.encode()
        response = kserve_pb.ModelInferResponse(
            model_name=self._driver.config.model,
            model_version="1",
            id=self._request.id,
            outputs=[
                kserve_pb.ModelInferResponse.InferOutputTensor(
                    name="text_output", datatype="BYTES", shape=[1]
                )
            ],
            raw_output_contents=[struct.pack("<I", len(data)) + data],
        )
        response.parameters[_FINAL].bool_param = False
        return response


class _TextReply(ChunkedReply):
    call: _KServeCall

    async def finish(self, reason: str) -> bool:
        await self._chunk()
        self.call.finish()
        return False

    async def fail(self, message: str) -> None:
        self.call.fail(RefusalError(500, message))

    async def _send_texts(self, texts: list[str]) -> None:
        self.truth.note_write(self._clock())
        self.call.send_text("".join(texts))


def _input(request: Any, name: str) -> bytes | None:
    """The only element of an input, as bytes, from its raw or its typed contents; None: there is no such
    input."""
    for index, tensor in enumerate(request.inputs):
        if tensor.name != name:
            continue
        if index < len(request.raw_input_contents):
            raw: bytes = request.raw_input_contents[index]
            return raw[4:] if tensor.datatype == "BYTES" else raw
        contents = tensor.contents
        if contents.bytes_contents:
            return bytes(contents.bytes_contents[0])
        return bytes([contents.bool_contents[0]]) if contents.bool_contents else None
    return None


def _read_kserve(request: Any) -> GenerationRequest:
    """The request as the engine takes it. RefusalError 400 for what is missing or wrong."""
    given, listed = _input(request, "text_input"), _input(request, "sampling_parameters")
    if given is None:
        raise RefusalError(400, "the input text_input is missing", "text_input")
    try:
        parameters = json.loads(listed) if listed else {}
        text = given.decode()
    except ValueError as error:
        raise RefusalError(400, f"an input cannot be read: {error}") from None
    if not isinstance(parameters, dict):
        raise RefusalError(400, "sampling_parameters must be a JSON object", "sampling_parameters")
    fields = Fields(parameters)
    return replace(fields.request((text,), fields.ceiling(), include_usage=False), stream=True)


_STATUS = {http: grpc.StatusCode[name] for name, http in HTTP_STATUS.items()}


class Outbox:
    """Queue of messages: the engine puts them in without waiting, the call takes them out."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._ended = False

    def put(self, message: Any) -> None:
        if not self._ended:
            self._queue.put_nowait(message)

    def end(self, refusal: RefusalError | None = None) -> None:
        """End the messages; a refusal is raised where they are taken out."""
        self.put(refusal)
        self._ended = True

    async def messages(self) -> AsyncIterator[Any]:
        while True:
            message = await self._queue.get()
            if message is None:
                return
            if isinstance(message, RefusalError):
                raise message
            yield message


def session_of(context: aio.ServicerContext[Any, Any]) -> str | None:
    """Id of the session that a call says it belongs to; None where it names none."""
    told = dict(context.invocation_metadata() or ()).get(SESSION_HEADER)
    return told.decode("latin-1") if isinstance(told, bytes) else told


async def abort_with(context: aio.ServicerContext[Any, Any], refusal: RefusalError) -> NoReturn:
    """End the call with the gRPC status that corresponds to the refusal's HTTP status."""
    code = _STATUS.get(
        refusal.status,
        grpc.StatusCode.INTERNAL if refusal.status >= 500 else grpc.StatusCode.INVALID_ARGUMENT,
    )
    trailing: tuple[tuple[str, str], ...] = ()
    if refusal.retry_after_s is not None:
        trailing = (("grpc-retry-pushback-ms", str(round(refusal.retry_after_s * 1000))),)
    await context.abort(code, refusal.message, trailing)
    raise AssertionError("abort raises")
