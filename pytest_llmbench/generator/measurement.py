"""One plan, run on the event loop: prewarm, send, drain, decode; with the generator watching itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.generator.dispatcher import Dispatcher, last_moved_ns, sweep
from pytest_llmbench.generator.http.transport import End, Exchange, Transport
from pytest_llmbench.generator.limits import LoadLimits, exhaustion_remedy
from pytest_llmbench.generator.loop_thread import Progress, broken_off
from pytest_llmbench.generator.loops import BehindScheduleError
from pytest_llmbench.generator.records.spool import RowLog
from pytest_llmbench.generator.reply_reader import DecodeQueue, Steps
from pytest_llmbench.generator.selfcheck import (
    Heartbeat,
    HostCpu,
    SleepWatch,
    of_loop_lags,
)
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.observation import TIME_IS_UP, SelfCheck
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, Outcome, RequestRecord
from pytest_llmbench.stats.failing import FailureWatch, look_taker
from pytest_llmbench.timing import Clock, quiet_gc

T = TypeVar("T")

_PROGRESS_NS = 250_000_000

_EXHAUSTED, _OK = End.EXHAUSTED, Outcome.OK
"""Module-level names, as they are asked for with each reply: a look-up in an enumeration takes 0.2 µs."""

SESSION_DEADLINE = "the session deadline has passed"


LoadLoop = Callable[[Dispatcher, int], Coroutine[Any, Any, int]]
"""Sends the requests of a plan, by schedule or by slots, from the instant of its start. Returns when no more
will be sent, with the instant at which the load ended; that of a schedule may be still to come."""
Hold = Callable[[Dispatcher], Coroutine[Any, Any, None]]
"""Sends the requests of a plan but for the last byte of each, before the gate."""
Gate = Callable[[], Coroutine[Any, Any, int]]
"""Holds a plan that is ready to start, and lets it pass with the instant of its start."""


class Measurement:
    """The state of one plan while it runs. To be made and used in the loop's thread."""

    interrupted: str | None = None
    stopped: str | None = None
    """Why the plan's own rule ended the load (``stop_when_failing``, ``looks``)."""
    started_ns = 0
    load_ended_ns = 0
    """The instant at which the load ended; where it was cut short, the instant of that."""
    ended_ns = 0
    left_in_flight = 0
    """Number of requests that the drain limit cut off."""

    def __init__(
        self,
        *,
        plan: LoadPlan,
        load: LoadLoop,
        transport: Transport,
        clock: Clock,
        connections: int,
        decode: Callable[[Exchange], Steps],
        decode_at_once: Callable[[Exchange], RequestRecord | None] = lambda _: None,
        on_record: OnRecord | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        session_deadline_ns: int | None = None,
        hold: Hold | None = None,
        gate: Gate | None = None,
        rows: RowLog | None = None,
        limits: LoadLimits,
        reads_at_once: bool = False,
    ) -> None:
        """``decode_at_once``: the ``at_once`` of :class:`DecodeQueue`. ``reads_at_once``: replies do not wait
        to be read, since later requests are made of them."""
        self._load, self._planned = load, plan.requests
        self._transport, self._clock = transport, clock
        self._deadlines, self._most_reply_bytes = plan.deadlines, limits.most_reply_bytes
        self._on_record, self._on_progress = on_record, on_progress
        self._wanted_connections, self._session_deadline_ns = connections, session_deadline_ns
        self._most_ns = None if plan.most_s is None else round(plan.most_s * 1e9)
        self._dispatcher = Dispatcher(transport, clock, self._ended)
        in_flight = self._dispatcher.in_flight
        self._decoding = DecodeQueue(
            decode,
            self._deliver,
            clock,
            at_once=decode_at_once,
            # As many may wait as are in flight, since streams that began together end together; where replies
            # are read at once not even the one that is being read.
            may_wait=lambda: -1 if reads_at_once else len(in_flight),
            busy=lambda: transport.busy,
        )
        self._heartbeat = Heartbeat(clock, self._chores)
        self._sleep: SleepWatch | None = None
        self._watch, self._looks = FailureWatch.of(plan, limits.patient_ns), look_taker(plan)
        self._hold, self._gate = hold, gate
        self._work: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        self._told_ns = self._ok = 0
        self.records = RowLog() if rows is None else rows
        self._reads = 0
        self.selfcheck = SelfCheck()
        """What was counted while the plan was running; records and clock tell the rest."""

    async def run(self) -> None:
        """Run the plan.

        Raises :class:`GeneratorError` if we, and not the server, failed, and :class:`SuiteError` for a
        request that cannot be encoded; records so far are kept.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._broken)
        self._check_session(self._clock.monotonic_ns())
        beat = loop.create_task(self._heartbeat.beat())
        beat.add_done_callback(self._beat_ended)
        try:
            ready = await self._unless_stopped(
                self._transport.prewarm(self._wanted_connections, self._deadlines.connect_s)
            )
            with quiet_gc() as collector:
                await self._measured()
            self.selfcheck = replace(
                self.selfcheck, gc_collections=collector.count, connections_prewarmed=ready or 0
            )
        finally:
            beat.cancel()
            loop.set_exception_handler(None)
        if self._failure is not None:
            if isinstance(self._failure, GeneratorError | SuiteError):  # such as a request of the suite's
                raise self._failure
            raise broken_off(self._failure) from self._failure
        self._tell(self.ended_ns)

    def stop(self, reason: str) -> None:
        """Send nothing more, give up what is in flight, keep what was measured."""
        if self.interrupted is None:
            self.interrupted = reason
        self._halt(reason)

    def fail(self, error: BaseException) -> None:
        """Stop the plan because of an error of the generator."""
        if self._failure is None:
            self._failure = error
            self.stop(f"the load generator failed: {error}")

    @property
    def submitted(self) -> int:
        """How many requests were sent, or tried to be."""
        return self._dispatcher.submitted

    # The course of a plan.

    async def _measured(self) -> None:
        if self._hold is not None:
            await self._unless_stopped(self._hold(self._dispatcher))
        start_ns = await self._unless_stopped(self._gate()) if self._gate is not None else None
        opened, cpu_ns = self._transport.opened, time.process_time_ns()
        stamping, host = self._transport.stamping, HostCpu.now()
        self._heartbeat.lags_ns = self._heartbeat.lags_ns[:0]
        self._sleep = SleepWatch()
        self.started_ns = self._clock.monotonic_ns() if start_ns is None else start_ns
        if self._watch is not None:
            self._watch.begin(self.started_ns)
        load_ended_ns = await self._unless_stopped(self._load(self._dispatcher, self.started_ns))
        self.load_ended_ns = self._clock.monotonic_ns() if load_ended_ns is None else load_ended_ns
        await self._drain()
        self._check_sleep()
        self.ended_ns = self._clock.monotonic_ns()
        cpu_ns, after = time.process_time_ns() - cpu_ns, HostCpu.now()
        wall_ns = self.ended_ns - self.started_ns
        self.selfcheck = SelfCheck(
            **of_loop_lags(self._heartbeat.lags_ns),
            cpu_share=cpu_ns / wall_ns if wall_ns > 0 else None,
            reads=self._reads,
            connections_opened=self._transport.opened - opened,
            peak_in_flight=self._dispatcher.peak_in_flight,
            event_loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
            transport=self._transport.name,
            **self._transport.stamping.since(stamping).figures(self._reads),
            **after.since(host, wall_ns),
        )
        if self._failure is None:
            await self._decoding.join()
        if self.records.last_finished_ns is not None:
            self.ended_ns = self.records.last_finished_ns

    async def _drain(self) -> None:
        limit_s = self._deadlines.drain_s
        try:
            async with asyncio.timeout(limit_s):
                await self._dispatcher.drained()
        except TimeoutError:
            self.left_in_flight = len(self._dispatcher.in_flight)
            limit = f"{trimmed(limit_s)} s after the last submission (drain deadline)"
            self._dispatcher.halt(f"not complete {limit}")

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await ``work`` and return its result; ``None`` if the plan was stopped first."""
        if self.interrupted is not None:
            work.close()
            return None
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._work = task
        try:
            return await task
        except asyncio.CancelledError:
            if self._dispatcher.halted is None and self._dispatcher.closed is None:
                raise
        except BehindScheduleError as late:
            self.stop(str(late))
        except Exception as error:  # noqa: BLE001 - whatever it is, records are flushed before it is raised
            self.fail(error)
        finally:
            self._work = None
        return None

    def _halt(self, reason: str) -> None:
        if self._work is not None:
            self._work.cancel()
        self._dispatcher.halt(reason)

    def _wind_up(self, reason: str) -> None:
        """Send nothing more, and drain what is in flight as at the end of the load."""
        self._dispatcher.close(reason)
        if self._work is not None:
            self._work.cancel()

    # What happens on the way.

    def _ended(self, exchange: Exchange) -> None:
        self._reads += len(exchange.stamps)
        if exchange.end is _EXHAUSTED:
            self.fail(
                GeneratorError(
                    f"this machine cannot open another connection: {exchange.error}",
                    where=f"request {exchange.request.index}",
                    remedy=exhaustion_remedy(exchange.error or ""),
                )
            )
        self._decoding.put(exchange)

    def _deliver(self, record: RequestRecord) -> None:
        self.records.append(record)
        self._ok += record.outcome is _OK
        if self._dispatcher.decoded is not None:
            self._dispatcher.decoded(record)
        if self._watch is not None:
            self._watch.note(record)
            if not self._watch.is_calm:
                self._check_sut(self._clock.monotonic_ns())
        if self._looks is not None and self._work is not None and self._dispatcher.closed is None:
            verdict = self._looks.add(record)
            if verdict is not None:
                self.stopped = self._looks.reason(verdict)
                self._wind_up(self.stopped)
        if self._on_record is None:
            return
        try:
            self._on_record(record)
        except Exception as error:  # noqa: BLE001 - the caller's code: any error of it ends the run
            self._on_record = None
            self.fail(error)

    def _chores(self, now_ns: int) -> None:
        in_flight, most_bytes = self._dispatcher.in_flight, self._most_reply_bytes
        sweep(in_flight, self._deadlines, now_ns, most_reply_bytes=most_bytes)
        self._check_session(now_ns)
        self._check_sleep()
        self._check_sut(now_ns)
        if now_ns - self._told_ns >= _PROGRESS_NS:
            self._tell(now_ns)

    def _check_session(self, now_ns: int) -> None:
        if self._session_deadline_ns is not None and now_ns >= self._session_deadline_ns:
            self.stop(SESSION_DEADLINE)
        if self._most_ns is not None and self.started_ns and now_ns >= self.started_ns + self._most_ns:
            self.stop(TIME_IS_UP)

    def _check_sleep(self) -> None:
        slept = None if self._sleep is None else self._sleep.verdict()
        if slept is not None and self.interrupted is None:
            self.stop(slept)

    def _check_sut(self, now_ns: int) -> None:
        in_flight, watch = self._dispatcher.in_flight, self._watch
        if watch is None or watch.is_calm or self._dispatcher.halted is not None:
            return
        if self._work is None and not (watch.eager and in_flight):
            return  # all is sent: there is nothing to end early
        cut = watch.judge(len(in_flight), last_moved_ns(in_flight), now_ns)
        if cut is None:
            return
        if cut.is_result:
            self.stopped = cut.reason
        elif self.interrupted is None:
            self.interrupted = cut.reason
        if cut.drains:
            self._wind_up(cut.reason)
        else:
            self._halt(cut.reason)

    def _tell(self, now_ns: int) -> None:
        self._told_ns = now_ns
        if self._on_progress is None:
            return
        # Only a share of a load begins at a gate, and has somebody who watches over several workers.
        moved_ns = None if self._gate is None else last_moved_ns(self._dispatcher.in_flight)
        progress = Progress(
            submitted=self._dispatcher.submitted,
            ok=self._ok,
            failed=len(self.records) - self._ok,
            in_flight=len(self._dispatcher.in_flight),
            planned=max(self._planned, self._dispatcher.submitted),
            elapsed_s=max(0, now_ns - self.started_ns) / 1e9 if self.started_ns else 0.0,
            still_s=None if moved_ns is None else (now_ns - moved_ns) / 1e9,
        )
        try:
            self._on_progress(progress)
        except Exception as error:  # noqa: BLE001 - the caller's code: any error of it ends the run
            self._on_progress = None
            self.fail(error)

    def _beat_ended(self, beat: asyncio.Task[None]) -> None:
        if not beat.cancelled() and (error := beat.exception()) is not None:
            self.fail(error)

    def _broken(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error that nobody caught in the loop: a callback of ours raised."""
        error = context.get("exception")
        self.fail(error if isinstance(error, Exception) else GeneratorError(str(context.get("message"))))
