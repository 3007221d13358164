"""Described JSON messages over WebSocket: the description by their author is a dialect of its own.

A request is the described message, with what the request asks for in the place of ``{prompt}``,
``{max_tokens}`` and so on: alone in its quotes with its own type, within a text as text. A message of a reply
is any JSON; what it says stands at the described places. A message with nothing at any of them says nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import JSON_MESSAGES
from pytest_llmbench.wire.chunk import Chunk, Usage
from pytest_llmbench.wire.declared import follow
from pytest_llmbench.wire.dialect import DialectDefaults, EncodeOptions, require_text
from pytest_llmbench.wire.error_replies import is_turned_away, shorten
from pytest_llmbench.wire.event_payload import finish_reason, set_error
from pytest_llmbench.wire.openai_request import as_json, chat_messages, merge, text_prompt
from pytest_llmbench.wire.openai_stream import as_count
from pytest_llmbench.wire.reply import STREAM_END
from pytest_llmbench.wire.sse import SSEEvent

REQUEST_ID: Final = "request_id"
_VALUES: Final[Mapping[str, Callable[[PlannedRequest, EncodeOptions], Any]]] = {
    "prompt": lambda request, _: text_prompt(request),
    "messages": lambda request, _: chat_messages(request),
    "model": lambda _, options: options.model,
    "max_tokens": lambda request, _: request.max_tokens,
    "temperature": lambda request, _: request.temperature,
    "ignore_eos": lambda _, options: options.ignore_eos,
}
PLACEHOLDERS: Final = (*_VALUES, REQUEST_ID)
OF_THE_WORKLOAD: Final = ("max_tokens", "temperature")
"""What a workload states of every request, besides its prompt."""
COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
PLACES: Final = ("text", "end", "finish_reason", "reasoning", "error", "error_status", *COUNTS)

_PLACEHOLDER = re.compile(rb'(?<!\\)"\{(?P<whole>\w+)\}"|\{(?P<part>\w+)\}')
_ID = rb"\u007brequest_id\u007d"
"""The id's placeholder in an encoded body. It is JSON, but no writer of JSON escapes these two characters, so
it cannot occur in an encoded prompt."""
_PLAIN = re.compile(r"[\w .:-]+", re.ASCII)
"""Texts that every writer of JSON writes alike."""

Scalar = str | int | float | bool
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the JSON of those messages that meet its conditions."""

    path: Path = ()
    """Path of keys and numbers of list entries; empty: the whole message."""
    when: tuple[tuple[Path, tuple[Scalar, ...]], ...] = ()
    """Conditions: other places, each with the values of which it must have one."""

    def of(self, payload: Any) -> Any:
        """The value at the place; ``None``: there is none, or the message does not meet the conditions."""
        if all(_is_one_of(follow(payload, path), values) for path, values in self.when):
            return follow(payload, self.path)
        return None

    @property
    def marks(self) -> tuple[bytes, ...]:
        """Byte strings of which every message with this place has one; empty: none can be named."""
        for _, values in self.when:
            if all(isinstance(value, str) and _PLAIN.fullmatch(value) for value in values):
                return tuple(json.dumps(value).encode() for value in values)
        parts = [part for path in (*(path for path, _ in self.when), self.path) for part in path]
        keys = [part for part in parts if _PLAIN.fullmatch(part) and not part.isdecimal()]
        return (json.dumps(keys[-1]).encode(),) if keys else ()


