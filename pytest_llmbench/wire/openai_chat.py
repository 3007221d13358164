"""OpenAI chat completions and text completions, streamed: ``POST …/chat/completions``, ``POST
…/completions``.

What other dialects share with them is here too: prompts, bodies, choices, usage, server timings.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.model.reply_checks import is_strict, schema_of, tools_of
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import (
    TOKEN_TIMES,
    TOKENS_PER_STEP,
    CallDelta,
    Chunk,
    Usage,
    as_count,
    finish_reason,
    set_error,
    text_in,
    written,
)
from pytest_llmbench.wire.dialect import EncodeOptions, JsonDialect
from pytest_llmbench.wire.error_replies import error_in, json_object
from pytest_llmbench.wire.usage import settled

if TYPE_CHECKING:
    from pytest_llmbench.model.messages import Piece, ToolCall


class _OfChoices(JsonDialect):
    """Replies are events of ``choices``, as in chat and in text completions."""

    @staticmethod
    @abstractmethod
    def read_choice(chunk: Chunk, choice: dict[str, Any]) -> None:
        """Read one entry of ``choices`` into the chunk."""

    def read(self, chunk: Chunk, payload: dict[str, Any], event_name: str) -> None:
        get = payload.get
        choices = get("choices")
        if choices.__class__ is list:
            for choice in choices:
                if choice.__class__ is dict:
                    _read_any_choice(chunk, choice, self.read_choice)
                else:
                    chunk.problem = "an entry of choices that is not a JSON object"
        elif choices is not None:
            chunk.problem = "choices that are not a list"
        if "error" in payload or event_name != "message" or choices is None:
            error = error_in(payload)
            if error is not None or event_name == "error":
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


def _read_any_choice(
    chunk: Chunk, choice: dict[str, Any], read_choice: Callable[[Chunk, dict[str, Any]], None]
) -> None:
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


def completion_fields(
    prompt: Mapping[str, Any], request: PlannedRequest, options: EncodeOptions
) -> dict[str, Any]:
    """Model, prompt (``messages`` or ``prompt``), streaming with usage, length, sampling."""
    return {
        "model": options.model,
        **prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
    }


class OpenAIChat(_OfChoices):
    """The prompt is one user message, or the messages of the request. Reads what vLLM, SGLang, llama.cpp,
    DeepSeek and gateways stream."""

    name = "openai-chat"
    path = "/chat/completions"
    text_key = "content"
    structured_output = True
    message_roles = True
    media = True

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        if request.messages is not None:
            tools = {"tools": list(tools_of(request.messages.tools))} if request.messages.tools else {}
            messages = [message.as_chat() for message in request.messages.messages]
            return completion_fields({"messages": messages, **tools}, request, options)
        text = own_prompt(request)
        content: str | list[Any] = text
        if request.media:
            content = [{"type": "text", "text": text}, *(_part(one, request.index) for one in request.media)]
        said = [{"role": "user", "content": content}]
        form = asked_form(request, tools_of, "required", "none", _schema_form)
        return completion_fields({"messages": said, **form}, request, options)

    @staticmethod
    def read_choice(chunk: Chunk, choice: dict[str, Any]) -> None:
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
        elif content.__class__ is list:  # of typed parts: text, and thinking that contains parts itself
            for part in content:
                if isinstance(part, dict) and "thinking" in part:
                    thinking = part["thinking"]
                    told = thinking if isinstance(thinking, str) else "".join(_strings(thinking, "text"))
                    chunk.reasoning += told
                else:
                    chunk.text += "".join(_strings([part], "text"))
        elif content is not None:
            chunk.problem = f"content that is neither text nor null but {content.__class__.__name__}"
        if len(delta) > 1 or content is None:
            _read_other_output(chunk, delta)
        chunk.blank = content == "" and "role" not in delta and not (chunk.text or chunk.reasoning)


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


def asked_form(
    request: PlannedRequest,
    tools_in: Callable[[str], Iterable[Mapping[str, Any]]],
    required: object,
    none: object,
    form: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """The fields that ask for structured output. ``tools_in``: the tools of a text, as the API has them.
    ``required`` and ``none``: its words for a choice of tools; ``form``: the fields that ask for a schema.

    ``required`` and not the name of a tool: llama.cpp knows no names there. A schema goes with
    ``tool_choice`` none, since servers do not agree on what both together mean.
    """
    asked = request.structured
    if asked is None:
        return {}
    tools = list(tools_in(asked.tools))
    given = {"tools": tools} if tools else {}
    if asked.calls:
        return {**given, "tool_choice": required}
    return {**given, **({"tool_choice": none} if tools else {}), **form(schema_of(asked.schema))}


def _schema_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    form = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


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
            index = call.get("index")
            if index.__class__ is str and index.isdecimal() and len(index) < 6:
                index = int(index)
            number, otherwise = as_count(index), place if len(calls) > 1 else None
            _read_call(chunk, otherwise if number is None else number, call)
    function = delta.get("function_call")
    if function.__class__ is dict:
        _read_call(chunk, 0, {"function": function})


def _read_call(chunk: Chunk, number: int | None, call: dict[str, Any]) -> None:
    identity = text_in(call, "id")
    for function, key in ((call.get("function"), "arguments"), (call.get("custom"), "input")):
        name, arguments = text_in(function, "name"), written(function, key)
        if name or arguments or (identity and function.__class__ is dict):
            chunk.text += name + arguments
            chunk.called += len(name) + len(arguments)
            chunk.calls += (CallDelta(number, name, arguments, identity),)


def _strings(entries: Any, *keys: str) -> Iterator[str]:
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            yield from (entry[key] for key in keys if isinstance(entry.get(key), str))


class OpenAICompletions(_OfChoices):
    """The dialect of text completions.

    There is no chat template, and prompts may be token ids, so the exact length arrives (AMB-32).
    """

    name = "openai-completions"
    path = "/completions"
    accepts_token_ids = True
    text_key = "text"

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        as_text = options.prompt_form == "text"
        prompt = text_prompt(request) if as_text else token_prompt(request)
        return completion_fields({"prompt": prompt}, request, options)

    @staticmethod
    def read_choice(chunk: Chunk, choice: dict[str, Any]) -> None:
        text = choice.get("text")
        if text.__class__ is str:
            chunk.text += text
            chunk.blank = not chunk.text
        elif text is not None:
            chunk.problem = f"text that is neither text nor null but {text.__class__.__name__}"


def arguments_of(call: ToolCall, where: str) -> dict[str, Any]:
    """The arguments of a tool call as an object, for APIs that take them so.

    :raises GeneratorError: they are none.
    """
    found = json_object(call.arguments)
    if found is not None:
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
