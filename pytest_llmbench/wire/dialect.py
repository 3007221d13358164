"""What a dialect is: how to ask for a completion and how to read the events of the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable
from urllib.parse import quote

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.sse import SSEEvent

PromptForm = Literal["text", "token_ids"]


class ResultsAsked(NamedTuple):
    """What a request for vectors or scores asks for."""

    results: int
    """How many a whole reply has."""
    inputs: int
    """How many it is about: more, where the best few are asked for."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """What all requests of a run share."""

    model: str
    ignore_eos: bool = False
    """Ask the engine to go on past the end-of-sequence token; a declared option (AMB-33)."""
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
                f"the extra request fields are no JSON: {error}",
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
        """How the reply is framed: ``sse``, ``ndjson`` for a JSON object per line, ``grpc`` for messages with
        their lengths before them, ``json`` for one
        document, or ``websocket`` for a message per event, which its transport hands on as
        events of ``sse``."""

    @property
    def accepts_token_ids(self) -> bool:
        """Whether a prompt may be token ids."""

    @property
    def text_key(self) -> str | None:
        """JSON key of the visible text, where an event that carries text alone is decoded without looking
        at the text itself; lets :mod:`~pytest_llmbench.wire.stream` skip parsing what does not change."""

    @property
    def accumulates(self) -> bool:
        """Whether events may repeat all text so far instead of what is new."""

    @property
    def ends_with_body(self) -> bool:
        """Whether nothing but the end of the body says that a reply is complete."""

    @property
    def least_tokens(self) -> int:
        """The fewest output tokens that every server of this dialect lets one ask for."""

    @property
    def fixed_headers(self) -> Mapping[str, str]:
        """Headers that every request has."""

    @property
    def key_header(self) -> str:
        """Header that carries an API key too, beside ``Authorization``; ``""``: none does."""

    @property
    def structured_output(self) -> bool:
        """Whether requests carry tools and schemas as fields. Elsewhere tools are words of the prompt, and
        nothing asks for the form of a reply."""

    @property
    def message_roles(self) -> bool:
        """Whether requests carry messages with roles. Elsewhere they are rendered as one text."""

    @property
    def text_replies(self) -> bool:
        """Whether replies have text. Elsewhere they are token ids alone."""

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        """Make the request body.

        :raises GeneratorError: the request does not hold what this dialect sends.
        :raises SuiteError: ``extra_body`` takes streaming away.
        """

    def decode(self, event: SSEEvent) -> Chunk:
        """What the event says. Never raises: what cannot be read is a chunk with a ``problem``."""


@runtime_checkable
class MessageDialect(Dialect, Protocol):
    """A wire format of messages on a connection that stays open, with one reply at a time."""

    def message(self, body: bytes, request_id: str) -> bytes:
        """The message that asks for a reply: ``body`` as encoded, with the id of this request in it."""

    def is_last(self, message: bytes) -> bool:
        """Whether the message ends the reply. Never raises."""

    def is_error(self, message: bytes) -> bool:
        """Whether the last message is an error in the place of the end that a reply has. Never raises."""

    def refusal_status(self, message: bytes) -> int | None:
        """The HTTP status that an error names; ``None``: it names none, or is no error. Never raises."""


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
        """What this body, as encoded, asks for."""


class DialectDefaults:
    """What most dialects have in common: server-sent events below the API base, prompts as text."""

    rooted = False
    protocol = "sse"
    accepts_token_ids = False
    text_key: str | None = None
    accumulates = False
    ends_with_body = False
    least_tokens = 1
    structured_output = False
    message_roles = False
    text_replies = True
    fixed_headers: Mapping[str, str] = MappingProxyType({})
    key_header = ""


def path_for(dialect: Dialect, model: str) -> str:
    """The path of requests to this model."""
    return dialect.path.replace("{model}", quote(model, safe=""))


def headers_for(dialect: Dialect, given: Mapping[str, str]) -> dict[str, str]:
    """Headers of a request beside ``given``, those of the endpoint, which stand before them."""
    held = {name.lower(): value for name, value in given.items()}
    found = dict(dialect.fixed_headers)
    scheme, _, key = held.get("authorization", "").partition(" ")
    if dialect.key_header and scheme.lower() == "bearer":
        found[dialect.key_header] = key.strip()
    return {name: value for name, value in found.items() if name.lower() not in held}


def require_text(name: str, request: PlannedRequest, options: EncodeOptions) -> None:
    """For a dialect whose prompts are text.

    :raises GeneratorError: token ids are to be sent.
    """
    if options.prompt_form != "text":
        raise GeneratorError(
            f"{name} takes text, not token ids",
            where=f"request {request.index}",
            remedy="use the openai-completions dialect, or prompts as text",
        )


def refuse_ignore_eos(name: str, options: EncodeOptions) -> None:
    """For a dialect that has no word for it: a server would pass over the field, and say nothing.

    :raises SuiteError: it is asked for.
    """
    if options.ignore_eos:
        raise SuiteError(
            f"{name} cannot ask a server to go on past the end-of-sequence token",
            remedy="leave request.ignore_eos out, or use a dialect that can",
        )
