"""vLLM's gRPC service ``vllm.grpc.engine.VllmEngine``: a stream of token ids.

It has the ways of the real servicer: ``completion_tokens`` of a chunk counts that chunk only, the closing
``complete`` of a stream repeats the ids of the last chunk, ``max_tokens`` beyond the context is cut without
a word, and there is no model name. Token ids are those of cl100k_base.
"""

# ruff: noqa: ARG002, N802 - signatures and names are those of the protocol
from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineServicer

from pytest_llmbench.extras.grpc.engine_call import Outbox, abort_with, session_of
from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.scenario.variants import software_version
from pytest_llmbench.simulator.serving.driver import EngineDriver, ServedReplica
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.generation import Generation, Tokenizer
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import ChunkedReply, Reply
from pytest_llmbench.simulator.serving.request_body import VOCABULARY_SIZE


class VllmFace(VllmEngineServicer):  # type: ignore[misc] # generated code has no types
    """The service: Generate, Abort, HealthCheck, GetModelInfo, GetServerInfo, GetLoads; the other calls are
    UNIMPLEMENTED."""

    def __init__(self, generation: Generation, driver: EngineDriver, tokenizer: Tokenizer) -> None:
        self._generation = generation
        self._driver = driver
        self._tokenizer = tokenizer
        self._calls: dict[str, set[_Call]] = {}
        self._begun_ns = driver.clock()

    async def Generate(self, request: Any, context: Any) -> None:
        received_ns = self._driver.clock()
        call = _Call(context, self._driver, self._tokenizer, stream=request.stream)
        own_id = request.request_id or None
        calls = self._calls.setdefault(request.request_id, set())
        calls.add(call)
        try:
            self._generation.require_up()
            await self._generation.answer_on(call, _read(request), received_ns, own_id, session_of(context))
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
        return pb.AbortResponse()

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        try:
            self._generation.require_up()
        except RefusalError as refusal:
            return pb.HealthCheckResponse(healthy=False, message=refusal.message)
        return pb.HealthCheckResponse(healthy=True, message="Healthy")

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        config = self._driver.config
        return pb.GetModelInfoResponse(
            model_path=config.model,
            served_model_name=config.model,
            is_generation=True,
            max_context_length=config.context_limit_tokens,
            vocab_size=VOCABULARY_SIZE,
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        driver = self._driver
        return pb.GetServerInfoResponse(
            active_requests=driver.running + driver.waiting,
            uptime_seconds=(driver.clock() - self._begun_ns) / 1e9,
            last_receive_timestamp=time.time(),
            server_type="vllm-grpc",
            data_parallel_size=len(driver.replicas),
            max_num_seqs=driver.config.max_num_seqs,
        )

    async def GetLoads(self, request: Any, context: Any) -> Any:
        loads = [_load(replica) for replica in self._driver.replicas]
        now = datetime.now(UTC).isoformat()
        return pb.GetLoadsResponse(
            timestamp=now, version=software_version(), dp_rank_count=len(loads), loads=loads
        )


def _load(replica: ServedReplica) -> Any:
    engine = replica.engine
    return pb.SchedulerLoad(
        dp_rank=replica.number,
        num_running_reqs=engine.running,
        num_waiting_reqs=engine.waiting,
        num_total_reqs=engine.running + engine.waiting,
        token_usage=engine.kv_usage,
        max_running_requests=engine.config.max_num_seqs,
    )


class _Call:
    """The face of one ``Generate`` call."""

    def __init__(self, context: Any, driver: EngineDriver, tokenizer: Tokenizer, *, stream: bool) -> None:
        self._context = context
        self._driver = driver
        self._tokenizer = tokenizer
        self._stream = stream
        self._outbox = Outbox()
        self._reply: _IdsReply | None = None

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int]) -> Reply:
        made = _IdsReply(
            self._outbox, texts, truth, chunk_tokens, self._driver, self._tokenizer, stream=self._stream
        )
        self._reply = made
        return made

    async def until_over(self) -> None:
        async for message in self._outbox.messages():
            await self._context.write(message)

    async def abort(self) -> None:
        """End the reply with what there is."""
        if self._reply is not None:
            await self._reply.finish("abort")

    def end(self) -> None:
        self._outbox.end()

    def reset(self) -> None:
        """End the stream alone: its connection is shared with other calls."""
        self._outbox.end(RefusalError(503, "the connection was lost"))


class _IdsReply(ChunkedReply):
    """A reply whose tokens become messages with token ids."""

    def __init__(
        self,
        outbox: Outbox,
        texts: TokenTexts,
        truth: GroundTruth,
        chunk_tokens: Iterator[int],
        driver: EngineDriver,
        tokenizer: Tokenizer,
        *,
        stream: bool,
    ) -> None:
        super().__init__(texts, truth, chunk_tokens if stream else None, driver.clock)
        self._outbox = outbox
        self._tokenizer = tokenizer
        self._stream = stream
        self._ids: list[int] = []
        """Token ids of the last chunk."""

    async def finish(self, reason: str) -> bool:
        await self._chunk()
        last = self._counted(pb.GenerateComplete, output_ids=self._ids, finish_reason=reason)
        self._outbox.put(pb.GenerateResponse(complete=last))
        self._outbox.end()
        return False

    async def fail(self, message: str) -> None:
        self._outbox.end(RefusalError(500, message))

    async def _say(self, texts: list[str]) -> None:
        """Hand tokens to gRPC, which writes them at once if the client reads."""
        self.truth.note_write(self._clock())
        self._ids = [self._tokenizer.encode(text)[0] for text in texts]
        if self._stream:
            chunk = self._counted(pb.GenerateStreamChunk, token_ids=self._ids)
            self._outbox.put(pb.GenerateResponse(chunk=chunk))

    def _counted(self, kind: Any, **more: Any) -> Any:
        """A message with the token counts so far."""
        return kind(
            prompt_tokens=self.truth.prompt_tokens,
            completion_tokens=len(self._ids),
            cached_tokens=self.truth.cached_tokens or 0,
            **more,
        )


def _read(request: Any) -> GenerationRequest:
    """The request as the engine takes it. RefusalError 400 for what is not possible here."""
    parameters = request.sampling_params
    tokenized = request.WhichOneof("input") == "tokenized"
    ids = list(request.tokenized.input_ids) if tokenized else None
    mistakes = []
    if request.WhichOneof("input") is None:
        mistakes.append("the request has neither text nor tokenized input")
    if ids and max(ids) >= VOCABULARY_SIZE:
        mistakes.append(f"input_ids have to be below {VOCABULARY_SIZE}")
    if parameters.n > 1:
        mistakes.append(f"n is {parameters.n}; this server gives one output")
    if parameters.HasField("max_tokens") and parameters.max_tokens < 1:
        mistakes.append("max_tokens must be at least 1, got 0")
    if parameters.temperature < 0:
        mistakes.append(f"temperature must be non-negative, got {parameters.temperature:g}")
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
