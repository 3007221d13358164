"""A way through an HTTP proxy: CONNECT first, and then the bytes of the connection behind it."""

from __future__ import annotations

import errno

from pytest_llmbench.generator.http.links import Link, Linked
from pytest_llmbench.http_proxy import END_OF_HEAD, LONGEST_HEAD, why_no_tunnel


class TunnelRefusedError(OSError):
    """The proxy has not connected to the target."""


class Tunnel:
    """Stands between a link to the proxy and the connection that the link is for, which hears of the link
    when the proxy has answered 2xx."""

    def __init__(self, behind: Linked, request: bytes) -> None:
        self._behind = behind
        self._request = request
        self._head = b""
        self._is_open = False
        self._failed = False

    def shut(self) -> None:
        """Close at once."""
        self._link.close()

    # What the link tells.

    def attach(self, link: Link) -> None:
        self._link = link
        link.write(self._request)

    def received(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        if self._is_open:
            self._behind.received(data, at_ns, since_ns)
            return
        self._head += data
        head, end, rest = self._head.partition(END_OF_HEAD)
        if not end and len(head) <= LONGEST_HEAD:
            return
        if why := why_no_tunnel(head):
            self._failed = True
            self._behind.ended(TunnelRefusedError(why))
            self._link.close()
            return
        self._is_open, self._head = True, b""
        self._behind.attach(self._link)
        if rest:
            self._behind.received(rest, at_ns, since_ns)

    def written(self) -> None:
        if self._is_open:
            self._behind.written()

    def ended(self, error: Exception | None) -> None:
        if self._failed:
            return
        if not self._is_open:
            error = error or ConnectionResetError(errno.ECONNRESET, "closed by the proxy without an answer")
        self._behind.ended(error)

    def dropped(self) -> None:
        self._behind.dropped()
