"""The waiting queue and its orders, the adapters that its sequences need, the choice of the sequence to
preempt when the KV cache has no block left, and the result of one step."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from pytest_llmbench.simulator.engine.config import EngineConfig, Scheduler, VictimPolicy
from pytest_llmbench.simulator.engine.sequence import EngineSequence


@dataclass(frozen=True, slots=True)
class Preemption:
    """The preemption of one sequence: taken out of the batch to free its blocks, it waits to be admitted
    again."""

    sequence: EngineSequence
    lost_tokens: int
    """Number of tokens in the KV cache that were discarded, prompt included; 0 when they were moved to host
    memory."""
    swapped: bool
    critical: bool
    """Whether the sequence was in its output phase, which the scheduler ``phase`` protects."""


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
    """The sequence to preempt: the candidate of most weight under the policy; with ``protect_output`` one
    that thinks, if any does."""
    weight = _WEIGHTS[policy]
    return max(
        candidates,
        key=lambda sequence: (protect_output and sequence.thinking, *weight(sequence, next_step)),
    )


Order = Callable[[EngineSequence], tuple[float, ...]]
Lane = Callable[[EngineSequence], int]
_Entry = tuple[tuple[float, ...], int, EngineSequence]


class WaitingQueue:
    """The waiting queue: two lanes, each ordered by a key, ties by ticket. A preempted sequence gets its old
    place back.

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

    @property
    def members(self) -> Mapping[EngineSequence, int]:
        """The sequences in the queue. Always the same mapping object, which tells faster than the queue
        whether it is empty."""
        return self._inside

    def push(self, sequence: EngineSequence) -> None:
        self._pushes += 1
        self._inside[sequence] = self._pushes
        key = (*self._order(sequence), sequence.ticket)
        heapq.heappush(self._lanes[self._lane(sequence)], (key, self._pushes, sequence))

    def head(self, second_lane_open: bool = True) -> EngineSequence | None:
        """The next sequence, which stays in the queue; ``None`` if none may go."""
        for lane in self._lanes:
            while lane:
                _, number, sequence = lane[0]
                if self._inside.get(sequence) == number:
                    return sequence
                heapq.heappop(lane)
            if not second_lane_open:
                break
        return None

    def discard(self, sequence: EngineSequence) -> bool:
        """Remove a sequence, whether it has been admitted or has given up; returns False if it does not wait
        here."""
        return self._inside.pop(sequence, None) is not None

    def clear(self) -> list[EngineSequence]:
        """Empty the queue; returns the sequences that were in it, by ticket."""
        left = sorted(self._inside, key=lambda sequence: sequence.ticket)
        self._inside.clear()
        for lane in self._lanes:
            lane.clear()
        return left


def still_thinks(sequence: EngineSequence) -> bool:
    """Whether the next token of the sequence is a thought."""
    return sequence.given_before < sequence.think_tokens


def _arrival(_: EngineSequence) -> tuple[float, ...]:
    return ()


def _one_lane(_: EngineSequence) -> int:
    return 0


_SCHEDULERS: Mapping[Scheduler, tuple[Order, Lane]] = {
    "fcfs": (_arrival, _one_lane),
    "priority": (lambda sequence: (sequence.priority,), _one_lane),
    # The length of the answer is not known to a real engine.
    "shortest": (lambda sequence: (sequence.prompt_tokens,), _one_lane),
    "phase": (_arrival, lambda sequence: int(still_thinks(sequence))),
}


def waiting_queue(scheduler: Scheduler) -> WaitingQueue:
    """An empty queue for a scheduler. ``phase``: answers in the first lane, thoughts in the second."""
    return WaitingQueue(*_SCHEDULERS[scheduler])


