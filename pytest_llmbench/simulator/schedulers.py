"""Orders of the waiting queue, one entry of a table per scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.simulator.engine_config import Scheduler
from pytest_llmbench.simulator.sequence import EngineSequence
from pytest_llmbench.simulator.waiting import Lane, Order, WaitingQueue


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


_SCHEDULERS: Mapping[Scheduler, tuple[Order, Lane]] = {
    "fcfs": (_arrival, _one_lane),
    "priority": (_priority, _one_lane),
    "shortest": (_shortest, _one_lane),
    "phase": (_arrival, _by_phase),
}


def waiting_queue(scheduler: Scheduler) -> WaitingQueue:
    """The empty queue of a scheduler. ``phase``: answers in the first lane, thoughts in the second."""
    return WaitingQueue(*_SCHEDULERS[scheduler])


__all__ = ["still_thinks", "waiting_queue"]
