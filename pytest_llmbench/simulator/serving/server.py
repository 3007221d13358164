"""The embedded engine as a process: uvicorn on one socket, with the driver of its engines beside it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pytest_llmbench.errors import SUTError
from pytest_llmbench.registry import face, load, required, transport_called
from pytest_llmbench.simulator.scenario import DISTRIBUTION, Scenario, software_version
from pytest_llmbench.simulator.serving.app import RECEIVED_NS, EngineApp
from pytest_llmbench.simulator.serving.asgi import BODY_LIMIT_BYTES, StampedProtocol
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.ground_truth import GroundTruthLog
from pytest_llmbench.simulator.serving.replies import CONNECTION
from pytest_llmbench.timing import best_alarm
from pytest_llmbench.tokens import reference_tokenizer

_KEEP_ALIVE_S = 300
"""Seconds that an idle connection is kept; long, so that a client's pool of idle connections stays good."""


class StampingProtocol(StampedProtocol, HttpToolsProtocol):
    """uvicorn's HTTP protocol that also notes the instant at which a request was read, and writes without
    delay.

    ``state["received_ns"]`` of a request is taken as the read that brought its last byte returns: what is
    taken when the application runs would leave out the wait for other requests' work.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvloop gathers the writes of one turn of the loop; with no buffer allowed it writes each at once.
        transport.set_write_buffer_limits(high=0)

    def on_message_complete(self) -> None:
        self.scope["state"][RECEIVED_NS] = self.read_ns
        self.scope["state"][CONNECTION] = self
        super().on_message_complete()

    def half_close(self) -> None:
        """Send what is buffered and then nothing more; the response is left incomplete."""
        self.transport.write_eof()


class EngineServer(uvicorn.Server):
    """uvicorn's server with the engine running beside it; reports on standard output when it is ready."""

    def __init__(
        self, scenario: Scenario, listener: socket.socket, grpc_address: tuple[str, int] | None = None
    ) -> None:
        self._scenario = scenario
        self._listener = listener
        self._grpc_address = grpc_address
        self._grpc: Any | None = None
        self._driving: asyncio.Task[None] | None = None
        super().__init__(_uvicorn_config(self._answer))

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        driver = EngineDriver(self._scenario, lambda: best_alarm(loop), GroundTruthLog())
        tokenizer = reference_tokenizer("cl100k_base")
        self._app = EngineApp(driver, self._scenario, tokenizer)
        self._driving = loop.create_task(driver.run())
        self._driving.add_done_callback(_end_with_the_engine)
        if self._grpc_address is not None:
            made = load(required("grpc", "--grpc-port").faces["engine"])
            self._grpc = await made.start(self._app.generation, driver, tokenizer, *self._grpc_address)
        await super().startup(sockets=sockets)
        gc.collect()
        gc.freeze()  # what start-up made is never garbage, and each full collection would look at it again
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        ready = {"ready": True, "url": f"http://{shown}:{port}/v1"}
        if self._grpc is not None:
            ready["grpc_target"] = f"{shown}:{self._grpc.port}"
        ready |= {"model": self._scenario.engine.model, "pid": os.getpid()}
        print(json.dumps(ready), flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Disable uvicorn's waiting for open connections at a signal; see :func:`serve`."""
        yield


def serve(scenario: Scenario, host: str, port: int, grpc_port: int | None = None) -> None:
    """Serve until a signal ends the process, which it does at once: there is nothing to save.

    ``port`` 0 takes a free one; so does ``grpc_port``, ``None`` being no gRPC.

    :raises SUTError: an address cannot be listened on, or the packages for gRPC are not installed.
    """
    if grpc_port is not None:
        require_grpc()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with _listen(host, port) as listener:
        server = EngineServer(scenario, listener, None if grpc_port is None else (host, grpc_port))
        server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SUTError(
            f"cannot listen: {error.strerror or error}",
            where=f"{host}:{port}",
            remedy="choose another --port (0 takes a free one), or another --host",
        ) from error


def _uvicorn_config(app: Any) -> uvicorn.Config:
    has_websockets = importlib.util.find_spec("websockets") is not None
    return uvicorn.Config(
        app,
        http=StampingProtocol,
        interface="asgi3",
        ws=(face("websocket", "uvicorn") if has_websockets else None) or "none",
        ws_max_size=BODY_LIMIT_BYTES,
        ws_per_message_deflate=False,  # packing each token would cost more than it saves
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("server", f"{DISTRIBUTION}-sim/{software_version()}")],
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )


def require_grpc() -> None:
    """Check the packages of the gRPC server. :raises SUTError: they are not installed."""
    missing = [
        name for name in ("grpc", "smg_grpc_proto", "tritonclient") if not importlib.util.find_spec(name)
    ]
    missing += [] if transport_called("grpc") is not None else ["the extra grpc"]
    if missing:
        raise SUTError(
            f"the engine's gRPC face needs packages that are not installed: {', '.join(missing)}",
            where="--grpc-port",
            remedy="pip install 'pytest-llmbench[grpc]'",
        )


def _end_with_the_engine(driving: asyncio.Task[None]) -> None:
    """End the process when the driver's task has died: the server would leave its clients waiting, closed
    connections tell them."""
    if driving.cancelled():
        return
    error = driving.exception()
    if error is not None:
        traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
    os._exit(70)
