"""OpenAI's Responses API: the parser of its requests, WebSocket messages and HTTP bodies, and the events of a
response as JSON texts. Pure.

A response that ends at ``max_output_tokens`` still ends with ``response.completed``, its status being
``incomplete``: so vLLM does it, where OpenAI's own service sends ``response.incomplete``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.protocols.face import PartType
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
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
        raise RefusalError(400, f"the message has to be an object of type {CREATE!r}, not {shown}", "type")
    inner = content.get("response", content)
    if not isinstance(inner, dict):
        raise RefusalError(400, "response has to be an object", "response")
    metadata, previous = inner.get("metadata"), inner.get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        raise RefusalError(400, "previous_response_id has to be a string", "previous_response_id")
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
            events += self._close() + self._begin(kind)
        self._texts.append(text)
        if kind == "function_call":
            place = {"item_id": self._item_id, "output_index": len(self._output)}
            return [*events, self._event("response.function_call_arguments.delta", **place, delta=text)]
        place = {"item_id": self._item_id, "output_index": len(self._output), "content_index": 0}
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        return [*events, self._event(f"response.{kind}.delta", **place, delta=text, **logprobs)]

    def ending(self, finish_reason: str, truth: GroundTruth, timings: bool = False) -> list[str]:
        """The events that end the last item, and ``response.completed`` with the token counts, and
        ``timings`` beside them."""
        events = self._close()
        if finish_reason == "length":
            response = self._response("incomplete", self._output)
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif finish_reason == "content_filter":
            response = self._response("incomplete", self._output)
            response["incomplete_details"] = {"reason": "content_filter"}
        else:
            response = self._response("completed", self._output)
        response["usage"] = _usage(truth)
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
    def _item_id(self) -> str:
        prefix = {"output_text": "msg", "function_call": "fc"}.get(self._open or "", "rs")
        return f"{prefix}_{self.response_id.removeprefix('resp_')}"

    def _begin(self, kind: PartType) -> list[str]:
        self._open, index = kind, len(self._output)
        if kind == "function_call":
            item = self._call("in_progress", "")
            return [self._event("response.output_item.added", output_index=index, item=item)]
        item, part = self._item("in_progress", []), _part(kind, "")
        place = {"item_id": self._item_id, "output_index": index, "content_index": 0}
        return [
            self._event("response.output_item.added", output_index=index, item=item),
            self._event("response.content_part.added", **place, part=part),
        ]

    def _close(self) -> list[str]:
        """The events that close the open item; none where no item is open."""
        kind = self._open
        if kind is None:
            return []
        text, index = "".join(self._texts), len(self._output)
        if kind == "function_call":
            return self._close_call(text, index)
        part = _part(kind, text)
        item = self._item("completed", [part])
        place = {"item_id": self._item_id, "output_index": index, "content_index": 0}
        events = [
            self._event(f"response.{kind}.done", **place, text=text),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=index, item=item),
        ]
        self._output.append(item)
        self._open, self._texts = None, []
        return events

    def _close_call(self, arguments: str, index: int) -> list[str]:
        item, place = self._call("completed", arguments), {"item_id": self._item_id, "output_index": index}
        self._output.append(item)
        self._open, self._texts = None, []
        return [
            self._event("response.function_call_arguments.done", **place, arguments=arguments),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _call(self, status: str, arguments: str) -> dict[str, Any]:
        item = {"id": self._item_id, "type": "function_call", "status": status, "call_id": "call_0"}
        return {**item, "name": self.tool, "arguments": arguments}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id, "status": status, "content": content}
        if self._open == "output_text":
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


def _usage(truth: GroundTruth) -> dict[str, Any]:
    return {
        "input_tokens": truth.prompt_tokens,
        "input_tokens_details": {"cached_tokens": truth.cached_tokens or 0},
        "output_tokens": truth.output_tokens,
        "output_tokens_details": {"reasoning_tokens": truth.reasoning_tokens},
        "total_tokens": truth.prompt_tokens + truth.output_tokens,
    }
