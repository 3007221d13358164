"""An ASGI application with a model's API, for servers that speak HTTP/2; it tells when it did what.

``/truth`` has, for each request by its ``x-request-id``, the monotonic instants at which its body had come
and at which each part of the reply was sent, and the version of HTTP.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from scripted_server import DONE, FINISH, text_event

STEP_S = 0.02
_TRUTH: dict[str, dict[str, Any]] = {}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    read_ns = time.monotonic_ns()
    if scope["path"] == "/v1/models":
        await _whole(send, {"object": "list", "data": [{"id": "m", "object": "model"}]})
    elif scope["path"] == "/truth":
        await _whole(send, _TRUTH)
    elif scope["path"] == "/v1/chat/completions":
        sent_ns = await _stream(send, json.loads(body).get("max_tokens") or 2)
        truth = {"read_ns": read_ns, "sent_ns": sent_ns, "http_version": scope["http_version"]}
        _TRUTH[headers.get("x-request-id", "")] = truth
    else:
        await _whole(send, {"error": {"message": "no such path"}}, 404)


async def _whole(send: Any, payload: Any, status: int = 200) -> None:
    body = json.dumps(payload).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Any, tokens: int) -> list[int]:
    """So many chunks of one token each, and when each was sent."""
    head = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    sent_ns = []
    for number in range(tokens):
        await asyncio.sleep(STEP_S)
        sent_ns.append(time.monotonic_ns())
        part = text_event(f" token{number}")
        await send({"type": "http.response.body", "body": part, "more_body": True})
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})
    await send({"type": "http.response.body", "body": FINISH + f"data: {usage}\n\n".encode() + DONE})
    return sent_ns
