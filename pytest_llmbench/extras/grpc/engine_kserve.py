"""KServe's inference protocol v2 over gRPC, as Triton serves a vLLM model: text in, text out.

Inputs: ``text_input`` (BYTES), ``stream`` (BOOL), ``sampling_parameters`` (BYTES, a JSON object with
max_tokens, min_tokens, ignore_eos). Output: ``text_output`` (BYTES), one response per chunk; the one that
``triton_enable_empty_final_response`` asks for has no output and ``triton_final_response`` true. There are no
token counts. Errors of a stream travel in its messages, and the stream goes on.
"""

# ruff: noqa: ARG002, N802 - signatures and names are those of the protocol
from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer

from pytest_llmbench.extras.grpc.engine_call import Outbox, abort_with, session_of
from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.generation import Generation
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import ChunkedReply, Reply
from pytest_llmbench.simulator.serving.request_body import Fields, require_model

_FINAL = "triton_final_response"
_WANTS_FINAL = "triton_enable_empty_final_response"


class KServeFace(GRPCInferenceServiceServicer):  # type: ignore[misc] # generated code has no types
    """The service: ModelStreamInfer, ModelInfer, ServerLive, ServerReady, ModelReady, ModelMetadata."""

    def __init__(self, generation: Generation, driver: EngineDriver) -> None:
        self._generation = generation
        self._driver = driver
        self._model = driver.config.model

    async def ModelStreamInfer(self, request_iterator: AsyncIterator[Any], context: Any) -> None:
        outbox = Outbox()
        reading = asyncio.create_task(self._take_in(request_iterator, outbox, session_of(context)))
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
        return call.whole

    async def _take_in(self, requests: AsyncIterator[Any], outbox: Outbox, session: str | None) -> None:
        """Answer all requests of a stream concurrently; the stream ends when the last answer has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    now_ns = self._driver.clock()
                    group.create_task(self._answer_in_stream(request, now_ns, outbox, session))
        finally:
            outbox.end()

    async def _answer_in_stream(
        self, request: Any, received_ns: int, outbox: Outbox, session: str | None
    ) -> None:
        try:
            await self._answer(request, received_ns, outbox, session, stream=True)
        except RefusalError as refusal:
            response = pb.ModelInferResponse(id=request.id)
            outbox.put(pb.ModelStreamInferResponse(error_message=refusal.message, infer_response=response))

    async def _answer(
        self, request: Any, received_ns: int, outbox: Outbox, session: str | None, *, stream: bool
    ) -> _Call:
        self._generation.require_up()
        require_model(request.model_name or None, self._model)
        call = _Call(request, outbox, self._driver, stream=stream)
        await self._generation.answer_on(call, _read(request), received_ns, request.id or None, session)
        return call

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=self._ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=self._ready and request.name == self._model)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        tensor = pb.ModelMetadataResponse.TensorMetadata
        inputs = [("text_input", "BYTES"), ("stream", "BOOL"), ("sampling_parameters", "BYTES")]
        return pb.ModelMetadataResponse(
            name=self._model,
            versions=["1"],
            platform="pytest-llmbench",
            inputs=[tensor(name=name, datatype=kind, shape=[1]) for name, kind in inputs],
            outputs=[tensor(name="text_output", datatype="BYTES", shape=[-1])],
        )

    @property
    def _ready(self) -> bool:
        return self._driver.clock() >= self._driver.loop.down_until_ns


class _Call:
    """The face of one request."""

    def __init__(self, request: Any, outbox: Outbox, driver: EngineDriver, *, stream: bool) -> None:
        self._request = request
        self._outbox = outbox
        self._driver = driver
        self._stream = stream
        self._over = asyncio.Event()
        self.one_chunk = not stream or _input(request, "stream") in (None, b"\x00")
        """Whether the whole text goes into one response."""
        self._failure: RefusalError | None = None
        self.whole = self._response("")
        """The only response of a call that is not a stream."""

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int]) -> Reply:
        return _TextReply(self, texts, truth, chunk_tokens, self._driver)

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
            self._outbox.put(pb.ModelStreamInferResponse(infer_response=response))
        else:
            self.whole = response

    def finish(self) -> None:
        if self._stream and self._request.parameters[_WANTS_FINAL].bool_param:
            response = pb.ModelInferResponse(model_name=self._driver.config.model, model_version="1")
            response.id = self._request.id
            response.parameters[_FINAL].bool_param = True
            self._outbox.put(pb.ModelStreamInferResponse(infer_response=response))
        self._over.set()

    def _response(self, text: str) -> Any:
        data = text.encode()
        response = pb.ModelInferResponse(
            model_name=self._driver.config.model,
            model_version="1",
            id=self._request.id,
            outputs=[
                pb.ModelInferResponse.InferOutputTensor(name="text_output", datatype="BYTES", shape=[1])
            ],
            raw_output_contents=[struct.pack("<I", len(data)) + data],
        )
        response.parameters[_FINAL].bool_param = False
        return response


class _TextReply(ChunkedReply):
    """A reply whose tokens become messages with text."""

    def __init__(
        self,
        call: _Call,
        texts: TokenTexts,
        truth: GroundTruth,
        chunk_tokens: Iterator[int],
        driver: EngineDriver,
    ) -> None:
        super().__init__(texts, truth, None if call.one_chunk else chunk_tokens, driver.clock)
        self._call = call

    async def finish(self, reason: str) -> bool:
        await self._chunk()
        self._call.finish()
        return False

    async def fail(self, message: str) -> None:
        self._call.fail(RefusalError(500, message))

    async def _say(self, texts: list[str]) -> None:
        self.truth.note_write(self._clock())
        self._call.send_text("".join(texts))


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


def _read(request: Any) -> GenerationRequest:
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
        raise RefusalError(400, "sampling_parameters has to be a JSON object", "sampling_parameters")
    fields = Fields(parameters)
    return replace(fields.request((text,), fields.ceiling(), include_usage=False), stream=True)
