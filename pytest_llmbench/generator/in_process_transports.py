"""Systems under test in this process: an async generator that yields the pieces of a reply, or an ASGI
application with its own messages in place of a server and a socket.

Each exchange is a task of the load generator's own event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

import orjson

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.generator.http.transport import End, Exchange, Stamping, TaskChannel
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.timing import Clock
from pytest_llmbench.wire.dialect import EncodeOptions
from pytest_llmbench.wire.openai_chat import (
    OpenAICompletions,
    chat_messages,
    completion_fields,
    text_prompt,
)

_CLOSE_S = 5.0


class TaskTransport(ABC):
    """A :class:`~pytest_llmbench.generator.http.transport.Transport` that calls somebody's code.

    A request counts as submitted when the call begins, and each piece has the instant at which this loop got
    it. What the code computes without awaiting holds up this loop, and with it every other request.
    """

    opened = 0
    busy = False
    holds = False
    stamping = Stamping()

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    async def carry(self, exchange: Exchange) -> None:
        """Make the call, hand on what arrives, and finish the exchange."""

    @abstractmethod
    def failed(self, exchange: Exchange, error: BaseException) -> None:
        """Finish an exchange whose code raised. Whatever it raised is the outcome of this request."""

    async def prewarm(self, count: int, timeout_s: float) -> int:  # noqa: ARG002 - the protocol's names
        return 0

    def send(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._carried(exchange))
        exchange.channel = TaskChannel(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel every call that is still under way, and wait a little for their ends."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)

    def now_ns(self) -> int:
        return self._clock.monotonic_ns()

    def arrived(self, exchange: Exchange, data: bytes, at_ns: int) -> None:
        """Take a part of the reply. After the exchange has ended, by a deadline say, it is dropped."""
        if exchange.end is None:
            exchange.stamps.append(at_ns)
            exchange.bodies.append(data)

    def finish(self, exchange: Exchange, end: End, error: str | None = None) -> None:
        exchange.finish(end, self.now_ns(), error)

    async def _carried(self, exchange: Exchange) -> None:
        exchange.submitted_ns = self.now_ns()
        try:
            await self.carry(exchange)
        except asyncio.CancelledError:
            # Ours by a deadline, and then the exchange has ended; else the code gave itself up.
            task = asyncio.current_task()
            if exchange.end is None and not (task is not None and task.cancelling()):
                self.failed(exchange, asyncio.CancelledError("the call cancelled itself"))
                return
            raise
        except BaseException as error:  # noqa: BLE001 - sys.exit() in the code must not end this loop's thread
            self.failed(exchange, error)


def words(error: BaseException) -> str:
    """An exception in words: ``ValueError: no such model``, or the type alone."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

LIFESPAN_S = 600.0
"""How long an application may take to start, in seconds: one that loads its model then takes a while."""


