"""The driver of engines in real time: a task per engine lets every step take its time and then writes its
tokens."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.engine import Engine, QueueFullError
from pytest_llmbench.simulator.engine.guardrails import Guardrails
from pytest_llmbench.simulator.engine.router import Router, RouterOptions
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.serving.ground_truth import Clock, GroundTruthLog
from pytest_llmbench.simulator.serving.metrics_page import EngineMetrics, EngineState, MetricsPage
from pytest_llmbench.simulator.serving.replies import Reply
from pytest_llmbench.timing.alarm import Alarm


class RecentValues:
    """The last ``capacity`` values, in nanoseconds."""

    def __init__(self, capacity: int = 16384) -> None:
        self._capacity = capacity
        self._values = array("q")
        self.count = 0

    def note(self, value: int) -> None:
        if self.count < self._capacity:
            self._values.append(value)
        else:
            self._values[self.count % self._capacity] = value
        self.count += 1

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


def nothing() -> None:
    """Do nothing."""


# Further behind than this, catching up would make a burst that no engine produces.
_GIVE_UP_NS = 100_000_000
# Writes between two looks at the sockets: a request that arrives while tokens are handed out is then
# stamped within some 50 µs instead of after the whole batch.
_WRITES_PER_TURN = 8


class Replica:
    """Drives one engine on an absolute schedule: a step begins where the one before it was due to end.

    So a late wake-up delays one step's tokens and no later ones. After a pause without work the schedule
    begins anew.
    """

    def __init__(
        self,
        number: int,
        engine: Engine,
        alarm: Alarm,
        metrics: EngineMetrics,
        log: GroundTruthLog,
        clock: Clock,
        pacing: Pacing,
    ) -> None:
        self.number = number
        self.engine = engine
        self.alarm = alarm
        self.down_until_ns = 0
        """Instant until which the engine recovers from a crash."""
        self.metrics = metrics
        self._log, self._clock, self._pacing = log, clock, pacing
        self._replies: dict[EngineSequence, Reply] = {}
        self._work = asyncio.Event()

    @property
    def requests(self) -> int:
        """Number of requests that were given to it and have not ended."""
        return len(self._replies)

    @property
    def prompt_tokens(self) -> int:
        """Sum of the prompt tokens of its :attr:`requests`."""
        return sum(sequence.prompt_tokens for sequence in self._replies)

    def cached_tokens(self, sequence: EngineSequence) -> int:
        """Number of tokens at the beginning of the prompt that its prefix cache holds."""
        return self.engine.cached_tokens(sequence)

    @property
    def state(self) -> EngineState:
        """The current state of the engine."""
        engine = self.engine
        return EngineState(engine.running, engine.waiting, engine.kv_usage, engine.totals)

    def submit(self, sequence: EngineSequence, reply: Reply) -> None:
        """Hand a sequence to the engine; its tokens go to ``reply``. QueueFullError if it takes no more."""
        try:
            self.engine.submit(sequence)
        except QueueFullError:
            self.metrics.note_rejection()
            raise
        reply.truth.replica, reply.truth.queued_ns = self.number, self._clock()
        self._replies[sequence] = reply
        self.wake()

    def wake(self) -> None:
        """Wake the engine's task, as there may be something to do again."""
        self._work.set()

    def abort(self, sequence: EngineSequence) -> None:
        """Free the sequence's place, because the client has gone. Does nothing for one that is not here any
        more."""
        reply = self._replies.pop(sequence, None)
        if reply is None:
            return
        self.engine.abort(sequence)
        reply.truth.aborted = True
        self.note_end(reply)

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
        generated = sum(sequence.generates for sequence in step.first_tokens) + len(step.decoded)
        self.metrics.note_step(step.prefill_tokens, generated)
        self._note_beginning(step, begun_ns)
        if step.crashed:
            self.down_until_ns = due_ns + step.duration_ns
        for sequence in step.failed:
            await self._fail(sequence)
        due_ns += step.duration_ns
        await self.alarm.until(due_ns)
        ended_ns = self._clock()
        await self._hand_out(step, ended_ns)
        self._pacing.steps += 1
        self._pacing.step_lateness.note(ended_ns - due_ns)
        self._pacing.write_span.note(self._clock() - ended_ns)
        return due_ns

    def _note_beginning(self, step: StepResult, begun_ns: int) -> None:
        for sequence in step.admitted:
            truth = self._replies[sequence].truth
            truth.admitted_ns = begun_ns
            truth.think_reason = sequence.think_reason
            if self.engine.config.scheduler == "phase":
                truth.critical_evictions = 0
            if self.engine.config.prefix_caching:
                truth.cached_tokens = sequence.cached_tokens
        for event in step.preempted:
            truth = self._replies[event.sequence].truth
            truth.preemptions, truth.lost_tokens = event.sequence.preemptions, event.sequence.lost_tokens
            if self.engine.config.scheduler == "phase":
                truth.critical_evictions = event.sequence.critical_evictions

    async def _fail(self, sequence: EngineSequence) -> None:
        reply = self._replies.pop(sequence, None)
        if reply is not None:
            reply.truth.finish_reason = sequence.finish_reason
            await reply.fail("the engine ran out of memory for its KV cache")
            self.note_end(reply)

    async def _hand_out(self, step: StepResult, ended_ns: int) -> None:
        """Write the tokens of a step, first tokens first. Replies whose client has gone are skipped."""
        for sequence in step.first_tokens:
            reply = self._replies.get(sequence)
            if reply is not None:
                reply.truth.first_token_ns = ended_ns
                reply.truth.note_token(ended_ns)
                await reply.token()
        for written, sequence in enumerate(step.decoded, len(step.first_tokens)):
            if written % _WRITES_PER_TURN == _WRITES_PER_TURN - 1:
                await asyncio.sleep(0)
            reply = self._replies.get(sequence)
            if reply is not None:
                last_ns = reply.truth.last_token_ns
                assert last_ns is not None
                self.metrics.note_token_gap(ended_ns - last_ns)
                reply.truth.note_token(ended_ns)
                await reply.token()
        for sequence in step.finished:
            reply = self._replies.pop(sequence, None)
            if reply is not None:
                reply.truth.finish_reason = sequence.finish_reason
                ends_later = await reply.finish(sequence.finish_reason)
                if not ends_later:
                    self.note_end(reply)

    def note_end(self, reply: Reply) -> None:
        """Keep the record of a reply that has ended."""
        self._log.add(reply.truth)
        self.metrics.note_end(reply.truth)


