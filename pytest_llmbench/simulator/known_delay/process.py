"""The known-delay server as a child process that never outlives its parent, and its notes of what it did."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from pytest_llmbench.errors import SUTError
from pytest_llmbench.simulator.known_delay.script import LOG_PATH, Script

_STOP_S = 3.0
_LOG_S = 30.0


@dataclass(frozen=True, slots=True)
class Truth:
    """The server's notes on one request (CLOCK_MONOTONIC nanoseconds)."""

    received_ns: int
    """Instant at which the last byte of the request arrived."""
    written_ns: tuple[int, ...]
    """Instant before each write."""


class KnownDelayServer:
    """A running server. Use as a context manager, or :meth:`stop` it.

    The child watches its standard input, a pipe from this process, and ends when that closes.
    """

    def __init__(self) -> None:
        """:raises SUTError: the process ended before it was ready."""
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest_llmbench.simulator.known_delay.server",
            "--parent-pipe",
        ]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            _, said = self._child.communicate()
            raise SUTError(
                f"the known-delay server did not start: {said.decode(errors='replace').strip()[-500:]}",
                remedy=f"try it by hand: {' '.join(command[:4])}",
            )
        self._url: str = json.loads(line)["url"]

    @property
    def pid(self) -> int:
        return self._child.pid

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
            raise SUTError(f"the known-delay server does not answer: {error}", where=self._url) from error
        finally:
            connection.close()
        return {name: Truth(received, tuple(written)) for name, (received, written) in log.items()}

    def stop(self) -> None:
        """End the process; does nothing when it has ended already."""
        child = self._child
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
