"""The protocol of a dialect: how to ask for a completion and how to read the events of the answer."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import orjson

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.request import ASKED_LIMIT, PlannedRequest
from pytest_llmbench.wire.chunk import Chunk, payload_of
from pytest_llmbench.wire.reply import StreamSummary
from pytest_llmbench.wire.sse import SSEEvent

PromptForm = Literal["text", "token_ids"]


class ResultsAsked(NamedTuple):
    """How many vectors or scores a request asks for."""

    results: int
    """Number of results in a complete reply."""
    inputs: int
    """Number of inputs that they are about; more than results where only the best few are asked for."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """Options shared by all requests of a run."""

    model: str
    ignore_eos: bool = False
    """Whether to ask the engine to go on after the end-of-sequence token; a declared option (AMB-33)."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Fields merged into the body last; objects are merged key by key, everything else is replaced."""
    prompt_form: PromptForm = "text"

    def __post_init__(self) -> None:
        """Check the extra fields.

        Raises SuiteError for numbers that JSON has no word for: they would be sent as something else.
        """
        try:
            json.dumps(dict(self.extra_body), allow_nan=False, default=str)
        except ValueError as error:
            raise SuiteError(
                f"the extra request fields are not JSON: {error}",
                remedy="give finite numbers and plain values",
            ) from error


class Dialect(ABC):
    """One wire format. Pure and without state: the same event always gives the same chunk.

    A dialect says where it differs from the defaults: server-sent events below the API base, prompts as text.
    """

    name: str
    """The name of the dialect, as ``--llm-api`` and reports write it."""
    path: str
    """Path below the API base (``http://host/v1``), with its leading slash; ``{model}`` in it is the model's
    name."""
    rooted = False
    """Whether the path begins at the server's root (``http://host``) instead."""
    protocol = "sse"
    """The framing of replies: ``sse``, ``ndjson`` for a JSON object per line, ``grpc`` for messages preceded
    by their lengths, ``json`` for one document, or ``websocket`` for a message per event, which its transport
    hands on as events of ``sse``."""
    accepts_token_ids = False
    """Whether a prompt may be token ids."""
    text_key: str | None = None
    """JSON key of the visible text, if an event with nothing but text is decoded without looking at the text
    itself; lets :mod:`~pytest_llmbench.wire.stream` skip parsing what does not change. None: there is no such
    key."""
    accumulates = False
    """Whether events may repeat all text so far instead of sending only new text."""
    ends_with_body = False
    """Whether only the end of the body tells that a reply is complete."""
    least_tokens = 1
    """Fewest output tokens that every server with this dialect accepts as a limit."""
    can_ignore_eos = True
    """Whether a request can ask the server to go on past the end-of-sequence token."""
    structured_output = False
    """Whether requests have fields for tools and schemas. If not, tools are words of the prompt, and nothing
    asks for the structure of a reply."""
    message_roles = False
    """Whether requests have messages with roles. If not, messages are rendered as one text."""
    media = False
    """Whether a prompt may have images, sounds and videos beside its text."""
    text_replies = True
    """Whether replies have text. If not, they are token ids alone."""
    fixed_headers: Mapping[str, str] = MappingProxyType({})
    """Headers of every request."""
    key_header = ""
    """Header that carries an API key in addition to ``Authorization``; empty: none."""

    @abstractmethod
    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        """Make the request body.

        :raises GeneratorError: the request does not hold what this dialect sends.
        :raises SuiteError: ``extra_body`` takes streaming away.
        """

    @abstractmethod
    def decode(self, event: SSEEvent) -> Chunk:
        """The chunk of an event. Never raises: an event that cannot be read is a chunk with a ``problem``."""


class JsonRequests(Dialect):
    """A wire format whose requests are JSON objects."""

    @abstractmethod
    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        """The fields of the request body, without those that the run adds.

        :raises GeneratorError: the request does not hold what this dialect sends.
        """

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        if not self.accepts_token_ids:
            require_text(self.name, request, options)
        if options.ignore_eos and not self.can_ignore_eos:  # a server would silently ignore the field
            raise SuiteError(
                f"{self.name} cannot ask a server to go on past the end-of-sequence token",
                remedy="leave request.ignore_eos out, or use a dialect that can",
            )
        body = self.fields(request, options)
        if options.ignore_eos:
            self.sampling_in(body)["ignore_eos"] = True
        return _written(body, request, options)

    def sampling_in(self, body: dict[str, Any]) -> dict[str, Any]:
        """The object with the sampling parameters in a body: the body itself in most dialects."""
        return body


