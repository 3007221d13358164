"""The embedded engine as a child process that never outlives its parent."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import IO, Any

import httpx

from pytest_llmbench.errors import SUTError
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.simulator.engine.power import EnergyCurve
from pytest_llmbench.simulator.scenario import Scenario, disclosure, parse_scenario
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth, parse_energy, parse_ground_truth

_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 16_384
_STOP_S = 3.0


class EmbeddedEngine:
    """A running engine. Made by :meth:`start`; a context manager that stops it.

    The child watches its standard input, a pipe from this process, and ends when it closes: so it ends even
    if this process is killed. It has a session of its own, so that Ctrl-C reaches this process alone and
    what is being measured can still be brought to its end.
    """

    def __init__(
        self, scenario: Scenario, child: subprocess.Popen[bytes], log: IO[bytes], ready: dict[str, Any]
    ) -> None:
        self.scenario = scenario
        self.config = scenario.engine
        """The engine's configuration."""
        self.url: str = ready["url"]
        """Base URL of the engine, ending in ``/v1``."""
        self.model: str = ready["model"]
        self.grpc_target: str | None = ready.get("grpc_target")
        """``host:port`` of the gRPC server; ``None`` if it was not asked for."""
        self._child = child
        self._log = log
        self._origin = self.url.removesuffix("/v1")

    @classmethod
    def start(cls, preset: str = "fast", *, grpc: bool = False, deadline_s: float = 30.0) -> EmbeddedEngine:
        """Start an engine on a free loopback port and wait until it serves.

        ``preset`` is a whole scenario: ``fast``, ``h100-8b?max_num_seqs=64&fault=reset&fault_rate=0.1``.

        ``grpc``: serve gRPC, too, at :attr:`grpc_target`; needs the extra ``pytest-llmbench[grpc]``.

        :raises SuiteError: the preset or one of its options is wrong.
        :raises SUTError: the process ends, or is not ready within ``deadline_s``.
        """
        scenario = parse_scenario(preset)
        command = [sys.executable, "-P", "-m", "pytest_llmbench.simulator"]
        command += ["--preset", preset, "--port", "0", "--parent-pipe"]
        command += ["--grpc-port", "0"] if grpc else []
        log = tempfile.TemporaryFile(prefix="llmbench-engine-")  # noqa: SIM115 - stop() closes it
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        try:
            ready = json.loads(_first_line(child, time.monotonic() + deadline_s))
        except BaseException as error:
            _end(child)
            text = _tail(log)
            log.close()
            if not isinstance(error, ValueError | TimeoutError):
                raise  # not ours, for instance Ctrl-C: only the child had to be ended first
            how = (
                f"is not ready after {deadline_s:g} s" if isinstance(error, TimeoutError) else "did not start"
            )
            raise SUTError(
                f"the embedded engine {how} (exit status {child.returncode}){text}",
                where=f"sim:{preset}",
                remedy=f"try it by hand: {' '.join(command[:6])}",
            ) from error
        return cls(scenario, child, log, ready)

    @property
    def pid(self) -> int:
        return self._child.pid

    def disclosure(self) -> Facts:
        """The facts that the engine states about itself."""
        return disclosure(self.config, self.scenario.deployment)

    def ground_truth(self) -> list[GroundTruth]:
        """The ground truth of the requests that have ended, oldest first. :raises SUTError: the engine does
        not answer."""
        return parse_ground_truth(self._get("/sim/ground_truth").text)

    def energy(self) -> list[EnergyCurve]:
        """The true energy of each engine over time, of a scenario with ``idle_w``. :raises SUTError: the
        engine does not answer, or knows nothing of its power."""
        return parse_energy(self._get("/sim/energy").text)

    def status(self) -> dict[str, Any]:
        """The engine's status page: load and pacing. :raises SUTError: the engine does not answer."""
        value: dict[str, Any] = self._get("/sim/status").json()
        return value

    def stop(self) -> None:
        """End the process; does nothing when it has ended already."""
        _end(self._child)
        self._log.close()

    def __enter__(self) -> EmbeddedEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def _get(self, path: str) -> httpx.Response:
        try:
            # trust_env: a proxy of the environment has no business with this loopback address.
            # verify: there is no TLS here, and to read the authorities takes longer than the answer.
            response = httpx.get(self._origin + path, timeout=30.0, trust_env=False, verify=False)
            return response.raise_for_status()
        except httpx.HTTPError as error:
            status = self._child.poll()
            ended = "" if status is None else f"; its process has ended with status {status}"
            text = "" if self._log.closed else _tail(self._log)
            raise SUTError(
                f"the embedded engine does not answer: {error}{ended}{text}",
                where=self._origin + path,
                remedy="start another engine",
            ) from error


def _first_line(child: subprocess.Popen[bytes], deadline_s: float) -> bytes:
    """The line with which the child says that it is ready; where its output ended before, what came until
    then.

    :raises TimeoutError: there is none at ``deadline_s`` (monotonic).
    """
    assert child.stdout is not None
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(deadline_s - time.monotonic(), 0.0)):
                raise TimeoutError
            read = os.read(child.stdout.fileno(), 65536)
            if not read:
                break
            line += read
    return line


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _tail(log: IO[bytes]) -> str:
    """The last lines of the child's log, formatted for an error message; empty if it wrote none."""
    # pread, because the child writes at the position that it shares with this file object
    size = os.fstat(log.fileno()).st_size
    written = os.pread(log.fileno(), _LOG_TAIL_BYTES, max(size - _LOG_TAIL_BYTES, 0))
    lines = written.decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    return "".join(f"\n  | {line}" for line in lines)
