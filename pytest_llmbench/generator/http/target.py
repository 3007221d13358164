"""The target of requests: one endpoint, its headers and its TLS settings."""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.http_client import (
    GRPC_SCHEMES,
    SCHEME,
    WEBSOCKET_SCHEMES,
    ClientCertificate,
    client_context,
    not_over_http2,
    not_through_a_proxy,
    socket_mistakes,
    socket_path,
)
from pytest_llmbench.model.request import OWN_HEADERS
from pytest_llmbench.registry import transport_for

if TYPE_CHECKING:
    from pytest_llmbench.http_client import HttpProxy

SUPPORTED = (
    "http://", "https://", "sim", "replay", "python:module:attr", "http+unix://", "ws://", "wss://", "grpc://",
    "grpcs://",
)  # fmt: skip
_DEFAULT_PORTS = {"http": 80, "https": 443, SCHEME: 80, "ws": 80, "wss": 443}
_TLS = ("https", "wss", "grpcs")
_OF_HANDSHAKES = ("upgrade", "sec-websocket-")
"""Prefixes of the header names that belong to a WebSocket handshake."""
_OF_CALLS = ("te", "trailer", "upgrade", "keep-alive", "proxy-connection", "http2-settings")
"""Names of headers that HTTP/2 does not have, or that may have only one value there."""


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """An HTTP endpoint, or one of WebSockets or gRPC.

    Header values (keys, tokens) never appear in its ``repr`` or in an error.
    """

    scheme: str
    host: str
    port: int
    base_path: str = ""
    """Path of the endpoint without a trailing slash: ``/v1``."""
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    ssl_context: ssl.SSLContext | None = field(default=None, compare=False)
    insecure: bool = False
    """Whether the check of the server's certificate is skipped."""
    unix_path: str = ""
    """Path of the Unix socket that is used in place of host and port; empty: none."""
    http2: bool = False
    """Requests go over HTTP/2: with ALPN over TLS, else with prior knowledge."""
    proxy: HttpProxy | None = None
    """The HTTP proxy that connections are opened to; None: they go to host and port."""

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        ca_file: str | Path | None = None,
        insecure: bool = False,
        client: ClientCertificate | None = None,
        http2: bool = False,
        proxy: HttpProxy | None = None,
    ) -> Target:
        """A target from ``http(s)://host[:port][/base][?query]``, ``ws(s)://…``, ``grpc(s)://host:port`` or
        ``http+unix://%2Fsocket…``. ``http2`` and ``proxy``: of ``http(s)`` alone.

        Raises :class:`SuiteError`, listing everything that is wrong, for a scheme we do not speak, a missing
        host, a bad port, credentials in the URL, header text that is not header text, an unreadable CA file.
        """
        try:
            parts = urlsplit(url.strip())
        except ValueError as error:
            raise SuiteError(f"{url!r} is not a URL: {error}", remedy="write http://host:port/v1") from None
        mistakes = _url_mistakes(parts) + (not_over_http2(url) if http2 else [])
        mistakes += not_through_a_proxy(url) if proxy else []
        mistakes += _header_mistakes(headers or {}, parts.scheme, http2=http2)
        context: ssl.SSLContext | None = None
        if parts.scheme in _TLS:
            try:
                context = client_context(ca_file, insecure=insecure, client=client)
                context.set_alpn_protocols(["h2" if http2 or parts.scheme in GRPC_SCHEMES else "http/1.1"])
            except OSError as error:
                mistakes.append(f"the CA file {ca_file} cannot be used: {error.strerror or error}")
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=_shown(parts))
        return cls(
            scheme=parts.scheme,
            host="localhost" if parts.scheme == SCHEME else parts.hostname or "",
            port=parts.port or _DEFAULT_PORTS.get(parts.scheme, 0),
            base_path=parts.path.rstrip("/"),
            query=parts.query,
            headers=tuple((headers or {}).items()),
            ssl_context=context,
            insecure=insecure and parts.scheme in _TLS,
            unix_path=socket_path(url),
            http2=http2,
            proxy=proxy,
        )

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host.encode("idna").decode("ascii")
        return host if self.port == _DEFAULT_PORTS.get(self.scheme) else f"{host}:{self.port}"

    @property
    def place(self) -> str:
        """The address that connections are opened to, as messages show it."""
        through = f" through the proxy {self.proxy.url}" if self.proxy is not None else ""
        return self.unix_path or f"{self.host}:{self.port}{through}"

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port that connections are opened to."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    @property
    def is_tunnelled(self) -> bool:
        """Whether the proxy is asked for a tunnel. If not, it is given each request with the whole URL."""
        return bool(self.tunnel_request)

    @property
    def tunnel_request(self) -> bytes:
        """The CONNECT request for the proxy; empty where it is given each request instead."""
        if self.proxy is None or not (self.http2 or self.ssl_context is not None):
            return b""
        return self.proxy.connect_request(self.host, self.port)

    @property
    def url(self) -> str:
        where = quote(self.unix_path, safe="") or self.authority
        return f"{self.scheme}://{where}{self.base_path}"

    def request_target(self, path: str) -> str:
        """``path`` of a dialect below the base path; segments that both have are not repeated.

        ``/v1`` and ``/v1/chat/completions`` give ``/v1/chat/completions``, so that an endpoint may be given
        with or without its version.
        """
        base = [segment for segment in self.base_path.split("/") if segment]
        rest = [segment for segment in path.split("/") if segment]
        shared = next((n for n in range(min(len(base), len(rest)), 0, -1) if base[-n:] == rest[:n]), 0)
        joined = "/" + "/".join(base + rest[shared:])
        return f"{joined}?{self.query}" if self.query else joined

    def __repr__(self) -> str:
        names = ", ".join(f"{name}: …" for name, _ in self.headers)
        return f"Target({self.url}, headers=({names}){', insecure' if self.insecure else ''})"


