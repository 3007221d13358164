"""Anthropic Messages, streamed: ``POST …/messages``.

The events have types; the last is ``message_stop``, after the ``message_delta`` with the stop reason. Output
tokens are cumulative. Input tokens are three counts: neither those read from a cache nor those written to one
are among ``input_tokens``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from pytest_llmbench.errors import GeneratorError
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
    type_of,
    written,
)
from pytest_llmbench.wire.dialect import EncodeOptions, JsonDialect
from pytest_llmbench.wire.openai_chat import arguments_of, asked_form, own_prompt, read_timings

_KNOWN = frozenset({"message_start", "message_delta", "content_block_stop", "ping", "message_stop"})
_INPUT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class AnthropicMessages(JsonDialect):
    """The prompt is one user message, or the messages of the request. Reads what Anthropic, vLLM and gateways
    stream.

    An API key goes as ``x-api-key`` too, and ``anthropic-version`` is sent, unless the endpoint's own headers
    hold them.
    """

    name = "anthropic-messages"
    path = "/messages"
    fixed_headers = MappingProxyType({"anthropic-version": "2023-06-01"})
    key_header = "x-api-key"
    structured_output = True
    message_roles = True

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        return {
            "model": options.model,
            "max_tokens": request.max_tokens,
            **_prompt(request),
            "stream": True,
            "temperature": request.temperature,
            **asked_form(request, _flat, {"type": "any"}, {"type": "none"}, _schema_form),
        }

    def read(self, chunk: Chunk, payload: dict[str, Any], event_name: str) -> None:
        kind = type_of(payload, event_name)
        if kind == "content_block_delta":
            _read_block(chunk, payload.get("delta"), "a delta")
            if arguments := text_in(payload.get("delta"), "partial_json"):
                chunk.calls = (CallDelta(as_count(payload.get("index")), "", arguments),)
                chunk.called = len(arguments)
        elif kind == "content_block_start":
            _read_block(chunk, payload.get("content_block"), "a content block")
            chunk.blank = False  # it opens a block; its text, if any, counts
            if name := text_in(block := payload["content_block"], "name"):
                # Some gateways send the whole input with it, and no deltas.
                arguments = written(block, "input") if block.get("input") else ""
                call = CallDelta(as_count(payload.get("index")), name, arguments, text_in(block, "id"))
                chunk.calls = (call,)
                chunk.text, chunk.called = chunk.text + arguments, len(arguments)
        elif kind in _KNOWN:
            _read_frame(chunk, payload, kind)
        elif not read_error(chunk, payload):
            if event_name == "error":
                set_error(chunk, payload)
            elif kind in ("", "message"):  # no type, and an event without a name
                chunk.problem = "an event without a type of the Messages API"
        read_timings(chunk, payload)


def _prompt(request: PlannedRequest) -> dict[str, Any]:
    """The fields of the prompt. From an array of messages the first texts of the system become a field of
    their own, results of tools become the user's, and consecutive messages of one role become one message, as
    the API itself would join them.

    :raises GeneratorError: the array has no such form.
    """
    asked = request.messages
    if asked is None:
        return {"messages": [{"role": "user", "content": own_prompt(request)}]}
    where = asked.place or f"request {request.index}"
    system = list(takewhile(lambda message: message.role == "system", asked.messages))
    said: list[dict[str, Any]] = []
    for number, message in enumerate(asked.messages[len(system) :], start=len(system) + 1):
        if message.role == "system" or (not said and message.role != "user"):
            raise GeneratorError(
                f"message {number} is the {message.role}'s: the Messages API has system messages before all "
                "others, and begins with one of the user",
                where=where,
                remedy="leave the conversation out, or measure over openai-chat",
            )
        role = "assistant" if message.role == "assistant" else "user"
        if not said or said[-1]["role"] != role:
            said.append({"role": role, "content": []})
        blocks = said[-1]["content"]
        if message.role == "tool":
            answer = {"tool_use_id": message.call_id, "content": message.content}
            blocks.append({"type": "tool_result", **answer})
        elif message.content:
            blocks.append({"type": "text", "text": message.content})
        for call in message.calls:
            arguments = arguments_of(call, where)
            blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments})
    tools = _flat(asked.tools)
    return {
        **({"system": "\n\n".join(message.content for message in system)} if system else {}),
        "messages": said,
        **({"tools": tools} if tools else {}),
    }


def _flat(tools: str) -> list[dict[str, Any]]:
    return [
        {"input_schema" if key == "parameters" else key: value for key, value in tool["function"].items()}
        for tool in tools_of(tools)
    ]


def _schema_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _read_block(chunk: Chunk, part: Any, what: str) -> None:
    # Blocks of one message are parts of one answer, not choices.
    chunk.choice = 0
    if part.__class__ is not dict:
        chunk.problem = f"{what} that is not a JSON object"
        return
    chunk.text = text_in(part, "text") or text_in(part, "partial_json")
    chunk.reasoning = text_in(part, "thinking")
    chunk.blank = not (chunk.text or chunk.reasoning) and str(part.get("type")) in (
        "text_delta",
        "thinking_delta",
        "input_json_delta",
    )


def _read_frame(chunk: Chunk, payload: dict[str, Any], kind: str) -> None:
    if kind == "message_start":
        message = payload.get("message")
        chunk.usage = _usage(message.get("usage") if message.__class__ is dict else None)
        if chunk.usage is not None:
            chunk.usage.output_tokens = None  # those so far, which end nothing
        chunk.choice = 0
    elif kind == "message_delta":
        delta = payload.get("delta")
        chunk.finish_reason = finish_reason(delta.get("stop_reason") if delta.__class__ is dict else None)
        chunk.usage = _usage(payload.get("usage"))
        chunk.choice = 0
    elif kind == "message_stop":
        chunk.done = True


def _usage(usage: Any) -> Usage | None:
    if usage.__class__ is not dict:
        return None
    counts = [as_count(usage.get(name)) for name in _INPUT_COUNTS]
    told = counts[0] is not None
    found = Usage(
        input_tokens=sum(count or 0 for count in counts) if told else None,
        output_tokens=as_count(usage.get("output_tokens")),
        cached_tokens=counts[1],
    )
    return None if found == Usage() else found
