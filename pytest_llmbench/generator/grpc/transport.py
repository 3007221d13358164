"""The gRPC transport: connections of HTTP/2, each with one call at a time."""

from __future__ import annotations

import asyncio

from pytest_llmbench.generator.grpc.connection import GrpcConnection
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http2.transport import Http2Transport
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.http2.client import Http2Client


class GrpcTransport(Http2Transport):
    """As over HTTP/1.1 there is no limit on connections, and each has one call at a time.

    Calls side by side on one connection would wait for the bytes of one another, and their stamps with them.
    """

    name = "grpc"

    def __init__(self, target: Target, clock: Clock, *, kernel_stamps: bool = True) -> None:
        super().__init__(target, clock, kernel_stamps=kernel_stamps)
        self._most = 1

    def _connection(self, tls: TlsChannel | None, ready: asyncio.Future[None]) -> GrpcConnection:
        return GrpcConnection(self, self._clock, tls, ready, Http2Client())