class JsonDialect(JsonRequests):
    """A wire format whose events are JSON objects too."""

    @abstractmethod
    def read(self, chunk: Chunk, payload: dict[str, Any], event_name: str) -> None:
        """Read the object in an event of this name into its chunk."""

    def decode(self, event: SSEEvent) -> Chunk:
        chunk = Chunk(event.stamp_ns, event.read_index)
        payload = payload_of(event, chunk)
        if payload is not None:
            self.read(chunk, payload, event.event)
        return chunk


class MessageDialect(Dialect):
    """A wire format of messages on a connection that stays open, with one reply at a time."""

    @abstractmethod
    def message(self, body: bytes, request_id: str) -> bytes:
        """The message that asks for a reply: ``body`` as encoded, with the id of this request in it."""

    @abstractmethod
    def is_last(self, message: bytes) -> bool:
        """Whether the message ends the reply. Never raises."""

    @abstractmethod
    def is_error(self, message: bytes) -> bool:
        """Whether the last message is an error instead of the usual end of a reply. Never raises."""

    @abstractmethod
    def refusal_status(self, message: bytes) -> int | None:
        """The HTTP status in an error message; ``None``: it has none, or is no error. Never raises."""


class CallDialect(Dialect):
    """A wire format of gRPC: one call for each reply, with one message there and a stream of messages back.

    Each message of the stream is an event, whose data are its bytes as Latin-1. The status of the call is the
    transport's business, and its end is the end of the reply.
    """

    protocol = "grpc"

    @abstractmethod
    def message(self, body: bytes, request_id: str) -> bytes:
        """The message that asks for a reply: ``body`` as encoded, with the id of this request in it."""


class NonGenerativeDialect(Dialect):
    """A wire format whose reply is one JSON document of vectors or scores."""

    protocol = "json"

    @abstractmethod
    def results_asked(self, body: bytes) -> ResultsAsked:
        """How many results a request with this encoded body asks for."""

    @abstractmethod
    def summary(self, chunks: Sequence[Chunk], asked: ResultsAsked) -> StreamSummary:
        """What the chunks of a whole reply come to."""


def path_for(dialect: Dialect, model: str) -> str:
    """The path of requests to this model."""
    return dialect.path.replace("{model}", quote(model, safe=""))


def headers_for(dialect: Dialect, given: Mapping[str, str]) -> dict[str, str]:
    """The dialect's headers of a request, without those in ``given``, the endpoint's own, which take
    precedence."""
    held = {name.lower(): value for name, value in given.items()}
    found = dict(dialect.fixed_headers)
    scheme, _, key = held.get("authorization", "").partition(" ")
    if dialect.key_header and scheme.lower() == "bearer":
        found[dialect.key_header] = key.strip()
    return {name: value for name, value in found.items() if name.lower() not in held}


def require_text(name: str, request: PlannedRequest, options: EncodeOptions) -> None:
    """Check a request for a dialect whose prompts are text.

    :raises GeneratorError: token ids are to be sent.
    """
    if options.prompt_form != "text":
        raise GeneratorError(
            f"{name} takes text, not token ids",
            where=f"request {request.index}",
            remedy="use the openai-completions dialect, or prompts as text",
        )


_UNSENT_IF_NULL = ("stream_options", "max_tokens", "temperature")
"""Fields of ours that are not sent where an extra field of that name is null: some servers refuse them."""


def _written(body: dict[str, Any], request: PlannedRequest, options: EncodeOptions) -> bytes:
    """``body`` with the extra fields of the run, as JSON. One with the value ``ASKED_LIMIT`` gets the most
    output tokens of the request.

    :raises GeneratorError: its text cannot be sent.
    :raises SuiteError: they take streaming away.
    """
    _merge(body, options.extra_body)
    if body.get("stream", True) is not True:
        raise SuiteError(
            "extra request fields set stream to " + json.dumps(body["stream"]),
            remedy="leave stream out: every figure is taken from the stream",
        )
    for name in _UNSENT_IF_NULL:
        if body.get(name, True) is None:
            del body[name]
    for name in options.extra_body:
        if body.get(name) == ASKED_LIMIT:
            body[name] = request.max_tokens
    try:
        return orjson.dumps(body)
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs: Python's own writer knows better
        pass
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise not_utf8(request, error) from error


def not_utf8(request: PlannedRequest, error: UnicodeEncodeError) -> GeneratorError:
    """The error for a prompt with half of a surrogate pair."""
    return GeneratorError(
        f"the prompt cannot be sent as UTF-8: {error.reason}",
        where=f"request {request.index}",
        remedy="decode prompts with errors='replace', so that no lone surrogate is left",
    )


def _merge(body: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Merge ``extra`` into ``body``, so that ``stream_options`` can be extended without being repeated."""
    for key, value in extra.items():
        present = body.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping):
            _merge(present, value)
        else:
            body[key] = value
