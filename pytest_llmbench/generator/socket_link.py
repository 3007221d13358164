"""A socket of our own on the loop, whose reads carry the kernel's receive times."""

from __future__ import annotations

import asyncio
import socket

from pytest_llmbench.generator.kernel_times import ANCILLARY_BYTES, KernelTimes
from pytest_llmbench.generator.link import Linked

READ_BYTES = 256 * 1024
"""Most bytes of one read."""


class SocketLink:
    """Reads with ``recvmsg_into`` into a buffer that all links of a loop may share: bytes are copied out of
    it before anything else runs. One read per wake-up; what is left wakes us again.

    With one exception, for which there is ``look``: uvloop stops watching a descriptor with an error after
    one more read. Of a reset right behind data that one takes the data, and nothing tells of the reset.
    """

    def __init__(self, linked: Linked, sock: socket.socket, times: KernelTimes, buffer: memoryview) -> None:
        self._linked = linked
        self._received = linked.received
        self._sock = sock
        self._fd = sock.fileno()
        self._instant = times.instant
        self._buffer = buffer
        self._buffers = [buffer]
        self._receive = sock.recvmsg_into
        self._unsent: list[memoryview] = []
        self._open = True
        self._loop = asyncio.get_running_loop()
        linked.attach(self)
        if self._open:
            self._loop.add_reader(self._fd, self._readable)

    @classmethod
    async def connect(
        cls, linked: Linked, address: str, port: int, times: KernelTimes, buffer: memoryview
    ) -> None:
        """Opens a link to a numeric address. Raises OSError."""
        numeric = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
        family, kind, protocol, _, where = numeric[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times.stamp(sock)
            await asyncio.get_running_loop().sock_connect(sock, where)
        except BaseException:
            sock.close()
            raise
        cls(linked, sock, times, buffer)

    def write(self, data: bytes) -> bool:
        if not self._open:
            return True
        if self._unsent:
            self._unsent.append(memoryview(data))
            return False
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._down(error)
            return True
        if sent == len(data):
            return True
        self._unsent.append(memoryview(data)[sent:])
        self._loop.add_writer(self._fd, self._writable)
        return False

    def look(self) -> None:
        if self._open:
            self._loop.call_soon(self._read_on)

    def close(self) -> None:
        self._down(None)

    def _readable(self) -> bool:
        """One read; whether it brought anything."""
        if not self._open:
            return False
        try:
            count, ancillary, _, _ = self._receive(self._buffers, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._down(error)
            return False
        if count:
            at_ns = self._instant(ancillary)
            self._received(self._buffer[:count].tobytes(), at_ns)
            return True
        self._linked.ended(None)
        self._down(None)
        return False

    def _read_on(self) -> None:
        while self._readable():
            pass

    def _writable(self) -> None:
        try:
            while self._unsent:
                rest = self._unsent[0]
                sent = self._sock.send(rest)
                if sent < len(rest):
                    self._unsent[0] = rest[sent:]
                    return
                del self._unsent[0]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._down(error)
            return
        self._loop.remove_writer(self._fd)
        self._linked.written()

    def _down(self, error: Exception | None) -> None:
        """Closes; the connection hears of it later, not in the middle of what it is doing."""
        if not self._open:
            return
        self._open = False
        # Before the descriptor is closed: its number may be another socket's by the next line.
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._unsent.clear()
        self._sock.close()
        self._loop.call_soon(self._tell, error)

    def _tell(self, error: Exception | None) -> None:
        self._linked.ended(error)
        self._linked.dropped()


__all__ = ["READ_BYTES", "SocketLink"]
