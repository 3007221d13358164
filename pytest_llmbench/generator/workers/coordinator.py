"""One plan, conducted: everybody prepares, all start on one instant, and what comes back is collected."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Protocol

from pytest_llmbench.columns import RecordLog
from pytest_llmbench.generator.loop_thread import Progress
from pytest_llmbench.generator.records.spool import COLUMN_BATCH_BYTES, SpoolReader
from pytest_llmbench.generator.workers.protocol import (
    Done,
    Failed,
    Go,
    Line,
    Ping,
    Ready,
    Requests,
    Setup,
    Stop,
    Work,
)
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.failing import FailureWatch

MARGIN_NS = 20_000_000
"""The time from the word to the start: far longer than the word takes to reach all workers."""
_TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class WorkerPatience:
    """How long a worker may be silent or go on, in seconds."""

    ask_after_s: float = 5.0
    give_up_s: float = 60.0
    """A worker that does not answer, or listen, for so long (stopped, swapped out) is killed."""
    end_s: float = 5.0
    """The time that workers have to end by themselves."""


class WorkerShare:
    """One worker's share of the plan, from its preparation to its end."""

    def __init__(self, member: Worker, whole: int, patience: WorkerPatience | None = None) -> None:
        self.member = member
        self.name = f"worker {member.setup.number + 1} of {whole}" if whole > 1 else "the measuring process"
        self.ready = False
        self.over = False
        self.done: Done | None = None
        self.progress: Progress | None = None
        self.moved_ns: int | None = None
        """The instant at which something last came in on a response under way."""
        self.records = Records.from_rows(())
        self._spool, self._kept = SpoolReader(member.setup.spool), SpoolReader(member.setup.spool)
        self._log = RecordLog()
        self._heard_s = time.monotonic()
        self._asked_s: float | None = None
        self._patience = patience or WorkerPatience()

    def clear(self) -> None:
        """Away with what an earlier plan left."""
        self.member.setup.spool.unlink(missing_ok=True)

    def spooled(self) -> Iterator[RequestRecord]:
        """Requests that have ended since the last call; read as they are taken."""
        for batch in self._spool.batches():
            yield from batch

    def keep(self) -> None:
        """Put what the worker has spooled into columns, where that is worth while."""
        if self._kept.unread_bytes() >= COLUMN_BATCH_BYTES:
            self._keep_all()

    def end(self, done: Done | None = None) -> None:
        """Nothing more will come. ``done``: how the share ended; None where the worker did not tell."""
        self._keep_all()
        self.records = self._log.records()
        self._log.close()
        if done is not None and done.on_our_clock is not None:
            self.records = done.on_our_clock(self.records)
        self.done, self.over = done, True

    def _keep_all(self) -> None:
        for columns in self._kept.columns():
            self._log.extend(Records.from_columns(columns))

    def tell(self, progress: Progress) -> None:
        self.progress = progress
        still_s = progress.still_s
        self.moved_ns = None if still_s is None else time.monotonic_ns() - round(still_s * 1e9)

    def answered(self) -> None:
        self._heard_s, self._asked_s = time.monotonic(), None

    def look_after(self) -> None:
        """Ask one that has been silent; kill it when it does not answer."""
        now_s = time.monotonic()
        if self._asked_s is None:
            if now_s - self._heard_s > self._patience.ask_after_s:
                self._asked_s = now_s
                self.member.line.send(Ping())
        elif now_s - self._asked_s > self._patience.give_up_s:
            self.member.kill_unresponsive()


