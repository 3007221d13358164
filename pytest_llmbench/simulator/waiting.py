"""The queue of sequences that wait for a place in the batch."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from pytest_llmbench.simulator.sequence import EngineSequence

Order = Callable[[EngineSequence], tuple[float, ...]]
Lane = Callable[[EngineSequence], int]
_Entry = tuple[tuple[float, ...], int, EngineSequence]


class WaitingQueue:
    """Two lanes, each in the order of a key, ties by ticket: one that was preempted is back where it was.

    The second lane is served when the first is empty, and only while it is open. Most schedulers use one.
    """

    def __init__(self, order: Order, lane: Lane) -> None:
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
        """Who is next, without taking it out; ``None`` if nobody may go."""
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


__all__ = ["WaitingQueue"]
