"""What one step of the engine does, and what all of them have done so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from pytest_llmbench.simulator.engine.scheduling import Preemption
from pytest_llmbench.simulator.engine.sequence import EngineSequence


@dataclass(slots=True, eq=False)  # not frozen: one is made per step, and freezing would double its cost
class StepResult:
    """What one step does. Its tokens exist once ``duration_ns`` has passed, not before.

    ``first_tokens`` and ``decoded`` together are all tokens of the step, at most one of each sequence.
    """

    index: int
    """Steps are numbered from 0."""
    duration_ns: int
    prefill_tokens: int
    kv_tokens: int
    admitted: list[EngineSequence]
    """Left the queue for this step, for the first time."""
    first_tokens: list[EngineSequence]
    """Prompt complete: each gives its first token."""
    decoded: list[EngineSequence]
    """Each gives one further token."""
    finished: list[EngineSequence]
    """Have given their last token in this step; ``finish_reason`` says why it was the last."""
    answering: list[EngineSequence]
    """Give the first token of their output phase: their first token, unless they have been thinking."""
    preempted: tuple[Preemption, ...] = ()
    """The sequences taken out of the batch at the beginning of the step; they go on where they were when they
    resume."""
    resumed: tuple[EngineSequence, ...] = ()
    """Left the queue for this step, not for the first time; or had its prompt computed elsewhere."""
    failed: tuple[EngineSequence, ...] = ()
    """Ended at the beginning of the step, for want of memory."""
    crashed: bool = False
    """The engine ran out of memory: everything in it has failed, and this "step" is its recovery."""


@dataclass(slots=True)
class EngineTotals:
    """Counts since the engine began."""

    prefill_tokens: int = 0
    """Tokens computed by prefill, those of resumed sequences included."""
    generated_tokens: int = 0
    """Output tokens given, those of sequences that were aborted later included."""
    preemptions: int = 0
    lost_tokens: int = 0
    """Tokens of the KV cache discarded by preemptions."""
    critical_evictions: int = 0
    """Preemptions of sequences in their output phase, under the scheduler ``phase``."""
    swapped_blocks: int = 0
    """Blocks moved to host memory or back."""
    prefix_query_tokens: int = 0
    """Prompt tokens looked up in the prefix cache, each prompt once."""
    prefix_hit_tokens: int = 0
    """The tokens among them that were found."""
    resume_hit_tokens: int = 0
    """Tokens found in the prefix cache by sequences that resume."""
    transfers: int = 0
    """Prompts whose blocks came from another engine."""
    transferred_blocks: int = 0
    transfer_ns: int = 0
    """The time that these took."""
    failed: int = 0
    """Sequences that ended for want of memory."""
    crashes: int = 0

    @classmethod
    def summed(cls, totals: Iterable[EngineTotals]) -> EngineTotals:
        """The counts of several engines together."""
        whole = cls()
        for own in totals:
            for each in fields(cls):
                setattr(whole, each.name, getattr(whole, each.name) + getattr(own, each.name))
        return whole
