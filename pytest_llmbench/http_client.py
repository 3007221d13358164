"""What every client of an endpoint shares, measured or not: URLs, the proxy, headers, certificates.

``http+unix://%2Frun%2Fengine.sock/v1`` is HTTP over the Unix socket ``/run/engine.sock``; ``ws://host/v1``
and ``wss://host/v1`` are WebSockets, with HTTP on the same port.

The preflight and the load take their headers from here: a server that refuses a header refuses it before the
load. TLS: which server certificates are trusted, which one is shown to servers, and what a failure means.
"""

from __future__ import annotations

import base64
import errno
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit
from uuid import UUID

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import SMALL_BYTES, read_bytes
from pytest_llmbench.installed import installed_version
from pytest_llmbench.redaction import keep_secrets_of

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


END_OF_HEAD = b"\r\n\r\n"
LONGEST_HEAD = 65_536
"""Most bytes of a proxy's answer; more is none."""
_SHOWN = 60
OF_ENVIRONMENT = "env"
"""Value in place of a URL that means the proxy which the environment names for the host of each endpoint."""


@dataclass(frozen=True, slots=True, repr=False)
class HttpProxy:
    """A proxy that speaks plain HTTP itself. Its credentials are in no ``repr`` and no error."""

    host: str
    port: int
    credentials: str = ""
    """``user:password``, decoded; empty: none."""

    @classmethod
    def parse(cls, url: str) -> HttpProxy:
        """Read ``http://[user:password@]host:port``. Raises SuiteError for what is no such proxy."""
        keep_secrets_of(url)
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise _no_proxy(f"it is not a URL: {error}") from None
        if parts.scheme != "http":
            raise _no_proxy(
                f"it is {parts.scheme or 'without a scheme'}, and only http:// is spoken to a proxy"
            )
        if not parts.hostname or not port:
            raise _no_proxy("it names no host and port")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise _no_proxy("a proxy has no path")
        given = (parts.username, parts.password or "") if parts.username is not None else None
        return cls(parts.hostname, port, ":".join(map(unquote, given)) if given else "")

    @classmethod
    def without_credentials(cls, url: str) -> HttpProxy:
        """Read a proxy that stands on a command line or in a file. Raises SuiteError for credentials too."""
        found = cls.parse(url)
        if found.credentials:
            raise _no_proxy("credentials belong on no command line and in no file of a repository")
        return found

    @property
    def url(self) -> str:
        """URL of the proxy without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of a request to the proxy itself: its credentials (RFC 9110, section 11.7.2)."""
        if not self.credentials:
            return {}
        token = base64.b64encode(self.credentials.encode("utf-8")).decode("ascii")
        return {"Proxy-Authorization": f"Basic {token}"}

    def connect_request(self, host: str, port: int) -> bytes:
        """The request for a tunnel to a server (RFC 9110, section 9.3.6)."""
        name = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
        lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
        lines += [f"{header}: {value}" for header, value in self.headers.items()]
        return "\r\n".join(lines).encode("ascii") + END_OF_HEAD

    def __repr__(self) -> str:
        return f"HttpProxy({self.url})"


def why_no_tunnel(head: bytes) -> str:
    """Why an answer to CONNECT opens no tunnel, in words; empty if it does. ``head``: the answer up to the
    end of its head."""
    line = head.partition(b"\r\n")[0]
    version, _, rest = line.partition(b" ")
    number = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(number) != 3 or not number.isdigit():
        shown = line if len(line) <= _SHOWN else line[:_SHOWN] + b"..."
        return f"no answer of a proxy: {shown.decode('latin-1')!r}"
    status = int(number)
    if 200 <= status < 300:
        return ""
    phrase = f" ({HTTPStatus(status).phrase})" if status in set(HTTPStatus) else ""
    return f"the proxy answered {status}{phrase} to CONNECT"


def _no_proxy(what: str) -> SuiteError:
    return SuiteError(
        f"no proxy that can be used: {what}",
        where="--llm-proxy",
        remedy="write http://host:port, or env for the one of the environment, which may have a password",
    )


REQUEST_ID = "x-request-id"
"""Header with our id of the request, so that server logs can be matched with records."""


