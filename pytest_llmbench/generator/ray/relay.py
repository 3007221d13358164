"""One remote worker as seen from the bridge: its line to the session, its files here, its actor there."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from io import FileIO
from typing import Any, Protocol

from pytest_llmbench.generator.ray.clocks import (
    ClockLine,
    ClockOffset,
    measured,
    mistake_of,
    shifted_done,
    shifted_records,
)
from pytest_llmbench.generator.ray.cluster import Lost
from pytest_llmbench.generator.ray.messages import ending_file
from pytest_llmbench.generator.ray.worker_actor import Heard, Machine
from pytest_llmbench.generator.records.columns import read_columns, write_columns
from pytest_llmbench.generator.workers.protocol import Done, Go, Line, Requests, Setup, Work

_FRESH_NS = 2_000_000_000
"""Workers of one machine start, and end, at about the same time: its clock is read once for all."""


class ActorHandle(Protocol):
    """An actor. All but ``kill`` raise ``Lost``."""

    def start(self, method: str, *arguments: object) -> Any:
        """Begin a call. What it returns is what :meth:`got` takes."""

    def got(self, promised: Any, limit_s: float = ...) -> Any:
        """The result of a call that :meth:`start` has begun."""

    def call(self, method: str, *arguments: object) -> Any:
        """Begin a call and return its result."""

    def kill(self) -> None:
        """Kill the actor at once, and its worker with it."""


class MachineClock:
    """The clock of one machine that has workers, against ours, around a plan."""

    def __init__(self, machine: Machine, here: Machine) -> None:
        self.machine = machine
        self._shared = machine.clock == here.clock
        self._reading = threading.Lock()
        self.start = self.end = ClockOffset.shared(0)

    @property
    def line(self) -> ClockLine:
        return ClockLine(self.start, self.end)

    def before(self, actor: ActorHandle) -> ClockOffset:
        """The offset, with no load running."""
        with self._reading:
            if time.monotonic_ns() - self.end.at_ns > _FRESH_NS:
                self.end = self._read(actor)
            self.start = self.end
            return self.start

    def after(self, actor: ActorHandle) -> ClockLine:
        """The line of the plan that has ended on this machine."""
        with self._reading:
            if self.end is self.start or time.monotonic_ns() - self.end.at_ns > _FRESH_NS:
                self.end = self._read(actor)
            return self.line

    def _read(self, actor: ActorHandle) -> ClockOffset:
        if self._shared:
            return ClockOffset.shared(time.monotonic_ns())
        return measured(lambda: int(actor.call("clock")))


class ActorRelay:
    """The relay between a worker and the session: ``forward`` in one thread, ``take`` in another."""

    def __init__(self, setup: Setup, line: Line, actor: ActorHandle, clock: MachineClock) -> None:
        self.setup = setup
        self.line = line
        self.actor = actor
        self.clock = clock
        self.heard: Any = None
        """The call that will bring the next news."""
        self._handed: Any = None
        """The call that brings the last requests, while it may be under way."""
        self._start = ClockOffset.shared(0)
        self._spool: FileIO | None = None

    def forward(self, message: object) -> None:
        """Pass a message from the session to the worker. Raises Lost."""
        if isinstance(message, Work):
            self._start = self.clock.before(self.actor)
            mistake = mistake_of(ClockLine(self._start, self._start), self.clock.machine.host)
            if mistake is not None:
                raise Lost(mistake)
            self._close()
            self._spool = FileIO(self.setup.spool, "w")
            self._wait_for_handed()
            self.actor.start("begin", message, self._start)
        elif isinstance(message, Requests):
            # One call at a time: calls whose end nobody waits for would pile up in Ray.
            self._wait_for_handed()
            self._handed = self.actor.start("say", message)
        elif isinstance(message, Go):
            theirs_ns = ClockLine(self._start, self._start).theirs(message.start_ns)
            self.actor.start("say", Go(theirs_ns))
        else:
            self.actor.start("say", message)

    def take(self, heard: Heard) -> None:
        """Pass what was heard from the worker to the session. Raises Lost, OSError."""
        if heard.spool and self._spool is not None:
            rest = memoryview(heard.spool)
            while rest:
                rest = rest[self._spool.write(rest) :]
        for message in heard.messages:
            self.line.say(self._finished(message) if isinstance(message, Done) else message)

    def give_up(self, how: str) -> None:
        """Leave the reason that the session will find when the line is closed."""
        ending_file(self.setup).write_text(how, encoding="utf-8")

    def close(self) -> None:
        self._close()
        self.line.close()

    def _finished(self, done: Done) -> Done:
        """The end of a plan by our clock, with the file of columns brought here and shifted to our clock
        too."""
        line = replace(self.clock.after(self.actor), start=self._start)
        arriving = self.setup.columns.with_suffix(".arriving")
        with FileIO(arriving, "w") as file:
            while piece := self.actor.call("columns", file.tell()):
                file.write(piece)
        if line.same:
            arriving.replace(self.setup.columns)
            return done
        write_columns(shifted_records(read_columns(arriving), line), self.setup.columns)
        arriving.unlink()
        return shifted_done(done, line)

    def _wait_for_handed(self) -> None:
        handed, self._handed = self._handed, None
        if handed is not None:
            self.actor.got(handed)

    def _close(self) -> None:
        if self._spool is not None:
            self._spool.close()
