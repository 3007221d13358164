"""The known-delay server: replies whose writes leave at the instants that a script says, and its notes of
them."""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import http.client
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from pytest_llmbench.registry import face
from pytest_llmbench.simulator.child import ChildServer, end_with_parent
from pytest_llmbench.timing import Alarm, best_alarm

MODEL = "known-delay"
LOG_PATH = "/known_delay/log"
SCRIPT_HEADER = "x-known-delay"
"""Name of the header that carries the script of a request whose path has no query, such as a gRPC call."""


@dataclass(frozen=True, slots=True)
class Script:
    """The form and the delays of one reply. Without an ITL all tokens leave in one write."""

    ttft_us: int = 0
    itl_us: int = 0
    tokens: int = 1

    @classmethod
    def of(cls, query: str) -> Script:
        """Parse a script from a query. :raises ValueError: a name is unknown, or a value is not a number or
        too small."""
        given = {name: int(value) for name, value in parse_qsl(query)}
        unknown = given.keys() - {"ttft_us", "itl_us", "tokens"}
        if unknown or given.get("tokens", 1) < 1 or any(value < 0 for value in given.values()):
            raise ValueError(f"not a script: {query}")
        return cls(**given)

    @property
    def query(self) -> str:
        return f"ttft_us={self.ttft_us}&itl_us={self.itl_us}&tokens={self.tokens}"

    @property
    def writes(self) -> int:
        """Number of writes."""
        return self.tokens if self.itl_us else 1

    @property
    def offsets_ns(self) -> list[int]:
        """Offsets of the writes in nanoseconds, from the last byte of the request."""
        return [(self.ttft_us + number * self.itl_us) * 1000 for number in range(self.writes)]

    def in_writes(self, tokens: list[bytes]) -> list[bytes]:
        """The bytes of each write, made of the bytes of each token."""
        return tokens if self.itl_us else [b"".join(tokens)]


Begin = Callable[[str, int, Script, Callable[[int], bytes]], None]
"""Function that begins a reply; takes its request id, when its last byte arrived, the script, and the bytes
of each write."""


_HTTP1_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@lru_cache(maxsize=256)
def http1_writes(script: Script) -> list[bytes]:
    """The bytes of each write over HTTP/1.1: one HTTP chunk per event; the last token's write also ends the
    reply."""
    tokens = _of_each_token(script, lambda event: b"%x\r\n%b\r\n" % (len(event), event))
    tokens[-1] += b"0\r\n\r\n"
    first, *others = script.in_writes(tokens)
    return [_HTTP1_HEAD + first, *others]


def event_writes(script: Script) -> list[bytes]:
    """The server-sent events of each write, without HTTP's framing."""
    return script.in_writes(_of_each_token(script, lambda event: event))


def _of_each_token(script: Script, framed: Callable[[bytes], bytes]) -> list[bytes]:
    tokens = [framed(_choice({"content": " tea"}))] * script.tokens
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": script.tokens,
        "total_tokens": script.tokens + 1,
    }
    end = (_choice({}, "stop"), _event({"choices": [], "usage": usage}), b"data: [DONE]\n\n")
    tokens[-1] += b"".join(map(framed, end))
    return tokens


