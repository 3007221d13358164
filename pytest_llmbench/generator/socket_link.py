"""A socket of our own on the loop, whose reads carry the kernel's receive times."""

from __future__ import annotations

import asyncio
import socket

from pytest_llmbench.generator.kernel_times import ANCILLARY_BYTES, packets_in
from pytest_llmbench.generator.link import Linked, unacknowledged
from pytest_llmbench.generator.sockets import Sockets


class SocketLink:
    """Reads with ``recvmsg_into`` into the buffer of all. One read each time; what is left is told again.

    ``_taken``: bytes of the last write that the kernel took.
    ``_surplus``: packets that came in beyond one for each read, when that was last looked at.
    """

    def __init__(self, linked: Linked, sock: socket.socket, sockets: Sockets) -> None:
        self._linked = linked
        self._received = linked.received
        self._sock = sock
        self._sockets = sockets
        self._times = sockets.times
        self._buffer = sockets.buffer
        self._buffers = [sockets.buffer]
        self._receive = sock.recvmsg_into
        self._unsent: list[memoryview] = []
        self._reads = self._surplus = self._taken = 0
        self._open = True
        sockets.add(sock.fileno(), self._ready)
        linked.attach(self)

    @classmethod
    async def connect(cls, linked: Linked, address: str, port: int, sockets: Sockets) -> None:
        """Opens a link to a numeric address. Raises OSError."""
        numeric = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
        family, kind, protocol, _, where = numeric[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets.times.stamp(sock)
            await asyncio.get_running_loop().sock_connect(sock, where)
        except BaseException:
            sock.close()
            raise
        cls(linked, sock, sockets)

    def write(self, data: bytes) -> bool:
        if not self._open:
            return True
        if self._unsent:
            self._unsent.append(memoryview(data))
            return False
        self._sockets.writes += 1
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._taken = 0
            self._down(error)
            return True
        self._taken = sent
        if sent == len(data):
            return True
        self._unsent.append(memoryview(data)[sent:])
        self._sockets.await_room(self._sock.fileno(), awaited=True)
        return False

    def came_apart(self) -> bool:
        try:
            surplus = packets_in(self._sock) - self._reads
        except OSError:
            return True
        before, self._surplus = self._surplus, surplus
        return surplus != before

    def nothing_delivered(self) -> bool:
        return not self._taken or (self._open and unacknowledged(self._sock.fileno()) == self._taken)

    def close(self) -> None:
        self._down(None)

    def _ready(self, room: bool) -> None:
        if room and self._unsent:
            self._writable()
        if not self._open:
            return
        try:
            count, ancillary, _, _ = self._receive(self._buffers, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._down(error)
            return
        if count:
            at_ns = self._times.instant(ancillary)
            self._reads += 1
            if self._times.waited_ns > self._sockets.late_ns:
                self._sockets.late = True
            since_ns = self._sockets.looked_ns if self._sockets.late else None
            self._received(self._buffer[:count].tobytes(), at_ns, since_ns)
        else:
            self._linked.ended(None)
            self._down(None)

    def _writable(self) -> None:
        try:
            while self._unsent:
                rest = self._unsent[0]
                sent = self._sock.send(rest)
                self._taken += sent
                if sent < len(rest):
                    self._unsent[0] = rest[sent:]
                    return
                del self._unsent[0]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._down(error)
            return
        self._sockets.await_room(self._sock.fileno(), awaited=False)
        self._linked.written()

    def _down(self, error: Exception | None) -> None:
        """Closes; the connection hears of it later, not in the middle of what it is doing."""
        if not self._open:
            return
        self._open = False
        self._sockets.remove(self._sock.fileno())
        self._unsent.clear()
        self._sock.close()
        asyncio.get_running_loop().call_soon(self._tell, error)

    def _tell(self, error: Exception | None) -> None:
        self._linked.ended(error)
        self._linked.dropped()


__all__ = ["SocketLink"]
