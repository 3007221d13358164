"""TLS between our own reads and writes, so that stamps stay at the socket.

The event loop's TLS transports keep a buffer of their own between ``write`` and the kernel, behind which
the instant of the last request byte cannot be seen. Here the ciphertext is ours to write.
"""

from __future__ import annotations

import ssl


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
