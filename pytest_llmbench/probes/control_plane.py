"""HTTP requests that are not measured: bounded, redacted, with every failure reported as one SUTError; and a
connection for protocols that httpx does not speak.

The measured path has its own transport. This one may use httpx, follow the proxies of the environment and
take its time to find out why something does not work.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from pytest_llmbench import http_client
from pytest_llmbench.errors import NotReadyError, SuiteError, SUTError
from pytest_llmbench.http_client import (
    REQUEST_ID,
    SCHEME,
    HttpProxy,
    http_beside,
    is_grpc,
    numbered_ids,
    over_http,
    socket_path,
    user_agent,
    usual_headers,
)
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.probes.access import Access
from pytest_llmbench.redaction import known_secrets
from pytest_llmbench.registry import load, required, transport_for
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.error_replies import shorten

_MOST_BYTES = 4 * 1024 * 1024
"""Most bytes of an answer that are read: the answers to these requests are small."""

_END_MARKER = b"[DONE]"
_END_MARKER_WITHIN = 64
"""Number of bytes at the end of a stream in which the end marker is looked for: some servers leave the
connection open after it."""

_TLS_WITHIN_S = 2.0
"""Time limit in seconds for finding out whether a port that gives no HTTP answer speaks TLS."""

_ENDED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""Errors by which a connection that had been made ended before an answer."""

