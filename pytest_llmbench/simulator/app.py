"""The HTTP face as an ASGI application: OpenAI's two completion endpoints, and the engine's own records."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from pytest_llmbench.simulator.asgi import (
    BodyTooLargeError,
    ClientGoneError,
    Headers,
    Receive,
    Scope,
    Send,
    read_body,
    send_json,
    send_whole,
    until_disconnect,
)
from pytest_llmbench.simulator.driver import EngineDriver
from pytest_llmbench.simulator.engine import Sequence
from pytest_llmbench.simulator.ground_truth import GroundTruth
from pytest_llmbench.simulator.replies import Reply, StreamedReply, WholeReply
from pytest_llmbench.simulator.reply_text import ReplyText
from pytest_llmbench.simulator.request_body import Endpoint, GenerationRequest, RefusalError, parse_request

RECEIVED_NS = "received_ns"
"""Key of the request's ``state`` under which the HTTP protocol leaves the instant of its last read."""

BODY_LIMIT_BYTES = 64 * 2**20
_LONG_TEXT = 16_384
"""Characters from which on counting tokens takes milliseconds and moves off the event loop."""

CountTokens = Callable[[str], int]


class EngineApp:
    """Routes requests. Nothing here knows which server runs it, but for the stamp under ``RECEIVED_NS``."""

    def __init__(self, driver: EngineDriver, count_tokens: CountTokens) -> None:
        self._driver = driver
        self._config = driver.engine.config
        self._count_tokens = count_tokens
        self._created = int(time.time())
        self._accepted = 0
        self._refused = 0
        self._pages: dict[str, Callable[[Send], Awaitable[None]]] = {
            "/v1/models": self._models,
            "/health": self._health,
            "/sim/ground_truth": self._ground_truth,
            "/sim/status": self._status,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application speaks HTTP only, not {scope['type']}")
        try:
            await self._answer(scope, receive, send)
        except RefusalError as refusal:
            self._refused += 1
            await send_json(send, refusal.status, refusal.body(), _echo_headers(scope))
        except ClientGoneError:
            return  # nobody is there to be told anything

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        page = self._pages.get(path)
        if page is None and path not in list(Endpoint):
            known = ", ".join([*Endpoint, *self._pages])
            raise RefusalError(404, f"there is no {path} here; there are {known}")
        answered = "POST" if page is None else "GET"
        if method != answered:
            raise RefusalError(405, f"{path} answers {answered} only, not {method}")
        if page is None:
            await self._generate(scope, receive, send)
        else:
            await page(send)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive, BODY_LIMIT_BYTES)
        except BodyTooLargeError:
            raise RefusalError(413, f"the body is longer than {BODY_LIMIT_BYTES} bytes") from None
        received_ns = scope.get("state", {}).get(RECEIVED_NS, self._driver.clock())
        endpoint = Endpoint(scope["path"])
        request = parse_request(body, endpoint, self._config.model)
        prompt_tokens = await self._count_prompt(request)
        ceiling = request.ceiling(prompt_tokens, self._config)
        request_id = _request_id(scope) or uuid.uuid4().hex
        truth = GroundTruth(request_id, received_ns, prompt_tokens)
        sequence = Sequence(request_id, prompt_tokens, ceiling, request.min_tokens, request.ignore_eos)
        reply = self._reply(endpoint, request, truth, send)
        await reply.begin()
        self._driver.submit(sequence, reply)
        await until_disconnect(receive)
        self._driver.abort(sequence)

    async def _count_prompt(self, request: GenerationRequest) -> int:
        if request.token_ids is not None:
            return len(request.token_ids)
        if sum(map(len, request.texts)) < _LONG_TEXT:
            return sum(map(self._count_tokens, request.texts))
        return await asyncio.to_thread(lambda: sum(map(self._count_tokens, request.texts)))

    def _reply(self, endpoint: Endpoint, request: GenerationRequest, truth: GroundTruth, send: Send) -> Reply:
        created = int(time.time())
        text = ReplyText(endpoint, truth.request_id, created, self._config.model, 7 * self._accepted)
        self._accepted += 1
        headers: Headers = [(b"x-request-id", truth.request_id.encode("latin-1"))]
        if not request.stream:
            return WholeReply(send, text, truth, self._driver.clock, headers)
        return StreamedReply(send, text, truth, self._driver.clock, headers, request.include_usage)

    async def _models(self, send: Send) -> None:
        model = {
            "id": self._config.model,
            "object": "model",
            "created": self._created,
            "owned_by": "pytest-llmbench",
            "max_model_len": self._config.context_limit_tokens,
        }
        await send_json(send, 200, {"object": "list", "data": [model]})

    async def _health(self, send: Send) -> None:
        await send_json(send, 200, {"status": "ok"})

    async def _ground_truth(self, send: Send) -> None:
        dropped = str(self._driver.log.dropped).encode()
        lines = self._driver.log.json_lines()
        await send_whole(send, 200, b"application/x-ndjson", lines, [(b"x-dropped-requests", dropped)])

    async def _status(self, send: Send) -> None:
        await send_json(send, 200, self.status())

    def status(self) -> dict[str, Any]:
        """How the server fares: load, pacing, and what the ground-truth log holds."""
        engine, log = self._driver.engine, self._driver.log
        return {
            "model": self._config.model,
            "figures_sha256": self._config.figures_sha256,
            "running": engine.running,
            "waiting": engine.waiting,
            "requests_accepted": self._accepted,
            "requests_refused": self._refused,
            "ground_truth": {"kept": len(log), "dropped": log.dropped},
            "alarm": self._driver.alarm.name,
            "event_loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
            "cpu_s": time.process_time(),
            "monotonic_ns": self._driver.clock(),
            **self._driver.pacing.summary(),
        }


def _request_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return str(value.decode("latin-1")) or None
    return None


def _echo_headers(scope: Scope) -> Headers:
    request_id = _request_id(scope)
    return [] if request_id is None else [(b"x-request-id", request_id.encode("latin-1"))]


__all__ = ["RECEIVED_NS", "CountTokens", "EngineApp"]
