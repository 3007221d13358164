"""The load generator on a Ray cluster, with the same public surface as the one of a single process, and its
workers as the session knows them: members of a pool, behind one bridge process.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.extras.ray.cluster import (
    WHERE,
    AskClocks,
    Clocks,
    Join,
    Joined,
    KillWorker,
    Refused,
    StartWorkers,
    WorkersStarted,
    absent,
    ending_file,
)
from pytest_llmbench.generator.workers.coordinator import WorkerPool
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.placement import RaySpec
from pytest_llmbench.generator.workers.pool import ChildProcess
from pytest_llmbench.generator.workers.protocol import Address, Line, Setup
from pytest_llmbench.model.facts import ClockFact, Facts, Origin
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord
from pytest_llmbench.own_folder import own_folder

_ANSWERS_S = 3.0
_JOIN_S = 30.0
_START_S = 90.0
"""A cluster of one's own takes 3 to 8 s, on a busy host several times that."""
_ENLIST_S = 120.0
"""The bridge has limits of its own, and tells more."""
_CLOCKS_S = 10.0
_END_S = 15.0
_NOT_FOR_RAY = frozenset({"PYTHONWARNINGS", "PYTHONDEVMODE"})
"""Ray's own warnings are not the suite's errors."""


class BridgeProcess(ChildProcess):
    """The process that is Ray's driver. A cluster that it starts does not outlive it."""

    def __init__(self, directory: Path) -> None:
        """Start the process. Raises GeneratorError where it cannot be started."""
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_RAY}
        try:
            super().__init__(f"{__package__}.bridge", directory / "bridge.log", environment)
        except OSError as error:
            raise GeneratorError(f"cannot start the bridge into Ray: {error}", where=WHERE) from error
        self._asking = threading.Lock()

    def ask(self, message: object, limit_s: float, *ends: socket.socket) -> object:
        """The answer; ``None`` when there is none in time. Raises what it refuses, and when it is gone.

        ``ends``: of lines, to go along."""
        with self._asking:
            self.line.send(message)
            with suppress(OSError):
                for end in ends:
                    send_handle(self.line.connection, end.fileno(), self.process.pid)
            if not self.line.connection.poll(limit_s):
                return None
            answer = self.line.receive()
        if answer is None:
            raise GeneratorError(self.ending(), where=WHERE)
        if isinstance(answer, Refused):
            raise answer.error
        return answer

    def ending(self) -> str:
        """How it ended, in words, with the last lines it printed."""
        try:
            status: int | str = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            status = "none: it goes on running"
        return f"is out of reach: the bridge to Ray ended with exit code {status}{self.last_lines()}"

    def close(self) -> None:
        """Let it leave the cluster, or end its own."""
        self.line.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        self.kill()


@dataclass(frozen=True, eq=False)
class RayMember:
    """One worker somewhere on the cluster. The bridge keeps its files here up to date."""

    setup: Setup
    line: Line
    bridge: BridgeProcess

    @property
    def alive(self) -> bool:
        return self.bridge.alive and not self.line.connection.closed and not ending_file(self.setup).exists()

    def ending(self) -> str:
        """How it ended, in words. To be asked once the line is dead."""
        try:
            return ending_file(self.setup).read_text(encoding="utf-8")
        except FileNotFoundError:
            return self.bridge.ending()

    def kill_unresponsive(self) -> None:
        """Ask for the actor of a worker that does not answer to be killed. The worker's line dies of that."""
        self.bridge.line.send(KillWorker(self.setup.number))

    def kill(self) -> None:
        """The bridge hears of the closed line, and ends the actor."""
        self.line.close()


