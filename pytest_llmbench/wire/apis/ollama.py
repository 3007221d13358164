"""Ollama's own API, streamed: ``POST /api/chat`` and ``POST /api/generate``, a JSON object per line.

The last line has ``done``, the reason, the token counts, and how long the server took for what, in
nanoseconds; ``load_duration`` is the loading of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_llmbench.model.messages import MessageArray
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.structured import tools_of
from pytest_llmbench.wire.chunk import CallDelta, Chunk, Usage
from pytest_llmbench.wire.dialect import DialectDefaults, EncodeOptions, refuse_ignore_eos, require_text
from pytest_llmbench.wire.event_payload import finish_reason, payload_of, read_error, text_in, written
from pytest_llmbench.wire.openai_request import arguments_of, text_prompt, write_body
from pytest_llmbench.wire.openai_stream import as_count
from pytest_llmbench.wire.sse import SSEEvent

_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


class OllamaGenerate(DialectDefaults):
    """The prompt goes through the model's template, unless the extra fields say ``raw``."""

    name = "ollama-generate"
    path = "/api/generate"
    rooted = True
    protocol = "ndjson"

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        return _encoded(self.name, {"prompt": text_prompt(request)}, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        return _decoded(event, None)


class OllamaChat(DialectDefaults):
    """The prompt is one user message, or the messages of the request."""

    name = "ollama-chat"
    path = "/api/chat"
    rooted = True
    protocol = "ndjson"
    message_roles = True

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        asked = request.messages
        if asked is None:
            prompt = {"messages": [{"role": "user", "content": text_prompt(request)}]}
            return _encoded(self.name, prompt, request, options)
        where = asked.place or f"request {request.index}"
        tools = {"tools": list(tools_of(asked.tools))} if asked.tools else {}
        return _encoded(self.name, {"messages": _messages(asked, where), **tools}, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        return _decoded(event, "message")


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


def _encoded(name: str, prompt: dict[str, Any], request: PlannedRequest, options: EncodeOptions) -> bytes:
    refuse_ignore_eos(name, options)
    sampling = {"num_predict": request.max_tokens, "temperature": request.temperature}
    body = {"model": options.model, **prompt, "stream": True, "options": sampling}
    return write_body(body, request, options)


def _decoded(event: SSEEvent, message: str | None) -> Chunk:
    """The chunk of one line. ``message``: the key of the object with the output; ``None``: the output is in
    the line itself."""
    chunk = Chunk(event.stamp_ns, event.read_index)
    payload = payload_of(event, chunk)
    if payload is None or read_error(chunk, payload):
        return chunk
    source = payload if message is None else payload.get(message)
    if payload.get("done").__class__ is not bool:
        chunk.problem = "a line without done, which every line of Ollama has"
        return chunk
    chunk.choice = 0
    if source.__class__ is dict:
        chunk.calls = tuple(_calls(source))
        called = "".join([call.name + call.arguments for call in chunk.calls])
        chunk.text = text_in(source, "response" if message is None else "content") + called
        chunk.called = len(called)
        chunk.reasoning = text_in(source, "thinking")
    if payload["done"]:
        _read_end(chunk, payload)
    else:
        chunk.blank = not (chunk.text or chunk.reasoning)
    return chunk


def _calls(message: dict[str, Any]) -> Iterator[CallDelta]:
    """The tool calls of a message, which come whole: name and arguments. Newer servers number them."""
    calls = message.get("tool_calls")
    for call in calls if calls.__class__ is list else ():
        function = call.get("function") if call.__class__ is dict else None
        if function.__class__ is dict:
            name, arguments = text_in(function, "name"), written(function, "arguments")
            yield CallDelta(as_count(function.get("index")), name, arguments, text_in(call, "id"))


def _read_end(chunk: Chunk, payload: dict[str, Any]) -> None:
    chunk.done = True
    chunk.finish_reason = finish_reason(payload.get("done_reason"))
    usage = Usage(as_count(payload.get("prompt_eval_count")), as_count(payload.get("eval_count")))
    chunk.usage = None if usage == Usage() else usage
    durations = {name: payload[name] for name in _DURATIONS if name in payload}
    chunk.server_timings = durations or None
