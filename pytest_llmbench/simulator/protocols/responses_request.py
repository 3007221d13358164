"""The parser of requests of OpenAI's Responses API, WebSocket messages and HTTP bodies. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
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
