"""A reply as a stream of token ids: messages with the ids that are new, and a last one that repeats some.

vLLM and SGLang have the same two messages, ``chunk`` and ``complete``. The ids of ``complete`` are those of
the chunk before it, or of all chunks, so its ids and its ``completion_tokens`` are never added: a reply has
the tokens of its chunks. ``completion_tokens`` of a chunk counts that chunk with vLLM and all so far with
SGLang; the ids themselves mean the same with both. Of several outputs each has its ``index``.

There is no text. A message with ids is output that can be seen, whatever the ids stand for: appendix B.1
has T_first at the first message with a token, and nobody can tell white space or a thought by an id.
"""

from __future__ import annotations

from typing import Any, ClassVar

from google.protobuf.message import Message

from pytest_llmbench.extras.grpc.protobuf import message_in
from pytest_llmbench.wire.chunk import Chunk, Usage, finish_reason
from pytest_llmbench.wire.dialect import DialectDefaults
from pytest_llmbench.wire.sse import SSEEvent


class TokenStreamOverGrpc(DialectDefaults):
    """The common part of both dialects. There is no chat template, and no model name: a server has one
    model."""

    rooted = True
    protocol = "grpc"
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
