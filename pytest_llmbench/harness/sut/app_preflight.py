"""The preflight of an application without a socket: httpx sends the requests, the application answers in its
own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx

from pytest_llmbench.generator.http.transport import End, Exchange, abandon
from pytest_llmbench.generator.in_process_transports import AsgiTransport
from pytest_llmbench.generator.loop_thread import LoopThread
from pytest_llmbench.generator.prepared import PreparedRequest


class AppTransport(httpx.BaseTransport):
    """Hands each request to the application, and returns its response once it is complete or has timed
    out."""

    def __init__(self, thread: LoopThread, transport: AsgiTransport, answer_s: float) -> None:
        self._thread = thread
        self._transport = transport
        self._answer_s = answer_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The application's response. Raises httpx.ReadTimeout where there is none, httpx.RemoteProtocolError
        for a broken one."""
        lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
        lines += [b"%b: %b" % header for header in request.headers.raw]
        wire = b"\r\n".join(lines) + b"\r\n\r\n" + request.read()
        exchange = self._thread.submit(self._carried(wire)).result()
        if exchange.status is None:
            if exchange.end is End.TIMEOUT:
                raise httpx.ReadTimeout("no answer", request=request)
            raise httpx.RemoteProtocolError(exchange.error or "no answer", request=request)
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_Body(exchange, request))

    async def _carried(self, wire: bytes) -> Exchange:
        ended = asyncio.Event()
        now_ns = self._transport.now_ns()
        request = PreparedRequest("preflight", wire, 0, 0, 0)
        exchange = Exchange(request, now_ns, now_ns, lambda _: ended.set())
        self._transport.send(exchange)
        try:
            async with asyncio.timeout(self._answer_s):
                await ended.wait()
        except TimeoutError:
            abandon(exchange, End.TIMEOUT, self._transport.now_ns(), "its time is over")
        return exchange


class _Body(httpx.SyncByteStream):
    def __init__(self, exchange: Exchange, request: httpx.Request) -> None:
        self._exchange = exchange
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        yield from self._exchange.bodies
        if self._exchange.end is End.TIMEOUT:
            raise httpx.ReadTimeout("the response did not end", request=self._request)
        if self._exchange.end is not End.COMPLETE:
            raise httpx.RemoteProtocolError(self._exchange.error or "broken off", request=self._request)
