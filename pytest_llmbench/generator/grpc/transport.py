"""The gRPC transport: connections of the HTTP/1.1 transport, each of them one of HTTP/2."""

from __future__ import annotations

import asyncio

from pytest_llmbench.generator.grpc.connection import GrpcConnection, NotHTTP2Error
from pytest_llmbench.generator.http.http1 import Http1Transport
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.wire.grpc.call import CallConnection


class GrpcTransport(Http1Transport):
    """As over HTTP/1.1 there is no limit on connections, and each has one call at a time.

    Calls side by side on one connection would wait for the bytes of one another, and their stamps with them.
    """

    name = "grpc"

    def _connection(self, tls: TlsChannel | None, ready: asyncio.Future[None]) -> GrpcConnection:
        return GrpcConnection(self, self._clock, tls, ready, CallConnection())

    async def _add_one(self) -> bool:
        try:
            return await super()._add_one()
        except NotHTTP2Error:
            return False

    async def _open_and_submit(self, exchange: Exchange) -> None:
        try:
            await super()._open_and_submit(exchange)
        except NotHTTP2Error as error:
            reason = f"{self._target.place}: {error}"
            exchange.finish(End.GARBAGE, self._clock.monotonic_ns(), reason)