class AsgiTransport(TaskTransport):
    """Calls an application (ASGI 3) for each request, with the request that a server would have read."""

    name = "in process: ASGI"

    def __init__(self, app: App, clock: Clock) -> None:
        super().__init__(clock)
        self._app = app
        self.state: dict[str, Any] = {}
        """What the application stores at its start, handed on with every request."""

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
    """Starts and stops an application by the ASGI lifespan protocol. One that does not support it is left
    alone."""

    def __init__(self, app: App, state: dict[str, Any]) -> None:
        """``state`` is filled by the application."""
        self._app = app
        self._state = state
        self._told: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._answers: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def startup(self, within_s: float = LIFESPAN_S) -> None:
        """Start the application. Raises SUTError if it says that it cannot start, or does not say that it
        has."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        self._task = asyncio.ensure_future(self._run(scope))
        answer = await self._ask("startup", within_s)
        if answer is None:
            self._task.cancel()
            raise SUTError(f"the application did not start within {trimmed(within_s)} s (lifespan.startup)")
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


_HEADERS = [(b"content-type", b"text/event-stream")]
_OURS = ("model", "stream", "stream_options")
"""Fields of a request body that mean nothing to a function."""
_ALWAYS = ("prompt", "messages", "max_tokens", "temperature")


class PythonPieces(OpenAICompletions):
    """The dialect of a function that yields text: requests and replies are written as events of completions
    on the short way from the call to the reader, and nowhere else."""

    name = "python"
    protocol = "in_process"
    accepts_token_ids = False

    def __init__(self, parameters: frozenset[str] | None) -> None:
        """``parameters``: those of :func:`parameters_of`, which say whether it takes messages."""
        self.message_roles = parameters is None or "messages" in parameters

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        prompt: dict[str, Any] = {"prompt": text_prompt(request)}
        if self.message_roles:
            prompt["messages"] = chat_messages(request)
        return completion_fields(prompt, request, options)


def parameters_of(call: Callable[..., Any], further: Iterable[str] = ()) -> frozenset[str] | None:
    """Names of the parameters that ``call`` is given by keyword; None: it takes all of them (``**options``).

    ``further``: extra fields of every request. Raises SuiteError for a function that cannot be called so.
    """
    parameters = inspect.signature(call).parameters.values()
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    offered = {*_ALWAYS, *further}
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    needed = {
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    positional = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
    mistakes = [f"it needs {name}, which no request has" for name in sorted(needed - offered - positional)]
    mistakes += [f"its {name} cannot be given by keyword" for name in sorted(needed & positional)]
    if not anything and not names & {"prompt", "messages"}:
        mistakes.append("it has neither prompt nor messages")
    if not anything and "max_tokens" not in names:
        mistakes.append("it has no max_tokens")
    if not anything:
        missing = sorted(set(further) - names)
        mistakes += [f"it has no {name}, which every request is to have" for name in missing]
    if mistakes:
        remedy = (
            "write it as: async def generate(prompt, max_tokens): yield a piece of text, or (text, tokens)"
        )
        raise SuiteError.from_mistakes(mistakes, remedy=remedy)
    return None if anything else frozenset(names & offered)


class CallableTransport(TaskTransport):
    """Calls a function for each request. What it yields is text, or text with its number of tokens."""

    name = "in process: async generator"

    def __init__(self, call: Callable[..., Any], parameters: frozenset[str] | None, clock: Clock) -> None:
        super().__init__(clock)
        self._call = call
        self._parameters = parameters

    async def carry(self, exchange: Exchange) -> None:
        body = orjson.loads(exchange.request.wire.partition(b"\r\n\r\n")[2])
        exchange.status, exchange.headers = 200, _HEADERS
        taken = self._parameters
        given = {name: body[name] for name in body if name not in _OURS and (taken is None or name in taken)}
        made = self._call(**given)
        pieces: AsyncIterator[Any] = await made if inspect.isawaitable(made) else made
        counted = _Count()
        async for piece in pieces:
            at_ns = self.now_ns()
            self.arrived(exchange, counted.event(piece), at_ns)
            if exchange.end is not None:
                return
            await asyncio.sleep(0)  # a generator that awaits nothing would let nobody else have a turn
        self.arrived(exchange, counted.last_event(body["max_tokens"]), self.now_ns())
        self.finish(exchange, End.COMPLETE)

    def failed(self, exchange: Exchange, error: BaseException) -> None:
        said = {"error": {"message": words(error), "type": type(error).__name__}}
        self.arrived(exchange, _event(said), self.now_ns())
        self.finish(exchange, End.COMPLETE)


class _Count:
    """Makes events of the pieces of a reply, and counts its tokens where every piece says how many it has."""

    def __init__(self) -> None:
        self._tokens: int | None = None
        self._pieces = 0

    def event(self, piece: object) -> bytes:
        """The event for a piece. Raises TypeError, in words, for a value that is no piece."""
        text, tokens = piece if isinstance(piece, tuple) and len(piece) == 2 else (piece, None)
        counts = tokens is None or (type(tokens) is int and tokens >= 0)
        if not isinstance(text, str) or not counts:
            raise TypeError(f"it yielded {type(piece).__name__}, not text or (text, number of tokens)")
        if self._pieces and (tokens is None) != (self._tokens is None):
            raise TypeError(
                "it yielded pieces with and without a number of tokens: give it with all, or none"
            )
        self._pieces += 1
        said: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
        if tokens is not None:
            self._tokens = (self._tokens or 0) + tokens
            said["usage"] = {"completion_tokens": self._tokens}
        return _event(said)

    def last_event(self, max_tokens: int) -> bytes:
        """The event that ends the reply of a function that has returned; its finish reason is ``length`` if
        the pieces came to ``max_tokens``."""
        reason = "length" if self._tokens is not None and self._tokens >= max_tokens else "stop"
        said: dict[str, Any] = {"choices": [{"index": 0, "text": "", "finish_reason": reason}]}
        if self._tokens is not None:
            said["usage"] = {"completion_tokens": self._tokens}
        return _event(said) + b"data: [DONE]\n\n"


def _event(said: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(said) + b"\n\n"
