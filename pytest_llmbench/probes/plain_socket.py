"""A connection that is not measured, for protocols that httpx does not speak."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

import httpx

from pytest_llmbench.probes.access import Access

_PORTS = {"ws": 80, "wss": 443}
_OVER_TLS = ("wss", "grpcs")


def connected(url: str, access: Access, tls: ssl.SSLContext) -> socket.socket:
    """A socket to the server at ``url``, with TLS where its scheme says so.

    Raises httpx.ConnectError or httpx.ConnectTimeout, as a request over HTTP does.
    """
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
