"""The API of Text Generation Inference, streamed: ``POST /generate_stream``. Each event is one token."""

from __future__ import annotations

from typing import Any

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk, Usage
from pytest_llmbench.wire.dialect import DialectDefaults, EncodeOptions, refuse_ignore_eos, require_text
from pytest_llmbench.wire.event_payload import finish_reason, payload_of, read_error, text_in
from pytest_llmbench.wire.openai_request import text_prompt, write_body
from pytest_llmbench.wire.openai_stream import as_count
from pytest_llmbench.wire.sse import SSEEvent


class TGIGenerate(DialectDefaults):
    """There is no chat template. A temperature of 0 is sent as no sampling: the server takes none of 0."""

    name = "tgi-generate"
    path = "/generate_stream"
    rooted = True

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        refuse_ignore_eos(self.name, options)
        parameters: dict[str, Any] = {"max_new_tokens": request.max_tokens, "details": True}
        if request.temperature > 0:
            parameters |= {"do_sample": True, "temperature": request.temperature}
        else:
            parameters["do_sample"] = False
        return write_body({"inputs": text_prompt(request), "parameters": parameters}, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        chunk = Chunk(event.stamp_ns, event.read_index)
        payload = payload_of(event, chunk)
        if payload is not None and not read_error(chunk, payload):
            _read(chunk, payload)
        return chunk


def _read(chunk: Chunk, payload: dict[str, Any]) -> None:
    token = payload.get("token")
    if token.__class__ is not dict:
        chunk.problem = "an event without a token, which every event of TGI has"
        return
    chunk.choice, chunk.tokens = 0, 1
    if token.get("special") is not True:
        chunk.text = text_in(token, "text")
    details = payload.get("details")
    if details.__class__ is dict:
        chunk.finish_reason = finish_reason(details.get("finish_reason"))
        usage = Usage(as_count(details.get("input_length")), as_count(details.get("generated_tokens")))
        chunk.usage = None if usage == Usage() else usage
