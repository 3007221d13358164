"""The parts of a call that both gRPC services use: a queue of messages, and a status for each refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from grpc import aio

from pytest_llmbench.model.request import SESSION_HEADER
from pytest_llmbench.simulator.engine.request import RefusalError

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class Outbox:
    """Queue of messages: the engine puts them in without waiting, the call takes them out."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._ended = False

    def put(self, message: Any) -> None:
        if not self._ended:
            self._queue.put_nowait(message)

    def end(self, refusal: RefusalError | None = None) -> None:
        """End the messages; a refusal is raised where they are taken out."""
        self.put(refusal)
        self._ended = True

    async def messages(self) -> AsyncIterator[Any]:
        while True:
            message = await self._queue.get()
            if message is None:
                return
            if isinstance(message, RefusalError):
                raise message
            yield message


def session_of(context: aio.ServicerContext[Any, Any]) -> str | None:
    """Id of the session that a call says it belongs to; None where it names none."""
    told = dict(context.invocation_metadata() or ()).get(SESSION_HEADER)
    return told.decode("latin-1") if isinstance(told, bytes) else told


async def abort_with(context: aio.ServicerContext[Any, Any], refusal: RefusalError) -> NoReturn:
    """End the call with the gRPC status that corresponds to the refusal's HTTP status."""
    code = _STATUS.get(
        refusal.status,
        grpc.StatusCode.INTERNAL if refusal.status >= 500 else grpc.StatusCode.INVALID_ARGUMENT,
    )
    trailing: tuple[tuple[str, str], ...] = ()
    if refusal.retry_after_s is not None:
        trailing = (("grpc-retry-pushback-ms", str(round(refusal.retry_after_s * 1000))),)
    await context.abort(code, refusal.message, trailing)
    raise AssertionError("abort raises")
