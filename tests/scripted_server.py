"""A raw-socket HTTP server that does exactly what a test tells it to, byte by byte.

A script is called for each request with the conversation (one connection) and may send, wait, reset, close.
When it returns the connection waits for its next request. Everything is bounded: sockets time out, and
``stop`` closes whatever is still open and joins all threads.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
_PATIENCE_S = 20.0


def event(payload: object) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


def text_event(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


ROLE = event(
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
)
FINISH = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
DONE = b"data: [DONE]\n\n"
STREAM = (text_event("one"), text_event(" two"), FINISH, USAGE, DONE)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(parts: Iterable[bytes] = STREAM) -> bytes:
    """A whole chunked body."""
    return b"".join(chunk(part) for part in parts) + LAST


REPLY = HEAD + chunked()
"""A complete, successful reply: two content chunks."""


def plain(status: str, body: bytes = b"", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Conversation:
    """One connection, and the request it is serving."""

    sock: socket.socket
    number: int
    """Connections are numbered from 0 in the order they were accepted."""
    server: ScriptedServer
    turn: int = -1
    """Requests on this connection are numbered from 0."""
    head: str = ""
    body: bytes = b""
    read_ns: int = 0
    """When the last byte of the request had been read."""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait(self, seconds: float) -> None:
        self.server.stopping.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait until the client has read all that was sent, however busy the machine is, and then so long:
        what is sent next comes in another read, at another instant."""
        while self._unread() and not self.server.stopping.wait(0.001):
            pass
        self.wait(seconds)

    def _unread(self) -> bool:
        """By the queues of both ends in the kernel's table of connections."""
        ends = {self.sock.getsockname()[1], self.sock.getpeername()[1]}
        for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
            _, here, there, _, queued, *_ = line.split()
            these = {int(end.rpartition(":")[2], 16) for end in (here, there)}
            if these == ends and queued != "00000000:00000000":
                return True
        return False

    def reset(self) -> None:
        """Close so that the peer gets a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    def read_head(self) -> bool:
        """The head of the next request; False at the end of the connection."""
        data = self.body
        while b"\r\n\r\n" not in data:
            more = self.sock.recv(65536)
            if not more:
                return False
            data += more
        head, _, self.body = data.partition(b"\r\n\r\n")
        self.head = head.decode()
        self.turn += 1
        return True

    def read_body(self, *, piece: int = 1 << 20, pause_s: float = 0.0) -> bytes:
        """The whole body; in small pieces with pauses, to play a slow reader."""
        length = int(self.headers.get("content-length", 0))
        received = [self.body]
        missing = length - len(self.body)
        while missing > 0:
            if pause_s:
                self.wait(pause_s)
            data = self.sock.recv(min(piece, missing))
            if not data:
                raise ConnectionError("request cut off")
            received.append(data)
            missing -= len(data)
        self.read_ns = time.monotonic_ns()
        self.body = b""
        return b"".join(received)


Script = Callable[[Conversation], None]


def reply(data: bytes = REPLY, after_s: float = 0.0) -> Script:
    """A script that sends ``data``, after so many seconds, and keeps the connection."""

    def script(conversation: Conversation) -> None:
        if after_s:
            conversation.wait(after_s)
        conversation.send(data)

    return script


@dataclass
class Served:
    """A request as the server saw it."""

    connection: int
    turn: int
    head: str
    body: bytes
    read_ns: int
    headers: dict[str, str] = field(default_factory=dict)


class ScriptedServer:
    """Listens on an ephemeral port of 127.0.0.1 from the moment it is made."""

    def __init__(
        self,
        script: Script,
        *,
        tls: ssl.SSLContext | None = None,
        read_body: bool = True,
        greet: Script | None = None,
        backlog: int = 128,
        receive_buffer: int | None = None,
    ) -> None:
        self._script = script
        self._tls = tls
        self._read_body = read_body
        self._greet = greet
        self.served: list[Served] = []
        self.accepted = 0
        self.in_service = 0
        self.peak_in_service = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.socket()
        if receive_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(backlog)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    def stop(self) -> None:
        """Kill the server: the port refuses, open connections break."""
        self.stopping.set()
        # shutdown() wakes the accept; close() alone does not
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._open)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_PATIENCE_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno == errno.EMFILE and not self.stopping.wait(0.01):
                    continue  # a test that uses up descriptors uses up ours
                return
            with self._lock:
                number, self.accepted = self.accepted, self.accepted + 1
            thread = threading.Thread(target=self._serve, args=(sock, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        sock.settimeout(_PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            with self._lock:
                self._open.add(sock)
            conversation = Conversation(sock, number, self)
            if self._greet is not None:
                self._greet(conversation)
            while not self.stopping.is_set() and conversation.read_head():
                self._turn(conversation)
        except (OSError, ValueError):
            pass  # the other side has gone, or the script closed the socket
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _turn(self, conversation: Conversation) -> None:
        body = conversation.read_body() if self._read_body else b""
        seen = Served(
            conversation.number,
            conversation.turn,
            conversation.head,
            body,
            conversation.read_ns,
            conversation.headers,
        )
        with self._lock:
            self.served.append(seen)
            self.in_service += 1
            self.peak_in_service = max(self.peak_in_service, self.in_service)
        try:
            self._script(conversation)
        finally:
            with self._lock:
                self.in_service -= 1
