"""Frames of HTTP/2 as a test wants them, also those that no library would send."""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Encoder, NeverIndexedHeaderTuple
from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, RstStreamFrame


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as literals that no table keeps, so that they are the same on any connection."""
    pairs = (NeverIndexedHeaderTuple(name.encode("ascii"), value.encode("ascii")) for name, value in headers)
    return Encoder().encode(pairs, huffman=False)


def headers(*pairs: tuple[str, str], end: bool = False, stream: int = 1) -> bytes:
    flags = ["END_HEADERS", *(["END_STREAM"] if end else [])]
    return HeadersFrame(stream, header_block(pairs), flags=flags).serialize()


def data(payload: bytes, *flags: str, stream: int = 1) -> bytes:
    return DataFrame(stream, payload, flags=list(flags)).serialize()


def reset(code: int, stream: int = 1) -> bytes:
    return RstStreamFrame(stream, error_code=code).serialize()


def away(last: int, code: int = 0, said: bytes = b"") -> bytes:
    return GoAwayFrame(0, last_stream_id=last, error_code=code, additional_data=said).serialize()
