"""The worker process: ``python -m pytest_llmbench.generator.workers.process DESCRIPTOR``.

Its main thread only listens to the coordinator; each plan runs in a thread of its own, on the load generator
that a single process uses. When the coordinator is gone, so is the worker.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.generator.alarm import best_alarm
from pytest_llmbench.generator.clock import MonotonicClock
from pytest_llmbench.generator.pacing import Pacer
from pytest_llmbench.generator.progress import Progress
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.columns import write_columns
from pytest_llmbench.generator.workers.protocol import (
    Done,
    Failed,
    Go,
    Hello,
    Line,
    Ping,
    Pong,
    Ready,
    Setup,
    Stop,
    Told,
    Work,
    own_version,
)
from pytest_llmbench.generator.workers.spool import SpoolWriter
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.wire.catalogue import dialect


class Worker:
    """Executes the plans that the coordinator sends, one at a time."""

    def __init__(self, line: Line, setup: Setup) -> None:
        self._line = line
        self._setup = setup
        self._spool: SpoolWriter | None = None
        self._go: asyncio.Future[int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_reason: str | None = None
        self._clock = MonotonicClock()
        self._generator = LoadGenerator(
            setup.address.target(),
            dialect(setup.dialect),
            model=setup.model,
            prompt_form=setup.prompt_form,
            extra_body=setup.extra_body,
            clock=self._clock,
            on_record=self._keep,
            on_progress=self._tell,
            count_text=reference_tokenizer().count if setup.count_text else None,
            session_deadline_ns=setup.session_deadline_ns,
            gate=self._wait_for_go,
        )

    def serve(self) -> None:
        """Listens until the coordinator is gone."""
        while (message := self._line.hear()) is not None:
            if isinstance(message, Ping):
                self._line.say(Pong())
            elif isinstance(message, Work):
                self._stop_reason = self._go = None
                plan = message.plan
                threading.Thread(
                    target=self._execute, args=[plan], name="llmbench-worker", daemon=True
                ).start()
            elif isinstance(message, Go):
                self._start(message.start_ns)
            elif isinstance(message, Stop):
                self._stop_reason = message.reason
                self._generator.stop(message.reason)
        self._generator.close()

    def _execute(self, plan: LoadPlan) -> None:
        spool = self._spool = SpoolWriter(self._setup.spool)
        try:
            try:
                seen = self._generator.run(plan)
            finally:
                spool.close()
            write_columns(seen.records, self._setup.columns)
            self._line.say(_done(seen))
        except LLMBenchError as error:
            self._line.say(Failed(str(error)))
        except BaseException as error:  # noqa: BLE001 - the coordinator has to be told, whatever it is
            traceback.print_exc()
            self._line.say(Failed(f"{type(error).__name__}: {error}"))

    async def _wait_for_go(self) -> int:
        """The barrier before the load: from here on nothing is left but to start on the instant."""
        self._loop = asyncio.get_running_loop()
        self._go = self._loop.create_future()
        if self._stop_reason is not None:  # asked for before there was anything to stop
            self._generator.stop(self._stop_reason)
        self._line.say(Ready())
        start_ns = await self._go
        alarm = best_alarm(self._loop, self._clock)
        try:
            await Pacer(self._clock, alarm).until(start_ns)
        finally:
            alarm.close()
        return start_ns

    def _start(self, start_ns: int) -> None:
        loop, go = self._loop, self._go

        def start() -> None:
            if go is not None and not go.done():
                go.set_result(start_ns)

        if loop is not None:
            loop.call_soon_threadsafe(start)

    def _keep(self, record: RequestRecord) -> None:
        if self._spool is not None:
            self._spool.write(record)

    def _tell(self, progress: Progress) -> None:
        self._line.say(Told(progress))


def _done(seen: Observation) -> Done:
    return Done(
        started_ns=seen.started_ns,
        ended_ns=seen.ended_ns,
        load_ended_ns=seen.load_ended_ns,
        in_flight_at_end=seen.in_flight_at_end,
        interrupted=seen.interrupted,
        stopped=seen.stopped,
        selfcheck=seen.selfcheck,
        facts=dict(seen.facts),
    )


def _stay_on(cpu: int) -> None:
    """Not allowed, no such core, not on this platform: then the worker runs where the system puts it."""
    with suppress(AttributeError, OSError, ValueError):
        os.sched_setaffinity(0, {cpu})


def main() -> None:
    """The coordinator is the parent; it has told us the descriptor of our end of the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's business
    coordinator = os.getppid()
    line = Line(Connection(int(sys.argv[1])))
    line.say(Hello(own_version()))
    setup = line.hear()
    if not isinstance(setup, Setup):
        return
    if setup.cpu is not None:
        _stay_on(setup.cpu)
    try:
        Worker(line, setup).serve()
    finally:
        if os.getppid() != coordinator:  # killed: there is nobody else to clear up
            shutil.rmtree(setup.directory, ignore_errors=True)


if __name__ == "__main__":
    main()

__all__ = ["Worker", "main"]
