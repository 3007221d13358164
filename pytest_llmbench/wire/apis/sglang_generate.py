"""SGLang's own API, streamed: ``POST /generate``.

Each event has the text so far, or what is new where the server was started to stream increments
(:mod:`~pytest_llmbench.wire.increments` finds out), and with it the tokens so far: exact per event.
"""

from __future__ import annotations

from typing import Any

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk, Usage
from pytest_llmbench.wire.dialect import DialectDefaults, EncodeOptions
from pytest_llmbench.wire.event_payload import finish_reason, payload_of, read_error, set_error, text_in
from pytest_llmbench.wire.openai_request import text_prompt, token_prompt, write_body
from pytest_llmbench.wire.openai_stream import as_count
from pytest_llmbench.wire.sse import SSEEvent


class SGLangGenerate(DialectDefaults):
    """There is no chat template, and prompts may be token ids."""

    name = "sglang-generate"
    path = "/generate"
    rooted = True
    accepts_token_ids = True
    accumulates = True

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        sampling: dict[str, Any] = {"max_new_tokens": request.max_tokens, "temperature": request.temperature}
        if options.ignore_eos:
            sampling["ignore_eos"] = True
        as_text = options.prompt_form == "text"
        prompt = {"text": text_prompt(request)} if as_text else {"input_ids": token_prompt(request)}
        return write_body({**prompt, "stream": True, "sampling_params": sampling}, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        chunk = Chunk(event.stamp_ns, event.read_index)
        payload = payload_of(event, chunk)
        if payload is not None and not read_error(chunk, payload):
            _read(chunk, payload)
        return chunk


def _read(chunk: Chunk, payload: dict[str, Any]) -> None:
    told, index = payload.get("meta_info"), payload.get("index")
    if told.__class__ is not dict:
        chunk.problem = "an event without meta_info, which every event of SGLang has"
        return
    chunk.choice = index if index.__class__ is int else 0
    chunk.text = text_in(payload, "text")
    chunk.blank = not chunk.text
    chunk.tokens_cumulative = as_count(told.get("completion_tokens"))
    usage = Usage(
        as_count(told.get("prompt_tokens")), chunk.tokens_cumulative, as_count(told.get("cached_tokens"))
    )
    chunk.usage = None if usage == Usage() else usage
    if "decode_throughput" in told or "spec_draft_token_num" in told:
        names = ("completion_tokens", "decode_throughput", "spec_draft_token_num", "spec_accept_token_num")
        chunk.server_timings = {name: told[name] for name in names if name in told}
    ended = told.get("finish_reason")
    kind = ended.get("type") if ended.__class__ is dict else ended
    if kind == "abort":
        set_error(chunk, text_in(ended, "message") or "the server aborted the request")
    else:
        chunk.finish_reason = finish_reason(kind)
