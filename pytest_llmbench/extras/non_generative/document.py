"""A reply that is one JSON document: its bytes as one event, its results counted, its outcome.

Success is a whole document with as many results as the request has inputs, each a vector of finite numbers, a
finite score or the log-probabilities of its tokens. Anything else is a failed request with its cause,
whatever the status said: such an endpoint answers quickly, and would look fast.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from pytest_llmbench.model.record import Outcome
from pytest_llmbench.wire.chunk import Chunk, Usage, as_count, read_error
from pytest_llmbench.wire.dialect import DialectDefaults, ResultsAsked
from pytest_llmbench.wire.error_replies import beginning, shorten
from pytest_llmbench.wire.reply import StreamSummary, outcome_of_error
from pytest_llmbench.wire.sse import DEFAULT_MAX_LINE_BYTES, SSEEvent

ReadResult = Callable[[Mapping[str, Any]], str]
"""Checks one of the results; returns what is wrong with it, empty if nothing is."""
ReadAll = Callable[[Mapping[str, Any], list[Any]], str]
"""Checks the document and all its results together; returns what is wrong, empty if nothing is."""


class DocumentDialect(DialectDefaults):
    """Defaults of dialects whose replies are one document."""

    protocol = "json"
    ends_with_body = True

    def summary(self, chunks: Sequence[Chunk], asked: ResultsAsked) -> StreamSummary:
        """The summary of a whole reply to a request for the results ``asked``.

        There is no token in it and no instant of one: the reply is there when its last byte is.
        """
        summary = StreamSummary()
        usage = chunks[0].usage if chunks else None
        summary.input_tokens = None if usage is None else usage.input_tokens
        summary.outcome, problem = _outcome(chunks, asked)
        summary.error = problem or None
        return summary


class DocumentDecoder:
    """Collects the body as one event, with the stamp of its last byte. Feed it reads in order, then close it
    once.

    A body longer than ``max_line_bytes`` is cut there and its event marked as undecodable.
    """

    def __init__(self, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._length = 0
        self._too_long = False
        self._stamp_ns = 0
        self._read_index = 0

    def feed(self, data: bytes, stamp_ns: int, read_index: int) -> list[SSEEvent]:
        """No event: the document ends with the body."""
        if not data:
            return []
        room = self.max_line_bytes - self._length
        self._too_long |= len(data) > room
        self._pieces.append(data[:room])
        self._length += len(self._pieces[-1])
        self._stamp_ns, self._read_index = stamp_ns, read_index
        return []

    def close(self) -> list[SSEEvent]:
        """The document as an event; none if there is not a byte of it."""
        whole = b"".join(self._pieces)
        self._pieces = []
        if not whole.strip():
            return []
        problem = f"a document of more than {self.max_line_bytes} bytes" if self._too_long else ""
        try:
            text = whole.decode()
        except UnicodeDecodeError as error:
            problem = problem or f"bytes that are not UTF-8 ({error.reason})"
            text = whole.decode(errors="replace")
        return [SSEEvent(text, "message", self._stamp_ns, self._read_index, True, problem)]


def read_results(
    event: SSEEvent, key: str, read_result: ReadResult, read_all: ReadAll = lambda *_: ""
) -> Chunk:
    """The chunk of a document whose results are the list under ``key``."""
    chunk = Chunk(event.stamp_ns, event.read_index)
    if event.problem:
        chunk.problem = event.problem
        return chunk
    payload = _json_of(event.data)
    if payload.__class__ is not dict:
        chunk.problem = f"no JSON object but {shorten(beginning(event.data, 200), 80)}"
        return chunk
    if read_error(chunk, payload):
        return chunk
    results = payload.get(key)
    if results.__class__ is not list:
        chunk.problem = f"no list of {key}"
        return chunk
    chunk.results, problem = _inputs_of(results, read_result)
    chunk.problem = problem or read_all(payload, results)
    chunk.choice, chunk.done = 0, True
    chunk.usage = _usage_of(payload)
    return chunk


def _json_of(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:  # NaN and Infinity, which JSON has no words for: they are to be named, not unread
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None


def _inputs_of(results: list[Any], read_result: ReadResult) -> tuple[list[int], str]:
    """The input number of each result, and the first mistake in the results, empty if there is none."""
    numbers: list[int] = []
    for place, result in enumerate(results):
        if result.__class__ is not dict:
            return numbers, f"result {place}, which is no JSON object"
        wrong = read_result(result)
        if wrong:
            return numbers, f"result {place} {wrong}"
        number = result.get("index", place)
        if number.__class__ is not int or number < 0:
            return numbers, "a result whose index is no number of an input"
        numbers.append(number)
    return numbers, "two results for the same input" if len(set(numbers)) < len(numbers) else ""


def finite(value: Any) -> bool:
    """Whether the value is a number, and neither NaN nor infinite."""
    if value.__class__ is not int and value.__class__ is not float:
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond what any model says
        return False


def _usage_of(payload: Mapping[str, Any]) -> Usage | None:
    """Input tokens: ``usage.prompt_tokens``, else ``usage.total_tokens``, which of a reply without output are
    the same, else Cohere's ``meta.tokens.input_tokens``."""
    usage, meta = payload.get("usage"), payload.get("meta")
    tokens = meta.get("tokens") if meta.__class__ is dict else None
    said = [(usage, "prompt_tokens"), (usage, "total_tokens"), (tokens, "input_tokens")]
    counts = [as_count(source.get(key)) for source, key in said if source.__class__ is dict]
    count = next((count for count in counts if count is not None), None)
    return None if count is None else Usage(input_tokens=count)


def _outcome(chunks: Sequence[Chunk], asked: ResultsAsked) -> tuple[Outcome, str]:
    if not chunks:
        return Outcome.EMPTY, "the reply has an empty body"
    chunk = chunks[0]
    if chunk.error is not None:
        return outcome_of_error(chunk, StreamSummary()), chunk.error
    if chunk.problem:
        return Outcome.UNDECODABLE, f"the reply holds {chunk.problem}"
    found = len(chunk.results)
    if not found:
        return Outcome.EMPTY, "the reply holds no result"
    if found != asked.results:
        return Outcome.UNDECODABLE, f"the reply holds {found} results where {asked.results} were asked for"
    if max(chunk.results) >= asked.inputs:
        said = f"a result for input {shorten(str(max(chunk.results)), 20)} of {asked.inputs}, counted from 0"
        return Outcome.UNDECODABLE, f"the reply holds {said}"
    return Outcome.OK, ""
