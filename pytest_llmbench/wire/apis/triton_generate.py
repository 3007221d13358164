"""Triton's generate extension, streamed: ``POST /v2/models/MODEL/generate_stream``.

Only ``text_output`` is read. Whether it is what is new or all so far depends on the backend
(:mod:`~pytest_llmbench.wire.increments` finds out). No event says that the reply is complete: the end of the
HTTP body does, so a proxy that ends a broken body in good order makes a reply look whole.
"""

from __future__ import annotations

from typing import Any

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.dialect import DialectDefaults, EncodeOptions, require_text
from pytest_llmbench.wire.event_payload import payload_of, read_error
from pytest_llmbench.wire.openai_request import text_prompt, write_body
from pytest_llmbench.wire.sse import SSEEvent


class TritonGenerate(DialectDefaults):
    """Fields as the TensorRT-LLM backend names them; others go into the extra fields."""

    name = "triton-generate"
    path = "/v2/models/{model}/generate_stream"
    rooted = True
    accumulates = True
    ends_with_body = True

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        body: dict[str, Any] = {
            "text_input": text_prompt(request),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stream": True,
        }
        if options.ignore_eos:
            body["ignore_eos"] = True
        return write_body(body, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        chunk = Chunk(event.stamp_ns, event.read_index)
        payload = payload_of(event, chunk)
        if payload is None or read_error(chunk, payload):
            return chunk
        text = payload.get("text_output")
        if text.__class__ is str:
            chunk.choice, chunk.text, chunk.blank = 0, text, text == ""
        else:
            chunk.problem = "an event without text_output"
        return chunk
