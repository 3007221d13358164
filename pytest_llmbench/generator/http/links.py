"""The links below a connection: sockets of our own, transports of the event loop, and a tunnel through an
HTTP proxy (CONNECT first, then the bytes of the connection).

TLS between our own reads and writes, so that stamps stay at the socket.

The event loop's TLS transports keep a buffer of their own between ``write`` and the kernel, behind which
the instant of the last request byte cannot be seen. Here the ciphertext is ours to write.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Protocol, cast

from pytest_llmbench.generator.http.sockets import ANCILLARY_BYTES, Sockets, packets_in
from pytest_llmbench.http_client import END_OF_HEAD, LONGEST_HEAD, why_no_tunnel


def unacknowledged(file_number: int) -> int | None:
    """How many bytes the kernel has taken that the peer has not acknowledged.

    ``None`` where the system does not tell.
    """
    if not sys.platform.startswith("linux"):
        return None
    import fcntl
    import termios

    try:
        told = fcntl.ioctl(file_number, termios.TIOCOUTQ, bytes(4))
    except OSError:
        return None
    return int.from_bytes(told, sys.byteorder)


class Link(Protocol):
    """Carries bytes. Nothing it does calls the connection back before it has returned."""

    def write(self, data: bytes) -> bool:
        """Send, and keep what the kernel does not take at once. True if the kernel took everything."""

    def came_apart(self) -> bool:
        """Whether what was read last may have come in several packets. What one packet brought came together,
        however late it was read."""

    def nothing_delivered(self) -> bool:
        """Whether, at the end of the stream, the peer cannot have read a byte of what was written last.

        The end of a stream tells how much the other side had received when it ended it (RFC 9293, section
        3.4). If that was nothing of it, whoever ended it has never seen it. A reset tells no such thing.
        """

    def close(self) -> None:
        """Close at once, whatever is still on its way. Safe to call twice."""


class Linked(Protocol):
    """A connection, as seen by the link below it."""

    def attach(self, link: Link) -> None:
        """The link is up. Called once, first."""

    @property
    def received(self) -> Callable[[bytes, int, int | None], None]:
        """Takes a read, the instant at which its last packet arrived, and for a late read an instant after
        which all of it arrived."""

    def written(self, whole: bool) -> None:
        """Be told that the kernel has taken a part of what ``write`` could not give it at once; with
        ``whole`` the last one. Transports of the event loop tell of that one alone."""

    def ended(self, error: Exception | None) -> None:
        """Be told that no more bytes will come.

        May be called twice: at the end of the stream, and when the link is down.
        """

    def dropped(self) -> None:
        """The link is down. Called once, last."""


class LoopLink(asyncio.Protocol):
    """A link over a transport of the event loop: works everywhere; reads are stamped in user space."""

    def __init__(self, linked: Linked, monotonic_ns: Callable[[], int]) -> None:
        self._linked = linked
        self._now = monotonic_ns
        self._written = 0
        self._over = False

    def write(self, data: bytes) -> bool:
        self._written = len(data)
        self._transport.write(data)
        return self._transport.get_write_buffer_size() == 0

    def came_apart(self) -> bool:
        return True

    def nothing_delivered(self) -> bool:
        if not self._over:  # a reset, of which nothing follows
            return False
        taken = self._written - self._transport.get_write_buffer_size()
        return unacknowledged(self._transport.get_extra_info("socket").fileno()) == taken

    def close(self) -> None:
        self._transport.abort()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports are none of asyncio's classes.
        self._transport = transport = cast(asyncio.Transport, transport)
        # With a high-water mark of 0 the loop reports every byte that the kernel did not take at once.
        transport.set_write_buffer_limits(high=0)
        below = transport.get_extra_info("socket")
        if below.family != socket.AF_UNIX:
            below.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._linked.attach(self)

    def data_received(self, data: bytes) -> None:
        self._linked.received(data, self._now(), None)

    def resume_writing(self) -> None:
        self._linked.written(whole=True)

    def eof_received(self) -> bool:
        self._over = True
        self._linked.ended(None)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._linked.ended(error)
        self._linked.dropped()


class SocketLink:
    """A link over a socket of our own, read with ``recvmsg_into`` into one shared buffer. One read each time
    it is ready; epoll tells again if something is left.

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
                    self._linked.written(whole=False)
                    return
                del self._unsent[0]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._down(error)
            return
        self._sockets.await_room(self._sock.fileno(), awaited=False)
        self._linked.written(whole=True)

    def _down(self, error: Exception | None) -> None:
        """Close the socket. The connection is told later, not in the middle of what it is doing."""
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


class TunnelRefusedError(OSError):
    """The proxy has refused to connect to the target."""


class Tunnel:
    """A tunnel through a proxy. It stands between a link and its connection, which is told of the link when
    the proxy has answered 2xx."""

    def __init__(self, behind: Linked, request: bytes) -> None:
        self._behind = behind
        self._request = request
        self._head = b""
        self._is_open = False
        self._failed = False

    def shut(self) -> None:
        """Close at once."""
        self._link.close()

    # What the link tells.

    def attach(self, link: Link) -> None:
        self._link = link
        link.write(self._request)

    def received(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        if self._is_open:
            self._behind.received(data, at_ns, since_ns)
            return
        self._head += data
        head, end, rest = self._head.partition(END_OF_HEAD)
        if not end and len(head) <= LONGEST_HEAD:
            return
        if why := why_no_tunnel(head):
            self._failed = True
            self._behind.ended(TunnelRefusedError(why))
            self._link.close()
            return
        self._is_open, self._head = True, b""
        self._behind.attach(self._link)
        if rest:
            self._behind.received(rest, at_ns, since_ns)

    def written(self, whole: bool) -> None:
        if self._is_open:
            self._behind.written(whole)

    def ended(self, error: Exception | None) -> None:
        if self._failed:
            return
        if not self._is_open:
            error = error or ConnectionResetError(errno.ECONNRESET, "closed by the proxy without an answer")
        self._behind.ended(error)

    def dropped(self) -> None:
        self._behind.dropped()


class TlsChannel:
    """The client end of one TLS connection, without a socket: bytes in, bytes out."""

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.established = False
        self.closed = False
        """Whether the server has said that it will send no more."""

    def handshake(self, received: bytes = b"") -> bytes:
        """Go on with the handshake; returns what to write. Raises :class:`ssl.SSLError`.

        ``established`` turns true when it is done; application data may have arrived by then, so read next.
        """
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
            self.established = True
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    def encrypt(self, plain: bytes) -> bytes:
        """Ciphertext of ``plain``, all of it."""
        view = memoryview(plain)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """Plaintext that ``received`` completes; may be empty. Raises :class:`ssl.SSLError`."""
        self._incoming.write(received)
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(65536):
                pieces.append(piece)
            self.closed = True  # read() returns nothing only after the peer's close_notify
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.closed = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pending(self) -> bytes:
        """Bytes that the protocol itself has to write: alerts, key updates."""
        return self._outgoing.read()
