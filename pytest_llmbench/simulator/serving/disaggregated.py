"""Disaggregated prefill and decode in real time: prompts, transfers and output of a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.handovers import Handover, Handovers
from pytest_llmbench.simulator.engine.router import Router, RouterOptions
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.serving.driver import EngineDriver, Replica, nothing
from pytest_llmbench.simulator.serving.ground_truth import Clock, GroundTruth, GroundTruthLog
from pytest_llmbench.simulator.serving.replies import Reply
from pytest_llmbench.timing.alarm import Alarm


class Worker(Replica):
    """An engine of one of the two stages, prefill or decode."""

    def __init__(self, number: int, engine: Engine, alarm: Alarm, driver: DisaggregatedDriver) -> None:
        metrics = driver.page.engine(engine.config, number)
        super().__init__(number, engine, alarm, metrics, driver.log, driver.clock, driver.pacing)
        self._driver = driver

    def take(self, prompt: EngineSequence) -> Reply | None:
        """Remove and return the reply of a prompt that has been computed; ``None``: nobody waits for it any
        more."""
        return self._replies.pop(prompt, None)

    def keep(self, decode: EngineSequence, reply: Reply) -> None:
        """Send the tokens of a sequence that the engine expects to ``reply``."""
        self._replies[decode] = reply

    def truth_of(self, decode: EngineSequence) -> GroundTruth:
        """The ground truth of a request that is in the engine."""
        return self._replies[decode].truth

    async def _fail(self, sequence: EngineSequence) -> None:
        await super()._fail(sequence)
        self._driver.look()

    async def _hand_out(self, step: StepResult, ended_ns: int) -> None:
        self._driver.step_ended(self, step, ended_ns)
        await super()._hand_out(step, ended_ns)


@dataclass(frozen=True, slots=True)
class _Computing:
    """A request whose prompt is being computed, with what is needed once it has been."""

    prompt: EngineSequence
    session: Hashable | None
    drawn: Callable[[], None]


class DisaggregatedDriver(EngineDriver):
    """Driver of prefill engines and decode engines, each on a schedule of its own.

    A request is routed to the first kind, and as its prompt is through to the second. There it waits for the
    blocks of its prompt, then for what belongs into them (the transfer, a task of its own), then for a place
    in the batch. A transfer begins when its prompt and its blocks are seen to be there; like an arrival it
    has no schedule before that.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        open_alarm: Callable[[], Alarm],
        log: GroundTruthLog,
        clock: Clock = time.monotonic_ns,
        *,
        router: RouterOptions,
    ) -> None:
        self._workers: list[Worker] = []
        super().__init__(engines, open_alarm, log, clock, router)
        self._open_alarm = open_alarm
        self._prefillers = self._workers[: router.prefill_workers]
        self._decoders = self._workers[router.prefill_workers :]
        self._decode_router = Router(router.decode_policy)
        self._handovers: Handovers[Worker] = Handovers(router)
        self._computing: dict[EngineSequence, _Computing] = {}
        """Requests whose prompts are being computed, by the sequence that is to be decoded."""
        self._transfers: asyncio.TaskGroup

    def _replica(self, number: int, engine: Engine, alarm: Alarm) -> Replica:
        self._workers.append(Worker(number, engine, alarm, self))
        return self._workers[-1]

    def submit(
        self,
        sequence: EngineSequence,
        reply: Reply,
        session: Hashable | None = None,
        drawn: Callable[[], None] = nothing,
    ) -> None:
        """Hand a request to a prefill engine, as :class:`EngineDriver` does to a replica; the lengths are
        drawn by the engine that decodes."""
        if not sequence.generates:
            super().submit(sequence, reply, session, drawn)
            return
        prompt = sequence.prompt()
        self._route(prompt, session).submit(prompt, reply)
        self._computing[sequence] = _Computing(prompt, session, drawn)

    def _route(self, sequence: EngineSequence, session: Hashable | None) -> Replica:
        return self._chosen(self._router, self._prefillers, sequence, session)

    def step_ended(self, worker: Worker, step: StepResult, ended_ns: int) -> None:
        """Handle the end of a step of ``worker``: pass on the prompts it completed, and send what it has room
        for."""
        for prompt in step.finished:
            if prompt.decode is not None:
                self._pass_on(worker, prompt, prompt.decode, ended_ns)
        if worker in self._decoders:
            self._begin_transfers(worker)

    def _pass_on(self, source: Worker, prompt: EngineSequence, decode: EngineSequence, ended_ns: int) -> None:
        """Choose the engine that decodes a prompt which has been computed."""
        reply = source.take(prompt)
        if reply is None:
            return
        computing = self._computing.pop(decode)
        target = self._chosen(self._decode_router, self._decoders, decode, computing.session)
        self._handovers.pass_on(prompt, decode, source, target)
        target.keep(decode, reply)
        reply.truth.decode_replica, reply.truth.prefilled_ns = target.number, ended_ns
        reply.truth.think_reason = decode.think_reason
        computing.drawn()
        self._begin_transfers(target)

    def _begin_transfers(self, target: Worker) -> None:
        """Begin the transfers for which the engine now has blocks."""
        for handover in self._handovers.begin(target, self.clock()):
            self._transfers.create_task(self._transfer(handover, target.truth_of(handover.decode)))

    async def _transfer(self, handover: Handover[Worker], truth: GroundTruth) -> None:
        truth.transfer_begun_ns = handover.begun_ns
        alarm = self._open_alarm()
        try:
            await alarm.until(handover.ends_ns)
        finally:
            alarm.close()
        now_ns = self.clock()
        if self._handovers.end(handover, now_ns):
            truth.transfer_ended_ns = now_ns
            handover.target.metrics.note_transfer(now_ns - handover.begun_ns)
        handover.source.wake()
        handover.target.wake()

    def abort(self, sequence: EngineSequence) -> None:
        """Free what the sequence holds, wherever it is, because the client has gone."""
        computing = self._computing.pop(sequence, None)
        super().abort(sequence if computing is None else computing.prompt)
        self.look()

    def look(self) -> None:
        """Drop handovers whose requests have gone, and begin the transfers for which that freed blocks."""
        self._handovers.drop_gone()
        for target in self._decoders:
            self._begin_transfers(target)
        for worker in self._workers:
            worker.wake()

    async def run(self) -> None:
        """Drive the engines until cancelled."""
        async with asyncio.TaskGroup() as self._transfers:
            self._transfers.create_task(super().run())
