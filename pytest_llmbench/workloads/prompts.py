"""Prompts as text: decoded from token ids, and counted again to find the resulting length.

Random ids do not survive the way through text: pieces of UTF-8 characters become replacement characters, and
neighbouring tokens merge differently. So requested and realised lengths differ and both are reported
(AMB-32); nothing is mended in secret, since the draft fixes the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens.reference import reference_tokenizer


def with_text(requests: Iterable[PlannedRequest], tokenizer: str = "cl100k_base") -> list[PlannedRequest]:
    """The requests with their text, decoded from the ids if they have none yet."""

    def with_its(request: PlannedRequest) -> PlannedRequest:
        text = text_of(request, tokenizer)
        return request if text is request.text else replace(request, text=text)

    return [with_its(request) for request in requests]


def text_of(request: PlannedRequest, tokenizer: str = "cl100k_base") -> str | None:
    """The text of a request, decoded from its ids if it has none yet; None if it has neither. Messages are
    rendered."""
    if request.messages is not None:
        return request.messages.rendered
    if request.text is not None or request.token_ids is None:
        return request.text
    # Asked for here, so that whoever has all texts already need not load a tokenizer.
    return reference_tokenizer(tokenizer).decode(request.token_ids)


def texts_of(requests: Sequence[PlannedRequest], tokenizer: str = "cl100k_base") -> list[str | None]:
    """:func:`text_of` of each, in half of the time where there are many."""
    known = [each for each in map(_undecoded, requests) if each is not None]
    decoded = iter(reference_tokenizer(tokenizer).decode_each(known) if known else ())
    return [text_of(each) if _undecoded(each) is None else next(decoded) for each in requests]


def _undecoded(request: PlannedRequest) -> Sequence[int] | None:
    """The ids from which its text has to be decoded; None if it does not."""
    return request.token_ids if request.text is None and request.messages is None else None