class Coordinator:
    """The coordinator's side of one plan. ``play`` in one thread, ``stop`` from any."""

    def __init__(
        self,
        members: Sequence[Worker],
        on_record: OnRecord | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        patience: WorkerPatience | None = None,
    ) -> None:
        self._patience = patience or WorkerPatience()
        self.parts = [WorkerShare(member, len(members), self._patience) for member in members]
        self.start_ns: int | None = None
        self.cause: str | None = None
        """Why the plan was cut short, if it was."""
        self.stopped: str | None = None
        """Why the plan's own rule ended it: a single worker's, or ours, who see the ends of all of them."""
        self.watch: FailureWatch | None = None
        self.mistake: Exception | None = None
        """Why not all can be sent: what the requests are drawn from, or a worker, found that out."""
        self.failure: Exception | None = None
        """The exception that the caller's code raised; None without one."""
        self._on_record = on_record
        self._on_progress = on_progress
        self._deciding = threading.Lock()
        self._at_work = False
        """The workers have been given the plan: before that there is nothing to stop."""
        self.margin_ns = MARGIN_NS

    def play(self, blocks: Iterable[tuple[int, Requests]], plans: Callable[[], Sequence[LoadPlan]]) -> None:
        """Returns when every worker has ended its share, or has ended.

        ``blocks``: of requests, each with the place of its worker; drawn as they are handed out. ``plans``:
        asked, once that is done, for what each worker is to do; it may raise.
        """
        for part in self.parts:
            part.clear()
        try:
            self._hand_out(blocks)
            if self.cause is None:
                self._set_to_work(plans())
        except Exception as error:  # noqa: BLE001 - of the suite's workload: raised where the plan was asked for
            self.mistake = error
            self.stop(f"the requests cannot be dealt: {error}")
        while self._at_work and not all(part.over for part in self.parts):
            self._listen()
            self._start_when_ready()
            self._hand_on()
            self._check_sut()
        self._hand_on()
        for part in self.parts:
            part.clear()

    def stop(self, reason: str) -> None:
        """End the load early; what was measured is kept. The first reason is the one that is told."""
        with self._deciding:
            if self.cause is None:
                self.cause = reason
        self._stop_all(reason)

    def _stop_all(self, reason: str) -> None:
        for part in self.parts:
            if self._at_work and not part.over:
                part.member.line.send(Stop(reason))

    def _hand_out(self, blocks: Iterable[tuple[int, Requests]]) -> None:
        for place, block in blocks:
            part = self.parts[place]
            # One that is busy is waited for; not when the plan has been stopped, nor for ever.
            give_up_s = time.monotonic() + self._patience.give_up_s
            while self.cause is None and not part.member.line.takes(_TICK_S):
                if time.monotonic() > give_up_s:
                    part.member.kill_unresponsive()  # its line dies of that
            if self.cause is not None:
                return
            if not part.member.line.send(block):
                self._take(part, None)
                return

    def _set_to_work(self, plans: Sequence[LoadPlan]) -> None:
        for part, plan in zip(self.parts, plans, strict=True):
            part.answered()
            part.member.line.send(Work(plan))
        self._at_work = True
        if self.cause is not None:  # asked for before there was anything to stop
            self._stop_all(self.cause)

    def _listen(self) -> None:
        waiting = {part.member.line.connection: part for part in self.parts if not part.over}
        for connection in wait(list(waiting), timeout=_TICK_S):
            part = waiting[connection]  # type: ignore[index]
            part.answered()
            self._take(part, part.member.line.receive())
        for part in waiting.values():
            if not part.over:
                part.look_after()

    def _take(self, part: WorkerShare, message: object) -> None:
        if message is None:
            part.end()
            self.stop(f"{part.name} {part.member.ending()}")
            part.member.kill()  # and nothing of it is left
        elif isinstance(message, Failed):
            part.end()
            self.mistake = self.mistake or message.mistake
            self.stop(f"{part.name} failed: {message.why}")
        elif isinstance(message, Done):
            part.end(message)
            if message.stopped is not None and self.stopped is None:
                self.stopped = message.stopped
                self._stop_all(message.stopped)
        elif isinstance(message, Ready):
            part.ready = True
        elif isinstance(message, Progress):
            part.tell(message)
            self._show()

    def _start_when_ready(self) -> None:
        if self.start_ns is not None or self.cause is not None or self.stopped is not None:
            return
        if all(part.ready for part in self.parts):
            self.start_ns = time.monotonic_ns() + self.margin_ns
            if self.watch is not None:
                self.watch.begin(self.start_ns)
            for part in self.parts:
                part.member.line.send(Go(self.start_ns))
            return
        gone = next((part for part in self.parts if part.over), None)
        if gone is not None:  # such as one that the session deadline has ended: there can be no start
            told = gone.done.interrupted if gone.done is not None else None
            self.stop(told or f"{gone.name} ended before the start")

    def _hand_on(self) -> None:
        for part in self.parts:
            if not part.over:
                part.keep()
        if self._on_record is None and self.watch is None:
            return
        ended: list[RequestRecord] = []
        try:
            for part in self.parts:
                for record in part.spooled():
                    if self.watch is not None:
                        ended.append(record)
                    if self._on_record is not None:
                        self._on_record(record)
        except Exception as error:  # noqa: BLE001 - the caller's code: any error of it ends the run
            self._on_record = None
            self._fail(error)
        if self.watch is not None:
            for record in sorted(ended, key=lambda each: each.finished_ns or 0):
                self.watch.note(record)

    def _check_sut(self) -> None:
        """The rule of one generator, over what the workers have written down and last told."""
        running = [part for part in self.parts if not part.over and part.progress is not None]
        told = [part.progress for part in running if part.progress is not None]
        all_sent = all(each.submitted == each.planned for each in told)
        at_its_end = all_sent and not any(each.in_flight for each in told)
        if self.watch is None or self.cause is not None or self.stopped is not None or at_its_end:
            return
        moved = [part.moved_ns for part in running if part.moved_ns is not None]
        in_flight = sum(each.in_flight for each in told)
        cut = self.watch.judge(in_flight, max(moved, default=None), time.monotonic_ns())
        if cut is None or (cut.drains and all_sent):
            return
        if cut.is_result:
            self.stopped = cut.reason
            self._stop_all(cut.reason)
        else:
            self.stop(cut.reason)

    def _show(self) -> None:
        known = [part.progress for part in self.parts if part.progress is not None]
        if self._on_progress is None:
            return
        try:
            self._on_progress(
                Progress(
                    submitted=sum(each.submitted for each in known),
                    ok=sum(each.ok for each in known),
                    failed=sum(each.failed for each in known),
                    in_flight=sum(each.in_flight for each in known),
                    planned=sum(each.planned for each in known),
                    elapsed_s=max(each.elapsed_s for each in known),
                )
            )
        except Exception as error:  # noqa: BLE001 - the caller's code: any error of it ends the run
            self._on_progress = None
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self.stop(f"the load generator failed: {error}")


class Worker(Protocol):
    """One worker: files of its own, and our end of the line to it."""

    @property
    def setup(self) -> Setup: ...

    @property
    def line(self) -> Line: ...

    def ending(self) -> str:
        """How it ended, in words. To be asked once the line is dead."""

    def kill_unresponsive(self) -> None:
        """Ask for a worker that does not answer to be killed. Its line dies of that."""

    def kill(self) -> None:
        """Kill the worker at once and close the line."""


class WorkerPool(Protocol):
    """Workers that are kept from plan to plan. One that has died is replaced when it is needed."""

    def call(self, count: int) -> None:
        """Start those of the first ``count`` that are missing, where that can go on beside other things."""

    def members(self, count: int) -> Sequence[Worker]:
        """The first ``count`` workers, up and greeted. Raises GeneratorError or SuiteError."""

    def kill(self) -> None:
        """End all of them at once; the next plan starts new ones."""

    def close(self) -> None:
        """Let all of them end by themselves, kill the others, remove their files. Safe to call twice."""
