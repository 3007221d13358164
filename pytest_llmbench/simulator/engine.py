"""Continuous batching by steps: the engine as arithmetic, without clock, socket or event loop.

Time does not pass in here. :meth:`Engine.step` works out the next step of the batch from what has been
submitted so far and says how long it takes; whoever drives the engine lets that time pass, in reality or on
a virtual clock, and only then hands out the step's tokens. What is submitted meanwhile joins a later step.

The work of a step does not grow with the number of tokens it makes, apart from copying one list: the end of
every sequence is known from the step of its first token on and waits in a table under its step number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_llmbench.simulator.output_length import FinishReason, OutputLengthLaw
from pytest_llmbench.simulator.presets import EngineConfig
from pytest_llmbench.simulator.waiting import FirstComeFirstServed


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. The engine fills in the second half."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False

    output_tokens: int = field(default=0, init=False)
    """Length at which it ends; known from submission on, as the length law is drawn then."""
    finish_reason: FinishReason = field(default="length", init=False)
    prefilled_tokens: int = field(default=0, init=False)
    first_step: int | None = field(default=None, init=False)
    """Step that ends with its first token; token j (from 0) leaves at the end of step first_step + j."""

    @property
    def last_step(self) -> int | None:
        return None if self.first_step is None else self.first_step + self.output_tokens - 1


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step does. Its tokens exist once ``duration_ns`` has passed, not before."""

    index: int
    """Steps are numbered from 0."""
    duration_ns: int
    prefill_tokens: int
    kv_tokens: int
    admitted: list[Sequence]
    """Left the queue for this step."""
    first_tokens: list[Sequence]
    """Prompt complete: each gives its first token."""
    decoded: list[Sequence]
    """Each gives one further token."""
    finished: list[Sequence]
    """Have given their last token in this step."""


class Engine:
    """The batch. Deterministic: the same submissions between the same steps give the same results.

    A step first gives one token to every sequence that decodes; what is left of ``max_num_batched_tokens``
    goes to prompts, first to the one begun, then to waiting sequences in their order while there are places
    (``max_num_seqs``). A prompt that does not fit is prefilled in chunks over several steps. The step that
    completes a prompt gives the first token.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._law = OutputLengthLaw(config.eos_mean_tokens, config.seed)
        self._waiting: FirstComeFirstServed[Sequence] = FirstComeFirstServed()
        self._prefilling: list[Sequence] = []
        self._decoding: dict[Sequence, None] = {}
        self._ends: dict[int, list[Sequence]] = {}
        self._decoding_kv_tokens = 0
        self._next_step = 0

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences in the batch, prompts being prefilled included."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def idle(self) -> bool:
        return self.waiting == 0 and self.running == 0

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. ValueError if it can never run: refusing such a request is the caller's part."""
        if sequence.prompt_tokens < 1 or sequence.max_tokens < 1:
            raise ValueError("a sequence needs at least one prompt token and one output token")
        if sequence.prompt_tokens + sequence.max_tokens > self.config.context_limit_tokens:
            raise ValueError(
                f"{sequence.prompt_tokens} prompt tokens and {sequence.max_tokens} output tokens exceed the "
                f"context of {self.config.context_limit_tokens}"
            )
        sequence.output_tokens, sequence.finish_reason = self._law.draw(
            sequence.max_tokens, sequence.min_tokens, sequence.ignore_eos
        )
        self._waiting.push(sequence)

    def abort(self, sequence: Sequence) -> bool:
        """Take a sequence out, wherever it is. False if it has finished already, or was never submitted."""
        if sequence in self._decoding:
            self._leave(sequence)
            last_step = sequence.last_step
            assert last_step is not None
            self._ends[last_step].remove(sequence)
            return True
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
            return True
        return self._waiting.discard(sequence)

    def step(self) -> StepResult:
        """The next step. RuntimeError when there is nothing to do (``idle``)."""
        if self.idle:
            raise RuntimeError("a step of an idle engine: nothing has been submitted")
        decoded = list(self._decoding)
        kv_tokens = self._decoding_kv_tokens
        budget = self.config.max_num_batched_tokens - len(decoded)
        admitted = self._admit(budget)
        prefill_tokens, prefix_tokens = self._prefill(budget)
        kv_tokens += prefix_tokens
        index = self._next_step
        self._next_step += 1
        self._decoding_kv_tokens += len(decoded)
        first_tokens = self._begin_decoding(index)
        finished = self._ends.pop(index, [])
        for sequence in finished:
            self._leave(sequence)
        duration_ns = self.config.step_ns(prefill_tokens, len(decoded), kv_tokens)
        return StepResult(
            index, duration_ns, prefill_tokens, kv_tokens, admitted, first_tokens, decoded, finished
        )

    def _admit(self, budget: int) -> list[Sequence]:
        """Move sequences from the queue into the batch while there are places and prompt tokens left."""
        budget -= sum(sequence.prompt_tokens - sequence.prefilled_tokens for sequence in self._prefilling)
        admitted = []
        while budget > 0 and self.waiting > 0 and self.running < self.config.max_num_seqs:
            sequence = self._waiting.pop()
            self._prefilling.append(sequence)
            admitted.append(sequence)
            budget -= sequence.prompt_tokens
        return admitted

    def _prefill(self, budget: int) -> tuple[int, int]:
        """Spend the budget on prompts in order: (tokens processed, tokens their earlier chunks hold)."""
        processed = held = 0
        for sequence in self._prefilling:
            chunk = min(sequence.prompt_tokens - sequence.prefilled_tokens, budget - processed)
            if chunk > 0:
                processed += chunk
                held += sequence.prefilled_tokens
                sequence.prefilled_tokens += chunk
        return processed, held

    def _begin_decoding(self, index: int) -> list[Sequence]:
        complete = [s for s in self._prefilling if s.prefilled_tokens == s.prompt_tokens]
        if complete:
            self._prefilling = [s for s in self._prefilling if s.prefilled_tokens < s.prompt_tokens]
        for sequence in complete:
            sequence.first_step = index
            self._decoding[sequence] = None
            self._decoding_kv_tokens += sequence.prompt_tokens + 1
            self._ends.setdefault(index + sequence.output_tokens - 1, []).append(sequence)
        return complete

    def _leave(self, sequence: Sequence) -> None:
        """Free what a decoding sequence holds: its prompt and the tokens it has given so far."""
        assert sequence.first_step is not None
        given = self._next_step - sequence.first_step
        self._decoding_kv_tokens -= sequence.prompt_tokens + given
        del self._decoding[sequence]


__all__ = ["Engine", "Sequence", "StepResult"]
