"""The output filter in real time: tokens wait for the check of their window before the client gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pytest_llmbench.simulator.alarm import Clock, LoopAlarm
from pytest_llmbench.simulator.ground_truth import GroundTruth
from pytest_llmbench.simulator.guardrail_stages import Release
from pytest_llmbench.simulator.replies import Reply
from pytest_llmbench.simulator.sequence import EngineSequence


class FilteredReply:
    """A reply behind the output filter, written from a task of its own (:meth:`run`) at the times of release.

    The tokens that the filter withholds (the last ones of the sequence) are never written. ``on_end`` is
    called once, when the last word has been written or the client has gone.
    """

    def __init__(
        self,
        reply: Reply,
        release: Release,
        sequence: EngineSequence,
        clock: Clock,
        on_end: Callable[[Reply], None],
    ) -> None:
        self.truth: GroundTruth = reply.truth
        self._reply = reply
        self._release = release
        self._sequence = sequence
        self._clock = clock
        self._on_end = on_end
        self._alarm = LoopAlarm()
        self._windows: asyncio.Queue[tuple[int, list[int]]] = asyncio.Queue()
        """When each may leave, and when its tokens were computed."""
        self._computed = 0
        self._held: list[int] = []
        self._reason: str | None = None
        self._over = False

    async def begin(self) -> None:
        await self._reply.begin()

    async def token(self) -> None:
        at_ns = self.truth.last_token_ns
        assert at_ns is not None
        self._computed += 1
        self._held.append(at_ns)
        leaves_ns = self._release.produced(at_ns, last=self._computed == self._sequence.output_tokens)
        if leaves_ns is not None:
            self._windows.put_nowait((leaves_ns, self._held))
            self._held = []

    async def finish(self, reason: str) -> bool:
        self._reason = reason
        self._windows.put_nowait((self._clock(), []))
        return True

    async def fail(self, message: str) -> None:
        self._over = True
        await self._reply.fail(message)

    def stop(self) -> None:
        self._reply.stop()
        if not self._over and self._reason is not None:
            self._over = self.truth.aborted = True
            self.truth.finish_reason = None
            self._on_end(self._reply)

    async def _let_out(self, at_ns: int) -> None:
        """The reply takes the instant of its token from the truth, which has gone on meanwhile."""
        truth, newest_ns = self.truth, self.truth.last_token_ns
        truth.last_token_ns = at_ns
        await self._reply.token()
        if truth.last_token_ns == at_ns:  # else the engine gave one while this one was written
            truth.last_token_ns = newest_ns

    async def run(self) -> None:
        """Let windows out until the reply is complete."""
        passing = None
        while not self._over:
            leaves_ns, tokens = await self._windows.get()
            await self._alarm.until(leaves_ns)
            if passing is None:
                passing = self._sequence.output_tokens - self._sequence.withheld_tokens
            for at_ns in tokens[:passing]:
                await self._let_out(at_ns)
            passing -= len(tokens[:passing])
            if not tokens and self._reason is not None:
                self._over = True
                await self._reply.finish(self._reason)
                self._on_end(self._reply)


__all__ = ["FilteredReply"]