class RayWorkerPool:
    """A pool like ``workers.pool.WorkerPool``, on the cluster that ``spec`` names."""

    def __init__(self, setup: Setup, spec: RaySpec) -> None:
        """Make a pool in which nothing is started yet. Raises SuiteError without Ray."""
        if importlib.util.find_spec("ray") is None:
            raise absent()
        self._spec = spec
        self._directory = tempfile.TemporaryDirectory(
            prefix="workers-", dir=own_folder(), ignore_cleanup_errors=True
        )
        self._setup = replace(setup, directory=Path(self._directory.name))
        self._ray_directory: tempfile.TemporaryDirectory[str] | None = None
        self._bridge: BridgeProcess | None = None
        self._workers: int | None = spec.workers
        self._members: dict[int, RayMember] = {}

    @property
    def workers(self) -> int:
        """How many there are to be. Joins the cluster for it if that is what decides."""
        if self._workers is None:
            self._joined()
        assert self._workers is not None
        return self._workers

    def call(self, count: int) -> None:
        """Do nothing: actors started ahead would count as busy before they are known to be of any use."""

    def members(self, count: int) -> list[RayMember]:
        """The first ``count`` workers, up and greeted. Raises GeneratorError or SuiteError."""
        bridge = self._joined()
        missing = []
        for number in range(count):
            member = self._members.get(number)
            if member is None or not member.alive:
                self._dismiss(number)
                missing.append(number)
        if missing:
            self._enlist(bridge, missing)
        return [self._members[number] for number in range(count)]

    def clocks(self) -> Clocks | None:
        """The clocks during the plan that has ended; ``None`` when the bridge is gone."""
        if self._bridge is None or not self._bridge.alive:
            return None
        try:
            answer = self._bridge.ask(AskClocks(), _CLOCKS_S)
        except GeneratorError:
            return None
        return answer if isinstance(answer, Clocks) else None

    def kill(self) -> None:
        """End all at once; the next plan joins anew."""
        for number in list(self._members):
            self._dismiss(number)
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.kill()
        directory, self._ray_directory = self._ray_directory, None
        if directory is not None:
            directory.cleanup()

    def close(self) -> None:
        """Leave the cluster as it was. Safe to call twice."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.close()
        self.kill()
        self._directory.cleanup()

    def _joined(self) -> BridgeProcess:
        if self._bridge is not None and self._bridge.alive:
            return self._bridge
        self.kill()
        if self._spec.host_port is not None:
            _refuse_silence(*self._spec.host_port, self._spec)
        # Not where other files go: the paths of Ray's sockets must stay short.
        place = "/tmp" if Path("/tmp").is_dir() else None
        self._ray_directory = tempfile.TemporaryDirectory(
            prefix="llmbench-ray-", dir=place, ignore_cleanup_errors=True
        )
        bridge = self._bridge = BridgeProcess(self._setup.directory)
        limit_s = _START_S if self._spec.address is None else _JOIN_S
        join = Join(self._spec, Path(self._ray_directory.name), self._setup.directory, os.getpid())
        answer = self._ask(bridge, join, limit_s)
        assert isinstance(answer, Joined)
        self._workers = answer.workers
        return bridge

    def _enlist(self, bridge: BridgeProcess, numbers: list[int]) -> None:
        setups = tuple(replace(self._setup, number=number) for number in numbers)
        pairs = [socket.socketpair() for _ in setups]
        for setup in setups:
            ending_file(setup).unlink(missing_ok=True)
        try:
            answer = self._ask(bridge, StartWorkers(setups), _ENLIST_S, *(theirs for _, theirs in pairs))
            assert isinstance(answer, WorkersStarted)
        except BaseException:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        for setup, (ours, _) in zip(setups, pairs, strict=True):
            self._members[setup.number] = RayMember(setup, Line(Connection(ours.detach())), bridge)

    def _ask(self, bridge: BridgeProcess, message: object, limit_s: float, *ends: socket.socket) -> object:
        try:
            answer = bridge.ask(message, limit_s, *ends)
            if answer is None:
                raise GeneratorError(
                    f"the Ray cluster does not answer within {trimmed(limit_s)} s{bridge.last_lines()}",
                    where=f"{WHERE} ({self._spec})",
                    remedy="see `ray status` on its head; from outside of the cluster use ray://HOST:10001",
                )
        except BaseException:  # Ctrl-C too: what comes later would be taken for the answer to something else
            self.kill()
            raise
        return answer

    def _dismiss(self, number: int) -> None:
        member = self._members.pop(number, None)
        if member is not None:
            member.kill()


def _refuse_silence(host: str, port: int, spec: RaySpec) -> None:
    """Ray itself would try for one to two minutes."""
    try:
        socket.create_connection((host, port), _ANSWERS_S).close()
    except OSError as error:
        raise SuiteError(
            f"nothing answers at {host}:{port}: {error}",
            where=f"{WHERE} ({spec})",
            remedy="give the head's address: HOST:6379 on a node of the cluster, ray://HOST:10001 elsewhere; "
            "see that the cluster is up (`ray status` on the head) and that no firewall is in between",
        ) from error


class RayLoadGenerator(DistributedLoadGenerator):
    """A :class:`DistributedLoadGenerator` with its workers on the nodes of a Ray cluster.

    The cluster is joined, or started, with the first plan. All instants are on this machine's clock; where a
    worker's machine has another, its offset is measured before and after each plan, and stands with its error
    in the fact ``clock.workers``. More than 10 ms of error, or a clock that jumped, voids the run. A lost
    actor or node voids it too; what the others measured is in the records, and what the lost one had sent
    here, to about a second before.
    """

    margin_ns = 500_000_000

    def __init__(self, address: Address, dialect: str, *, cluster: RaySpec, **options: Any) -> None:
        """``options`` are those of DistributedLoadGenerator, except ``workers`` and ``cpus``.

        Raises SuiteError.
        """
        super().__init__(address, dialect, workers=cluster.workers or 1, **options)
        self.cluster = cluster
        self._ray_pool = RayWorkerPool(self._setup, cluster)
        self._pool = self._ray_pool

    def _new_pool(self) -> WorkerPool:
        self._ray_pool = RayWorkerPool(self._setup, self.cluster)
        return self._ray_pool

    def _run(self, plan: LoadPlan, on_record: OnRecord | None) -> Observation:
        self._pool = self._pool or self._new_pool()
        self.workers = self._ray_pool.workers
        seen = super()._run(plan, on_record)
        clocks = self._ray_pool.clocks()
        if clocks is None:
            return seen
        told = {ClockFact.WORKERS: list(clocks.told)}
        facts = seen.facts | Facts.of(Origin.MEASURED, told, "round trips to the workers")
        return replace(seen, facts=facts, interrupted=seen.interrupted or clocks.mistake)

    def _refuse_too_much(self, plan: LoadPlan, mean_tokens: float) -> None:
        """Ports and descriptors are those of the workers' machines: each worker sees to its own."""
