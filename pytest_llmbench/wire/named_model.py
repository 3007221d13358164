"""The model that a reply says it is of: a gateway may answer for another one than was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

_KEY = b'"model":'
_WITHIN = 4096
"""Bytes at either end of a reply within which it is looked for. Streams have it in their first event; a
document may have it behind its vectors."""
_LONGEST = 256
"""Bytes of the longest name that is kept."""


def named_model(pieces: Sequence[bytes]) -> str | None:
    """The value of the first key ``model`` near the beginning of a reply, otherwise of the last one near its
    end; ``None`` where the reply names no model. ``pieces``: its body, in the order in which it came.

    A key within a JSON string has its quotes escaped, so it is not taken for one.
    """
    begin = b"".join(_enough(pieces))[:_WITHIN]
    if (at := begin.find(_KEY)) >= 0:
        return _name_at(begin, at)
    end = b"".join([*_enough(reversed(pieces))][::-1])[-_WITHIN:]
    return _name_at(end, at) if (at := end.rfind(_KEY)) >= 0 else None


def _enough(pieces: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        yield piece
        size += len(piece)
        if size >= _WITHIN:
            return


def _name_at(body: bytes, at: int) -> str | None:
    begin = at + len(_KEY)
    begin += body.startswith(b" ", begin)
    end = body.find(b'"', begin + 1, begin + _LONGEST)
    if end < 0:
        return None
    try:
        name = json.loads(body[begin : end + 1])
    except ValueError:  # another kind of value, or a quote in the name
        return None
    return name if isinstance(name, str) and name else None
