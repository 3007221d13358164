"""A reply as a stream of token ids: messages with the ids that are new, and a last one that repeats some.

vLLM and SGLang have the same two messages, ``chunk`` and ``complete``. The ids of ``complete`` are those of
the chunk before it, or of all chunks, so its ids and its ``completion_tokens`` are never added: a reply has
the tokens of its chunks. ``completion_tokens`` of a chunk counts that chunk with vLLM and all so far with
SGLang; the ids themselves mean the same with both. Of several outputs each has its ``index``.

There is no text. A message with ids is output that can be seen, whatever the ids stand for: appendix B.1
has T_first at the first message with a token, and nobody can tell white space or a thought by an id.

vLLM's own gRPC service: ``vllm.grpc.engine.VllmEngine/Generate``, from text or token ids to token ids.

Sampling parameters that are not set have the defaults of vLLM's ``SamplingParams``; temperature and
``max_tokens`` are always set. A ``max_tokens`` beyond the context is cut without a word.

Source: vllm_engine.proto of the package smg-grpc-proto, 0.4.28; the servicer of smg-grpc-servicer.

SGLang's gRPC service: ``sglang.grpc.scheduler.SglangScheduler/Generate``, from token ids to token ids.

It goes to the scheduler, which has no tokenizer: a prompt is token ids. Sampling parameters that are not set
are 0 there and not the defaults of SGLang, so those that must not be 0 are sent.

Source: sglang_scheduler.proto of the package smg-grpc-proto, 0.4.28; the servicer of smg-grpc-servicer.
"""

from __future__ import annotations

from typing import Any, ClassVar

from google.protobuf.message import Message
from smg_grpc_proto.generated import sglang_scheduler_pb2 as sglang_pb
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.grpc.messages import add_fields, message_in, utf8_prompt
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk, Usage, finish_reason
from pytest_llmbench.wire.dialect import CallDialect, EncodeOptions
from pytest_llmbench.wire.openai_chat import token_prompt
from pytest_llmbench.wire.sse import SSEEvent

_SGLANG_OWN = ("request_id", "tokenized", "input_embeds")


class TokenStreamOverGrpc(CallDialect):
    """The common part of both dialects. There is no chat template, and no model name: a server has one
    model."""

    rooted = True
    accepts_token_ids = True
    text_replies = False
    messages: ClassVar[Any]
    """The module with the messages of the proto."""

    def message(self, body: bytes, request_id: str) -> bytes:
        # Serialized messages that follow one another are one, with the fields of both.
        return body + bytes(self.messages.GenerateRequest(request_id=request_id).SerializeToString())

    def decode(self, event: SSEEvent) -> Chunk:
        return ids_in(event, self.messages.GenerateResponse)


def ids_in(event: SSEEvent, response: type[Message]) -> Chunk:
    """The chunk of an event whose message is a ``response``. Never raises."""
    chunk = Chunk(event.stamp_ns, event.read_index)
    message = message_in(event, response, chunk)
    if message is None:
        return chunk
    kind = message.WhichOneof("response")
    if kind is None:
        chunk.problem = "a message that is neither a chunk nor the end of a reply"
        return chunk
    said = getattr(message, kind)
    chunk.choice = said.index
    # A prompt has tokens: 0 is how protobuf writes nothing. Of a cache 0 is what both engines say of a miss.
    reasoning = getattr(said, "reasoning_tokens", 0) or None
    chunk.usage = Usage(said.prompt_tokens or None, None, said.cached_tokens, reasoning)
    if kind == "chunk":
        chunk.tokens = len(said.token_ids)
        chunk.ids_alone, chunk.blank = chunk.tokens > 0, chunk.tokens == 0
    else:
        chunk.finish_reason = finish_reason(said.finish_reason)
    return chunk


_VLLM_OWN = ("request_id", "text", "tokenized")


class VLLMOverGrpc(TokenStreamOverGrpc):
    name = "vllm-grpc"
    path = "/vllm.grpc.engine.VllmEngine/Generate"
    messages = vllm_pb

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        body = vllm_pb.GenerateRequest(stream=True)
        sampling = body.sampling_params
        sampling.max_tokens, sampling.temperature = request.max_tokens, request.temperature
        sampling.ignore_eos = options.ignore_eos
        if options.prompt_form == "text":
            body.text = utf8_prompt(request)
        else:
            body.tokenized.input_ids.extend(token_prompt(request))
        if options.extra_body:
            add_fields(body, sampling, options.extra_body, _VLLM_OWN, self.name)
        return bytes(body.SerializeToString())


class SGLangOverGrpc(TokenStreamOverGrpc):
    name = "sglang-grpc"
    path = "/sglang.grpc.scheduler.SglangScheduler/Generate"
    messages = sglang_pb

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        if options.prompt_form != "token_ids":
            raise SuiteError(
                f"{self.name} takes token ids, not text",
                where="--llm-api",
                remedy='send token ids: request.prompt = "token_ids" in the SUT file (--llm-sut)',
            )
        body = sglang_pb.GenerateRequest(stream=True)
        sampling = body.sampling_params
        sampling.max_new_tokens, sampling.temperature = request.max_tokens, request.temperature
        sampling.top_p, sampling.top_k, sampling.repetition_penalty, sampling.n = 1.0, -1, 1.0, 1
        sampling.skip_special_tokens = sampling.spaces_between_special_tokens = True
        sampling.ignore_eos = options.ignore_eos
        body.tokenized.input_ids.extend(token_prompt(request))
        if options.extra_body:
            add_fields(body, sampling, options.extra_body, _SGLANG_OWN, self.name)
        return bytes(body.SerializeToString())
