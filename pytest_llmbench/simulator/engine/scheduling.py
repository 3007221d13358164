"""The waiting queue and its orders, and who gives way when the KV cache has no block left."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pytest_llmbench.simulator.engine.config import Scheduler, VictimPolicy
from pytest_llmbench.simulator.engine.sequence import EngineSequence


@dataclass(frozen=True, slots=True)
class Preemption:
    """A sequence was taken out of the batch to free its blocks; it waits to be taken in again."""

    sequence: EngineSequence
    lost_tokens: int
    """Tokens of the KV cache that were discarded, prompt included; 0 when they were moved to host memory."""
    swapped: bool
    critical: bool
    """Whether it was in its output phase, which the scheduler ``phase`` is there to protect."""


Weight = Callable[[EngineSequence, int], tuple[float, ...]]


_WEIGHTS: Mapping[VictimPolicy, Weight] = {
    "latest": lambda sequence, _: (sequence.joined,),
    "lowest_priority": lambda sequence, _: (sequence.priority, sequence.joined),
    "largest": lambda sequence, next_step: (sequence.stored_tokens(next_step), sequence.joined),
    "smallest": lambda sequence, next_step: (-sequence.stored_tokens(next_step), sequence.joined),
}


def choose_victim(
    candidates: Iterable[EngineSequence], policy: VictimPolicy, protect_output: bool, next_step: int
) -> EngineSequence:
    """The candidate of most weight under the policy; with ``protect_output`` one that thinks, if any does."""
    weight = _WEIGHTS[policy]
    return max(
        candidates,
        key=lambda sequence: (protect_output and sequence.thinking, *weight(sequence, next_step)),
    )


MeasurementRequest = Callable[[EngineSequence], tuple[float, ...]]
Lane = Callable[[EngineSequence], int]
_Entry = tuple[tuple[float, ...], int, EngineSequence]


class WaitingQueue:
    """Two lanes, each in the order of a key, ties by ticket: one that was preempted is back where it was.

    The second lane is served when the first is empty, and only while it is open. Most schedulers use one.
    """

    def __init__(self, order: MeasurementRequest, lane: Lane) -> None:
        self._order = order
        self._lane = lane
        self._lanes: tuple[list[_Entry], ...] = ([], [])
        # Who is inside, with the number of its push. An entry of another number is a leftover: taking out of
        # the middle of a heap is dear, so entries are dropped when they come to its top.
        self._inside: dict[EngineSequence, int] = {}
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._inside)

    def push(self, sequence: EngineSequence) -> None:
        self._pushes += 1
        self._inside[sequence] = self._pushes
        key = (*self._order(sequence), sequence.ticket)
        heapq.heappush(self._lanes[self._lane(sequence)], (key, self._pushes, sequence))

    def head(self, second_lane_open: bool = True) -> EngineSequence | None:
        """The sequence that is next, without taking it out; ``None`` if none may go."""
        for lane in self._lanes if second_lane_open else self._lanes[:1]:
            while lane and self._inside.get(lane[0][2]) != lane[0][1]:
                heapq.heappop(lane)
            if lane:
                return lane[0][2]
        return None

    def discard(self, sequence: EngineSequence) -> bool:
        """Take one out, whether it has been admitted or has given up; False if it does not wait here."""
        return self._inside.pop(sequence, None) is not None

    def clear(self) -> list[EngineSequence]:
        """Empty the queue; who was in it, by ticket."""
        left = sorted(self._inside, key=lambda sequence: sequence.ticket)
        self._inside.clear()
        for lane in self._lanes:
            lane.clear()
        return left


def still_thinks(sequence: EngineSequence) -> bool:
    """Whether the next token it gives is a thought."""
    return sequence.given_before < sequence.think_tokens


def _arrival(_: EngineSequence) -> tuple[float, ...]:
    return ()


def _priority(sequence: EngineSequence) -> tuple[float, ...]:
    return (sequence.priority,)


def _shortest(sequence: EngineSequence) -> tuple[float, ...]:
    return (sequence.prompt_tokens,)  # the length of the answer is not known to a real engine


def _one_lane(_: EngineSequence) -> int:
    return 0


def _by_phase(sequence: EngineSequence) -> int:
    return int(still_thinks(sequence))


_SCHEDULERS: Mapping[Scheduler, tuple[MeasurementRequest, Lane]] = {
    "fcfs": (_arrival, _one_lane),
    "priority": (_priority, _one_lane),
    "shortest": (_shortest, _one_lane),
    "phase": (_arrival, _by_phase),
}


def waiting_queue(scheduler: Scheduler) -> WaitingQueue:
    """The empty queue of a scheduler. ``phase``: answers in the first lane, thoughts in the second."""
    return WaitingQueue(*_SCHEDULERS[scheduler])
