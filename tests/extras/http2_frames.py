"""Frames of HTTP/2 as a test wants them, also those that no library would send."""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Encoder, NeverIndexedHeaderTuple


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as literals that no table keeps, so that they are the same on any connection."""
    pairs = (NeverIndexedHeaderTuple(name.encode("ascii"), value.encode("ascii")) for name, value in headers)
    return Encoder().encode(pairs, huffman=False)
