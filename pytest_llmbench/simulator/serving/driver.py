"""The engines' loop in real time: a task per engine lets every step take its time and then writes its
tokens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.engine import Engine, QueueFullError
from pytest_llmbench.simulator.engine.guardrails import Guardrails
from pytest_llmbench.simulator.engine.loop import EngineLoop, Replica
from pytest_llmbench.simulator.engine.power import PowerMeter, power_meters
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import Scenario
from pytest_llmbench.simulator.serving.ground_truth import Clock, GroundTruthLog
from pytest_llmbench.simulator.serving.metrics_page import EngineMetrics, MetricsPage
from pytest_llmbench.simulator.serving.replies import Reply
from pytest_llmbench.timing import Alarm


class RecentValues:
    """The last ``capacity`` values, in nanoseconds."""

    def __init__(self, capacity: int = 16384) -> None:
        self._values: deque[int] = deque(maxlen=capacity)

    def note(self, value: int) -> None:
        self._values.append(value)

    def summary_us(self) -> dict[str, float | int | None]:
        """Count ``n`` of the values, and their nearest-rank p50, p99 and max in microseconds; these are
        ``None`` where there are no values."""
        ordered = sorted(self._values)
        n = len(ordered)
        return {
            "n": n,
            "p50": ordered[(n - 1) // 2] / 1000.0 if n else None,
            "p99": ordered[-(-99 * n // 100) - 1] / 1000.0 if n else None,
            "max": ordered[-1] / 1000.0 if n else None,
        }


class Pacing:
    """Counters of how well the driver keeps its schedule, over all its replicas."""

    def __init__(self) -> None:
        self.steps = 0
        self.step_lateness = RecentValues()
        """Actual minus planned end of each step, in nanoseconds."""
        self.write_span = RecentValues()
        """Nanoseconds from the end of a step to its last write: the server's own cost of handing out the
        tokens."""
        self.schedule_restarts = 0
        """Number of times the server fell so far behind that the schedule was given up and begun anew."""

    def summary(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "pacing_error_us": self.step_lateness.summary_us(),
            "write_span_us": self.write_span.summary_us(),
            "schedule_restarts": self.schedule_restarts,
        }


# Further behind than this, catching up would make a burst that no engine produces.
_GIVE_UP_NS = 100_000_000
# Writes between two looks at the sockets: a request that arrives while tokens are handed out is then
# stamped within some 50 µs instead of after the whole batch.
_WRITES_PER_TURN = 8


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that an engine has, and the reply that its tokens go to."""

    sequence: EngineSequence | None
    reply: Reply
    session: Hashable | None = None
    drawn: Callable[[], None] = lambda: None
    """Called when the lengths of the sequence have been drawn, before its first token."""
    replica: int = 0


