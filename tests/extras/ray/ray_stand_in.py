"""A Ray cluster of threads: foremen with real worker processes, and clocks and machines as a test wants them.

The bridge is the real one, in a thread of this process instead of a process of its own.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.extras.ray import bridge
from pytest_llmbench.extras.ray import pool as ray_pool
from pytest_llmbench.extras.ray.cluster import Join, Joined, Lost, Refused
from pytest_llmbench.extras.ray.worker_actor import Greeting, WorkerActor
from pytest_llmbench.generator.workers.protocol import Line


@dataclass
class Machines:
    """What the cluster is like; a test may change it as it goes."""

    ahead_ns: list[int] = field(default_factory=lambda: [0])
    """How far the clock of each machine is ahead of ours; 0: it is ours. Actors go to machines in turn."""
    delay_s: float = 0.0
    """Of every answer of a clock."""
    same_network: bool = True
    greeting: dict[str, Any] = field(default_factory=dict)
    """What actors say of themselves, otherwise than it is."""
    foremen: list[WorkerActor] = field(default_factory=list)
    refusal: LLMBenchError | None = None


class StandInWorkerActor(WorkerActor):
    def __init__(self, machines: Machines) -> None:
        super().__init__()
        self.place = len(machines.foremen) % len(machines.ahead_ns)
        self.machines = machines
        machines.foremen.append(self)

    @property
    def ahead_ns(self) -> int:
        return self.machines.ahead_ns[self.place]

    def greet(self) -> Greeting:
        greeting = super().greet()
        machine = replace(greeting.machine, host=f"machine-{self.place}")
        if self.ahead_ns or self.machines.delay_s:
            machine = replace(machine, clock=f"clock {self.place}")
        if not self.machines.same_network:
            machine = replace(machine, network="elsewhere")
        return replace(greeting, **{"machine": machine, **self.machines.greeting})

    def clock(self) -> int:
        threading.Event().wait(self.machines.delay_s)
        return super().clock() + self.ahead_ns


class StandInActor:
    """One thread each for what arrives in order, as Ray's concurrency groups have it."""

    def __init__(self, machines: Machines) -> None:
        self.foreman = StandInWorkerActor(machines)
        self._threads = {name: ThreadPoolExecutor(1) for name in ("send", "receive", "clock")}
        self.dead: str | None = None

    def start(self, method: str, *arguments: object) -> Future[Any]:
        if self.dead is not None:
            raise Lost(self.dead)
        thread = {"begin": "send", "greet": "send", "engage": "send", "end": "send"}.get(method, method)
        return self._threads[thread].submit(getattr(self.foreman, method), *arguments)

    def got(self, promised: Future[Any], limit_s: float = 10.0) -> Any:
        if self.dead is not None:
            raise Lost(self.dead)
        result = promised.result(limit_s)
        if isinstance(result, LLMBenchError):
            raise result
        return result

    def call(self, method: str, *arguments: object) -> Any:
        return self.got(self.start(method, *arguments))

    def kill(self) -> None:
        self.die("ActorDiedError: killed")

    def die(self, how: str) -> None:
        self.dead = self.dead or how
        if self.foreman._pool is not None:
            self.foreman._pool.kill()
        self.foreman.end()
        for thread in self._threads.values():
            thread.shutdown(wait=False)


class StandInCluster:
    def __init__(self, machines: Machines, workers: int) -> None:
        self.machines = machines
        self.workers = workers
        self.actors: list[StandInActor] = []

    def hire(self, count: int) -> list[StandInActor]:
        if self.machines.refusal is not None:
            raise self.machines.refusal
        made = [StandInActor(self.machines) for _ in range(count)]
        self.actors += made
        return made

    def wait(self, promised: Sequence[Future[Any]], limit_s: float) -> list[Future[Any]]:
        return list(wait(promised, limit_s, return_when=FIRST_COMPLETED).done)

    def close(self) -> None:
        for actor in self.actors:
            actor.kill()


class StandInBridge(ray_pool.BridgeProcess):
    """The bridge in a thread."""

    machines: Machines
    clusters: list[StandInCluster]

    def __init__(self, directory: Path) -> None:
        ours, theirs = socket.socketpair()
        self.line = Line(Connection(ours.detach()))
        self._log = directory / "none"
        self._asking = threading.Lock()
        self._their_line = Line(Connection(theirs.detach()))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.process = self  # type: ignore[assignment]
        self.pid = os.getpid()

    def _serve(self) -> None:
        control = self._their_line
        join = control.receive()
        assert isinstance(join, Join)
        cluster = StandInCluster(self.machines, join.spec.workers or len(self.machines.ahead_ns))
        self.clusters.append(cluster)
        made = bridge.Bridge(control, cluster)  # type: ignore[arg-type]
        control.send(Joined(cluster.workers))
        try:
            made.serve()
        finally:
            made.close()
            cluster.close()
            control.close()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self.line.connection.closed

    def close(self) -> None:
        self.line.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def kill(self) -> None:
        self.close()


__all__ = ["Machines", "Refused", "StandInActor", "StandInBridge", "StandInCluster"]
