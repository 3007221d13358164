"""An ASGI application as the system under test: its own messages in place of a server and a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson

from pytest_llmbench.errors import SUTError
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.in_process.tasks import TaskTransport, words
from pytest_llmbench.timing.clock import Clock

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

LIFESPAN_S = 600.0
"""An application that loads its model when it starts takes a while."""


class AsgiTransport(TaskTransport):
    """Calls an application (ASGI 3) for each request, with the request that a server would have read."""

    name = "in process: ASGI"

    def __init__(self, app: App, clock: Clock) -> None:
        super().__init__(clock)
        self._app = app
        self.state: dict[str, Any] = {}
        """What the application keeps from its start, for every request."""

    async def carry(self, exchange: Exchange) -> None:
        head, _, body = exchange.request.wire.partition(b"\r\n\r\n")
        asked: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()  # nobody hangs up: an exchange that is given up cancels its call

        async def receive() -> Message:
            if asked:
                return asked.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self._take(exchange, message)
            if exchange.end is not None:
                gone.set()
            await asyncio.sleep(0)  # as the write of a server, a chance for everybody else

        await self._app(self._scope(head), receive, send)
        self.finish(exchange, End.BROKEN, "the application returned before the end of its response")

    def failed(self, exchange: Exchange, error: BaseException) -> None:
        if exchange.status is not None:
            self.finish(exchange, End.BROKEN, f"the application raised {words(error)}")
            return
        exchange.status = 500
        self.arrived(exchange, orjson.dumps({"error": {"message": words(error)}}), self.now_ns())
        self.finish(exchange, End.COMPLETE)

    def _take(self, exchange: Exchange, message: Mapping[str, Any]) -> None:
        at_ns = self.now_ns()
        if exchange.end is not None:
            return
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            exchange.headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        elif exchange.status is None:
            self.finish(exchange, End.GARBAGE, f"the application began with {message['type']}")
        elif message["type"] == "http.response.body":
            if data := message.get("body", b""):
                self.arrived(exchange, bytes(data), at_ns)
            if not message.get("more_body", False):
                self.finish(exchange, End.COMPLETE)

    def _scope(self, head: bytes) -> Message:
        first, *lines = head.split(b"\r\n")
        method, target, _ = first.split(b" ")
        path, _, query = target.partition(b"?")
        pairs = (line.partition(b": ")[::2] for line in lines)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method.decode("ascii"),
            "scheme": "http",
            "path": path.decode("ascii"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in pairs],
            "client": ("127.0.0.1", 0),
            "server": ("localhost", 80),
            "state": dict(self.state),
        }


class Lifespan:
    """The start and the end of an application. One that does not know of them is left alone."""

    def __init__(self, app: App, state: dict[str, Any]) -> None:
        """``state`` is filled by the application."""
        self._app = app
        self._state = state
        self._told: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._answers: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def startup(self, within_s: float = LIFESPAN_S) -> None:
        """Raises SUTError if the application says that it cannot start, or does not say that it has."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        self._task = asyncio.ensure_future(self._run(scope))
        answer = await self._ask("startup", within_s)
        if answer is None:
            self._task.cancel()
            raise SUTError(f"the application did not start within {within_s:g} s (lifespan.startup)")
        if answer["type"] == "lifespan.startup.failed":
            raise SUTError(
                f"the application failed to start: {answer.get('message') or 'it does not say why'}"
            )

    async def shutdown(self, within_s: float = 30.0) -> None:
        """Tell the application, and wait a while for its answer."""
        if self._task is not None and not self._task.done():
            await self._ask("shutdown", within_s)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=within_s)

    async def _run(self, scope: Message) -> None:
        try:
            await self._app(scope, self._told.get, self._answer)
        except asyncio.CancelledError:
            raise
        except BaseException:  # noqa: BLE001 - by the standard: it knows of no lifespan
            pass
        finally:
            self._answers.put_nowait({"type": "ended"})

    async def _ask(self, what: str, within_s: float) -> Mapping[str, Any] | None:
        self._told.put_nowait({"type": f"lifespan.{what}"})
        try:
            async with asyncio.timeout(within_s):
                return await self._answers.get()
        except TimeoutError:
            return None

    async def _answer(self, message: Message) -> None:
        self._answers.put_nowait(message)
