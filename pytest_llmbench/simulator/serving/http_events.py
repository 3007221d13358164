"""Replies of APIs other than OpenAI's over HTTP: named events (Responses, Anthropic's Messages), Ollama's
lines.

Their requests are read here too, those of the Responses API also from WebSocket messages, and events and
lines made as JSON texts.

A response that ends at ``max_output_tokens`` still ends with ``response.completed``, its status being
``incomplete``: so vLLM does it, where OpenAI's own service sends ``response.incomplete``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.serving.asgi import Headers, Receive, Scope, Send, send_body, send_start
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.generation import Generation
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import EventReply, Events, HttpFace, PartType, Reply
from pytest_llmbench.simulator.serving.request_body import Fields, schema_form, with_tools

CREATE = "response.create"


@dataclass(frozen=True, slots=True)
class ResponseCreate:
    """A parsed ``response.create``: the request for one turn."""

    request: GenerationRequest
    request_id: str | None
    """The value of ``metadata.request_id``, the id in the ground truth, as a turn has no header of its own;
    None: not given."""
    previous_response_id: str | None
    """Id of the response that this turn continues; None: it continues none."""


def parse_response_create(message: str | bytes | None, model: str) -> ResponseCreate:
    """Parse a client's message; the response's fields stand in ``response`` or beside ``type``.

    Raises RefusalError: 400 for what is not JSON, is no ``response.create``, or has wrong types, all of them
    named; 404 for another model. Unknown fields are ignored.
    """
    try:
        content = json.loads(message or "")
    except (ValueError, RecursionError) as error:
        raise RefusalError(400, f"the message is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("type") != CREATE:
        shown = json.dumps(content.get("type") if isinstance(content, dict) else content)[:60]
        raise RefusalError(400, f"the message must be an object of type {CREATE!r}, not {shown}", "type")
    inner = content.get("response", content)
    if not isinstance(inner, dict):
        raise RefusalError(400, "response must be an object", "response")
    metadata, previous = inner.get("metadata"), inner.get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        raise RefusalError(400, "previous_response_id must be a string", "previous_response_id")
    request = replace(parse_response(inner, model), stream=True)
    own_id = metadata.get("request_id") if isinstance(metadata, dict) else None
    return ResponseCreate(request, own_id if isinstance(own_id, str) else None, previous)


def parse_response(content: dict[str, Any], model: str) -> GenerationRequest:
    """Parse the body of a response that is posted over HTTP. Raises RefusalError as above."""
    fields = Fields(content, model)
    instructions, given = fields.text("instructions"), content.get("input")
    texts = (given,) if isinstance(given, str) else fields.messages("input")[0]
    tools = fields.tools("parameters")
    texts = with_tools(texts, tools)
    reasoning = content.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    return fields.request(
        texts if instructions is None else (instructions, *texts),
        fields.count("max_output_tokens", least=1),
        structured=fields.structured(tools, schema_form(content.get("text"), "format")),
        thinks=effort != "none",
    )


class ResponseEvents:
    """Makes the events of a response in order, numbered from 0: a reasoning item, if any, and a message or a
    function call."""

    tool = ""

    def __init__(self, response_id: str, created: int, model: str) -> None:
        self.response_id = f"resp_{response_id}"
        self._identity = {
            "id": self.response_id,
            "object": "response",
            "created_at": created,
            "model": model,
            "error": None,
            "parallel_tool_calls": False,
            "tools": [],
        }
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: PartType | None = None
        self._texts: list[str] = []

    def opening(self) -> list[str]:
        """The events that are sent when the request has been accepted."""
        response = self._response("in_progress", [])
        return [self._event(kind, response=response) for kind in ("response.created", "response.in_progress")]

    def delta(self, kind: PartType, text: str) -> list[str]:
        """The events of further text, with those that open its item when it is the first of that kind."""
        events = []
        if self._open != kind:
            events += self._close()
            self._open = kind
            place = self._place
            item = self._item("in_progress", "")
            index = place["output_index"]
            events.append(self._event("response.output_item.added", output_index=index, item=item))
            if kind != "function_call":
                part = _part(kind, "")
                events.append(self._event("response.content_part.added", **place, part=part))
        self._texts.append(text)
        name = "function_call_arguments" if kind == "function_call" else kind
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        return [*events, self._event(f"response.{name}.delta", **self._place, delta=text, **logprobs)]

    def ending(self, finish_reason: str, truth: GroundTruth, timings: bool = False) -> list[str]:
        """The events that end the last item, and ``response.completed`` with the token counts, and
        ``timings`` beside them."""
        events = self._close()
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish_reason)
        response = self._response("incomplete" if cut else "completed", self._output)
        response["incomplete_details"] = {"reason": cut} if cut else None
        response["usage"] = {
            "input_tokens": truth.prompt_tokens,
            "input_tokens_details": {"cached_tokens": truth.cached_tokens or 0},
            "output_tokens": truth.output_tokens,
            "output_tokens_details": {"reasoning_tokens": truth.reasoning_tokens},
            "total_tokens": truth.prompt_tokens + truth.output_tokens,
        }
        more = {"timings": truth.timings()} if timings else {}
        return [*events, self._event("response.completed", response=response, **more)]

    def text(self) -> str:
        """The text of the message so far, without the reasoning."""
        parts = [part for item in self._output if item["type"] == "message" for part in item["content"]]
        return "".join(part["text"] for part in parts)

    def error(self, refusal: RefusalError) -> str:
        """The error event of a response under way."""
        return error_event(refusal, sequence_number=self._number)

    @property
    def _place(self) -> dict[str, Any]:
        """Where in the response the open item is."""
        prefix = {"output_text": "msg", "function_call": "fc"}.get(self._open or "", "rs")
        item_id = f"{prefix}_{self.response_id.removeprefix('resp_')}"
        place = {"item_id": item_id, "output_index": len(self._output)}
        return place if self._open == "function_call" else {**place, "content_index": 0}

    def _close(self) -> list[str]:
        """The events that close the open item; none where no item is open."""
        kind = self._open
        if kind is None:
            return []
        text, place = "".join(self._texts), self._place
        item = self._item("completed", text)
        if kind == "function_call":
            events = [self._event("response.function_call_arguments.done", **place, arguments=text)]
        else:
            events = [
                self._event(f"response.{kind}.done", **place, text=text),
                self._event("response.content_part.done", **place, part=_part(kind, text)),
            ]
        index = place["output_index"]
        events.append(self._event("response.output_item.done", output_index=index, item=item))
        self._output.append(item)
        self._open, self._texts = None, []
        return events

    def _item(self, status: str, text: str) -> dict[str, Any]:
        """The open item; of one that has just been opened there is no text."""
        kind = self._open
        assert kind is not None
        item: dict[str, Any] = {"id": self._place["item_id"], "status": status}
        if kind == "function_call":
            called = {"call_id": "call_0", "name": self.tool, "arguments": text}
            return item | {"type": "function_call", **called}
        item["content"] = [_part(kind, text)] if status == "completed" else []
        if kind == "output_text":
            return item | {"type": "message", "role": "assistant"}
        return item | {"type": "reasoning", "summary": []}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            **self._identity,
            "status": status,
            "output": output,
            "incomplete_details": None,
            "usage": None,
        }

    def _event(self, kind: str, **fields: Any) -> str:
        number = self._number
        self._number += 1
        return json.dumps({"type": kind, "sequence_number": number, **fields}, separators=(",", ":"))


def error_event(refusal: RefusalError, **more: Any) -> str:
    """The error event that is sent instead of a response, or in the middle of one."""
    return json.dumps({"type": "error", "status": refusal.status, **refusal.body(), **more})


def _part(kind: PartType, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": kind, "text": text}
    return part | {"annotations": []} if kind == "output_text" else part


_CREATED = "1970-01-01T00:00:00Z"


def parse_chat(content: dict[str, Any], model: str) -> GenerationRequest:
    """The request of Ollama's ``/api/chat``. RefusalError 400 for wrong types, all of them named; 404 for
    another model."""
    fields = Fields(content, model)
    return _parsed(content, fields, with_tools(fields.messages()[0], fields.tools()))


def parse_generate(content: dict[str, Any], model: str) -> GenerationRequest:
    """The request of Ollama's ``/api/generate``, which has a prompt instead of messages; raises as
    :func:`parse_chat`."""
    fields = Fields(content, model)
    return _parsed(content, fields, (fields.text("prompt") or "",))


def _parsed(content: dict[str, Any], fields: Fields, texts: tuple[str, ...]) -> GenerationRequest:
    options = content.get("options")
    sampling = Fields(options if isinstance(options, dict) else {})
    request = GenerationRequest(
        texts=texts,
        stream=content.get("stream", True) is not False,
        max_tokens=sampling.count("num_predict", least=1),
        thinks=content.get("think") is not False,
    )
    fields.mistakes |= sampling.mistakes
    return fields.right(request)


class OllamaLines:
    """Makes the lines of Ollama's reply in order. There is none before the first token."""

    tool = ""
    """Name of the tool that is called; always empty, as no structured output is asked for here."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model = model
        self._chat = chat

    def opening(self) -> list[str]:
        return []

    def delta(self, kind: PartType, text: str) -> list[str]:
        return [self._line("content" if kind == "output_text" else "thinking", text, done=False)]

    def ending(self, finish_reason: str, truth: GroundTruth, _timings: bool = False) -> list[str]:
        """The last line; every reply of Ollama states its durations there."""
        prefill_ns = round(float(truth.timings().get("prompt_ms", 0.0)) * 1e6)
        return [
            self._line(
                "content",
                "",
                done=True,
                done_reason=finish_reason,
                total_duration=max(0, (truth.last_token_ns or truth.received_ns) - truth.received_ns),
                load_duration=0,
                prompt_eval_count=truth.prompt_tokens,
                prompt_eval_duration=prefill_ns,
                eval_count=truth.output_tokens,
            )
        ]

    def error(self, refusal: RefusalError) -> str:
        """The line that ends a reply under way."""
        return json.dumps({"error": refusal.message})

    def _line(self, field: str, text: str, **more: Any) -> str:
        if self._chat:
            output: dict[str, Any] = {"message": {"role": "assistant", "content": "", field: text}}
        else:
            output = {"response": "", ("response" if field == "content" else field): text}
        line = {"model": self._model, "created_at": _CREATED, **output, **more}
        return json.dumps(line, separators=(",", ":"))


_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
}
_BLOCKS = {
    "output_text": ("text", "text_delta", "text"),
    "reasoning_text": ("thinking", "thinking_delta", "thinking"),
    "function_call": ("tool_use", "input_json_delta", "partial_json"),
}
"""Type of the block, type of its deltas, and the field of the text in both, by the type of a part."""


def parse_message(content: dict[str, Any], model: str) -> GenerationRequest:
    """The request of Anthropic's ``/v1/messages``. RefusalError 400 for wrong types, all of them named; 404
    for another model."""
    fields = Fields(content, model)
    system, most = fields.text("system"), fields.count("max_tokens", least=1)
    if most is None:
        fields.mistakes.setdefault("max_tokens", "max_tokens is missing")
    tools = fields.tools("input_schema")
    texts = with_tools(fields.messages()[0], tools)
    thinking = content.get("thinking")
    return fields.request(
        texts if system is None else (system, *texts),
        most,
        structured=fields.structured(tools, schema_form(content.get("output_config"), "format")),
        thinks=not isinstance(thinking, dict) or thinking.get("type") != "disabled",
    )


class MessageEvents:
    """Makes the events of an Anthropic message in order: a block of thinking, if any, and one of text or a
    tool call."""

    tool = ""

    def __init__(self, message_id: str, model: str, prompt_tokens: int) -> None:
        self._identity = {"id": f"msg_{message_id}", "type": "message", "role": "assistant", "model": model}
        self._prompt_tokens = prompt_tokens
        self._open: PartType | None = None
        self._index = -1

    def opening(self) -> list[str]:
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        message: dict[str, Any] = {
            **self._identity,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return [_event("message_start", message=message), _event("ping")]

    def delta(self, kind: PartType, text: str) -> list[str]:
        block, delta, field = _BLOCKS[kind]
        events = []
        if self._open != kind:
            events += self._close()
            self._open, self._index = kind, self._index + 1
            start: dict[str, Any] = {"type": block, field: ""}
            if kind == "function_call":
                start = {"type": block, "id": "toolu_0", "name": self.tool, "input": {}}
            events.append(_event("content_block_start", index=self._index, content_block=start))
        more = {"type": delta, field: text}
        return [*events, _event("content_block_delta", index=self._index, delta=more)]

    def ending(self, finish_reason: str, truth: GroundTruth, timings: bool = False) -> list[str]:
        """The closing events. They repeat the input's token counts, now that it is known how much a cache
        held."""
        cached = truth.cached_tokens or 0
        usage = {
            "input_tokens": truth.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": truth.output_tokens,
        }
        delta = {"stop_reason": _STOP_REASONS.get(finish_reason, finish_reason), "stop_sequence": None}
        more = {"timings": truth.timings()} if timings else {}
        return [
            *self._close(),
            _event("message_delta", delta=delta, usage=usage, **more),
            _event("message_stop"),
        ]

    def error(self, refusal: RefusalError) -> str:
        """The error event of a message under way."""
        return _event("error", error={"type": "api_error", "message": refusal.message})

    def _close(self) -> list[str]:
        return [] if self._open is None else [_event("content_block_stop", index=self._index)]


def _event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields}, separators=(",", ":"))


RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class EventApi:
    """An API whose replies are events."""

    parse: Callable[[dict[str, Any], str], GenerationRequest]
    """Reads a request; takes its members and the model's name."""
    events: Callable[[GroundTruth, str], Events]
    """Makes the events of a request; takes its ground truth and the model's name."""
    lines: bool = False
    """Whether each event is a line of JSON, instead of a server-sent event with its type as name."""


