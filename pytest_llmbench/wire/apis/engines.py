"""The own APIs of engines, streamed: SGLang, Text Generation Inference, Triton and Ollama.

SGLang, ``POST /generate``: each event has the text so far, or what is new where the server was started to
stream increments (:mod:`~pytest_llmbench.wire.chunk` finds out), and with it the tokens so far: exact
per event.

Text Generation Inference, ``POST /generate_stream``: each event is one token.

Triton's generate extension, ``POST /v2/models/MODEL/generate_stream``: only ``text_output`` is read. Whether
it is what is new or all so far depends on the backend. No event says that the reply is complete: the end of
the HTTP body does, so a proxy that ends a broken body in good order makes a reply look whole.

Ollama, ``POST /api/chat`` and ``POST /api/generate``: a JSON object per line. The last line has ``done``, the
reason, the token counts, and how long the server took for what, in nanoseconds; ``load_duration`` is the
loading of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_llmbench.model.messages import MessageArray
from pytest_llmbench.model.reply_checks import tools_of
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import (
    CallDelta,
    Chunk,
    Usage,
    as_count,
    finish_reason,
    read_error,
    set_error,
    text_in,
    written,
)
from pytest_llmbench.wire.dialect import EncodeOptions, JsonDialect
from pytest_llmbench.wire.openai_chat import arguments_of, text_prompt, token_prompt


class SGLangGenerate(JsonDialect):
    """There is no chat template, and prompts may be token ids."""

    name = "sglang-generate"
    path = "/generate"
    rooted = True
    accepts_token_ids = True
    accumulates = True

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        as_text = options.prompt_form == "text"
        prompt = {"text": text_prompt(request)} if as_text else {"input_ids": token_prompt(request)}
        sampling = {"max_new_tokens": request.max_tokens, "temperature": request.temperature}
        return {**prompt, "stream": True, "sampling_params": sampling}

    def sampling_in(self, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = body["sampling_params"]
        return found

    def read(self, chunk: Chunk, payload: dict[str, Any], event_name: str) -> None:  # noqa: ARG002
        if read_error(chunk, payload):
            return
        told, index = payload.get("meta_info"), payload.get("index")
        if told.__class__ is not dict:
            chunk.problem = "an event without meta_info, which every event of SGLang has"
            return
        chunk.choice = index if index.__class__ is int else 0
        chunk.text = text_in(payload, "text")
        chunk.blank = not chunk.text
        made = chunk.tokens_cumulative = as_count(told.get("completion_tokens"))
        chunk.usage = _usage(as_count(told.get("prompt_tokens")), made, as_count(told.get("cached_tokens")))
        if "decode_throughput" in told or "spec_draft_token_num" in told:
            names = (
                "completion_tokens",
                "decode_throughput",
                "spec_draft_token_num",
                "spec_accept_token_num",
            )
            chunk.server_timings = {name: told[name] for name in names if name in told}
        ended = told.get("finish_reason")
        kind = ended.get("type") if ended.__class__ is dict else ended
        if kind == "abort":
            set_error(chunk, text_in(ended, "message") or "the server aborted the request")
        else:
            chunk.finish_reason = finish_reason(kind)


def _usage(asked: int | None, made: int | None, cached: int | None = None) -> Usage | None:
    usage = Usage(asked, made, cached)
    return None if usage == Usage() else usage


class TGIGenerate(JsonDialect):
    """There is no chat template. A temperature of 0 is sent as no sampling: the server takes none of 0."""

    name = "tgi-generate"
    path = "/generate_stream"
    rooted = True
    can_ignore_eos = False

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:  # noqa: ARG002
        parameters: dict[str, Any] = {"max_new_tokens": request.max_tokens, "details": True}
        if request.temperature > 0:
            parameters |= {"do_sample": True, "temperature": request.temperature}
        else:
            parameters["do_sample"] = False
        return {"inputs": text_prompt(request), "parameters": parameters}

    def read(self, chunk: Chunk, payload: dict[str, Any], event_name: str) -> None:  # noqa: ARG002
        if read_error(chunk, payload):
            return
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
            made = as_count(details.get("generated_tokens"))
            chunk.usage = _usage(as_count(details.get("input_length")), made)


class TritonGenerate(JsonDialect):
    """Fields as the TensorRT-LLM backend names them; others go into the extra fields."""

    name = "triton-generate"
    path = "/v2/models/{model}/generate_stream"
    rooted = True
    accumulates = True
    ends_with_body = True

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:  # noqa: ARG002
        return {
            "text_input": text_prompt(request),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stream": True,
        }

    def read(self, chunk: Chunk, payload: dict[str, Any], event_name: str) -> None:  # noqa: ARG002
        if read_error(chunk, payload):
            return
        text = payload.get("text_output")
        if text.__class__ is str:
            chunk.choice, chunk.text, chunk.blank = 0, text, text == ""
        else:
            chunk.problem = "an event without text_output"


_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


class OllamaGenerate(JsonDialect):
    """The prompt goes through the model's template, unless the extra fields say ``raw``."""

    name = "ollama-generate"
    path = "/api/generate"
    rooted = True
    protocol = "ndjson"
    can_ignore_eos = False

    def prompt(self, request: PlannedRequest) -> dict[str, Any]:
        """The fields with the prompt."""
        return {"prompt": text_prompt(request)}

    def output(self, payload: dict[str, Any]) -> tuple[Any, str]:
        """The object with the output of a line, and the name of the text in it."""
        return payload, "response"

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        sampling = {"num_predict": request.max_tokens, "temperature": request.temperature}
        return {"model": options.model, **self.prompt(request), "stream": True, "options": sampling}

    def read(self, chunk: Chunk, payload: dict[str, Any], event_name: str) -> None:  # noqa: ARG002
        if read_error(chunk, payload):
            return
        if payload.get("done").__class__ is not bool:
            chunk.problem = "a line without done, which every line of Ollama has"
            return
        chunk.choice = 0
        source, text_key = self.output(payload)
        if source.__class__ is dict:
            chunk.calls = tuple(_calls(source))
            called = "".join([call.name + call.arguments for call in chunk.calls])
            chunk.text = text_in(source, text_key) + called
            chunk.called = len(called)
            chunk.reasoning = text_in(source, "thinking")
        if not payload["done"]:
            chunk.blank = not (chunk.text or chunk.reasoning)
            return
        chunk.done = True
        chunk.finish_reason = finish_reason(payload.get("done_reason"))
        chunk.usage = _usage(as_count(payload.get("prompt_eval_count")), as_count(payload.get("eval_count")))
        chunk.server_timings = {name: payload[name] for name in _DURATIONS if name in payload} or None