_SPEAKS_TLS = "the port speaks TLS"
_SPEAKS_HTTP2 = "the port speaks HTTP/2 and no HTTP/1.1"
_HTTP2_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The opening of a connection with prior knowledge, preface and empty SETTINGS frame (RFC 9113, 3.4)."""
_HTTP2_SETTINGS = re.compile(rb"...\x04.\x00{4}", re.DOTALL)
"""The head of a SETTINGS frame, by which a server answers that."""

_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request, whatever its status. Known secrets are taken out of the body."""

    url: str
    status: int
    headers: httpx.Headers
    body: bytes
    ended: bool = True
    """Whether the answer is complete; False if it was still going on when its time or its bytes were used
    up."""

    @property
    def content_type(self) -> str:
        content_type: str = self.headers.get("content-type", "")
        return content_type.partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class TransportReply:
    """The reply over another transport than HTTP, in the form that HTTP would have brought it in: a request
    that is refused has the HTTP status that means the same, any other is a stream with status 200."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    ended: bool = True
    """Whether the reply is complete, as in :class:`Answer`."""


class Closing:
    """A context manager that ends with :meth:`close`."""

    def close(self) -> None:
        """Let go of what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ControlPlane(Closing):
    """Sends requests to one endpoint."""

    def __init__(self, endpoint: str, access: Access, transport: httpx.BaseTransport | None = None) -> None:
        self._access = access
        self._socket = socket_path(endpoint)
        self._transport = transport
        if transport is None and self._socket:
            self._transport = httpx.HTTPTransport(verify=False, uds=self._socket)
        self.insecure = access.insecure
        self.key_source = access.credentials.source
        self.headers = access.credentials.headers
        """Headers that every request carries in addition to the usual ones; they contain secrets."""
        direct = bool(self._socket) or is_grpc(endpoint)
        self.proxy = None if direct else proxy_to(http_beside(endpoint), access)
        """The proxy that is used, or ``None``. A loopback endpoint is never reached through one of the
        environment, and gRPC through none at all."""
        if access.ca_file is not None or access.client is not None:
            _ = self._tls  # what is wrong with these files is said here, whatever the endpoint speaks
        self._clients: dict[bool, httpx.Client] = {}
        """The client for plain HTTP (False) and that for TLS (True)."""
        self._answered = False
        self._http2_alone = False
        """Whether the port has turned out to speak HTTP/2 and no HTTP/1.1."""

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """The TLS context, made when it is needed: reading what the system trusts takes 30 ms."""
        return tls_context(self._access)

    def _client_for(self, url: str) -> httpx.Client:
        over_tls = urlsplit(url).scheme == "https"
        if over_tls not in self._clients:
            self._clients[over_tls] = self._made(self._tls if over_tls else False)
        return self._clients[over_tls]

    def close(self) -> None:
        """Close the clients; the next request makes a new one."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _made(self, verify: ssl.SSLContext | bool) -> httpx.Client:
        access = self._access
        client = httpx.Client(
            # Compressed event streams come in lumps; a measured request will not ask for them either.
            headers={
                "Accept-Encoding": "identity",
                "User-Agent": user_agent(),
                **access.credentials.headers,
            },
            verify=verify,
            http1=not self._http2_alone,
            http2=access.http2 and (self._http2_alone or verify is not False),
            proxy=None if self.proxy is None else as_httpx(self.proxy),
            transport=self._transport,
            # The proxy is decided above, so that what is recorded is what is used.
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(access.answer_s, connect=access.connect_s),
        )
        del client.headers["Connection"]  # which a measured request does not carry
        return client

    @contextmanager
    def _within_the_time(self, url: str) -> Iterator[None]:
        """End an exchange that takes too long as a whole, though each of its reads is in time.

        Raises SUTError. The client is closed under the one who reads; the next request has a new one.
        """
        limit_s, expired = self._access.connect_s + self._access.answer_s, threading.Event()

        def expire() -> None:
            expired.set()
            self.close()

        timer = threading.Timer(limit_s, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            if not expired.is_set():
                raise
            limit = f"{trimmed(limit_s)} s"
            what = f"connected, but the head of the answer was not complete within {limit}"
            remedy = "check the server and what is in front of it"
            raise SUTError(what, where=without_query(url), remedy=remedy) from error
        finally:
            timer.cancel()

    def get(self, url: str) -> Answer:
        return self._exchange(self._request("GET", url))

    def get_or_failure(self, url: str, headers: Mapping[str, str] | None = None) -> Answer | SUTError:
        """The answer; if the server ended the connection without one, the error that says so."""
        request = self._request("GET", url, headers=headers)
        try:
            return self._taken(request)
        except _ENDED as error:
            return self._failure(without_query(url), error)
        except httpx.RequestError as error:
            raise self._failure(without_query(url), error) from error

    def post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a JSON body, an event stream included, read to its end or to the limits.

        ``headers``: further ones, which a dialect wants. All are those of a measured request, its id among
        them: what a server refuses for one of them, it refuses here.
        """
        usual = usual_headers(self.headers, headers)
        given = {REQUEST_ID: numbered_ids()(0), **usual}
        return self._exchange(self._request("POST", url, content=body, headers=given))

    def ask_over(
        self,
        url: str,
        spoken: Dialect,
        body: bytes,
        request_id: str,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The answer to an encoded body over the transport of the URL's scheme, told as that to a request
        over HTTP would be.

        ``headers``: further ones, which a dialect wants.
        """
        transport = transport_for(urlsplit(url).scheme)
        assert transport is not None  # its dialect is spoken
        if self.proxy is not None:
            raise SUTError(
                f"the environment has a proxy ({self.proxy.url}) for this host, and {transport.title} "
                "is spoken without one",
                where=without_query(url),
                remedy="add the host to NO_PROXY if it can be reached directly",
            )
        given = {"User-Agent": user_agent(), **self.headers, **(headers or {})}
        ask = partial(load(transport.ask), url, spoken, body, request_id)
        return self._carried(url, without_query(url), ask, given)

    def invoke(self, url: str, message: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a gRPC call, whose method is the path of ``url``, told as that to a request over HTTP
        would be: with the status that means the same. ``headers``: further ones, which a dialect wants."""
        call = partial(load(required("grpc", "--llm-endpoint").preflight["call"]), url, message)
        server = urlsplit(url)._replace(path="").geturl()
        return self._carried(url, server, call, {**self.headers, **(headers or {})})

    def _carried(self, url: str, where: str, ask: Callable[..., Any], headers: Mapping[str, str]) -> Answer:
        """The answer over another transport than HTTP/1.1. ``where``: for messages."""
        try:
            reply = ask(headers=headers, access=self._access, tls=self._tls)
        except httpx.RequestError as error:
            raise self._failure(where, error) from error
        self._answered = True
        given = httpx.Headers(list(reply.headers))
        return Answer(without_query(url), reply.status, given, _safe(reply.body), reply.ended)

    def call(self, method: str, url: str, body: bytes | None = None) -> Answer:
        """The answer to an administrative call, with a JSON body if there is one."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        return self._exchange(self._request(method, url, content=body, headers=headers))

    def _request(self, method: str, url: str, **parts: Any) -> httpx.Request:
        asked = over_http(http_beside(url))
        return self._client_for(asked).build_request(method, asked, **parts)

    def _shown(self, request: httpx.Request) -> str:
        """The URL of the request as the user knows it."""
        url = without_query(str(request.url))
        if not self._socket:
            return url
        return urlsplit(url)._replace(scheme=SCHEME, netloc=quote(self._socket, safe="")).geturl()

    def _exchange(self, request: httpx.Request) -> Answer:
        try:
            return self._taken(request)
        except httpx.RequestError as error:
            raise self._failure(self._shown(request), error) from error

    def _taken(self, request: httpx.Request) -> Answer:
        with self._within_the_time(str(request.url)):
            response = self._sent(request)
        try:
            coding = response.headers.get("content-encoding", "identity").strip().lower()
            if coding not in ("", "identity"):  # a few bytes can become gigabytes
                how = shorten(coding, 40)
                raise SUTError(
                    f"the answer is compressed ({how}) although the client requested identity",
                    where=without_query(str(response.request.url)),
                    remedy="switch compression off in the server, or in the proxy before it",
                )
            body, ended = self._read(response)
        finally:
            response.close()
        return Answer(self._shown(request), response.status_code, response.headers, _safe(body), ended)

    def _sent(self, request: httpx.Request) -> httpx.Response:
        if self._socket:  # tried beforehand, as httpcore leaves its own open where it is refused
            try:
                with socket.socket(socket.AF_UNIX) as attempt:
                    attempt.settimeout(self._access.connect_s)
                    attempt.connect(self._socket)
            except OSError as error:
                raise httpx.ConnectError(str(error)) from error
        client = self._client_for(str(request.url))
        try:
            response = client.send(request, stream=True)
        except _ENDED:
            # After an error some servers end a connection that they said they would keep. The request went
            # out on that one, which the client has dropped by now: once more, on a fresh one.
            if not self._answered and not self._turn_to_http2(request):
                raise
            response = self._client_for(str(request.url)).send(request, stream=True)
        self._answered = True
        return response

    def _turn_to_http2(self, request: httpx.Request) -> bool:
        """Speak HTTP/2 from now on to a port that speaks nothing else, if the load does so too. False: it is
        no such port."""
        direct = self._access.http2 and self.proxy is None and request.url.scheme == "http"
        if not direct or self._http2_alone or not _speaks_http2(str(request.url)):
            return False
        self._http2_alone = True
        self.close()
        return True

    def _read(self, response: httpx.Response) -> tuple[bytes, bool]:
        """The body up to its end, the end marker of a stream, or a limit; and whether it was no limit."""
        deadline = time.monotonic() + self._access.answer_s
        body = bytearray()
        try:
            for piece in response.iter_raw():
                body += piece
                if _END_MARKER in body[-_END_MARKER_WITHIN:]:
                    break
                if len(body) > _MOST_BYTES or time.monotonic() > deadline:
                    return bytes(body), False
        except httpx.ReadTimeout:
            if not body:
                raise
            return bytes(body), False
        except _ENDED as error:
            begun = f"HTTP {response.status_code}, and after {len(body)} bytes of the answer"
            raise CutOffError.behind(begun, error) from error
        return bytes(body), True

    def _failure(self, url: str, error: httpx.RequestError) -> SUTError:
        unknown = self.proxy is None and not self._answered
        what, remedy = explain(url, error, self._access, may_speak_tls=unknown)
        # Of a server that is still starting its name, its host, its port or its answer is not there yet. A
        # certificate does not change by waiting.
        cause = _root_cause(error)
        absent = isinstance(cause, socket.gaierror | ConnectionRefusedError | FileNotFoundError)
        unreachable = isinstance(cause, OSError) and cause.errno in _UNREACHABLE
        may_pass = absent or unreachable or isinstance(error, (httpx.TimeoutException, *_ENDED))
        lasts = isinstance(cause, ssl.SSLError) or what.endswith((_SPEAKS_TLS, _SPEAKS_HTTP2))
        kind = NotReadyError if may_pass and not lasts else SUTError
        if self.proxy is not None:
            what += f" (through the proxy {self.proxy.url})"
            remedy += "; leave out --llm-proxy, or set NO_PROXY, to reach this host directly"
        return kind(what, where=url, remedy=remedy)


def _safe(body: bytes) -> bytes:
    """The body without secrets: servers repeat a wrong key in their error texts."""
    text = known_secrets().text(body.decode("utf-8", errors="surrogateescape"))
    return text.encode("utf-8", errors="surrogateescape")


def explain(
    url: str, error: httpx.RequestError, access: Access, *, may_speak_tls: bool = True
) -> tuple[str, str]:
    """Cause and remedy of a failed exchange, in words. ``may_speak_tls``: the port may be tried for TLS and
    for HTTP/2."""
    parts = urlsplit(url)
    cause = _root_cause(error)
    if isinstance(cause, socket.gaierror):
        what = f"the host name {parts.hostname} cannot be resolved: {cause.strerror}"
        return what, "check the host name in --llm-endpoint, and the DNS of this host"
    if isinstance(cause, ssl.SSLError):
        return http_client.explain(cause, url)
    if isinstance(cause, FileNotFoundError):
        return "this socket does not exist", "start the server, or correct the path of its socket"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused: nothing listens there", "start the server, or correct the port"
    if isinstance(error, httpx.ConnectTimeout):
        what = f"no connection within {trimmed(access.connect_s)} s"
        return what, "check that host and port are right and that no firewall drops the packets"
    if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
        return f"unreachable: {cause.strerror}", "check the address and the route to it"
    if isinstance(error, httpx.TimeoutException):
        what = f"connected, but no answer within {trimmed(access.answer_s)} s"
        return what, "check that the server is up and has loaded its model"
    if isinstance(error, _ENDED):
        return _explain_ended(url, error, may_speak_tls)
    return f"the exchange failed: {error or type(error).__name__}", "look at the server's log"


def _explain_ended(url: str, error: httpx.RequestError, may_speak_tls: bool) -> tuple[str, str]:
    """Cause and remedy of a connection that the server ended. TLS is named only where the port turns out to
    speak it: servers end connections for many reasons."""
    if isinstance(error, CutOffError):
        return str(error), "check the server's log and what is in front of it"
    parts = urlsplit(url)
    scheme = parts.scheme
    kind = "gRPC" if is_grpc(url) else "HTTP"
    what = f"connected, but no {kind} answer: {error or type(error).__name__}"
    if may_speak_tls and scheme in ("http", "ws", "grpc") and _speaks_tls(url):
        return f"{what}; {_SPEAKS_TLS}", f"write {url.replace(scheme, f'{scheme}s', 1)}"
    if may_speak_tls and scheme == "http" and _speaks_http2(url):
        remedy = f"measure it over HTTP/2: --llm-http=2; if it is a gRPC server, write grpc://{parts.netloc}"
        return f"{what}; {_SPEAKS_HTTP2}", remedy
    return what, "look at the server's log, and check that host and port are those of the API"


def _speaks_http2(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), _TLS_WITHIN_S) as plain:
            plain.sendall(_HTTP2_OPENING)
            return _HTTP2_SETTINGS.match(plain.recv(64)) is not None
    except OSError:
        return False


def _speaks_tls(url: str) -> bool:
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((parts.hostname or "", parts.port or 80), _TLS_WITHIN_S) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except OSError:  # ssl.SSLError is one
        return False


def _root_cause(error: BaseException) -> BaseException:
    cause: BaseException = error
    while (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    return cause


def tls_context(access: Access) -> ssl.SSLContext:
    """The TLS context for the endpoint. Raises SuiteError for a CA file that cannot be used."""
    try:
        return http_client.client_context(access.ca_file, insecure=access.insecure, client=access.client)
    except OSError as error:
        remedy = "give a PEM file with the certificate authority's certificate"
        raise SuiteError(
            f"cannot be used: {error.strerror or error}", where=f"CA file {access.ca_file}", remedy=remedy
        ) from error


def as_httpx(proxy: HttpProxy) -> httpx.Proxy:
    """The proxy as httpx takes it."""
    return httpx.Proxy(proxy.url, headers=proxy.headers)


def proxy_to(url: str, access: Access) -> HttpProxy | None:
    """The proxy of the access, else that of the environment."""
    return access.proxy or proxy_for(url)


def proxy_for(url: str) -> HttpProxy | None:
    """The proxy that the environment sets for ``url``; never one for a loopback host.

    Raises SuiteError for one that does not speak plain HTTP.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        return HttpProxy.parse(proxy)
    except SuiteError as error:
        given = urlsplit(proxy)
        shown = given._replace(netloc=given.netloc.rpartition("@")[2]).geturl()  # without a password
        raise SuiteError(
            f"the proxy of the environment, {shown}, cannot be used: {error.what}",
            where=without_query(url),
            remedy="set NO_PROXY for this host, or another proxy",
        ) from None


def is_loopback(host: str) -> bool:
    """Whether the host is ``localhost`` or a literal loopback address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_query(url: str) -> str:
    """The URL without query and fragment, which may hold a key."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


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


class PlainSocket(Closing):
    """A connection to the server at ``url``, with TLS where its scheme says so.

    Its errors are those of a request over HTTP, httpx.RequestError; all of an exchange has to happen within
    ``access.answer_s``.
    """

    def __init__(self, url: str, access: Access, tls: ssl.SSLContext, proxy: HttpProxy | None = None) -> None:
        """``proxy``: where a tunnel to the server is opened; None: none. Raises httpx.ConnectError or
        httpx.ConnectTimeout."""
        self._socket = _connected(url, access, tls, proxy)
        self._until_s = time.monotonic() + access.answer_s

    def close(self) -> None:
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
                plain.sendall(proxy.connect_request(host, port))
                head = b""
                # A byte at a time: what follows the head is the server's.
                while (
                    not head.endswith(http_client.END_OF_HEAD)
                    and len(head) <= http_client.LONGEST_HEAD
                    and (byte := plain.recv(1))
                ):
                    head += byte
                if why := http_client.why_no_tunnel(head.removesuffix(http_client.END_OF_HEAD)):
                    raise ConnectionRefusedError(why)
            return tls.wrap_socket(plain, server_hostname=host) if parts.scheme in _OVER_TLS else plain
        except BaseException:
            plain.close()
            raise
    except TimeoutError as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error