def _choice(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _event({"choices": [choice]})


def _event(content: dict[str, Any]) -> bytes:
    identity = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    return b"data: " + json.dumps(identity | content, separators=(",", ":")).encode() + b"\n\n"


_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
_BAD = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_MOST_HEAD_BYTES = 65_536
_READ_BYTES = 262_144
_SO_TIMESTAMPNS = 35
"""Number of the socket option SO_TIMESTAMPNS in ``asm-generic/socket.h``; Python has no name for it."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(16) if hasattr(socket, "CMSG_SPACE") else 0
_LONGEST_WAIT_NS = 10_000_000_000
"""Longest plausible wait of a request in the socket, in nanoseconds; a longer one is a step of the wall
clock."""
_now: Callable[[], int] = time.monotonic_ns


@dataclass(slots=True)
class Stream:
    """A reply that is being sent."""

    connection: Connection
    request_id: str
    received_ns: int
    payload: Callable[[int], bytes]
    """Returns the bytes of a write by its number."""
    offsets_ns: list[int]
    written_ns: list[int] = field(default_factory=list)

    def write(self) -> int | None:
        """Send the write that is due; returns the instant of the next, None after the last."""
        number = len(self.written_ns)
        self.written_ns.append(self.connection.write(self.payload(number)))
        if number + 1 == len(self.offsets_ns) or not self.connection.open:
            return None
        return self.received_ns + self.offsets_ns[number + 1]


class Pacer:
    """Sends the writes of every stream when they are due."""

    def __init__(self, alarm: Alarm) -> None:
        self._alarm = alarm
        self._due: list[tuple[int, int, Stream]] = []
        self._number = 0
        self._armed_ns: int | None = None
        self._task: asyncio.Task[None] | None = None
        self.log: list[Stream] = []

    def begin(self, stream: Stream) -> None:
        self.log.append(stream)
        first_ns = stream.received_ns + stream.offsets_ns[0]
        if first_ns <= stream.received_ns:
            next_ns = stream.write()
            if next_ns is None:
                return
            first_ns = next_ns
        self._push(first_ns, stream)
        if self._armed_ns is None or first_ns < self._armed_ns:
            if self._task is not None:
                self._task.cancel()
            self._armed_ns = first_ns
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _push(self, due_ns: int, stream: Stream) -> None:
        self._number += 1
        heapq.heappush(self._due, (due_ns, self._number, stream))

    async def _run(self) -> None:
        while self._due:
            self._armed_ns = self._due[0][0]
            await self._alarm.until(self._armed_ns)
            now_ns = _now()  # what becomes due meanwhile waits, so that requests are read in time
            while self._due and self._due[0][0] <= now_ns:
                _, _, stream = heapq.heappop(self._due)
                next_ns = stream.write()
                if next_ns is not None:
                    self._push(next_ns, stream)
        self._armed_ns = None

    def take_log(self) -> bytes:
        """The requests since the last call as JSON: id → [received, [write, …]]."""
        log, self.log = self.log, []
        kept = {stream.request_id: [stream.received_ns, stream.written_ns] for stream in log}
        return json.dumps(kept, separators=(",", ":")).encode()


class Side(Protocol):
    """What is spoken on a connection that is not HTTP/1.1."""

    def take(self, data: bytes, at_ns: int) -> bool:
        """Process what was read at ``at_ns``; returns whether the connection goes on."""


class Connection:
    """One connection. Over HTTP/1.1 it serves one request at a time; a client that pipelines is refused by
    the length of what it sends.

    On a socket of its own, since the loop's transports do not tell when the kernel took a request in.
    """

    def __init__(self, pacer: Pacer, sock: socket.socket) -> None:
        self._pacer = pacer
        self._sock = sock
        self._received = b""
        self._unsent = bytearray()
        self._last = False
        self._side: Side | None = None
        """Handles the bytes where the connection speaks something else than HTTP/1.1; None: HTTP/1.1."""
        self.open = True
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            with suppress(OSError):  # a sandbox may refuse; then requests arrive when they are read
                sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        at_ns = _arrived_ns(ancillary)
        if self._side is None and not self._received and data.startswith(b"PRI"):
            made = face("http/2", "known_delay")
            self._side = None if made is None else made(self.write, self._begin)
        if self._side is None:
            self._take_http1(data, at_ns)
        elif not self._side.take(data, at_ns):
            self.close()

    def _take_http1(self, data: bytes, now_ns: int) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > _MOST_HEAD_BYTES:
                self._refuse(_BAD)
            return
        head = self._received[:end]
        try:
            missing = end + 4 + int(_header(head, b"content-length") or 0) - len(self._received)
        except ValueError:
            missing = -1
        if missing > 0:
            return
        self._received = b""
        if missing < 0:
            self._refuse(_BAD)
        else:
            self._answer(head, now_ns)

    def _answer(self, head: bytes, now_ns: int) -> None:
        target = urlsplit(head.split(b" ", 2)[1].decode("latin-1"))
        if target.path == LOG_PATH:
            log = self._pacer.take_log()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
                log
            )
            self.write(head + log)
            return
        is_upgrade = (_header(head, b"upgrade") or b"").lower() == b"websocket"
        if not is_upgrade and not target.path.endswith("/chat/completions"):
            self.write(_NOT_FOUND)
            return
        try:
            script = Script.of(target.query)
        except ValueError:
            self._refuse(_BAD)
            return
        if not is_upgrade:
            request_id = (_header(head, b"x-request-id") or b"").decode("latin-1")
            self._begin(request_id, now_ns, script, http1_writes(script).__getitem__)
        elif (made := face("websocket", "known_delay")) is None:
            self._refuse(_BAD)
        else:
            self._side = made(script, self.write, self._begin)
            if not self._side.take(head + b"\r\n\r\n", now_ns):
                self.close()

    def _begin(
        self, request_id: str, received_ns: int, script: Script, payload: Callable[[int], bytes]
    ) -> None:
        self._pacer.begin(Stream(self, request_id, received_ns, payload, script.offsets_ns))

    def write(self, data: bytes) -> int:
        """Hand ``data`` to the kernel at once; returns the instant before."""
        at_ns = _now()
        if not self.open:
            return at_ns
        sent = 0
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return at_ns
        if sent < len(data):
            self._unsent += data[sent:]
            self._loop.add_writer(self._sock.fileno(), self._writable)
        return at_ns

    def _writable(self) -> None:
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not self._unsent:
            self._loop.remove_writer(self._sock.fileno())
            if self._last:
                self.close()

    def _refuse(self, answer: bytes) -> None:
        self.write(answer)
        self._last = True
        if not self._unsent:
            self.close()


def _arrived_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """The instant at which the kernel received what has just been read.

    The kernel's stamp is of the wall clock. Only the time since then is taken from it, so a step of that
    clock does not matter.
    """
    now_ns = _now()
    if not ancillary:
        return now_ns
    seconds, nanoseconds = struct.unpack("@ll", ancillary[0][2])
    waited_ns = time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)
    return now_ns - waited_ns if 0 < waited_ns < _LONGEST_WAIT_NS else now_ns


def _header(head: bytes, name: bytes) -> bytes | None:
    """The value of a header as it was written; the name may be in any case."""
    start = head.lower().find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : None if end < 0 else end].strip()


async def _serve(host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(best_alarm(loop))
    listener = socket.create_server((host, port), backlog=1024)
    listener.setblocking(False)

    def accept() -> None:
        with suppress(BlockingIOError, InterruptedError, ConnectionError):
            while True:
                Connection(pacer, listener.accept()[0])

    loop.add_reader(listener.fileno(), accept)
    gc.freeze()
    gc.disable()  # a collection would be a delay that is in no script; nothing here makes cycles
    port = listener.getsockname()[1]
    print(json.dumps({"ready": True, "url": f"http://{host}:{port}/v1", "pid": os.getpid()}), flush=True)
    await loop.create_future()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pytest_llmbench.simulator.known_delay")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--parent-pipe", action="store_true", help="end when standard input is closed")
    options = parser.parse_args(arguments)
    if options.parent_pipe:
        end_with_parent()
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(options.host, options.port))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options.host, options.port))
    return 0


_START_S = _LOG_S = 30.0


@dataclass(frozen=True, slots=True)
class Truth:
    """The server's notes on one request (CLOCK_MONOTONIC nanoseconds)."""

    received_ns: int
    """Instant at which the last byte of the request arrived."""
    written_ns: tuple[int, ...]
    """Instant before each write."""


class KnownDelayServer(ChildServer):
    """A running server. Use as a context manager, or :meth:`stop` it."""

    def __init__(self) -> None:
        """:raises SUTError: the process ended before it was ready."""
        super().__init__("known-delay server", "pytest_llmbench.simulator.known_delay", deadline_s=_START_S)
        self._url: str = self.ready["url"]

    @property
    def place(self) -> str:
        """Host and port of the server; the same for all protocols that it speaks."""
        return urlsplit(self._url).netloc

    def url(self, script: Script) -> str:
        """Base URL at which every reply over HTTP/1.1 follows ``script``."""
        return f"{self._url}?{script.query}"

    def truth(self) -> dict[str, Truth]:
        """The server's notes on the requests since the last call, by their ``x-request-id``.

        :raises SUTError: the server does not answer.
        """
        where = urlsplit(self._url)
        assert where.hostname is not None
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=_LOG_S)
        try:
            connection.request("GET", LOG_PATH)
            log = json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self.does_not_answer(error, self._url) from error
        finally:
            connection.close()
        return {name: Truth(received, tuple(written)) for name, (received, written) in log.items()}


if __name__ == "__main__":
    sys.exit(main())