def usual_headers(given: Mapping[str, str], further: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers of every request, beside its id and those that say where it goes and how long it is.

    ``given``: those of the SUT file, with the key; ``further``: those of the dialect. The later one counts
    where two have one name, in whatever case. ``Accept-Encoding: identity``: a compressed stream is buffered
    by whoever compresses it.
    """
    headers = {
        "User-Agent": user_agent(),
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    for name, value in [*given.items(), *(further or {}).items()]:
        known = next((each for each in headers if each.lower() == name.lower()), name)
        headers[known] = value
    return headers


def call_headers(given: Mapping[str, str], further: Mapping[str, str] | None = None) -> dict[str, str]:
    """:func:`usual_headers` of a call over gRPC, in lower case as HTTP/2 wants them; its id is in its
    message."""
    named = {name.lower(): value for name, value in [*given.items(), *(further or {}).items()]}
    own = {"te": "trailers", "content-type": "application/grpc", "grpc-accept-encoding": "identity"}
    return own | {"user-agent": user_agent()} | named | own


def user_agent() -> str:
    """Value of the header User-Agent: our name and version."""
    version = installed_version("pytest-llmbench")
    # None: run from a source tree that was never installed
    return "pytest-llmbench" if version is None else f"pytest-llmbench/{version}"


def numbered_ids() -> Callable[[int], str]:
    """Ids for the requests of a load by their index, at most twelve digits: other ones each time.

    Each is a UUID of version 4, since middleware of servers takes no other word (llama-cpp-python answers
    400), whose last twelve digits are the index in decimal: records keep it as a prefix and a number.
    """
    start = str(UUID(bytes=secrets.token_bytes(16), version=4))[:-12]
    return lambda index: f"{start}{index:012}"


_CLOCK: Final = "or set the clock of this machine, if that is wrong"
_UNTRUSTED: Final = (
    "is not trusted",
    "name its certificate authority as ca_file under [endpoint] of the SUT file, or in the variable "
    "SSL_CERT_FILE; a server that does not send its intermediate certificates looks the same",
)
_VERDICTS: Final = {
    # OpenSSL's X509_V_ERR_…: what is wrong with the certificate, and who can mend it
    9: ("is not valid yet", f"wait, {_CLOCK}"),
    10: ("has expired", f"renew it on the server, {_CLOCK}; trusting another authority does not help"),
    18: ("is signed by itself",
         "if it is the one that you expect, name it as ca_file under [endpoint] of the SUT file, or in the "
         "variable SSL_CERT_FILE"),
    23: ("has been revoked", "give the server a new one"),
    62: ("is for another name", "use the host name that the certificate is for"),
    64: ("is for another address", "use the host name that the certificate is for"),
    66: ("has too short a key", "give the server one with a longer key"),
    67: ("has an authority with too short a key", "have it issued by another one"),
    68: ("is signed by a broken digest", "have it issued anew"),
}  # fmt: skip
_HANDSHAKES: Final = (
    # part of OpenSSL's reason, what it means, what helps
    ("CERTIFICATE_REQUIRED", "the server demands a certificate of its client",
     "name it as client_cert_file under [endpoint] of the SUT file"),
    ("HANDSHAKE_FAILURE", "the server refuses the handshake",
     "it may demand a certificate of its client (client_cert_file under [endpoint] of the SUT file), or "
     "share no cipher"),
    ("PROTOCOL", "the server speaks no version of TLS that is allowed here", "switch TLS 1.2 on there"),
    ("UNRECOGNIZED_NAME", "the server has no certificate for this name", "check the host name"),
    ("UNEXPECTED_EOF", "the server ended the connection within the handshake", "look at the server's log"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate, shown to a server that demands one."""

    cert_file: Path
    """PEM file: the certificate, then those between it and its authority."""
    key_file: Path | None = None
    """PEM file of the key, not encrypted; None: the key is in ``cert_file``."""


def client_context(
    ca_file: str | Path | None = None, *, insecure: bool = False, client: ClientCertificate | None = None
) -> ssl.SSLContext:
    """A TLS context that verifies the server's certificate and its name: by the certificates in ``ca_file``
    (PEM) alone, or by those that the operating system trusts, or the variable ``SSL_CERT_FILE`` names.
    ``insecure``: nothing is verified.

    ``client`` is shown where a server demands it. Raises OSError (ssl.SSLError is one) for a CA file that
    cannot be used, SuiteError for files of ``client`` that cannot be.
    """
    # cadata rather than cafile: OpenSSL would wait at a pipe. Nothing to trust must not mean the default.
    trusted = None
    if ca_file is not None:
        trusted = read_bytes(Path(ca_file), SMALL_BYTES).decode("ascii", errors="ignore")
        if "-----BEGIN CERTIFICATE-----" not in trusted:
            raise OSError(errno.EINVAL, "it holds no certificate in PEM form")
    context = ssl.create_default_context(cadata=trusted)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client is not None:
        _show(client, context)
    return context


def _show(client: ClientCertificate, context: ssl.SSLContext) -> None:
    files = [file for file in (client.cert_file, client.key_file) if file is not None]
    try:
        for file in files:
            read_bytes(file, SMALL_BYTES)  # OpenSSL would wait at a pipe
        # Without a password OpenSSL asks for one at the terminal.
        context.load_cert_chain(client.cert_file, client.key_file, password="")
    except OSError as error:
        names = " and ".join(map(str, files))
        raise SuiteError(
            f"the client certificate cannot be used: {error.strerror or error}",
            where=names,
            remedy="give PEM files: the certificate as client_cert_file; its key, which is not encrypted, "
            "there too or as client_key_file",
        ) from error


def explain(error: ssl.SSLError, url: str) -> tuple[str, str]:
    """Cause and remedy, in words, of a TLS connection to ``url`` that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        verdict, remedy = _VERDICTS.get(error.verify_code, _UNTRUSTED)
        what = f"TLS: the server's certificate {verdict}: {error.verify_message}"
        return what, f"{remedy}; --llm-insecure goes without the check, and every result says so"
    reason = error.reason or str(error)
    for part, what, remedy in _HANDSHAKES:
        if part in reason:
            return f"TLS: {what}: {reason}", remedy
    scheme, _, rest = url.partition("://")
    plain = f"{scheme.removesuffix('s')}://{rest.partition('/')[0]}"
    return f"TLS: the handshake failed: {reason}", f"if the port has no TLS, use {plain} in place of https://"
