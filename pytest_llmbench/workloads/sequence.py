"""The identity of a request sequence: its compact JSON text and the SHA-256 of that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from pytest_llmbench.model.request import PlannedRequest


def sequence_json(requests: Iterable[PlannedRequest]) -> str:
    """``[[limit,[id,id,…]],…]`` without spaces (METHODOLOGY §4.3).

    A request without token ids shows its text instead, as a JSON string.
    """
    return "".join(_pieces(requests))


def sequence_sha256(requests: Iterable[PlannedRequest]) -> str:
    """SHA-256 of :func:`sequence_json`, request by request, so that the whole text never exists."""
    digest = hashlib.sha256()
    for piece in _pieces(requests):
        digest.update(piece.encode())
    return digest.hexdigest()


def _pieces(requests: Iterable[PlannedRequest]) -> Iterator[str]:
    yield "["
    separator = ""
    for request in requests:
        yield f"{separator}[{request.max_tokens},{_prompt_json(request)}]"
        separator = ","
    yield "]"


def _prompt_json(request: PlannedRequest) -> str:
    prompt = request.text if request.token_ids is None else list(request.token_ids)
    return json.dumps(prompt, separators=(",", ":"))


__all__ = ["sequence_json", "sequence_sha256"]
