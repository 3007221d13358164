"""The protocol of a dialect: how to ask for a completion and how to read the events of the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable
from urllib.parse import quote

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
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


@runtime_checkable
class Dialect(Protocol):
    """One wire format. Pure and without state: the same event always gives the same chunk."""

    @property
    def name(self) -> str:
        """The name of the dialect, as ``--llm-api`` and reports write it."""

    @property
    def path(self) -> str:
        """Path below the API base (``http://host/v1``), with its leading slash; ``{model}`` in it is the
        model's name."""

    @property
    def rooted(self) -> bool:
        """Whether the path begins at the server's root (``http://host``) instead."""

    @property
    def protocol(self) -> str:
        """The framing of replies: ``sse``, ``ndjson`` for a JSON object per line, ``grpc`` for messages
        preceded by their lengths, ``json`` for one document, or ``websocket`` for a message per event, which
        its transport hands on as events of ``sse``."""

    @property
    def accepts_token_ids(self) -> bool:
        """Whether a prompt may be token ids."""

    @property
    def text_key(self) -> str | None:
        """JSON key of the visible text, if an event with nothing but text is decoded without looking at the
        text itself; lets :mod:`~pytest_llmbench.wire.stream` skip parsing what does not change. None: there
        is no such key."""

    @property
    def accumulates(self) -> bool:
        """Whether events may repeat all text so far instead of sending only new text."""

    @property
    def ends_with_body(self) -> bool:
        """Whether only the end of the body tells that a reply is complete."""

    @property
    def least_tokens(self) -> int:
        """Fewest output tokens that every server with this dialect accepts as a limit."""

    @property
    def fixed_headers(self) -> Mapping[str, str]:
        """Headers of every request."""

    @property
    def key_header(self) -> str:
        """Header that carries an API key in addition to ``Authorization``; empty: none."""

    @property
    def structured_output(self) -> bool:
        """Whether requests have fields for tools and schemas. If not, tools are words of the prompt, and
        nothing asks for the structure of a reply."""

    @property
    def message_roles(self) -> bool:
        """Whether requests have messages with roles. If not, messages are rendered as one text."""

    @property
    def media(self) -> bool:
        """Whether a prompt may have images, sounds and videos beside its text."""

    @property
    def text_replies(self) -> bool:
        """Whether replies have text. If not, they are token ids alone."""

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        """Make the request body.

        :raises GeneratorError: the request does not hold what this dialect sends.
        :raises SuiteError: ``extra_body`` takes streaming away.
        """

    def decode(self, event: SSEEvent) -> Chunk:
        """The chunk of an event. Never raises: an event that cannot be read is a chunk with a ``problem``."""


@runtime_checkable
class MessageDialect(Dialect, Protocol):
    """A wire format of messages on a connection that stays open, with one reply at a time."""

    def message(self, body: bytes, request_id: str) -> bytes:
        """The message that asks for a reply: ``body`` as encoded, with the id of this request in it."""

    def is_last(self, message: bytes) -> bool:
        """Whether the message ends the reply. Never raises."""

    def is_error(self, message: bytes) -> bool:
        """Whether the last message is an error instead of the usual end of a reply. Never raises."""

    def refusal_status(self, message: bytes) -> int | None:
        """The HTTP status in an error message; ``None``: it has none, or is no error. Never raises."""


@runtime_checkable
class CallDialect(Dialect, Protocol):
    """A wire format of gRPC: one call for each reply, with one message there and a stream of messages back.

    ``protocol`` is ``grpc``. Each message of the stream is an event, whose data are its bytes as Latin-1. The
    status of the call is the transport's business, and its end is the end of the reply.
    """

    def message(self, body: bytes, request_id: str) -> bytes:
        """The message that asks for a reply: ``body`` as encoded, with the id of this request in it."""


@runtime_checkable
class NonGenerativeDialect(Dialect, Protocol):
    """A wire format whose reply is one JSON document of vectors or scores. ``protocol`` is ``json``."""

    def results_asked(self, body: bytes) -> ResultsAsked:
        """How many results a request with this encoded body asks for."""

    def summary(self, chunks: Sequence[Chunk], asked: ResultsAsked) -> StreamSummary:
        """What the chunks of a whole reply come to."""


class DialectDefaults:
    """Defaults that most dialects share: server-sent events below the API base, prompts as text."""

    rooted = False
    protocol = "sse"
    accepts_token_ids = False
    text_key: str | None = None
    accumulates = False
    ends_with_body = False
    least_tokens = 1
    structured_output = False
    message_roles = False
    media = False
    text_replies = True
    fixed_headers: Mapping[str, str] = MappingProxyType({})
    key_header = ""


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


def refuse_ignore_eos(name: str, options: EncodeOptions) -> None:
    """Check the options for a dialect without ``ignore_eos``: a server would silently ignore the field.

    :raises SuiteError: it is asked for.
    """
    if options.ignore_eos:
        raise SuiteError(
            f"{name} cannot ask a server to go on past the end-of-sequence token",
            remedy="leave request.ignore_eos out, or use a dialect that can",
        )