class AdapterMemory:
    """The LoRA adapters in the memory of one engine, the least recently used first: what a first use and a
    mixed batch cost.

    A sequence joins the batch when its adapter is in memory, or takes a place there: a free one, or that of
    the adapter that has been unused for longest. The step with which it joins waits for the load. An engine
    without adapters takes any name, at no cost.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._places: float = config.max_adapters or config.adapters or math.inf
        self._load_us, self._each_us = config.adapter_load_ms * 1000.0, config.adapter_us
        self._held: dict[str, None] = {}
        self._in_batch: Counter[str] = Counter()
        self.loading = 0
        """Loads that the next step waits for."""

    def fits(self, adapter: str) -> bool:
        """Whether a sequence with this adapter can join; one that names none always can."""
        if not adapter or adapter in self._held or len(self._held) < self._places:
            return True
        return any(not self._in_batch[each] for each in self._held)

    def join(self, adapter: str) -> None:
        if not adapter:
            return
        if adapter not in self._held:
            self.loading += 1
        self._place(adapter)
        self._in_batch[adapter] += 1

    def _place(self, adapter: str) -> None:
        if adapter not in self._held and len(self._held) >= self._places:
            del self._held[next(each for each in self._held if not self._in_batch[each])]
        self._held.pop(adapter, None)
        self._held[adapter] = None

    def load(self, adapter: str, *, waited_for: bool) -> None:
        """Load it because a call asks for it; it stays where it finds a place. ``waited_for``: a next
        step waits."""
        if self.fits(adapter):
            self._place(adapter)
        self.loading += waited_for

    def unload(self, adapter: str) -> None:
        """Forget it, unless a sequence of the batch still needs it."""
        if not self._in_batch[adapter]:
            self._held.pop(adapter, None)

    def leave(self, adapter: str) -> None:
        if adapter:
            self._in_batch[adapter] -= 1

    def step_us(self) -> float:
        """Microseconds by which the next step is longer: the distinct adapters of the batch, and loads."""
        if not self._held and not self.loading:
            return 0.0
        loading, self.loading = self.loading, 0
        return self._load_us * loading + self._each_us * len(+self._in_batch)


@dataclass(slots=True, eq=False)  # not frozen: one is made per step, and freezing would double its cost
class StepResult:
    """What happens in one step. Its tokens exist once ``duration_ns`` has passed, not before.

    ``first_tokens`` and ``decoded`` together are all sequences that get tokens in the step.
    """

    index: int
    """Number of the step, from 0."""
    duration_ns: int
    prefill_tokens: int
    kv_tokens: int
    admitted: list[EngineSequence]
    """Sequences that left the queue for this step, for the first time."""
    first_tokens: list[EngineSequence]
    """Sequences whose prompt is complete: each gives its first token."""
    decoded: list[EngineSequence]
    """Sequences that give one further token each, or as many as ``counts`` says."""
    finished: list[EngineSequence]
    """Sequences that give their last token in this step; ``finish_reason`` says why it was the last."""
    answering: list[EngineSequence]
    """Sequences that give the first token of their output phase: their first token, unless they have been
    thinking."""
    preempted: tuple[Preemption, ...] = ()
    """Preemptions at the beginning of the step; the sequences go on where they were when they resume."""
    resumed: tuple[EngineSequence, ...] = ()
    """Sequences that left the queue for this step, but not for the first time, or whose prompt was computed
    elsewhere."""
    failed: tuple[EngineSequence, ...] = ()
    """Sequences that failed at the beginning of the step because the engine ran out of memory."""
    counts: Sequence[int] = ()
    """Number of tokens of each sequence in ``decoded``; empty without speculative decoding."""
    crashed: bool = False
    """Whether the engine ran out of memory: everything in it has failed, and this "step" is its recovery."""

    @property
    def generated(self) -> int:
        """Number of its tokens. A sequence that is prefill alone gives none."""
        return sum(sequence.generates for sequence in self.first_tokens) + (
            sum(self.counts) if self.counts else len(self.decoded)
        )


@dataclass(slots=True)
class EngineTotals:
    """Counters of an engine since it began."""

    prefill_tokens: int = 0
    """Number of tokens computed by prefill, including those of resumed sequences."""
    generated_tokens: int = 0
    """Number of output tokens given, including those of sequences that were aborted later."""
    preemptions: int = 0
    lost_tokens: int = 0
    """Number of tokens in the KV cache that preemptions discarded."""
    critical_evictions: int = 0
    """Number of preemptions of sequences in their output phase, under the scheduler ``phase``."""
    swapped_blocks: int = 0
    """Number of blocks moved to host memory or back."""
    prefix_query_tokens: int = 0
    """Number of prompt tokens looked up in the prefix cache, each prompt once."""
    prefix_hit_tokens: int = 0
    """Number of ``prefix_query_tokens`` that were found."""
    resume_hit_tokens: int = 0
    """Number of tokens that resumed sequences found in the prefix cache."""
    transfers: int = 0
    """Number of prompts whose blocks came from another engine."""
    transfer_ns: int = 0
    """Total duration of the ``transfers`` in nanoseconds."""
    failed: int = 0
    """Number of sequences that failed because memory ran out."""
    crashes: int = 0
    drafts: Counter[int] = field(default_factory=Counter)
    """Number of accepted tokens of a draft → number of such drafts."""

    def counted(self, config: EngineConfig) -> dict[str, int]:
        """The counters that are told of an engine of these figures, by the names that metrics have."""
        found = {
            "prompt_tokens": self.prefill_tokens,
            "generated_tokens": self.generated_tokens,
            "preemptions": self.preemptions,
            "prefix_queries_tokens": self.prefix_query_tokens,
            "prefix_hits_tokens": self.prefix_hit_tokens,
        }
        if config.scheduler == "phase":  # it tells thoughts from answers
            found["critical_evictions"] = self.critical_evictions
        if guessed := config.speculative_tokens:
            drafts = self.drafts.total()
            found |= {"drafts": drafts, "draft_tokens": drafts * guessed}
            found["accepted_draft_tokens"] = sum(self.accepted_at(guessed))
        return found

    def accepted_at(self, guessed: int) -> list[int]:
        """How many tokens of drafts of that length were accepted, by their place in the draft."""
        return [sum(n for length, n in self.drafts.items() if length > place) for place in range(guessed)]

    @classmethod
    def summed(cls, totals: Iterable[EngineTotals]) -> EngineTotals:
        """The sum of the counters of several engines."""
        whole = cls()
        for own in totals:
            for each in fields(cls):
                setattr(whole, each.name, getattr(whole, each.name) + getattr(own, each.name))
        return whole
