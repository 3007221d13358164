"""The engine in real time: one task that lets each step take its time and then writes its tokens."""

from __future__ import annotations

import asyncio
import time

from pytest_llmbench.simulator.alarm import Alarm, Clock
from pytest_llmbench.simulator.engine import Engine, Sequence, StepResult
from pytest_llmbench.simulator.ground_truth import GroundTruthLog
from pytest_llmbench.simulator.pacing import Pacing
from pytest_llmbench.simulator.replies import Reply

# Further behind than this, catching up would make a burst that no engine produces.
_GIVE_UP_NS = 100_000_000
# Writes between two looks at the sockets: a request that arrives while tokens are handed out is then
# stamped within some 50 µs instead of after the whole batch.
_WRITES_PER_TURN = 8


class EngineDriver:
    """Steps the engine on an absolute schedule: a step begins where the one before it was due to end.

    So a late wake-up delays one step's tokens and no later ones. After a pause without work the schedule
    begins anew.
    """

    def __init__(
        self, engine: Engine, alarm: Alarm, log: GroundTruthLog, clock: Clock = time.monotonic_ns
    ) -> None:
        self.engine = engine
        self.alarm = alarm
        self.log = log
        self.clock = clock
        self.pacing = Pacing()
        self._replies: dict[Sequence, Reply] = {}
        self._work = asyncio.Event()

    def submit(self, sequence: Sequence, reply: Reply) -> None:
        """Hand a sequence to the engine; its tokens go to ``reply``."""
        self.engine.submit(sequence)
        self._replies[sequence] = reply
        self._work.set()

    def abort(self, sequence: Sequence) -> None:
        """The client has gone: free the sequence's place. Does nothing for one that has ended."""
        reply = self._replies.pop(sequence, None)
        if reply is None:
            return
        self.engine.abort(sequence)
        reply.truth.aborted = True
        self.log.add(reply.truth)

    async def run(self) -> None:
        """Work until cancelled."""
        due_ns = self.clock()
        while True:
            if self.engine.idle:
                self._work.clear()
                await self._work.wait()
                due_ns = self.clock()
            due_ns = await self._step(due_ns)

    async def _step(self, due_ns: int) -> int:
        """One step, which by the schedule begins at ``due_ns``; returns when it was due to end."""
        begun_ns = self.clock()
        if begun_ns - due_ns > _GIVE_UP_NS:
            self.pacing.schedule_restarts += 1
            due_ns = begun_ns
        step = self.engine.step()
        for sequence in step.admitted:
            self._replies[sequence].truth.admitted_ns = begun_ns
        due_ns += step.duration_ns
        await self.alarm.until(due_ns)
        ended_ns = self.clock()
        await self._hand_out(step, ended_ns)
        self.pacing.steps += 1
        self.pacing.step_lateness.note(ended_ns - due_ns)
        self.pacing.write_span.note(self.clock() - ended_ns)
        return due_ns

    async def _hand_out(self, step: StepResult, ended_ns: int) -> None:
        """Write the tokens of a step, first tokens first. Replies whose client has gone are not there."""
        for sequence in step.first_tokens:
            reply = self._replies.get(sequence)
            if reply is not None:
                reply.truth.first_token_ns = ended_ns
                await reply.token()
        for written, sequence in enumerate(step.decoded, len(step.first_tokens)):
            if written % _WRITES_PER_TURN == _WRITES_PER_TURN - 1:
                await asyncio.sleep(0)
            reply = self._replies.get(sequence)
            if reply is not None:
                await reply.token()
        for sequence in step.finished:
            reply = self._replies.pop(sequence, None)
            if reply is not None:
                reply.truth.finish_reason = sequence.finish_reason
                await reply.finish(sequence.finish_reason)
                self.log.add(reply.truth)


__all__ = ["EngineDriver"]
