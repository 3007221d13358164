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
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection

from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.generator.limits import give_back_unused_memory, raise_descriptors
from pytest_llmbench.generator.loop_thread import Progress
from pytest_llmbench.generator.loops import Pacer
from pytest_llmbench.generator.records.spool import SpoolWriter
from pytest_llmbench.generator.records.supply import DealtWorkload, Supply
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.selfcheck import raise_priority
from pytest_llmbench.generator.workers.placement import stay_on
from pytest_llmbench.generator.workers.protocol import (
    Done,
    Failed,
    Go,
    Hello,
    Line,
    Ping,
    Pong,
    Ready,
    Requests,
    Setup,
    Stop,
    Work,
    own_version,
)
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.timing import MonotonicClock, best_alarm
from pytest_llmbench.tokens import (
    HuggingFaceTokenizer,
    ReferenceTokenizer,
    TokenizerFile,
    hugging_face_tokenizer,
    reference_tokenizer,
)
from pytest_llmbench.wire.catalogue import dialect_at


class Worker:
    """Executes the plans that the coordinator sends, one at a time."""

    def __init__(self, line: Line, setup: Setup, priority: str = "") -> None:
        """``priority``: of this process, as the self-check tells it."""
        self._line = line
        self._priority = priority
        self._setup = setup
        self._supply: Supply | None = None
        """Requests of the next plan, as far as they have arrived."""
        self._go: asyncio.Future[int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_reason: str | None = None
        self._executing: threading.Thread | None = None
        self._clock = MonotonicClock()
        of_a_file = isinstance(setup.count_text, TokenizerFile)
        self._generator = LoadGenerator(
            setup.address.target(),
            dialect_at(setup.address.url, setup.dialect),
            model=setup.model,
            prompt_form=setup.prompt_form,
            extra_body=setup.extra_body,
            clock=self._clock,
            on_progress=self._tell,
            count_text=(lambda text: _tokenizer(setup).count(text)) if setup.count_text else None,
            counted_by=TokenSource.TOKENIZER_FILE if of_a_file else TokenSource.REFERENCE_TOKENIZER,
            session_deadline_ns=setup.session_deadline_ns,
            declared=setup.declared,
            session_header=setup.session_header,
            gate=self._wait_for_go,
            keeps=False,
        )
        if setup.count_text and setup.counts_early:
            _tokenizer(setup)

    def serve(self) -> Setup | None:
        """Listens until the coordinator is gone, or wants another generator: returns what that is to be."""
        message: object
        while (message := self._line.receive()) is not None:
            if isinstance(message, Ping):
                self._line.send(Pong())
            elif isinstance(message, Requests):
                if message.at == 0:
                    self._discard()
                if self._supply is None:
                    self._supply = Supply(self._setup.directory)
                self._supply.add(message.frames, message.instants)
            elif isinstance(message, Work):
                self._stop_reason = self._go = None
                self._begin(message.plan)
            elif isinstance(message, Go):
                self._start(message.start_ns)
            elif isinstance(message, Stop):
                self._stop_reason = message.reason
                self._generator.stop(message.reason)
            elif isinstance(message, Setup):
                break
        self._generator.close()
        self._discard()
        return message if isinstance(message, Setup) else None

    def _discard(self) -> None:
        """Discard the requests of a plan that was given up while it was being dealt."""
        supply, self._supply = self._supply, None
        if supply is not None:
            supply.close()

    def _begin(self, plan: LoadPlan) -> None:
        before = self._executing
        supply, self._supply = self._supply or Supply(self._setup.directory), None

        def execute() -> None:
            if before is not None:
                before.join()
            try:
                self._execute(plan, supply)
            finally:
                supply.close()
            give_back_unused_memory()  # the process stays, beside the analysis of what it has measured
            if self._setup.count_text:
                _tokenizer(self._setup)  # now it is in nobody's way, and later a reply may need it at once

        self._executing = threading.Thread(target=execute, name="llmbench-worker", daemon=True)
        self._executing.start()

    def _execute(self, plan: LoadPlan, supply: Supply) -> None:
        spool = SpoolWriter(self._setup.spool)
        try:
            try:
                assert isinstance(plan.workload, DealtWorkload)
                seen = self._generator.run(plan.with_(workload=plan.workload.stocked(supply)), spool.write)
                decoded_ns = time.monotonic_ns()
                spool.flush()  # which tells of a disk that has failed
            finally:
                spool.close()
            done = Done(
                started_ns=seen.started_ns,
                ended_ns=seen.ended_ns,
                load_ended_ns=seen.load_ended_ns,
                in_flight_at_end=seen.in_flight_at_end,
                interrupted=seen.interrupted,
                stopped=seen.stopped,
                selfcheck=replace(seen.selfcheck, priority=self._priority),
                facts=dict(seen.facts),
                decoded_ns=decoded_ns,
            )
            self._line.send(done)
        except SuiteError as error:
            self._line.send(Failed(str(error), error))
        except LLMBenchError as error:
            self._line.send(Failed(str(error)))
        except BaseException as error:  # noqa: BLE001 - the coordinator must be told, whatever it is
            traceback.print_exc()
            self._line.send(Failed(f"{type(error).__name__}: {error}"))

    async def _wait_for_go(self) -> int:
        """The barrier before the load: from here on nothing is left but to start on the instant."""
        self._loop = asyncio.get_running_loop()
        self._go = self._loop.create_future()
        if self._stop_reason is not None:  # asked for before there was anything to stop
            self._generator.stop(self._stop_reason)
        self._line.send(Ready())
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

    def _tell(self, progress: Progress) -> None:
        self._line.send(progress)


def _tokenizer(setup: Setup) -> HuggingFaceTokenizer | ReferenceTokenizer:
    """The one that counts; made at the first call, and kept."""
    file = setup.count_text
    return hugging_face_tokenizer(file) if isinstance(file, TokenizerFile) else reference_tokenizer()


def main() -> None:
    """The coordinator is the parent; it has told us the descriptor of our end of the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's business
    coordinator = os.getppid()
    line = Line(Connection(int(sys.argv[1])))
    priority = raise_priority()  # while this is the only thread: those to come inherit it
    line.send(Hello(own_version()))
    setup = line.receive()
    if not isinstance(setup, Setup):
        return
    raise_descriptors()
    if setup.cpu is not None:
        stay_on(setup.cpu)
    try:
        again: Setup | None = setup
        while again is not None:
            again = Worker(line, again, priority).serve()
    finally:
        if os.getppid() != coordinator:  # killed: there is nobody else to clear up
            shutil.rmtree(setup.directory, ignore_errors=True)


if __name__ == "__main__":
    main()
