"""Whether a server speaks HTTP/2, found out before any load: a connection that is opened and closed again."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

import httpx

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.http2.client import Http2Client
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import PlainSocket, proxy_to, tls_context, without_query

_ANSWER_S = 10.0


def agree_on_http2(url: str, access: Access) -> None:
    """Open a connection as the measured ones are. Raises SUTError where that is not answered in HTTP/2.

    Over TLS the server has to agree to ``h2`` (ALPN, RFC 9113, section 3.2); else it is spoken to at once,
    with prior knowledge (section 3.3).
    """
    tls = tls_context(access)
    tls.set_alpn_protocols(["h2"])
    hasty = replace(access, answer_s=min(access.answer_s, _ANSWER_S))
    try:
        with PlainSocket(url, hasty, tls, proxy_to(url, access)) as sock:
            over_tls = urlsplit(url).scheme == "https"
            why = _refusal(sock, over_tls=over_tls)
    except httpx.RequestError as error:
        why = f"no answer to the opening of a connection ({error or type(error).__name__})"
    if why:
        raise SUTError(
            f"--llm-http=2, but {why}",
            where=without_query(url),
            remedy="leave out --llm-http, or put a server or proxy there that speaks HTTP/2: over TLS it has "
            "to agree to h2 (ALPN), over http:// it is spoken to at once (h2c with prior knowledge)",
        )


def _refusal(sock: PlainSocket, *, over_tls: bool) -> str:
    """Why the server does not speak HTTP/2; empty if it does."""
    if over_tls and sock.protocol != "h2":
        return f"the server did not agree to h2 over TLS (ALPN: {sock.protocol or 'none chosen'})"
    client = Http2Client()
    sock.send(client.opening())
    while not client.is_ready and not client.problem:
        data = sock.receive()
        if not data:
            return "the server closed the connection at its opening"
        client.feed(data)
    if not client.problem:
        sock.send(client.to_send() + client.closing())
    return client.problem
