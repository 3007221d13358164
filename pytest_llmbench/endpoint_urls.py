"""URLs of endpoints that are not HTTP over TCP, and the URL of the HTTP side of each.

``http+unix://%2Frun%2Fengine.sock/v1`` is HTTP over the Unix socket ``/run/engine.sock``; ``ws://host/v1``
and ``wss://host/v1`` are WebSockets, with HTTP on the same port.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

SCHEME = "http+unix"
OF_HTTP = ("http", "https", SCHEME)
"""Schemes of what is asked over HTTP/1.1, or over HTTP/2 with ``--llm-http=2``."""
PORT = "{port}"
"""Placeholder for a free port of this host, in what a server is launched with."""
_KEYS = frozenset(
    {"key", "api_key", "api-key", "apikey", "token", "access_token", "auth_token", "subscription-key"}
)
"""Query parameters in which gateways take a key, in small letters. They take it in a header too."""
_LONGEST_BYTES = 107
"""Longest path of a Unix socket on Linux, in bytes without the terminating zero."""


def socket_path(url: str) -> str:
    """The path of the Unix socket; empty for any other URL."""
    parts = urlsplit(url.strip())
    return unquote(parts.netloc) if parts.scheme == SCHEME else ""


def socket_mistakes(path: str) -> list[str]:
    """Mistakes in the path of a socket, in words."""
    if not path.startswith("/") or "\0" in path:
        example = f"{SCHEME}://%2Frun%2Fengine.sock/v1"
        return [f"{path!r} is no absolute path of a socket; its slashes are written %2F: {example}"]
    if len(path.encode()) > _LONGEST_BYTES:
        return [f"the path of a socket may have {_LONGEST_BYTES} bytes, this one has {len(path.encode())}"]
    return []


def without_keys(url: str) -> tuple[str, list[str]]:
    """The URL without the query parameters that are keys of an API, and the names of these."""
    parts = urlsplit(url.strip())
    given = parse_qsl(parts.query, keep_blank_values=True)
    keys = [name for name, _ in given if name.lower() in _KEYS]
    rest = urlencode([(name, value) for name, value in given if name not in keys])
    return (parts._replace(query=rest).geturl() if keys else url), keys


def over_http(url: str) -> str:
    """The URL for requests to a server at a socket, ``http://localhost/v1``; any other URL unchanged."""
    parts = urlsplit(url)
    return parts._replace(scheme="http", netloc="localhost").geturl() if parts.scheme == SCHEME else url


GRPC_SCHEMES = {"grpc": "http", "grpcs": "https"}
"""Scheme of gRPC → scheme of the HTTP/2 that carries its calls."""

WEBSOCKET_SCHEMES = {"ws": "http", "wss": "https"}
"""Scheme of WebSockets → scheme of the HTTP of their handshake."""


def is_websocket(url: str) -> bool:
    """Whether it is the URL of a WebSocket."""
    return urlsplit(url.strip()).scheme in WEBSOCKET_SCHEMES


def http_beside(url: str) -> str:
    """The HTTP URL for a WebSocket one, ``http://host/v1`` for ``ws://host/v1``, ``https`` for ``wss``; any
    other URL unchanged."""
    if not is_websocket(url):
        return url
    parts = urlsplit(url.strip())
    return parts._replace(scheme=WEBSOCKET_SCHEMES[parts.scheme]).geturl()


def is_grpc(url: str) -> bool:
    """Whether it is the URL of a gRPC server, ``grpc://host:port``."""
    return urlsplit(url.strip()).scheme in GRPC_SCHEMES


def not_over_http2(endpoint: str) -> list[str]:
    """Why an endpoint cannot be reached over HTTP/2 with ``--llm-http=2``, in words; empty if it can."""
    scheme = endpoint.strip().partition(":")[0].lower()
    if scheme in ("http", "https"):
        return []
    why = _NOT_OVER_HTTP2.get(scheme, "is not asked over HTTP")
    return [f"--llm-http=2 is for http:// and https:// endpoints, and {scheme}: {why}: leave it out"]


def not_through_a_proxy(endpoint: str) -> list[str]:
    """Why an endpoint cannot be measured through a proxy, in words; empty if it can."""
    scheme = endpoint.strip().partition(":")[0].lower()
    if scheme in ("http", "https"):
        return []
    return [f"--llm-proxy is for http:// and https:// endpoints, and not for {scheme}: leave it out"]


_NOT_OVER_HTTP2 = {
    **dict.fromkeys(WEBSOCKET_SCHEMES, "is a WebSocket, which is opened over HTTP/1.1"),
    **dict.fromkeys(GRPC_SCHEMES, "is gRPC, which is HTTP/2 by itself"),
    SCHEME: "is a Unix socket, which is asked over HTTP/1.1",
    "sim": "is the embedded engine, which serves HTTP/1.1",
    "replay": "is the embedded engine in virtual time, which is asked over no HTTP",
    "python": "is code in this process, which is asked over no HTTP",
}
