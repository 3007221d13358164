"""Servers that would keep the preflight busy for ever, or unpack gigabytes: each is refused in words."""

from __future__ import annotations

import gzip
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from pytest_llmbench.errors import SUTError
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import ControlPlane, PlainSocket
from pytest_llmbench.probes.endpoint import examine

LIMITS = Access(connect_s=0.5, answer_s=1.0)
SOON = Access(connect_s=0.5, answer_s=0.2)
"""For answers that never come."""
Talk = Callable[[socket.socket, threading.Event], None]


@contextmanager
def talking(talk: Talk) -> Iterator[str]:
    """A server that reads a request on each connection and then does as it likes."""
    stop, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))
    threads = []

    def one(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            try:
                talk(connection, stop)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=one, args=(connection,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/models"
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (acceptor, *threads):
            thread.join(5)


def _slowly(connection: socket.socket, stop: threading.Event) -> None:
    for byte in b"HTTP/1.1 200 OK\r\n" + b"x-more: of the same\r\n" * 1000:
        if stop.wait(0.05):
            return
        connection.sendall(bytes([byte]))


def _informing(connection: socket.socket, stop: threading.Event) -> None:
    while not stop.wait(0.001):
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")


@pytest.mark.parametrize("talk", [_slowly, _informing])
def test_an_answer_that_never_begins(talk: Talk) -> None:
    with talking(talk) as url, ControlPlane(url, SOON) as control:
        began = time.monotonic()
        with pytest.raises(SUTError, match=r"the head of the answer was not complete within 0\.7 s"):
            control.get(url)
        assert time.monotonic() - began < 60  # it went on for ever
        with pytest.raises(SUTError, match="not complete"):  # the next exchange has a client of its own
            control.get(url)


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "br", "x" * 5000])
def test_a_compressed_answer_is_not_unpacked(coding: str) -> None:
    packed = gzip.compress(gzip.compress(b"\0" * 50_000_000))

    def bomb(connection: socket.socket, stop: threading.Event) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(packed)}\r\n\r\n"
        connection.sendall(head.encode() + packed)

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        talking(bomb) as url,
        ControlPlane(url, LIMITS) as control,
        pytest.raises(SUTError, match="although the client requested identity") as caught,
    ):
        control.get(url)
    assert len(str(caught.value)) < 300
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 40_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"data":' * 100_000,
        b'{"object": "list", "data": [{"id": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"data": 1' + b"0" * 100_000 + b"}",
        b"\xff\xfe" * 1000,
        b"\0" * 1000,
    ],
    ids=["lists", "objects", "within an entry", "a long number", "no UTF-8", "NUL bytes"],
)
def test_a_model_list_that_is_none(body: bytes) -> None:
    def answer(connection: socket.socket, stop: threading.Event) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)

    with talking(answer) as url, pytest.raises(SUTError, match="not an OpenAI-compatible endpoint") as caught:
        examine(url.removesuffix("/models"), access=LIMITS)
    assert len(str(caught.value)) < 1000


def test_a_flood_is_over_in_time() -> None:
    """There is always something to read: no read by itself takes too long."""

    def flood(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(b"x" * 100_000)
        stop.wait(20)

    with talking(flood) as url:
        access = Access(connect_s=5.0, answer_s=0.3)
        with PlainSocket(url.replace("http", "ws", 1), access, ssl.create_default_context()) as sock:
            sock.send(b"hello")
            assert sock.receive()
            time.sleep(0.4)
            with pytest.raises(httpx.ReadTimeout):
                sock.receive()
