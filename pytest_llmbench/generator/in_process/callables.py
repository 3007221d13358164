"""An async generator as the system under test: called with a prompt, it yields the pieces of the reply."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import orjson

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.in_process.tasks import TaskTransport, words
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.openai_completions import OpenAICompletions

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
        made = self._call(**self._arguments(body))
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

    def _arguments(self, body: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in body.items() if name not in _OURS}
        given["messages"] = [{"role": "user", "content": body["prompt"]}]
        if self._parameters is None:
            return given
        return {name: value for name, value in given.items() if name in self._parameters}


class _Count:
    """The tokens of a reply so far, where every piece says how many it has."""

    def __init__(self) -> None:
        self._tokens: int | None = None
        self._pieces = 0

    def event(self, piece: object) -> bytes:
        """The event for a piece. Raises TypeError, in words, for what is none."""
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
        """A function that returns has said all that it had to say: ``length`` if it counted so far."""
        reason = "length" if self._tokens is not None and self._tokens >= max_tokens else "stop"
        said: dict[str, Any] = {"choices": [{"index": 0, "text": "", "finish_reason": reason}]}
        if self._tokens is not None:
            said["usage"] = {"completion_tokens": self._tokens}
        return _event(said) + b"data: [DONE]\n\n"


def _event(said: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(said) + b"\n\n"
