"""OpenAI chat completions, streamed: ``POST …/chat/completions``."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.structured import is_strict, schema_of, tools_of
from pytest_llmbench.wire.chunk import CallDelta, Chunk
from pytest_llmbench.wire.dialect import DialectDefaults, EncodeOptions, require_text
from pytest_llmbench.wire.event_payload import text_in, written
from pytest_llmbench.wire.openai_request import encode_body, own_prompt
from pytest_llmbench.wire.openai_stream import as_count, decode_event
from pytest_llmbench.wire.sse import SSEEvent

if TYPE_CHECKING:  # few loads have messages or pieces
    from pytest_llmbench.model.media import Piece
    from pytest_llmbench.model.messages import MessageArray


class OpenAIChat(DialectDefaults):
    """The prompt is one user message, or the messages of the request. Reads what vLLM, SGLang, llama.cpp,
    DeepSeek and gateways stream."""

    name = "openai-chat"
    path = "/chat/completions"
    text_key = "content"
    structured_output = True
    message_roles = True
    media = True

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        if request.messages is not None:
            return encode_body(_conversation(request.messages), request, options)
        text = own_prompt(request)
        content: str | list[Any] = text
        if request.media:
            content = [{"type": "text", "text": text}, *(_part(one, request.index) for one in request.media)]
        messages = [{"role": "user", "content": content}]
        return encode_body({"messages": messages, **_asked_form(request)}, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        return decode_event(event, _read_choice)


def _conversation(asked: MessageArray) -> dict[str, Any]:
    """The fields for messages with roles; the model chooses among the tools."""
    tools = {"tools": list(tools_of(asked.tools))} if asked.tools else {}
    return {"messages": [message.as_chat() for message in asked.messages], **tools}


def _part(piece: Piece, index: int) -> dict[str, Any]:
    """A piece as a part of a message's content: OpenAI's ``image_url`` and ``input_audio``, and vLLM's
    ``video_url``, each with its bytes inside."""
    try:
        data = base64.b64encode(piece.payload()).decode()
    except OSError as error:
        raise GeneratorError(
            f"the {piece.modality} cannot be read: {error}",
            where=f"request {index}",
            remedy="correct files of the workload",
        ) from error
    if piece.modality == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": piece.format}}
    kind = f"{piece.modality}_url"
    return {"type": kind, kind: {"url": f"data:{piece.modality}/{piece.format};base64,{data}"}}


def _asked_form(request: PlannedRequest) -> dict[str, Any]:
    """The fields that ask for structured output.

    ``required`` and not the name of a tool: llama.cpp knows no names there. A schema goes with
    ``tool_choice`` none, since servers do not agree on what both together mean.
    """
    asked = request.structured
    if asked is None:
        return {}
    tools = {"tools": list(tools_of(asked.tools))} if asked.tools else {}
    if asked.calls:
        return {**tools, "tool_choice": "required"}
    schema = schema_of(asked.schema)
    form = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
    choice = {"tool_choice": "none"} if tools else {}
    return {**tools, **choice, "response_format": {"type": "json_schema", "json_schema": form}}


def _read_choice(chunk: Chunk, choice: dict[str, Any]) -> None:
    delta = choice.get("delta")
    if delta.__class__ is not dict:
        if delta is not None:
            chunk.problem = "a delta that is no JSON object"
        elif choice.get("message") is not None:
            chunk.problem = "a whole message instead of a delta: the endpoint did not stream"
        return
    content = delta.get("content")
    if content.__class__ is str:
        chunk.text += content
    elif content.__class__ is list:
        _read_parts(chunk, content)
    elif content is not None:
        chunk.problem = f"content that is neither text nor null but {content.__class__.__name__}"
    if len(delta) > 1 or content is None:
        _read_other_output(chunk, delta)
    chunk.blank = content == "" and "role" not in delta and not (chunk.text or chunk.reasoning)


def _read_other_output(chunk: Chunk, delta: dict[str, Any]) -> None:
    # One of the reasoning fields, not all: servers in transition send the same text under two names.
    reasoning = delta.get("reasoning") or delta.get("reasoning_content")
    if isinstance(reasoning, str):
        chunk.reasoning += reasoning
    elif delta.get("reasoning_details"):
        chunk.reasoning += "".join(_strings(delta["reasoning_details"], "text", "summary"))
    refusal = delta.get("refusal")
    if isinstance(refusal, str):
        chunk.text += refusal
    told = delta.get("tool_calls")
    calls: list[Any] = told if isinstance(told, list) else [told]
    for place, call in enumerate(calls):
        if call.__class__ is dict:
            # Without numbers those of one event are told apart by their places; one alone goes on with the
            # last.
            number = _index(call.get("index"), place if len(calls) > 1 else None)
            _read_call(chunk, number, call)
    function = delta.get("function_call")
    if function.__class__ is dict:
        _read_call(chunk, 0, {"function": function})


def _index(value: Any, otherwise: int | None) -> int | None:
    found = as_count(int(value) if value.__class__ is str and value.isdecimal() and len(value) < 6 else value)
    return otherwise if found is None else found


def _read_call(chunk: Chunk, number: int | None, call: dict[str, Any]) -> None:
    identity = text_in(call, "id")
    for function, key in ((call.get("function"), "arguments"), (call.get("custom"), "input")):
        name, arguments = text_in(function, "name"), written(function, key)
        if name or arguments or (identity and function.__class__ is dict):
            chunk.text += name + arguments
            chunk.called += len(name) + len(arguments)
            chunk.calls += (CallDelta(number, name, arguments, identity),)


def _read_parts(chunk: Chunk, parts: list[Any]) -> None:
    """Read content that is a list of typed parts: text, and thinking that contains parts itself."""
    for part in parts:
        if isinstance(part, dict) and "thinking" in part:
            thinking = part["thinking"]
            chunk.reasoning += thinking if isinstance(thinking, str) else "".join(_strings(thinking, "text"))
        else:
            chunk.text += "".join(_strings([part], "text"))


def _strings(entries: Any, *keys: str) -> Iterator[str]:
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            yield from (entry[key] for key in keys if isinstance(entry.get(key), str))