class ServedReplica(Replica[Waiting]):
    """Drives one engine on an absolute schedule: a step begins where the one before it was due to end.

    So a late wake-up delays one step's tokens and no later ones. After a pause without work the schedule
    begins anew.
    """

    def __init__(self, number: int, engine: Engine, alarm: Alarm, driver: EngineDriver) -> None:
        super().__init__(number, engine)
        self.alarm = alarm
        self.metrics: EngineMetrics = driver.page.engine(engine.config, number)
        self._driver, self._clock, self._pacing = driver, driver.clock, driver.pacing
        self.power: PowerMeter | None = None
        self._work = asyncio.Event()

    def take(self, sequence: EngineSequence, client: Waiting) -> None:
        try:
            super().take(sequence, client)
        except QueueFullError:
            self.metrics.note_rejection()
            raise
        truth = client.reply.truth
        truth.replica, truth.queued_ns = self.number, self._clock()
        if not sequence.hands_over:
            client.drawn()
        self.wake()

    def expect(self, decode: EngineSequence, client: Waiting, now_ns: int) -> None:
        super().expect(decode, client, now_ns)
        truth = client.reply.truth
        truth.decode_replica, truth.prefilled_ns = self.number, now_ns
        truth.think_reason = decode.think_reason
        client.drawn()

    def reserve(self, now_ns: int) -> list[EngineSequence]:
        reserved = super().reserve(now_ns)
        for decode in reserved:
            self.in_flight[decode].reply.truth.transfer_begun_ns = now_ns
        return reserved

    def receive(self, decode: EngineSequence, begun_ns: int, now_ns: int) -> bool:
        if not super().receive(decode, begun_ns, now_ns):
            return False
        self.in_flight[decode].reply.truth.transfer_ended_ns = now_ns
        self.metrics.note_transfer(now_ns - begun_ns)
        return True

    def wake(self) -> None:
        """Wake the engine's task, as there may be something to do again."""
        self._work.set()

    async def run(self) -> None:
        """Run the engine until cancelled."""
        due_ns = self._clock()
        while True:
            while self.engine.idle:  # also if what there was to do has been aborted since
                self._work.clear()
                await self._work.wait()
                due_ns = self._clock()
            due_ns = await self._step(due_ns)

    async def _step(self, due_ns: int) -> int:
        """Run one step that the schedule begins at ``due_ns``; returns the instant at which it was due to
        end."""
        begun_ns = self._clock()
        if begun_ns - due_ns > _GIVE_UP_NS:
            self._pacing.schedule_restarts += 1
            due_ns = begun_ns
        step = self.engine.step()
        generated = step.generated
        self.metrics.note_step(step.prefill_tokens, generated)
        if self.power is not None and not step.crashed:
            self.power.note_step(due_ns, due_ns + step.duration_ns, step.prefill_tokens, generated)
        self._note_beginning(step, begun_ns)
        if step.failed:
            self._driver.loop.note_failed(self, step, due_ns)
            for sequence in step.failed:
                waiting = self.in_flight.pop(sequence, None)
                if waiting is not None:
                    waiting.reply.truth.finish_reason = sequence.finish_reason
                    await waiting.reply.fail("the engine ran out of memory for its KV cache")
                    self._driver.note_end(waiting.reply)
            self._driver.loop.settle(self._clock())
        due_ns += step.duration_ns
        await self.alarm.until(due_ns)
        ended_ns = self._clock()
        self._driver.loop.pass_on(self, step, ended_ns)
        await self._hand_out(step, ended_ns)
        self._pacing.steps += 1
        self._pacing.step_lateness.note(ended_ns - due_ns)
        self._pacing.write_span.note(self._clock() - ended_ns)
        return due_ns

    def _note_beginning(self, step: StepResult, begun_ns: int) -> None:
        for sequence in step.admitted:
            truth = self.in_flight[sequence].reply.truth
            truth.admitted_ns = begun_ns
            truth.think_reason = sequence.think_reason
            if self.engine.config.scheduler == "phase":
                truth.critical_evictions = 0
            if self.engine.config.prefix_caching:
                truth.cached_tokens = sequence.cached_tokens
        for event in step.preempted:
            truth = self.in_flight[event.sequence].reply.truth
            truth.preemptions, truth.lost_tokens = event.sequence.preemptions, event.sequence.lost_tokens
            if self.engine.config.scheduler == "phase":
                truth.critical_evictions = event.sequence.critical_evictions

    async def _hand_out(self, step: StepResult, ended_ns: int) -> None:
        for sequence in step.first_tokens:
            waiting = self.in_flight.get(sequence)
            if waiting is not None:
                reply = waiting.reply
                reply.truth.first_token_ns = ended_ns
                if reply.truth.output_tokens == 0:  # else it was said before it was computed
                    reply.truth.note_token(ended_ns)
                    await reply.token()
        counts = step.counts or repeat(1, len(step.decoded))
        pairs = zip(step.decoded, counts, strict=True)
        for written, (sequence, count) in enumerate(pairs, len(step.first_tokens)):
            if written % _WRITES_PER_TURN == _WRITES_PER_TURN - 1:
                await asyncio.sleep(0)
            waiting = self.in_flight.get(sequence)
            if waiting is not None:
                reply = waiting.reply
                last_ns = reply.truth.last_token_ns
                assert last_ns is not None
                self.metrics.note_token_gap(ended_ns - last_ns)
                for _ in range(count):
                    reply.truth.note_token(ended_ns)
                    await reply.token()
        for sequence in step.finished:
            waiting = self.in_flight.pop(sequence, None)
            if waiting is not None:
                truth = waiting.reply.truth
                truth.finish_reason = sequence.finish_reason
                guessed = self.engine.config.speculative_tokens
                truth.drafted, truth.accepted = sequence.drafts(sequence.steps_before, guessed)
                ends_later = await waiting.reply.finish(sequence.finish_reason)
                if not ends_later:
                    self._driver.note_end(waiting.reply)