@dataclass(frozen=True)
class JsonMessages(DialectDefaults):
    """The described dialect. One reply at a time on a connection that stays open, or one on each, where the
    server's close ends it.

    Counts are those of the whole reply so far; the last one is its total.
    """

    request: str
    """The message for a request, as compact JSON with placeholders."""
    text: Place
    """Place of the text that a message adds to the reply, or of all of it so far where it ``accumulates``."""
    path: str = ""
    """Path below the base URL; empty: the base URL itself."""
    accumulates: bool = False
    end: Place | None = None
    """Place that ends a reply if it exists and is neither null, false, 0 nor empty; ``None``: the close frame
    with code 1000 ends it."""
    finish_reason: Place | None = None
    """Place of the finish reason; ``None``: a reply that has come to its end is complete."""
    reasoning: Place | None = None
    error: Place = Place(("error",))
    """Place that makes a message an error, which ends the reply, by the same rule as ``end``."""
    error_status: Place | None = None
    """Place of the HTTP status that an error stands for; ``None``: there is none."""
    input_tokens: Place | None = None
    output_tokens: Place | None = None
    cached_tokens: Place | None = None
    reasoning_tokens: Place | None = None
    ends_with_body: bool = field(init=False)
    text_key: str | None = field(init=False)
    message_roles: bool = field(init=False)
    _marks: tuple[bytes, ...] = field(init=False, repr=False)
    """Byte strings of which the last message of a reply has one; empty: each message has to be parsed."""

    name = JSON_MESSAGES
    protocol = "websocket"

    def __post_init__(self) -> None:
        others = [getattr(self, name) for name in PLACES if name != "text"]
        places = [place for place in others if place is not None]
        read = {place.path for place in places}
        read |= {path for place in (self.text, *places) for path, _ in place.when}
        by_closing = self.end is None and self.finish_reason is None
        last = self.text.path[-1]
        # Only where a message that has another text says nothing else by it.
        plain = not (by_closing or self.accumulates or last.isdecimal() or self.text.path in read)
        ends = [place.marks for place in (self.end, self.error) if place is not None]
        object.__setattr__(self, "ends_with_body", by_closing)
        object.__setattr__(self, "text_key", last if plain else None)
        object.__setattr__(self, "message_roles", "messages" in self.placeholders)
        object.__setattr__(self, "_marks", tuple(chain.from_iterable(ends)) if all(ends) else ())

    # Requests.

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders of a request."""
        return placeholders_in(self.request)

    @property
    def unsent(self) -> tuple[str, ...]:
        """What the workload states of a request and the message does not tell the server."""
        return tuple(name for name in OF_THE_WORKLOAD if name not in self.placeholders)

    @property
    def further_fields(self) -> dict[str, Any]:
        """The fields that are the same in all requests, in the form of ``extra_body``."""
        message = json.loads(self.request)
        fixed = _fixed(message if isinstance(message, dict) else dict(enumerate(message)))
        return {str(name): value for name, value in (fixed or {}).items()}

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        if options.ignore_eos and "ignore_eos" not in self.placeholders:
            raise SuiteError(
                "json_messages.request does not ask a server to go on past the end-of-sequence token",
                remedy='put "{ignore_eos}" where the server has a word for it, or leave request.ignore_eos '
                "out",
            )

        def fill(found: re.Match[bytes]) -> bytes:
            name = (found["whole"] or found["part"]).decode()
            if name == REQUEST_ID:
                return found[0].replace(b"{request_id}", _ID)
            if name not in _VALUES:
                return found[0]
            value = _VALUES[name](request, options)
            written = as_json(value, request)
            if found["whole"]:
                return written
            return (written if isinstance(value, str) else as_json(written.decode(), request))[1:-1]

        return _PLACEHOLDER.sub(fill, self._message(request, options))

    def _message(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        """The described message with the extra fields of the run, before placeholders are replaced."""
        if not options.extra_body:
            return self.request.encode()
        message = json.loads(self.request)
        if not isinstance(message, dict):
            raise SuiteError(
                f"json_messages.request is a list, which has no place for {', '.join(options.extra_body)}",
                remedy="leave request.extra_body out, and write it into the message",
            )
        merge(message, options.extra_body)
        return as_json(message, request)

    def message(self, body: bytes, request_id: str) -> bytes:
        return body.replace(_ID, request_id.encode("ascii"))

    # Replies.

    def is_last(self, message: bytes) -> bool:
        if self._marks and not any(mark in message for mark in self._marks):
            return False
        payload = _parsed(message)
        return self._failure(payload) is not None or self._ends(payload)

    def is_error(self, message: bytes) -> bool:
        return self._failure(_parsed(message)) is not None

    def refusal_status(self, message: bytes) -> int | None:
        payload = _parsed(message)
        return self._status(payload) if self._failure(payload) is not None else None

    def decode(self, event: SSEEvent) -> Chunk:
        chunk = Chunk(event.stamp_ns, event.read_index)
        if event.problem or not event.data.strip():
            chunk.problem = event.problem if event.terminated else ""
            return chunk
        try:
            payload = json.loads(event.data)
        except (ValueError, RecursionError):
            if event.terminated:
                chunk.problem = f"a message that is no JSON: {shorten(event.data, 80)}"
            return chunk
        failure = self._failure(payload)
        if failure is None:
            self._read(chunk, payload)
        else:
            set_error(chunk, failure)
            said = {"status": self._status(payload), "message": chunk.error}
            chunk.turned_away = chunk.turned_away or is_turned_away(said)
        return chunk

    def _read(self, chunk: Chunk, payload: Any) -> None:
        for name, place in (("text", self.text), ("reasoning", self.reasoning)):
            piece = None if place is None else place.of(payload)
            if piece.__class__ is str:
                chunk.choice = 0
                setattr(chunk, name, piece)
            elif piece is not None:
                chunk.problem = f"{name} that is no text but {piece.__class__.__name__}"
        chunk.blank = chunk.choice is not None and not (chunk.text or chunk.reasoning)
        chunk.usage = self._usage(payload)
        if chunk.usage is not None and chunk.choice is not None:
            chunk.tokens_cumulative = chunk.usage.output_tokens
        if self.finish_reason is not None:
            chunk.finish_reason = finish_reason(self.finish_reason.of(payload))
        if self._ends(payload):
            chunk.done = True
            if self.finish_reason is None:
                chunk.finish_reason = STREAM_END

    def _usage(self, payload: Any) -> Usage | None:
        found = Usage()
        for name in COUNTS:
            place: Place | None = getattr(self, name)
            if place is not None:
                setattr(found, name, as_count(place.of(payload)))
        return None if found == Usage() else found

    def _ends(self, payload: Any) -> bool:
        return self.end is not None and bool(self.end.of(payload))

    def _failure(self, payload: Any) -> Any | None:
        """The error in a message; ``None`` if it is none."""
        found = self.error.of(payload)
        if not found:
            return None
        return found if isinstance(found, str | dict | list) else payload

    def _status(self, payload: Any) -> int | None:
        status = None if self.error_status is None else self.error_status.of(payload)
        return status if status.__class__ is int and 400 <= status < 600 else None


def placeholders_in(message: str) -> frozenset[str]:
    """The names in braces in a message, known or not."""
    found = _PLACEHOLDER.finditer(message.encode())
    return frozenset((each["whole"] or each["part"]).decode() for each in found)


def _is_one_of(found: Any, values: tuple[Scalar, ...]) -> bool:
    """Whether the value is one of these by JSON's rules, where true is not 1."""
    return any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in values)


def _parsed(message: bytes) -> Any:
    """The JSON of a message; ``None``, which stands for an empty message, if it is not JSON."""
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        return None


def _fixed(value: Any) -> Any:
    """``value`` without the parts that have placeholders; ``None`` if nothing is left."""
    if isinstance(value, dict):
        kept = {name: _fixed(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each is not None} or None
    return None if placeholders_in(json.dumps(value, ensure_ascii=False)) else value