EVENT_APIS: Mapping[str, EventApi] = {
    RESPONSES: EventApi(
        parse_response, lambda truth, model: ResponseEvents(truth.request_id, int(time.time()), model)
    ),
    "/v1/messages": EventApi(
        parse_message, lambda truth, model: MessageEvents(truth.request_id, model, truth.prompt_tokens)
    ),
    "/api/chat": EventApi(parse_chat, lambda _, model: OllamaLines(model, chat=True), lines=True),
    "/api/generate": EventApi(parse_generate, lambda _, model: OllamaLines(model, chat=False), lines=True),
}


class EventFace(HttpFace):
    """One request of an :class:`EventApi`, and the connection that carries its events."""

    def __init__(
        self,
        generation: Generation,
        driver: EngineDriver,
        api: EventApi,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(scope, receive)
        self._send, self._driver, self._api = send, driver, api
        self._timings = generation.options.server_timings
        self._headers: Headers = []
        self._begun = False

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int], /) -> Reply:
        kind = b"application/x-ndjson" if self._api.lines else b"text/event-stream; charset=utf-8"
        self._headers = [(b"content-type", kind), (b"x-request-id", truth.request_id.encode("latin-1"))]
        events = self._api.events(truth, self._driver.config.model)
        return EventReply(self, events, texts, truth, chunk_tokens, self._driver.clock, timings=self._timings)

    async def send(self, text: str) -> None:
        await self._start()
        event = f"{text}\n" if self._api.lines else f"event: {json.loads(text)['type']}\ndata: {text}\n\n"
        await send_body(self._send, event.encode(), more=True)

    async def complete(self) -> None:
        await self._start()
        await send_body(self._send, b"")

    async def _start(self) -> None:
        if not self._begun:
            self._begun = True
            await send_start(self._send, 200, self._headers)
