"""OpenAI Responses, streamed: ``POST …/responses``.

The events have types, and the last is ``response.completed``, ``.incomplete`` or ``.failed``; there is no
``[DONE]``. The finish reason is the status of the response, or why it is incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_llmbench.model.messages import Message
from pytest_llmbench.model.reply_checks import is_strict, tools_of
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import (
    CallDelta,
    Chunk,
    as_count,
    finish_reason,
    read_error,
    set_error,
    text_in,
    type_of,
)
from pytest_llmbench.wire.dialect import EncodeOptions, JsonDialect
from pytest_llmbench.wire.openai_chat import asked_form, own_prompt, read_timings, read_usage

_ARGUMENTS = "response.function_call_arguments.delta"
_TEXT_DELTAS = frozenset(
    {
        "response.output_text.delta",
        "response.refusal.delta",
        _ARGUMENTS,
        "response.custom_tool_call_input.delta",
        "response.mcp_call_arguments.delta",
        "response.code_interpreter_call_code.delta",
    }
)
_REASONING_DELTAS = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
"""Types of the events that end a response."""


class OpenAIResponses(JsonDialect):
    """The prompt is the input as text, or the messages of the request. Reads what OpenAI, vLLM and gateways
    stream."""

    name = "openai-responses"
    path = "/responses"
    least_tokens = 16
    structured_output = True
    message_roles = True

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        return {
            "model": options.model,
            **_prompt(request),
            "stream": True,
            "store": False,
            "max_output_tokens": request.max_tokens,
            "temperature": request.temperature,
            **asked_form(request, _flat, "required", "none", _schema_form),
        }

    def read(self, chunk: Chunk, payload: dict[str, Any], event_name: str) -> None:
        kind = type_of(payload, event_name)
        if kind in _TEXT_DELTAS or kind in _REASONING_DELTAS:
            # Items of one response are parts of one answer, not choices.
            chunk.choice = 0
            delta = payload.get("delta")
            if delta.__class__ is not str:
                chunk.problem = f"a delta that is not text but {delta.__class__.__name__}"
            elif kind in _REASONING_DELTAS:
                chunk.reasoning = delta
            else:
                chunk.text = delta
            chunk.blank = delta == ""
            if kind == _ARGUMENTS and chunk.text:
                number, identity = as_count(payload.get("output_index")), text_in(payload, "item_id")
                chunk.calls = (CallDelta(number, "", chunk.text, identity),)
                chunk.called = len(chunk.text)
        elif kind == "response.output_item.added":
            item = payload.get("item")
            if name := text_in(item, "name"):
                number = as_count(payload.get("output_index"))
                chunk.calls = (CallDelta(number, name, identity=text_in(item, "id")),)
        elif kind in TERMINAL:
            _read_end(chunk, payload.get("response"), kind)
        elif not read_error(chunk, payload):
            if event_name == "error":
                set_error(chunk, payload)
            elif not kind.startswith("response.") and event_name == "message":
                chunk.problem = "an event without a type of the Responses API"
        read_timings(chunk, payload)


def _prompt(request: PlannedRequest) -> dict[str, Any]:
    if request.messages is None:
        return {"input": own_prompt(request)}
    items = [item for message in request.messages.messages for item in _items(message)]
    # Strict would be another request than the file's: not every schema may be.
    tools = [
        {"type": "function", "strict": False, **tool["function"]} for tool in tools_of(request.messages.tools)
    ]
    return {"input": items, **({"tools": tools} if tools else {})}


def _items(message: Message) -> Iterator[dict[str, Any]]:
    """The items of a message; tool calls and results of tools are items of their own here."""
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.call_id, "output": message.content}
    elif message.content:
        yield {"role": message.role, "content": message.content}
    for call in message.calls:
        told = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        yield {"type": "function_call", **told}


def _flat(tools: str) -> list[dict[str, Any]]:
    # Strict unless it is said otherwise, which not every schema can be.
    return [
        {"type": "function", "strict": is_strict(tool["function"]["parameters"]), **tool["function"]}
        for tool in tools_of(tools)
    ]


def _schema_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict(schema)}
    return {"text": {"format": form}}


def _read_end(chunk: Chunk, response: Any, kind: str) -> None:
    """Read the last event, which holds the whole response: status, usage and what was streamed before."""
    chunk.choice, chunk.done = 0, True
    if response.__class__ is not dict:
        chunk.problem = f"{kind} without a response"
        return
    status = response.get("status") or kind.removeprefix("response.")
    reason = text_in(response.get("incomplete_details"), "reason") if status == "incomplete" else ""
    chunk.finish_reason = finish_reason(reason or status)
    chunk.usage = read_usage(response.get("usage"))
    if status == "failed" or response.get("error"):
        set_error(chunk, response.get("error") or "the response failed without a reason")
