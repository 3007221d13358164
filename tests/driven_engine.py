"""The driver of engines on a clock that moves only when somebody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.serving.driver import EngineDriver, Waiting
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth

MS = 1_000_000


class VirtualAlarm:
    """Moves its clock to the deadline, or past it by what ``late_ns`` says for that wait."""

    name = "virtual"

    def __init__(self, late_ns: Callable[[int], int] = lambda wait: 0) -> None:
        self.now_ns = 1000 * MS
        self.waits = 0
        self._late_ns = late_ns

    def clock(self) -> int:
        return self.now_ns

    async def until(self, deadline_ns: int) -> None:
        self.now_ns = max(self.now_ns, deadline_ns + self._late_ns(self.waits))
        self.waits += 1
        await asyncio.sleep(0)

    def close(self) -> None:
        """Nothing is held."""


class KeptReply:
    """Remembers when its tokens came."""

    def __init__(self, alarm: VirtualAlarm, request_id: str = "r") -> None:
        self.truth = GroundTruth(request_id, alarm.clock(), prompt_tokens=10)
        self._alarm = alarm
        self.token_ns: list[int] = []
        self.done = asyncio.Event()

    async def begin(self) -> None:
        """Nothing to do."""

    async def token(self) -> None:
        self.truth.output_tokens += 1
        self.token_ns.append(self._alarm.clock())

    async def finish(self, reason: str) -> None:
        self.done.set()


def given(driver: EngineDriver, sequence: EngineSequence, reply: KeptReply) -> Waiting:
    """The request, which is in the driver."""
    waiting = Waiting(sequence, reply)
    driver.loop.submit(waiting, driver.clock())
    return waiting
