"""OpenAI chat completions and text completions, streamed: ``POST …/chat/completions``, ``POST
…/completions``.

What other dialects share with them is here too: prompts, bodies, choices, usage, server timings.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.reply_checks import is_strict, schema_of, tools_of
from pytest_llmbench.model.request import ASKED_LIMIT, PlannedRequest
from pytest_llmbench.wire.chunk import (
    TOKEN_TIMES,
    TOKENS_PER_STEP,
    CallDelta,
    Chunk,
    Usage,
    as_count,
    finish_reason,
    payload_of,
    set_error,
    text_in,
    written,
)
from pytest_llmbench.wire.dialect import DialectDefaults, EncodeOptions, require_text
from pytest_llmbench.wire.error_replies import error_in
from pytest_llmbench.wire.sse import SSEEvent
from pytest_llmbench.wire.usage import settled

if TYPE_CHECKING:
    from pytest_llmbench.model.messages import Piece, ToolCall


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
            tools = {"tools": list(tools_of(request.messages.tools))} if request.messages.tools else {}
            return encode_body(
                {"messages": [message.as_chat() for message in request.messages.messages], **tools},
                request,
                options,
            )
        text = own_prompt(request)
        content: str | list[Any] = text
        if request.media:
            content = [{"type": "text", "text": text}, *(_part(one, request.index) for one in request.media)]
        messages = [{"role": "user", "content": content}]
        return encode_body({"messages": messages, **_asked_form(request)}, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        return decode_event(event, _read_message)


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


def _read_message(chunk: Chunk, choice: dict[str, Any]) -> None:
    delta = choice.get("delta")
    if delta.__class__ is not dict:
        if delta is not None:
            chunk.problem = "a delta that is not a JSON object"
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


class OpenAICompletions(DialectDefaults):
    """The dialect of text completions.

    There is no chat template, and prompts may be token ids, so the exact length arrives (AMB-32).
    """

    name = "openai-completions"
    path = "/completions"
    accepts_token_ids = True
    text_key = "text"

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        as_text = options.prompt_form == "text"
        prompt = text_prompt(request) if as_text else token_prompt(request)
        return encode_body({"prompt": prompt}, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        return decode_event(event, _read_text)


def _read_text(chunk: Chunk, choice: dict[str, Any]) -> None:
    text = choice.get("text")
    if text.__class__ is str:
        chunk.text += text
        chunk.blank = not chunk.text
    elif text is not None:
        chunk.problem = f"text that is neither text nor null but {text.__class__.__name__}"


def encode_body(prompt: Mapping[str, Any], request: PlannedRequest, options: EncodeOptions) -> bytes:
    """The JSON body: model, prompt (``messages`` or ``prompt``), streaming with usage, length, sampling.

    Of a long load most are encoded while it is running.
    """
    body: dict[str, Any] = {
        "model": options.model,
        **prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    return write_body(body, request, options)


UNSENT_IF_NULL = ("stream_options", "max_tokens", "temperature")
"""Fields of ours that are not sent where an extra field of that name is null: some servers refuse them."""


def write_body(body: dict[str, Any], request: PlannedRequest, options: EncodeOptions) -> bytes:
    """``body`` with the extra fields of the run, as JSON. One with the value ``ASKED_LIMIT`` gets the most
    output tokens of the request.

    :raises SuiteError: they take streaming away.
    """
    merge(body, options.extra_body)
    if body.get("stream", True) is not True:
        raise SuiteError(
            "extra request fields set stream to " + json.dumps(body["stream"]),
            remedy="leave stream out: every figure is taken from the stream",
        )
    for name in UNSENT_IF_NULL:
        if body.get(name, True) is None:
            del body[name]
    for name in options.extra_body:
        if body.get(name) == ASKED_LIMIT:
            body[name] = request.max_tokens
    return as_json(body, request)


def as_json(value: Any, request: PlannedRequest) -> bytes:
    """``value``, a body of the request or a part of one, as compact JSON.

    :raises GeneratorError: its text cannot be sent.
    """
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs: Python's own writer knows better
        return _written(value, request)


def _written(value: Any, request: PlannedRequest) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise GeneratorError(
            f"the prompt cannot be sent as UTF-8: {error.reason}",
            where=f"request {request.index}",
            remedy="decode prompts with errors='replace', so that no lone surrogate is left",
        ) from error


def merge(body: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Merge ``extra`` into ``body``, so that ``stream_options`` can be extended without being repeated."""
    for key, value in extra.items():
        present = body.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping):
            merge(present, value)
        else:
            body[key] = value


def arguments_of(call: ToolCall, where: str) -> dict[str, Any]:
    """The arguments of a tool call as an object, for APIs that take them so.

    :raises GeneratorError: they are none.
    """
    try:
        found = json.loads(call.arguments)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    raise GeneratorError(
        f"the arguments of the call {call.call_id!r} are not a JSON object",
        where=where,
        remedy="leave the conversation out, or measure over openai-chat, which takes them as text",
    )


def chat_messages(request: PlannedRequest) -> list[dict[str, Any]]:
    """The prompt as messages in the shape of OpenAI's chat API, for an API without a field for tools: those
    of an array are put into a first message of the system."""
    asked = request.messages
    if asked is None:
        return [{"role": "user", "content": text_prompt(request)}]
    tools = [{"role": "system", "content": f"tools: {asked.tools}"}] if asked.tools else []
    return [*tools, *(message.as_chat() for message in asked.messages)]


