"""The worker processes: started together, kept from plan to plan, ended without leaving anything behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.generator.workers.protocol import Address, Line, Setup, refuse_other_version
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.own_folder import own_folder

_NOT_YET = Setup(Address(""), dialect="", model="")
_START_S = 60.0
_GONE_S = 2.0
_LOG_BYTES = 16_384
_LOG_LINES = 5
_TRACING = frozenset(
    {
        "PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONDUMPREFS", "PYTHONFAULTHANDLER", "PYTHONINSPECT",
        "PYTHONPERFSUPPORT", "PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC", "PYTHONVERBOSE",
    }
)  # fmt: skip
_TRACING_PREFIXES = ("COV_CORE_", "COVERAGE_PROCESS_")


class ChildProcess:
    """A process of ours, ``python -m MODULE DESCRIPTOR``, and our end of the line to it."""

    def __init__(self, module: str, log: Path, environment: Mapping[str, str]) -> None:
        """``log``: the file for what it prints. Raises OSError where it cannot be started."""
        self._log = log
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C reaches us alone, who bring what it does to its end.
            with log.open("wb") as file, theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        self.line = Line(Connection(ours.detach()))

    @property
    def alive(self) -> bool:
        return self.process.poll() is None and not self.line.connection.closed

    def last_lines(self) -> str:
        """The last lines that it printed, to be put behind how it ended; empty if there are none."""
        lines: list[str] = []
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        last = [line.rstrip() for line in lines if line.strip()][-_LOG_LINES:]
        return "; it printed last: " + " | ".join(last) if last else ""

    def kill(self) -> None:
        """Kill the process at once, together with anything it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.line.close()


class WorkerProcess(ChildProcess):
    """One worker process on this machine."""

    def __init__(self, setup: Setup, environment: Mapping[str, str]) -> None:
        super().__init__(f"{__package__}.process", setup.log, environment)
        self.setup = setup

    def ending(self) -> str:
        """How it ended, in words, with the last lines it printed. To be asked once the line is dead."""
        try:
            status = self.process.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            return "closed its connection and goes on running"
        how = f"ended with exit code {status}"
        if status < 0:
            known = {each.value: each.name for each in signal.Signals}
            how = f"was killed by {known.get(-status, f'signal {-status}')}"
        return how + self.last_lines()

    def kill_unresponsive(self) -> None:
        """Kill a worker that does not answer. Its line dies of that."""
        self.process.kill()


class WorkerPool:
    """Up to ``count`` workers that are set up alike. A worker that has died is replaced when it is needed.

    A pool that is made without a setup must be given one by :meth:`set_up` before its first member is asked
    for. Workers come up without it.
    """

    def __init__(self, setup: Setup = _NOT_YET, cpus: Sequence[int] = (), *, end_s: float = 5.0) -> None:
        """``cpus``: cores to put the workers on, in turn; ``end_s``: the time they have to end by
        themselves."""
        self._directory = tempfile.TemporaryDirectory(
            prefix="workers-", dir=own_folder(), ignore_cleanup_errors=True
        )
        self._setup = replace(setup, directory=Path(self._directory.name))
        self._cpus, self._end_s = tuple(cpus), end_s
        self._members: dict[int, WorkerProcess] = {}
        self._strangers: set[int] = set()
        """Numbers of workers that were started and have not greeted yet."""

    def call(self, count: int) -> None:
        """Start those of the first ``count`` that are missing; they come up by themselves. GeneratorError."""
        for number in range(count):
            member = self._members.get(number)
            if member is None or not member.alive:
                self._dismiss(number)
                self._members[number] = self._started(number)
                self._strangers.add(number)

    def members(self, count: int) -> list[WorkerProcess]:
        """The first ``count`` workers, up and greeted. Raises GeneratorError or SuiteError."""
        try:
            self.call(count)
            deadline_s = time.monotonic() + _START_S
            for number in sorted(self._strangers & set(range(count))):
                self._greet(self._members[number], deadline_s)
                self._strangers.discard(number)
        except BaseException:
            for number in list(self._strangers):
                self._dismiss(number)
            raise
        return [self._members[number] for number in range(count)]

    def set_up(self, setup: Setup) -> None:
        """Give all workers another generator; none may be at work."""
        self._setup = replace(setup, directory=self._setup.directory)
        for number, member in self._members.items():
            member.setup = replace(self._setup, number=number, cpu=member.setup.cpu)
            if number not in self._strangers:
                member.line.send(member.setup)

    def kill(self) -> None:
        """End all of them at once; the next plan starts new ones."""
        for number in list(self._members):
            self._dismiss(number)

    def close(self) -> None:
        """Let all of them end by themselves, kill the others, remove their files. Safe to call twice."""
        for member in self._members.values():
            member.line.close()
        deadline_s = time.monotonic() + self._end_s
        for member in self._members.values():
            with suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, deadline_s - time.monotonic()))
        self.kill()
        self._directory.cleanup()

    def _dismiss(self, number: int) -> None:
        self._strangers.discard(number)
        member = self._members.pop(number, None)
        if member is not None:
            member.kill()

    def _started(self, number: int) -> WorkerProcess:
        cpu = self._cpus[number % len(self._cpus)] if self._cpus else None
        setup = replace(self._setup, number=number, cpu=cpu)
        # Without what makes an interpreter trace, profile or debug itself: stamps must not pay for the
        # coverage of a suite. One arena for malloc: requests are made in one thread and their successors in
        # another, and with an arena each glibc keeps the holes of the first while the second grows.
        environment = {"MALLOC_ARENA_MAX": "1"} | {
            name: value
            for name, value in os.environ.items()
            if name not in _TRACING and not name.startswith(_TRACING_PREFIXES)
        }
        try:
            return WorkerProcess(setup, environment)
        except OSError as error:
            raise GeneratorError(
                f"cannot start a worker process: {error}",
                where=f"worker {number + 1}",
                remedy="lower --llm-workers, or raise the limits of processes and open files",
            ) from error

    def _greet(self, member: WorkerProcess, deadline_s: float) -> None:
        where = f"worker {member.setup.number + 1}"
        remedy = f"try it by hand: {sys.executable} -P -m {__package__}.process 0"
        if not member.line.connection.poll(max(0.0, deadline_s - time.monotonic())):
            raise GeneratorError(f"is not up after {trimmed(_START_S)} s", where=where, remedy=remedy)
        hello = member.line.receive()
        if hello is None:
            raise GeneratorError(f"did not start: it {member.ending()}", where=where, remedy=remedy)
        refuse_other_version(hello, where)
        member.line.send(member.setup)
