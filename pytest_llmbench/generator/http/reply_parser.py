"""A parser for HTTP/1.x responses, exact, fed whenever it suits the caller."""

from __future__ import annotations

from enum import Enum, auto

import httptools


class Framing(Enum):
    """How the end of a body is told (RFC 9112, section 6.3)."""

    UNKNOWN = auto()
    """The headers are not complete yet."""
    CHUNKED = auto()
    LENGTH = auto()
    UNTIL_CLOSE = auto()


MOST_HEAD_BYTES = 1024 * 1024
"""The most bytes of a response's head, with the interim responses before it: what has no end is no HTTP."""


class NotHTTPError(ValueError):
    """The bytes are not an HTTP response."""


class ReplyParser:
    """Parses the responses of one connection, one at a time: feed bytes, read the fields, ``begin`` the
    next.

    Interim responses (1xx) are passed over. Bytes after the end of the response make it ``surplus``: the
    response stands, but the connection must not be used again.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """Callback of httptools, as are the methods below; called for every chunk, so it is no Python
        function."""
        self._pieces_of_body = 0
        """How many of the pieces belong to a complete response; those behind it are surplus."""
        self._parser = httptools.HttpResponseParser(self)
        self._began = False
        self.begin()

    def begin(self) -> None:
        """Make ready for the next response on the same connection."""
        self.complete = False
        self.surplus = False
        self.keep_alive = False
        self.framing = Framing.UNKNOWN
        self._head_bytes = 0
        self.missing = 0
        """Bytes of the body still to come, when ``framing`` is LENGTH."""
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        """The headers as received; trailers are not among them."""
        self._began = False

    def feed(self, data: bytes) -> bytes:
        """Parse ``data``; returns the part of the body that was in it. Raises :class:`NotHTTPError`."""
        if self.framing is Framing.UNKNOWN:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise NotHTTPError("the server switched protocols (status 101)") from error
        except httptools.HttpParserError as error:
            if not self.complete:
                raise NotHTTPError(f"not an HTTP response: {error}") from error
            self.surplus = True
        if self.framing is Framing.UNKNOWN and self._head_bytes > MOST_HEAD_BYTES:
            raise NotHTTPError("the head of the response has more than 1 MiB")
        pieces = self._pieces
        if self.complete:
            del pieces[self._pieces_of_body :]
        if not pieces:
            return b""
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._pieces_of_body = 0
        if self.framing is Framing.LENGTH:
            self.missing -= len(body)
        return body

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self.surplus = self._began and self.complete
        self._began = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.framing is Framing.UNKNOWN:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        self.framing = Framing.UNTIL_CLOSE
        for name, value in self.headers:
            lowered = name.lower()
            if lowered == b"transfer-encoding" and value.rpartition(b",")[2].strip().lower() == b"chunked":
                self.framing = Framing.CHUNKED
                return
            if lowered == b"content-length":
                self.framing = Framing.LENGTH
                self.missing = int(value)

    def on_message_complete(self) -> None:
        if self.complete:
            return
        if self.status is not None and self.status < 200:
            so_far = self._head_bytes
            self.begin()
            self._head_bytes = so_far
            return
        self.keep_alive = self._parser.should_keep_alive()
        self._pieces_of_body = len(self._pieces)
        self.complete = True
