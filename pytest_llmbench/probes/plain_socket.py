"""A connection that is not measured, for protocols that httpx does not speak."""

from __future__ import annotations

import socket
import ssl
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx

from pytest_llmbench.probes.access import Access

_PORTS = {"ws": 80, "wss": 443, "http": 80, "https": 443}
_OVER_TLS = ("wss", "grpcs", "https")
_READ_BYTES = 65536
_LEAST_S = 0.001


class PlainSocket:
    """A connection to the server at ``url``, with TLS where its scheme says so; a context manager.

    Its errors are those of a request over HTTP, httpx.RequestError; all of an exchange has to happen within
    ``access.answer_s``.
    """

    def __init__(self, url: str, access: Access, tls: ssl.SSLContext) -> None:
        """Raises httpx.ConnectError or httpx.ConnectTimeout."""
        self._socket = _connected(url, access, tls)
        self._until_s = time.monotonic() + access.answer_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    @property
    def protocol(self) -> str:
        """What was agreed on over TLS (ALPN); empty: nothing."""
        agreed = self._socket.selected_alpn_protocol() if isinstance(self._socket, ssl.SSLSocket) else None
        return agreed or ""

    def receive(self) -> bytes:
        """One read; nothing at the end of the connection. Raises httpx.ReadTimeout or httpx.ReadError."""
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


def _connected(url: str, access: Access, tls: ssl.SSLContext) -> socket.socket:
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        plain = socket.create_connection((host, parts.port or _PORTS[parts.scheme]), access.connect_s)
        try:
            return tls.wrap_socket(plain, server_hostname=host) if parts.scheme in _OVER_TLS else plain
        except BaseException:
            plain.close()
            raise
    except TimeoutError as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error
