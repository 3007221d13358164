"""A server that a variant or a fixture launches: in a process group of its own, health-checked, watched, and
ended as a whole.

Also when this process is killed: see ``group_guard``.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.group_guard import STOP_S, GroupGuard, end_group, signal_group
from pytest_llmbench.http_client import PORT, client_context, is_grpc
from pytest_llmbench.model.facts import EndpointFact, Facts, Origin
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.probes.access import Access
from pytest_llmbench.redaction import keep_secrets_of_program

_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 32_768
_PAUSE_S = 0.1
_ASK_S = 5.0
_KILL_S = 5.0
LOCAL_URL = f"http://127.0.0.1:{PORT}/v1"
"""The default URL of a launched server."""


@dataclass(frozen=True)
class Launch:
    """What to start and where it answers. All placeholders have been filled in."""

    where: str
    """The place of the declaration that launches it: ``variant NAME``, or ``launched_server COMMAND``."""
    command: Sequence[str]
    health_url: str
    health_timeout_s: float
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    log: Path | None = None


_RUNNING: WeakSet[LaunchedServer] = WeakSet()
"""The running servers of this process."""


class LaunchedServer:
    """A running server. Made by :meth:`start`, which returns once it is healthy."""

    def __init__(
        self, launch: Launch, child: subprocess.Popen[bytes], log: IO[bytes], guard: GroupGuard
    ) -> None:
        self._launch, self._child, self._log, self._guard = launch, child, log, guard
        self.url = ""
        """The endpoint: where it answers, with the path of its API. Empty if the caller knows it."""
        self.startup_s = math.nan
        """Time from its start until it was healthy, in seconds; asked every 0.1 s."""
        _RUNNING.add(self)

    @classmethod
    def start(
        cls, launch: Launch, *, sleep: Callable[[float], None] = time.sleep, stop_s: float = STOP_S
    ) -> LaunchedServer:
        """Start a server and wait until it is healthy.

        Raises SUTError naming the command, how it ended or for how long it was awaited, and its log.
        """
        began = time.monotonic()
        with contextlib.ExitStack() as undo:
            log = undo.enter_context(_open_log(launch))
            try:
                guard = GroupGuard()
                undo.callback(guard.dismiss)
                keep_secrets_of_program([os.fspath(word) for word in launch.command], launch.env or {})
                env = {**os.environ, **(launch.env or {})}
                child = guard.start_group(launch.command, cwd=launch.cwd, env=env, output=log)
            except OSError as error:
                raise SUTError(
                    f"cannot be started: {error.strerror}: {' '.join(launch.command)}",
                    where=launch.where,
                    remedy=f"correct command or cwd of {launch.where}",
                ) from error
            undo.pop_all()
        server = cls(launch, child, log, guard)
        try:
            server._wait_until_healthy(sleep)
        except BaseException:
            server.stop(stop_s)
            raise
        server.startup_s = time.monotonic() - began
        return server

    @property
    def facts(self) -> Facts:
        """What its start showed."""
        return Facts.of(Origin.DETECTED, {EndpointFact.STARTUP_S: self.startup_s}, self._launch.where)

    @property
    def pid(self) -> int:
        """Process id of its first process, which is also the id of its process group."""
        return self._child.pid

    @property
    def ended(self) -> str | None:
        """How the process ended, in words; None while it runs."""
        status = self._child.poll()
        if status is None:
            return None
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        return f"the server of {self._launch.where} {how}"

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` has been called."""
        return self._log.closed

    def failure(self, what: str) -> SUTError:
        """An error about this server, with the last lines of its log."""
        what = what.removeprefix(f"the server of {self._launch.where} ")
        log = f"its log is {self._launch.log}" if self._launch.log else "log = … keeps all that it writes"
        return SUTError(
            f"{what}\n  command: {' '.join(self._launch.command)}\n  URL: {self._launch.health_url}"
            f"{self.log_tail()}",
            where=self._launch.where,
            remedy=f"start it by hand to see why; {log}",
        )

    def log_tail(self) -> str:
        """The last lines of its log, set off for an error message."""
        if self.stopped:
            return ""
        # pread, because the child writes at the position that it shares with this file object
        size = os.fstat(self._log.fileno()).st_size
        written = os.pread(self._log.fileno(), _LOG_TAIL_BYTES, max(size - _LOG_TAIL_BYTES, 0))
        lines = written.decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "".join(f"\n  | {line}" for line in lines) or "\n  | (it wrote nothing)"

    def stop(self, stop_s: float = STOP_S) -> None:
        """End the whole process group, by force if it does not go; harmless when it has ended already."""
        if self.stopped:
            return
        end_group(self.pid, stop_s=stop_s, kill_s=_KILL_S, reap=self._child.poll)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_KILL_S)
        self._guard.dismiss()
        self._log.close()

    def kill(self) -> None:
        """Kill the server at once, without waiting: for a process that is about to end itself."""
        if not self.stopped:
            signal_group(self.pid, signal.SIGKILL)

    def _wait_until_healthy(self, sleep: Callable[[float], None]) -> None:
        launch = self._launch
        deadline = time.monotonic() + launch.health_timeout_s
        seen = "no answer"
        while True:
            if (ended := self.ended) is not None:
                raise self.failure(f"{ended} before it was healthy")
            if time.monotonic() > deadline:
                waited = f"{trimmed(launch.health_timeout_s)} s"
                raise self.failure(f"not healthy within {waited} ({seen})")
            seen = _unhealthy(launch.health_url)
            if not seen:
                return
            sleep(_PAUSE_S)


