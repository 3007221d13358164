"""The Ray actor: on its machine, it keeps one worker process and carries what that says and writes.

The worker is the one that ``--llm-workers N`` starts, in a process of its own, so neither Ray nor this
actor shares an interpreter with the measuring loop. Ray is not imported here. The coordinator's bridge calls
:meth:`WorkerActor.receive` again and again: the only traffic while load is running, two calls a second.
"""

from __future__ import annotations

import platform
import socket
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.extras.ray.clocks import ClockLine, ClockOffset, shifted_record
from pytest_llmbench.generator.records.spool import SpoolReader, SpoolWriter
from pytest_llmbench.generator.workers.pool import WorkerPool, WorkerProcess
from pytest_llmbench.generator.workers.protocol import Done, Failed, Setup, Work, own_version

LONELY_S = 60.0
"""The time after which an actor that is not asked for news ends its worker."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What tells machines, and containers on them, apart."""

    host: str
    clock: str
    """Equal where CLOCK_MONOTONIC is the same clock."""
    network: str
    """Equal where ``localhost`` is the same place."""

    @classmethod
    def here(cls) -> Machine:
        host = socket.gethostname()
        boot = f"{host} {uuid.getnode()}"
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or boot
        return cls(host, f"{boot} {_link('time')}", f"{boot} {_link('net')}")


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first message of an actor."""

    version: str
    python: str
    machine: Machine


@dataclass(frozen=True, slots=True)
class Heard:
    """What has come from a worker since the last call."""

    messages: tuple[object, ...]
    spool: bytes
    """The part of its file of ended requests that is new, on the coordinator's clock. Everything that a
    message is about, such as ``Done``, is in it."""
    ending: str | None
    """How the worker ended, if it has."""


class WorkerActor:
    """Methods may be called from several threads at once, each method from one."""

    def __init__(self, lonely_s: float = LONELY_S) -> None:
        self._lonely_s = lonely_s
        self._pool: WorkerPool | None = None
        self._kept: tempfile.TemporaryDirectory[str] | None = None
        self._member: WorkerProcess | None = None
        self._feed: _SpoolFeed | None = None
        self._said: list[object] = []
        self._ending: str | None = None
        self._news = threading.Condition()
        self._asked_s = time.monotonic()

    def greet(self) -> Greeting:
        return Greeting(own_version(), platform.python_version(), Machine.here())

    def clock(self) -> int:
        """The machine's monotonic clock, now."""
        return time.monotonic_ns()

    def engage(self, setup: Setup, ca_pem: bytes | None) -> str | LLMBenchError:
        """Start the worker; the host's name, or why it does not start. ``ca_pem``: the file of certificates,
        which lies on the coordinator's disk."""
        if ca_pem is not None:
            self._kept = tempfile.TemporaryDirectory(prefix="llmbench-ca-", ignore_cleanup_errors=True)
            ca_file = Path(self._kept.name) / "ca.pem"
            ca_file.write_bytes(ca_pem)
            setup = replace(setup, address=replace(setup.address, ca_file=ca_file))
        try:
            self._pool = WorkerPool(setup)
            (self._member,) = self._pool.members(1)
        except LLMBenchError as error:
            return error
        for target in (self._listen, self._watch):
            threading.Thread(target=target, args=[self._member], name="llmbench-actor", daemon=True).start()
        return socket.gethostname()

    def begin(self, work: Work, offset: ClockOffset) -> None:
        """A plan. ``offset``: of the coordinator's clock, for what is spooled until the plan has ended."""
        if self._member is not None:
            self._member.setup.spool.unlink(missing_ok=True)
            self._feed = _SpoolFeed(self._member.setup, ClockLine(offset, offset))
            self._member.line.send(work)

    def send(self, message: object) -> None:
        if self._member is not None:
            self._member.line.send(message)

    def receive(self, wait_s: float) -> Heard:
        """Returns when there is a message, or after ``wait_s``."""
        self._asked_s = time.monotonic()
        with self._news:
            self._news.wait_for(lambda: self._said or self._ending is not None, wait_s)
            said, self._said = tuple(self._said), []
            ending = self._ending
        over = ending is not None or any(isinstance(message, Done | Failed) for message in said)
        return Heard(said, self._feed.news(over=over) if self._feed is not None else b"", ending)

    def end(self) -> None:
        """Let the worker end by itself and remove its files."""
        if self._pool is not None:
            self._pool.close()
        if self._kept is not None:
            self._kept.cleanup()

    def _listen(self, member: WorkerProcess) -> None:
        while (message := member.line.receive()) is not None:
            with self._news:
                self._said.append(message)
                self._news.notify_all()
        ending = member.ending()
        with self._news:
            self._ending = ending
            self._news.notify_all()

    def _watch(self, member: WorkerProcess) -> None:
        """Ray may let an actor live on when its driver was killed; load without a session must not."""
        while self._ending is None:
            if time.monotonic() - self._asked_s > self._lonely_s:
                member.kill()
                return
            time.sleep(1.0)


class _SpoolFeed:
    """Follows the worker's spool. Where clocks differ, it is written anew on the coordinator's clock."""

    def __init__(self, setup: Setup, line: ClockLine) -> None:
        self._line = line
        self._path = setup.spool
        self._at = 0
        self._reader: SpoolReader | None = None
        self._writer: SpoolWriter | None = None
        if not line.same:
            self._reader = SpoolReader(setup.spool)
            self._path = setup.directory / "shifted.spool"
            self._writer = SpoolWriter(self._path)

    def news(self, *, over: bool) -> bytes:
        """``over``: the worker writes no more, so this is the rest."""
        if self._reader is not None and self._writer is not None:
            for batch in self._reader.batches():
                for record in batch:
                    self._writer.write(shifted_record(record, self._line))
                self._writer.flush()
            if over:
                self._writer.close()
                self._writer = None
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
        except FileNotFoundError:
            return b""
        self._at += len(new)
        return new


def _link(namespace: str) -> str:
    """Identity of a namespace of this process (Linux)."""
    with suppress(OSError):
        return str(Path(f"/proc/self/ns/{namespace}").readlink())
    return ""
