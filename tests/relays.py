"""What stands between a client and a server: a TLS port, and an HTTP proxy."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_END = b"\r\n\r\n"


def _relay(outer: ssl.SSLSocket, inner: socket.socket, stop: threading.Event) -> None:
    """In one thread: a TLS connection must not be read and written at once."""
    while not stop.is_set():
        ready = [outer] if outer.pending() else select.select([outer, inner], [], [], 0.1)[0]
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            (inner if source is outer else outer).sendall(data)


@contextlib.contextmanager
def in_front_of(url: str, context: ssl.SSLContext) -> Iterator[str]:
    """A TLS port before the server at ``url``."""
    parts = urlsplit(url)

    def one(plain: socket.socket, stop: threading.Event) -> None:
        with (
            context.wrap_socket(plain, server_side=True) as outer,
            socket.create_connection((parts.hostname or "", parts.port or 80)) as inner,
        ):
            _relay(outer, inner, stop)

    with _listening(one) as port:
        yield f"https://127.0.0.1:{port}/v1"


@dataclass(slots=True)
class ProxyLog:
    url: str = ""
    asked: list[str] = field(default_factory=list)
    """The request line of each request that the proxy saw."""
    credentials: list[str] = field(default_factory=list)
    """The value of ``Proxy-Authorization`` of each; empty where there was none."""
    inside: bytes = b""
    """What tunnels carried to servers."""


@contextlib.contextmanager
def http_proxy(
    *, refuses: bytes = b"", hosts: Mapping[str, str] | None = None, delay_s: float = 0.0
) -> Iterator[ProxyLog]:
    """An HTTP proxy: requests with whole URLs, and CONNECT. ``refuses``: its answer to everything. ``hosts``:
    the addresses of names that it knows. ``delay_s``: how long it keeps each request before it passes it
    on."""
    log, known = ProxyLog(), hosts or {}

    def one(client: socket.socket, stop: threading.Event) -> None:
        inner: socket.socket | None = None
        try:
            while not stop.is_set() and (head := _head(client)):
                line, _, rest = head.partition(b"\r\n")
                log.asked.append(line.decode("latin-1"))
                log.credentials.append(_header(rest, b"proxy-authorization"))
                if refuses:
                    client.sendall(refuses)
                    return
                method, where, version = line.split(b" ")
                if method == b"CONNECT":
                    host, _, port = where.decode().rpartition(":")
                    inner = socket.create_connection((host, int(port)))
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    _through(client, inner, stop, log)
                    return
                stop.wait(delay_s)
                parts = urlsplit(where.decode())
                host = known.get(parts.hostname or "", parts.hostname or "")
                inner = inner or socket.create_connection((host, parts.port or 80))
                path = parts._replace(scheme="", netloc="").geturl().encode()
                inner.sendall(b" ".join((method, path, version)) + b"\r\n" + rest)
                length = int(_header(rest, b"content-length") or 0)
                _pass_on(client, inner, length, stop)
        finally:
            if inner is not None:
                inner.close()

    with _listening(one) as port:
        log.url = f"http://127.0.0.1:{port}"
        yield log


def _head(source: socket.socket) -> bytes:
    """A request up to the end of its head, and no byte more."""
    head = b""
    while not head.endswith(_END):
        byte = source.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def _header(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip().decode("latin-1")
    return ""


def _pass_on(client: socket.socket, inner: socket.socket, length: int, stop: threading.Event) -> None:
    """The body of one request to the server, and all that comes back until the next request begins."""
    while length > 0 and (data := client.recv(min(length, 65536))):
        inner.sendall(data)
        length -= len(data)
    while not stop.is_set():
        ready = select.select([inner, client], [], [], 0.1)[0]
        if inner in ready:
            data = inner.recv(65536)
            if not data:
                client.shutdown(socket.SHUT_WR)
                return
            client.sendall(data)
        elif client in ready:
            return


def _through(outer: socket.socket, inner: socket.socket, stop: threading.Event, log: ProxyLog) -> None:
    while not stop.is_set():
        for source in select.select([outer, inner], [], [], 0.1)[0]:
            data = source.recv(65536)
            if not data:
                return
            if source is outer:
                log.inside += data
            (inner if source is outer else outer).sendall(data)


@contextlib.contextmanager
def _listening(serve: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """A port whose connections are served in a thread each."""
    listener, stop = socket.create_server(("127.0.0.1", 0)), threading.Event()
    threads: list[threading.Thread] = []

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection, stop)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=one, args=(connection,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (acceptor, *threads):
            thread.join(5)