@contextlib.contextmanager
def launched_server(
    command: Sequence[str],
    *,
    url: str = LOCAL_URL,
    health: str = "/health",
    timeout_s: float = 300.0,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> Iterator[LaunchedServer]:
    """A serving engine that lives as long as the ``with`` block: for ``llm_sut`` fixtures.

    The block starts when ``health``, a path on its host, answers with a success status; it waits at most
    ``timeout_s`` seconds. If the server ends during a load, the load is void and the report says so. At the
    end the server and all its children are stopped, by force after 30 s, also when this process is killed.
    ``{port}`` in the program and its arguments, in ``url`` and in values of ``env`` becomes a free port of
    this host; ``server.url`` is ``url`` with that port. ``log`` is a file for the output of the server. The
    default is a temporary file; errors show its last lines. A server at ``grpc://`` is checked by its health
    method, and ``health`` is ignored.

    :raises SuiteError: the arguments make no sense.
    :raises SUTError: the server cannot be started, ends early, is not healthy in time, or has already ended
        when the block ends. The message has the last lines of its log.
    """
    _require_meant(command, url, health, timeout_s, env or {})
    port = str(free_port())
    address = urlsplit(url.replace(PORT, port))
    words = [os.fspath(word).replace(PORT, port) for word in command]
    launch = Launch(
        where=f"launched_server {words[0]}",
        command=words,
        health_url=f"{address.scheme}://{address.netloc}{health}",
        health_timeout_s=timeout_s,
        cwd=None if cwd is None else Path(cwd),
        env={name: value.replace(PORT, port) for name, value in (env or {}).items()},
        log=None if log is None else Path(log),
    )
    server = LaunchedServer.start(launch)
    try:
        server.url = address.geturl()
        yield server
        if (ended := server.ended) is not None:
            raise server.failure(f"{ended} before it was stopped")
    finally:
        server.stop()


def _require_meant(
    command: Sequence[str], url: str, health: str, timeout_s: float, env: Mapping[str, str]
) -> None:
    mistakes = []
    if isinstance(command, str) or not command:
        mistakes.append('command: give program and arguments apart, ["vllm", "serve", "MODEL"]')
    elif PORT in url and not any(PORT in os.fspath(word) for word in (*command, *env.values())):
        mistakes.append(f"command: name its port with {PORT}, in command or env, or give a fixed url")
    if urlsplit(url).scheme not in ("http", "https") and not is_grpc(url):
        mistakes.append(f"url is {url!r}: give one that begins with http://, https:// or grpc://")
    if not health.startswith("/"):
        mistakes.append(f"health is {health!r}: give a path, as /health")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        mistakes.append(f"timeout_s is {timeout_s!r}: give seconds above 0")
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where="launched_server", remedy="correct the call")


def launched_at(url: str) -> LaunchedServer | None:
    """The server of a ``with`` block that answers at ``url``; None if there is none."""
    place = urlsplit(url).netloc
    running = (server for server in list(_RUNNING) if server.url and not server.stopped)
    return next((server for server in running if urlsplit(server.url).netloc == place), None)


def kill_all() -> None:
    """Kill every server of this process. They have sessions of their own, so nothing else would end them."""
    for server in list(_RUNNING):
        server.kill()


def _open_log(launch: Launch) -> IO[bytes]:
    if launch.log is None:
        return tempfile.TemporaryFile(prefix="llmbench-variant-")
    try:
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        return launch.log.open("wb+")
    except OSError as error:
        raise SUTError(
            f"its log {launch.log} cannot be written: {error.strerror}",
            where=launch.where,
            remedy=f"correct log of {launch.where}",
        ) from error


def free_port() -> int:
    """A port of the loopback interface that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _unhealthy(url: str) -> str:
    """Why the server is not healthy yet, in words; ``""``: it is. A gRPC server is asked by a method."""
    if is_grpc(url):
        # Imported here: whoever measures over HTTP does not need the packages of gRPC.
        from pytest_llmbench.probes.endpoint import why_not_ready

        return why_not_ready(url, Access(connect_s=_ASK_S, answer_s=_ASK_S))
    # Each time anew, and not cheap where it is not needed: the server that starts wants the cores.
    trusted = client_context() if url.lower().startswith("https:") else False
    try:
        # trust_env: no proxy of the environment stands between us and a server of ours
        answer = httpx.get(url, timeout=_ASK_S, trust_env=False, verify=trusted)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    return "" if answer.is_success else f"status {answer.status_code}"
