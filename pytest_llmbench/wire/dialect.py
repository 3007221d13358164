"""What a dialect is: how to ask for a completion and how to read the events of the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.sse import SSEEvent

PromptForm = Literal["text", "token_ids"]


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
        """Path below the API base (``http://host/v1``), with its leading slash."""

    @property
    def protocol(self) -> str:
        """How the reply is framed: ``sse``."""

    @property
    def accepts_token_ids(self) -> bool:
        """Whether a prompt may be token ids."""

    @property
    def text_key(self) -> str | None:
        """JSON key of the visible text, where an event that carries text alone is decoded without looking
        at the text itself; lets :mod:`~pytest_llmbench.wire.stream` skip parsing what does not change."""

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        """Make the request body.

        :raises GeneratorError: the request does not hold what this dialect sends.
        :raises SuiteError: ``extra_body`` takes streaming away.
        """

    def decode(self, event: SSEEvent) -> Chunk:
        """What the event says. Never raises: what cannot be read is a chunk with a ``problem``."""
