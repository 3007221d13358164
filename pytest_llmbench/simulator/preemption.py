"""Who gives way when the KV cache has no block left, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pytest_llmbench.simulator.engine_config import VictimPolicy
from pytest_llmbench.simulator.sequence import EngineSequence


@dataclass(frozen=True, slots=True)
class Preemption:
    """A sequence was taken out of the batch to free its blocks; it waits to be taken in again."""

    sequence: EngineSequence
    lost_tokens: int
    """Tokens of the KV cache that were discarded, prompt included; 0 when they were moved to host memory."""
    swapped: bool
    critical: bool
    """It was in its output phase, which the scheduler ``phase`` is there to protect."""


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


__all__ = ["Preemption", "choose_victim"]
