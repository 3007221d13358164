"""Parts that the protobuf dialects share: reading the message of an event, and adding extra fields to a
request."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.wire.openai_chat import text_prompt
from pytest_llmbench.wire.sse import SSEEvent

_OWN = "stream"
"""A field that every dialect sets itself; it may be given as an extra field only with the same value."""


def message_in(event: SSEEvent, kind: type[Message], chunk: Chunk) -> Any | None:
    """The protobuf message in an event; ``None`` where there is none, with the reason in ``chunk``.

    A message that the end of the stream cut off is an empty chunk: the reply is truncated.
    """
    if event.problem or not event.terminated:
        chunk.problem = event.problem if event.terminated else ""
        return None
    try:
        return kind.FromString(event.data.encode("latin-1"))
    except (DecodeError, UnicodeEncodeError):
        chunk.problem = f"a message that is no {kind.DESCRIPTOR.name}"
        return None


def utf8_prompt(request: PlannedRequest) -> str:
    """The prompt as text that can be sent as UTF-8.

    :raises GeneratorError: there is none, or it is none of UTF-8.
    """
    text = text_prompt(request)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GeneratorError(
            f"the prompt cannot be sent as UTF-8: {error.reason}",
            where=f"request {request.index}",
            remedy="decode prompts with errors='replace', so that no lone surrogate is left",
        ) from error
    return text


def refuse_no_stream(extra: Mapping[str, Any]) -> None:
    """Check that the extra fields leave streaming on. :raises SuiteError: they switch it off."""
    if extra.get(_OWN, True) is not True:
        raise SuiteError(
            f"extra request fields set {_OWN} to " + json.dumps(extra[_OWN]),
            remedy=f"leave {_OWN} out: every figure is taken from the stream",
        )


def add_fields(
    request: Message, sampling: Message, extra: Mapping[str, Any], own: Collection[str], dialect: str
) -> None:
    """Put each extra field where the proto has it: in the sampling parameters, else in the request.

    A field that is ``None`` is not sent. ``own``: fields of the request that the load generator sets.

    :raises SuiteError: every field that the proto has nowhere, or not in this form, and ``stream`` that is
        not true.
    """
    refuse_no_stream(extra)
    mistakes = []
    for name, value in extra.items():
        if value is None or name == _OWN:
            continue
        place = _place(name, request, sampling, own)
        if place is None:
            mistakes.append(f"{dialect} has no field {name}")
            continue
        try:
            ParseDict({name: value}, place)
        except (ParseError, ValueError, TypeError) as error:
            mistakes.append(f"{dialect} cannot send {name}: {shorten(str(error), 160)}")
    if mistakes:
        raise SuiteError.from_mistakes(
            mistakes,
            where="request.extra_body",
            remedy=f"take out what it does not have; fields are those of {request.DESCRIPTOR.full_name} and "
            f"{sampling.DESCRIPTOR.full_name}",
        )


def _place(name: str, request: Message, sampling: Message, own: Collection[str]) -> Message | None:
    if name in sampling.DESCRIPTOR.fields_by_name:
        return sampling
    return request if name in request.DESCRIPTOR.fields_by_name and name not in own else None
