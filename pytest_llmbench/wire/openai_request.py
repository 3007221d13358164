"""The request body that both OpenAI dialects share, and what every dialect does with a body and a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.request import ASKED_LIMIT, PlannedRequest
from pytest_llmbench.wire.dialect import EncodeOptions

if TYPE_CHECKING:  # few loads have messages
    from pytest_llmbench.model.messages import ToolCall


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
        f"the arguments of the call {call.call_id!r} are no JSON object",
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
            "the prompt does not begin with the tools that it asks for",
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
