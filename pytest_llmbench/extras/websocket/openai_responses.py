"""OpenAI Responses over WebSocket: ``response.create`` messages on a connection that stays open.

A message has the fields of a request body beside its type, but for ``stream``, which goes without saying and
is not to be sent. One response at a time; its events are those that HTTP streams, a message each, and the
last of them ends it: there is no ``[DONE]``. A request is refused by an event of type ``error``, which has
the ``status`` that an answer over HTTP would have.

Source: developers.openai.com/api/reference/resources/responses/websocket-events.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.apis.openai_responses import TERMINAL, OpenAIResponses
from pytest_llmbench.wire.chunk import type_of
from pytest_llmbench.wire.dialect import EncodeOptions, MessageDialect
from pytest_llmbench.wire.error_replies import error_in, json_object

CREATE = "response.create"
_ID = "\x1erequest id\x1e"
_ID_WRITTEN = orjson.dumps(_ID)[1:-1]
_MARKS = tuple(json.dumps(kind).encode() for kind in (*sorted(TERMINAL), "error", "errors", "detail"))
"""Byte strings of which the last message of a reply has one. Inside a text their quotes would be escaped."""


class ResponsesOverWebSocket(OpenAIResponses, MessageDialect):
    """The Responses dialect over WebSocket. A message has no header for the id of its request: that goes as
    ``metadata.request_id``, since the API takes metadata of any kind."""

    protocol = "websocket"

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        body = super().fields(request, options)
        del body["stream"]
        return {"type": CREATE, "metadata": {"request_id": _ID}, **body}

    def message(self, body: bytes, request_id: str) -> bytes:
        # The first place is that of the metadata, which stand before anything that a prompt could be in.
        return body.replace(_ID_WRITTEN, request_id.encode("ascii"), 1)

    def is_last(self, message: bytes) -> bool:
        if not any(mark in message for mark in _MARKS):
            return False
        payload = json_object(message) or {}
        return type_of(payload, "") in TERMINAL or _is_error(payload)

    def is_error(self, message: bytes) -> bool:
        return _is_error(json_object(message) or {})

    def refusal_status(self, message: bytes) -> int | None:
        payload = json_object(message) or {}
        status = payload.get("status")
        return status if status.__class__ is int and 400 <= status < 600 and _is_error(payload) else None


def _is_error(payload: dict[str, Any]) -> bool:
    return not type_of(payload, "").startswith("response.") and error_in(payload) is not None