class OllamaChat(OllamaGenerate):
    """The prompt is one user message, or the messages of the request."""

    name = "ollama-chat"
    path = "/api/chat"
    message_roles = True

    def prompt(self, request: PlannedRequest) -> dict[str, Any]:
        asked = request.messages
        if asked is None:
            return {"messages": [{"role": "user", "content": text_prompt(request)}]}
        tools = {"tools": list(tools_of(asked.tools))} if asked.tools else {}
        return {"messages": _messages(asked, asked.place or f"request {request.index}"), **tools}

    def output(self, payload: dict[str, Any]) -> tuple[Any, str]:
        return payload.get("message"), "content"


def _messages(asked: MessageArray, where: str) -> list[dict[str, Any]]:
    """The messages in Ollama's form, where a tool's message names the tool, and arguments are objects."""
    tools: dict[str, str] = {}
    said = []
    for message in asked.messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            one["tool_calls"] = [
                {"function": {"name": call.name, "arguments": arguments_of(call, where)}}
                for call in message.calls
            ]
            tools |= {call.call_id: call.name for call in message.calls}
        if message.role == "tool":
            one["tool_name"] = tools[message.call_id]
        said.append(one)
    return said


def _calls(message: dict[str, Any]) -> Iterator[CallDelta]:
    """The tool calls of a message, which come whole: name and arguments. Newer servers number them."""
    calls = message.get("tool_calls")
    for call in calls if calls.__class__ is list else ():
        function = call.get("function") if call.__class__ is dict else None
        if function.__class__ is dict:
            name, arguments = text_in(function, "name"), written(function, "arguments")
            yield CallDelta(as_count(function.get("index")), name, arguments, text_in(call, "id"))