def token_prompt(request: PlannedRequest) -> list[int]:
    """The prompt as token ids."""
    if request.messages is not None:
        raise GeneratorError(
            "messages with roles cannot be sent as token ids",
            where=f"request {request.index}",
            remedy='leave request.prompt = "token_ids" out of the SUT file',
        )
    if request.token_ids is None:
        raise GeneratorError(
            "the request has no token ids to send",
            where=f"request {request.index}",
            remedy="send prompts as text",
        )
    return [int(token) for token in request.token_ids]


def own_prompt(request: PlannedRequest) -> str:
    """The prompt as text, without the tools with which it begins: those have a field of their own."""
    text = text_prompt(request)
    tools = "" if request.structured is None else request.structured.tools
    if not text.startswith(tools):
        raise GeneratorError(
            "the prompt does not begin with the tools that it requests",
            where=f"request {request.index}",
            remedy="let the text of a request begin with structured.tools, or leave structured out",
        )
    return text[len(tools) :]


def text_prompt(request: PlannedRequest) -> str:
    """The prompt as text, which the workload must have given or decoded before."""
    if request.text is None:
        raise GeneratorError(
            "the request has no text to send",
            where=f"request {request.index}",
            remedy="decode its token ids with the workload's tokenizer, or send token ids to an endpoint "
            "that takes them",
        )
    return request.text


ReadChoice = Callable[[Chunk, dict[str, Any]], None]
"""Reads one entry of ``choices`` into the chunk, as the dialect has it."""


def decode_event(event: SSEEvent, read_choice: ReadChoice) -> Chunk:
    """The chunk of one event."""
    chunk = Chunk(event.stamp_ns, event.read_index)
    payload = payload_of(event, chunk)
    if payload is not None:
        _read_payload(chunk, payload, event.event, read_choice)
    return chunk


def _read_payload(chunk: Chunk, payload: dict[str, Any], event_type: str, read_choice: ReadChoice) -> None:
    get = payload.get
    choices = get("choices")
    if choices.__class__ is list:
        for choice in choices:
            if choice.__class__ is dict:
                _read_any_choice(chunk, choice, read_choice)
            else:
                chunk.problem = "an entry of choices that is not a JSON object"
    elif choices is not None:
        chunk.problem = "choices that are not a list"
    if "error" in payload or event_type != "message" or choices is None:
        error = error_in(payload)
        if error is not None or event_type == "error":
            set_error(chunk, payload if error is None else error)
    if get("usage") is not None:
        chunk.usage = read_usage(payload["usage"])
        if chunk.usage is not None and chunk.choice is not None:
            chunk.tokens_cumulative = chunk.usage.output_tokens
    if (
        get("timings") is not None
        or get("metrics") is not None
        or TOKEN_TIMES in payload
        or get("generation_stats") is not None
    ):
        read_timings(chunk, payload)


def _read_any_choice(chunk: Chunk, choice: dict[str, Any], read_choice: ReadChoice) -> None:
    get = choice.get
    index = get("index")
    chunk.choice = index if index.__class__ is int else 0
    read_choice(chunk, choice)
    if reason := get("finish_reason"):
        chunk.finish_reason = finish_reason(reason)
        if (per_step := get(TOKENS_PER_STEP)) is not None:
            chunk.server_timings = {TOKENS_PER_STEP: per_step}
    ids = get("token_ids")
    if ids.__class__ is list:
        chunk.tokens = (chunk.tokens or 0) + len(ids)


def read_usage(usage: Any) -> Usage | None:
    """The usage in a usage object; ``None`` for an object without any."""
    if usage.__class__ is not dict:
        return None
    found = Usage(
        input_tokens=_first_count(usage, "prompt_tokens", "input_tokens"),
        output_tokens=_first_count(usage, "completion_tokens", "output_tokens"),
        cached_tokens=_first_count(usage, "prompt_cache_hit_tokens"),
        reasoning_tokens=_first_count(usage, "reasoning_tokens"),
        total_tokens=_first_count(usage, "total_tokens"),
    )
    for key in ("prompt_tokens_details", "input_tokens_details"):
        if usage.get(key).__class__ is dict and found.cached_tokens is None:
            found.cached_tokens = as_count(usage[key].get("cached_tokens"))
    for key in ("completion_tokens_details", "output_tokens_details"):
        if usage.get(key).__class__ is dict and found.reasoning_tokens is None:
            found.reasoning_tokens = as_count(usage[key].get("reasoning_tokens"))
    return None if found == Usage(total_tokens=found.total_tokens) else settled(found)


def _first_count(source: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        count = as_count(source.get(key))
        if count is not None:
            return count
    return None


def read_timings(chunk: Chunk, payload: dict[str, Any]) -> None:
    """Read llama.cpp's ``timings``, vLLM's ``metrics`` and exo's ``generation_stats``; the first also counts
    tokens, per chunk if asked to.

    Instants of tokens go with them: a field of their own would cost every chunk of every stream.
    """
    sources = [source for key in ("timings", "metrics") if isinstance(source := payload.get(key), dict)]
    if isinstance(stats := payload.get("generation_stats"), dict):
        # A prompt that was in the cache has the rate of when it came there.
        cached = stats.get("prefix_cache_hit", "none") != "none"
        sources.append({name: it for name, it in stats.items() if not cached or name != "prompt_tps"})
    if TOKEN_TIMES in payload:
        sources.append({TOKEN_TIMES: payload[TOKEN_TIMES]})
    if not sources:
        return
    if chunk.server_timings is not None:
        sources.append(dict(chunk.server_timings))
    one = len(sources) == 1
    chunk.server_timings = sources[0] if one else {name: it[name] for it in sources for name in it}
    if not chunk.tokens_cumulative and chunk.choice is not None:  # usage of zeros is none
        chunk.tokens_cumulative = as_count(chunk.server_timings.get("predicted_n"))
