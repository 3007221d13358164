"""A connection that is not measured, for protocols that httpx does not speak."""

from __future__ import annotations

import socket
import ssl
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import httpx

from pytest_llmbench.probes.access import Access

if TYPE_CHECKING:
    from pytest_llmbench.http_proxy import HttpProxy

_PORTS = {"ws": 80, "wss": 443, "http": 80, "https": 443}
_OVER_TLS = ("wss", "grpcs", "https")
_READ_BYTES = 65536
_LEAST_S = 0.001


class CutOffError(httpx.RemoteProtocolError):
    """The connection ended within an answer that had begun."""

    @classmethod
    def behind(cls, begun: str, cause: Exception | str) -> CutOffError:
        """``begun``: what had come of the answer."""
        return cls(f"{begun} the connection ended: {cause or type(cause).__name__}")


class PlainSocket:
    """A connection to the server at ``url``, with TLS where its scheme says so; a context manager.

    Its errors are those of a request over HTTP, httpx.RequestError; all of an exchange has to happen within
    ``access.answer_s``.
    """

    def __init__(self, url: str, access: Access, tls: ssl.SSLContext, proxy: HttpProxy | None = None) -> None:
        """``proxy``: where a tunnel to the server is opened; None: none. Raises httpx.ConnectError or
        httpx.ConnectTimeout."""
        self._socket = _connected(url, access, tls, proxy)
        self._until_s = time.monotonic() + access.answer_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    @property
    def protocol(self) -> str:
        """The protocol that was agreed on over TLS (ALPN); empty if none was."""
        agreed = self._socket.selected_alpn_protocol() if isinstance(self._socket, ssl.SSLSocket) else None
        return agreed or ""

    def receive(self) -> bytes:
        """The bytes of one read; empty at the end of the connection. Raises httpx.ReadTimeout or
        httpx.ReadError."""
        try:
            if time.monotonic() >= self._until_s:  # of a server that floods us no read by itself takes long
                raise TimeoutError("the time for the answer is over")
            self._set_timeout()
            return self._socket.recv(_READ_BYTES)
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ReadError(str(error)) from error

    def send(self, data: bytes) -> None:
        """Send all of it. Raises httpx.WriteTimeout or httpx.WriteError."""
        try:
            self._set_timeout()
            self._socket.sendall(data)
        except TimeoutError as error:
            raise httpx.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpx.WriteError(str(error)) from error

    def _set_timeout(self) -> None:
        self._socket.settimeout(max(_LEAST_S, self._until_s - time.monotonic()))


def _connected(url: str, access: Access, tls: ssl.SSLContext, proxy: HttpProxy | None) -> socket.socket:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    where = (host, port) if proxy is None else (proxy.host, proxy.port)
    try:
        plain = socket.create_connection(where, access.connect_s)
        try:
            if proxy is not None:
                _ask_for_tunnel(plain, proxy.connect_request(host, port))
            return tls.wrap_socket(plain, server_hostname=host) if parts.scheme in _OVER_TLS else plain
        except BaseException:
            plain.close()
            raise
    except TimeoutError as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error


def _ask_for_tunnel(plain: socket.socket, request: bytes) -> None:
    """Ask a proxy to open a tunnel. Raises OSError if it does not."""
    from pytest_llmbench.http_proxy import END_OF_HEAD, LONGEST_HEAD, why_no_tunnel

    plain.sendall(request)
    head = b""
    # A byte at a time: what follows the head is the server's.
    while not head.endswith(END_OF_HEAD) and len(head) <= LONGEST_HEAD and (byte := plain.recv(1)):
        head += byte
    if why := why_no_tunnel(head.removesuffix(END_OF_HEAD)):
        raise ConnectionRefusedError(why)