def _url_mistakes(parts: SplitResult) -> list[str]:
    known = parts.scheme in _DEFAULT_PORTS or parts.scheme in GRPC_SCHEMES
    if not known and transport_for(parts.scheme) is None:
        if re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[\w.-]+)(:\d+(/.*)?|/.*)", parts.geturl()):
            return [f"the URL names no scheme; write http://{_shown(parts)}"]
        given = parts.geturl()
        schemes = {each.partition(":")[0]: each for each in SUPPORTED}
        close = difflib.get_close_matches(given.partition(":")[0], schemes, n=1)
        hint = f"did you mean {schemes[close[0]]}? " if close else ""
        return [f"not an endpoint; {hint}supported are {', '.join(SUPPORTED)}"]
    if parts.scheme == SCHEME:
        return socket_mistakes(unquote(parts.netloc))
    mistakes = []
    if parts.username is not None or parts.password is not None:
        mistakes.append(
            f"the URL holds credentials; write {_shown(parts)}, and put the key into the environment "
            "(LLM_API_KEY) or into the file of --llm-api-key-file"
        )
    try:
        if not parts.hostname:
            mistakes.append("the URL names no host")
        elif ":" not in parts.hostname:
            parts.hostname.encode("idna")
        if parts.port == 0:
            mistakes.append("port 0 is not a port")
        elif parts.port is None and parts.scheme not in _DEFAULT_PORTS:
            usual = "the URL names no port, and the scheme has no default port"
            mistakes.append(f"{usual}: {parts.scheme}://host:port")
    except UnicodeError:
        mistakes.append(f"{parts.hostname!r} is not a host name")
    except ValueError as error:
        mistakes.append(str(error))
    if parts.scheme in GRPC_SCHEMES and (parts.path.strip("/") or parts.query):
        mistakes.append(f"a gRPC server has no path below it: {parts.scheme}://host:port")
    return mistakes


def _header_mistakes(headers: Mapping[str, str], scheme: str, *, http2: bool) -> list[str]:
    mistakes = []
    for name, value in headers.items():
        of_handshake = scheme in WEBSOCKET_SCHEMES and name.lower().startswith(_OF_HANDSHAKES)
        of_call = (http2 or scheme in GRPC_SCHEMES) and name.lower() in _OF_CALLS
        of_call = of_call or (scheme in GRPC_SCHEMES and name.lower().startswith("grpc-"))
        if not name or not all(char.isalnum() or char in "!#$%&'*+-.^_`|~" for char in name):
            mistakes.append(f"{name!r} is not a header name")
        elif name.lower() in OWN_HEADERS or of_handshake or of_call:
            mistakes.append(f"header {name!r} is set by the load generator itself")
        # The value may be a key: say that it is wrong, never what it is.
        if any(char in value for char in "\r\n\0") or not value.isascii():
            mistakes.append(f"the value of header {name!r} holds a line break or characters beyond ASCII")
    return mistakes


def _shown(parts: SplitResult) -> str:
    if not parts.netloc:  # without a scheme
        parts = parts._replace(path=parts.geturl().rpartition("@")[2], scheme="")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