class EngineDriver:
    """The engines behind one address in real time, each on a schedule of its own.

    They are tasks of one event loop: what several hand out at the same instant is written one after another,
    and the pacing tells how late that made their steps. What their loop has done later (a transfer between
    two of them) is a task as well. A transfer begins when its prompt and its blocks are seen to be there;
    like an arrival it has no schedule before that.
    """

    def __init__(
        self,
        scenario: Scenario,
        open_alarm: Callable[[], Alarm],
        log: GroundTruthLog,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        deployment = scenario.deployment
        self.log = log
        self.clock = clock
        self.pacing = Pacing()
        self.page = MetricsPage(scenario.engine, transfers=deployment.disaggregated)
        self._form = scenario.stream.metrics
        self._open_alarm = open_alarm
        self._tasks: asyncio.TaskGroup
        self.replicas = tuple(
            ServedReplica(number, engine, open_alarm(), self)
            for number, engine in enumerate(deployment.started(scenario.engine))
        )
        self.loop: EngineLoop[Waiting, ServedReplica] = deployment.loop(self.replicas, self._at)
        self.meters = power_meters(scenario.power, (replica.engine for replica in self.replicas), clock())
        """The power meter of each engine; empty where nothing is known of power."""
        for replica, meter in zip(self.replicas, self.meters, strict=bool(self.meters)):
            replica.power = meter

    @property
    def config(self) -> EngineConfig:
        """The figures of the engines; all but the first have other seeds."""
        return self.replicas[0].engine.config

    @property
    def guardrails(self) -> Guardrails:
        """The input and output filters of the engines."""
        return self.replicas[0].engine.guardrails

    @property
    def alarm(self) -> str:
        """Name of the timer that wakes the engines."""
        return self.replicas[0].alarm.name

    @property
    def running(self) -> int:
        """Number of sequences in the batches."""
        return sum(replica.engine.running for replica in self.replicas)

    @property
    def waiting(self) -> int:
        """Number of sequences in the queues."""
        return sum(replica.engine.waiting for replica in self.replicas)

    def abort(self, waiting: Waiting) -> None:
        """Free what the request holds, because the client has gone. Does nothing for one that has ended."""
        if self.loop.drop(waiting):
            waiting.reply.truth.aborted = True
            self.note_end(waiting.reply)
            self.loop.settle(self.clock())

    def load_adapter(self, name: str) -> None:
        """Load an adapter into the memory of each engine."""
        for replica in self.replicas:
            replica.engine.load_adapter(name)

    def unload_adapter(self, name: str) -> None:
        for replica in self.replicas:
            replica.engine.unload_adapter(name)

    def reset_prefix_caches(self) -> None:
        """Forget the prefixes that the engines have computed so far."""
        for replica in self.replicas:
            replica.engine.reset_prefix_cache()

    def note_end(self, reply: Reply) -> None:
        """Keep the record of a reply that has ended."""
        self.log.add(reply.truth)
        self.replicas[reply.truth.held_by].metrics.note_end(reply.truth)

    def metrics_page(self) -> bytes:
        """The metrics of all engines, in Prometheus's text format."""
        engines = [(replica.metrics, replica.engine) for replica in self.replicas]
        if self._form == "vllm":
            return self.page.rendered(engines)
        # Imported here: few engines show another one's page.
        from pytest_llmbench.simulator.serving.other_metrics_pages import page_in_form

        return page_in_form(self._form, engines)

    def _at(self, at_ns: int, act: Callable[[int], None]) -> None:
        async def wait() -> None:
            alarm = self._open_alarm()
            try:
                await alarm.until(at_ns)
            finally:
                alarm.close()
            act(self.clock())

        self._tasks.create_task(wait())

    async def run(self) -> None:
        """Run the engines until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            for replica in self.replicas:
                self._tasks.create_task(replica.run())