OneOf = TypeVar("OneOf", bound=Replica)


class EngineDriver:
    """Driver of the engines behind one address in real time, each on a schedule of its own, and of the router
    before them.

    They are tasks of one event loop: what several hand out at the same instant is written one after another,
    and the pacing tells how late that made their steps.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        open_alarm: Callable[[], Alarm],
        log: GroundTruthLog,
        clock: Clock = time.monotonic_ns,
        router: RouterOptions | None = None,
    ) -> None:
        self.log = log
        self.clock = clock
        self.pacing = Pacing()
        apart = router is not None and router.disaggregated
        self.page = MetricsPage(engines[0].config, transfers=apart)
        self.replicas = tuple(
            self._replica(number, engine, open_alarm()) for number, engine in enumerate(engines)
        )
        self._router = Router(router.policy, router.router_max_lead) if router is not None else Router()

    def _replica(self, number: int, engine: Engine, alarm: Alarm) -> Replica:
        metrics = self.page.engine(engine.config, number)
        return Replica(number, engine, alarm, metrics, self.log, self.clock, self.pacing)

    @property
    def config(self) -> EngineConfig:
        """The figures of the engines; all but the first have other seeds."""
        return self.replicas[0].engine.config

    @property
    def guardrails(self) -> Guardrails:
        """The input and output filters of the engines."""
        return self.replicas[0].engine.guardrails

    @property
    def down_until_ns(self) -> int:
        """Instant before which no engine is up."""
        return min(replica.down_until_ns for replica in self.replicas)

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

    def submit(
        self,
        sequence: EngineSequence,
        reply: Reply,
        session: Hashable | None = None,
        drawn: Callable[[], None] = nothing,
    ) -> None:
        """Hand a sequence to the engine that the router chooses; its tokens go to ``reply``.

        ``session``: the session that the request says it belongs to. ``drawn`` is called when the lengths of
        the sequence have been drawn, before its first token. QueueFullError if that engine takes no more.
        """
        self._route(sequence, session).submit(sequence, reply)
        drawn()

    def _route(self, sequence: EngineSequence, session: Hashable | None) -> Replica:
        return self._chosen(self._router, self.replicas, sequence, session)

    def _chosen(
        self, router: Router, replicas: Sequence[OneOf], sequence: EngineSequence, session: Hashable | None
    ) -> OneOf:
        """The one of ``replicas`` that the router chooses for the request; those that are down are passed
        over."""
        now_ns = self.clock()
        up = [place for place, replica in enumerate(replicas) if replica.down_until_ns <= now_ns]
        return replicas[router.choose(replicas, up or range(len(replicas)), sequence, session)]

    def abort(self, sequence: EngineSequence) -> None:
        """Free the sequence's place, because the client has gone. Does nothing for one that has ended."""
        for replica in self.replicas:
            replica.abort(sequence)

    def crash(self, number: int, recovery_ns: int) -> None:
        """Put the engine of that number out of service for ``recovery_ns`` from now on."""
        self.replicas[number].down_until_ns = self.clock() + recovery_ns

    def reset_prefix_caches(self) -> None:
        """Forget the prefixes that the engines have computed so far."""
        for replica in self.replicas:
            replica.engine.reset_prefix_cache()

    def note_end(self, reply: Reply) -> None:
        """Keep the record of a reply that has ended."""
        self.replicas[reply.truth.held_by].note_end(reply)

    def metrics_page(self) -> bytes:
        """The metrics of all engines, in Prometheus's text format."""
        return self.page.rendered([(replica.metrics, replica.state) for replica in self.replicas])

    async def run(self) -> None:
        """Run the engines until cancelled."""
        async with asyncio.TaskGroup() as group:
            for replica in self.replicas:
                group.create_task(replica.run())
