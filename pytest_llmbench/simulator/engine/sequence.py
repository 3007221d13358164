"""One request inside the engine: the length of its answer, the length of the reasoning before it, and its
progress."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_llmbench.simulator.engine.config import EngineConfig


FinishReason = Literal["length", "stop", "content_filter", "error"]
"""Why a sequence ended. ``content_filter``: the output filter broke it off. ``error``: the engine could not
go on with it."""


class OutputLengthLaw:
    """Draws the length of each sequence, in order of submission, from one seed.

    With ``eos_mean_tokens`` m every token is the last one with probability 1/m (a geometric law, mean m);
    without it every sequence runs to its ceiling.
    """

    def __init__(self, eos_mean_tokens: float | None, seed: int) -> None:
        self._mean = eos_mean_tokens
        self._random = random.Random(seed)

    def draw(self, max_tokens: int, min_tokens: int, ignore_eos: bool) -> tuple[int, FinishReason]:
        """Number of output tokens and the finish reason. Reaching ``max_tokens`` is ``length``, even when EOS
        is next.

        The random number is drawn even where it is not needed, so that the n-th sequence has the same
        length whatever the ones before it asked for.
        """
        uniform = self._random.random()
        if self._mean is None or ignore_eos:
            return max_tokens, "length"
        geometric = 1
        if self._mean > 1.0:
            geometric += int(math.log1p(-uniform) / math.log1p(-1.0 / self._mean))
        drawn = max(geometric, min_tokens)
        return (drawn, "stop") if drawn < max_tokens else (max_tokens, "length")

    def skip(self) -> None:
        """Skip a sequence whose length is decided otherwise; those after it keep theirs."""
        self._random.random()


ThinkReason = Literal["converged", "overthinking", "hard_cap"]
"""Why thinking ended. ``converged``: the model ended its thoughts itself. ``overthinking``: it was found to
go in circles and cut at the budget. ``hard_cap``: it reached the length that none may exceed."""

_STANDARD = NormalDist()


class ThinkLaw:
    """Draws the length of each sequence's thoughts, in order of submission, from one seed.

    The natural length is lognormal with mean ``think_mean_tokens`` and sigma ``think_spread``, at least 1.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._mean = config.think_mean_tokens
        self._spread = config.think_spread
        self._budget = config.think_budget_tokens
        self._detected = config.overthinking_detected
        self._hard_cap = config.think_hard_cap_tokens
        # A stream of its own: reasoning does not change the lengths of the answers.
        self._random = random.Random(f"thoughts {config.seed}")

    def draw(self) -> tuple[int, ThinkReason | None]:
        """Number of think tokens and why they end; (0, None) for a model that does not reason.

        Both random numbers are drawn whether needed or not, so that the n-th sequence thinks for as long
        whatever the ones before it did.
        """
        if self._mean is None:
            return 0, None
        length_quantile, detection = self._random.random(), self._random.random()
        cap, budget, sigma = self._hard_cap, self._budget, self._spread
        natural = max(1, round(self._mean))
        if sigma != 0.0:
            # inv_cdf is defined in the open interval only; random() may give exactly 0
            standard = _STANDARD.inv_cdf(max(length_quantile, 2.0**-53))
            natural = max(1, round(self._mean * math.exp(sigma * standard - sigma * sigma / 2.0)))
        reaches_budget = budget is not None and natural > budget and (cap is None or budget <= cap)
        if budget is not None and reaches_budget and detection < self._detected:
            return budget, "overthinking"
        if cap is not None and natural > cap:
            return cap, "hard_cap"
        return natural, "converged"


class DraftLaw:
    """Draws how many guessed tokens of each draft are accepted, reply by reply, from one seed."""

    def __init__(self, config: EngineConfig) -> None:
        self._guessed, self._acceptance = config.speculative_tokens, config.acceptance
        self._seed = config.seed

    def draw(self, sequence: EngineSequence) -> None:
        """Draw what comes of each draft of a sequence whose lengths are known and whose ticket is given.

        The first step has no draft, and no draft reaches beyond the last thought.
        """
        if not sequence.generates:
            return
        draw = random.Random(self._seed * _PER_SEQUENCE + sequence.ticket)
        made, accepted = [1], [_NO_DRAFT]
        for end in (sequence.think_tokens, sequence.output_tokens):
            while made[-1] < end:
                count = 0
                while count < self._guessed and draw.random() < self._acceptance:
                    count += 1
                made.append(min(made[-1] + 1 + count, end))
                accepted.append(count)
        sequence.made, sequence.accepted = made, accepted


_PER_SEQUENCE = 0x9E3779B97F4A7C15
_NO_DRAFT = -1
"""Stands in ``accepted`` for a step without a draft."""


@dataclass(slots=True, eq=False)
class EngineSequence:
    """One request inside the engine. The caller states the first part; the engine fills in the second."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    priority: int = 0
    """Priority of the request; the lower goes first, where the scheduler looks at it."""
    thinks: bool = True
    """Whether it may reason; False: it was asked not to. Has no effect for a model that never reasons."""
    generates: bool = True
    """Whether it generates tokens; False: prefill alone. Its one token marks the end of the prefill and is no
    output."""
    decode: EngineSequence | None = None
    """The sequence that another engine is to decode: this one is its prefill, and its blocks are held until
    they have been sent there. None: it decodes itself."""
    adapter: str = ""
    """Name of the LoRA adapter that it needs; empty: none."""
    token_ids: Sequence[int] | None = None
    """Token ids of the prompt, or as many of its first ones as may be shared with other prompts."""
    prefix_hashes: tuple[int, ...] | None = None
    """Chained hashes of the prompt's full blocks, instead of ``token_ids``. With neither, nothing is
    shared."""

    output_tokens: int = field(default=0, init=False)
    """Number of output tokens at which it ends, thoughts included; known from submission on, as the laws are
    drawn then."""
    think_tokens: int = field(default=0, init=False)
    """Number of its first output tokens that are thoughts."""
    think_reason: ThinkReason | None = field(default=None, init=False)
    """Why its thoughts end; ``None`` if it has none, or if max_tokens ends it while it thinks."""
    finish_reason: FinishReason = field(default="length", init=False)
    withheld_tokens: int = field(default=0, init=False)
    """Number of its last tokens that the output filter refuses: computed, but never handed out."""

    made: list[int] | None = field(default=None, init=False)
    """Number of its output tokens after each of its steps, with speculative decoding; None: one a step."""
    accepted: list[int] = field(default_factory=list, init=False)
    """Number of guessed tokens that each of its steps accepts, what is beyond its end included; below 0 for a
    step without a draft."""

    prefilled_tokens: int = field(default=0, init=False)
    target_tokens: int = field(default=0, init=False)
    """Number of tokens that prefill has to compute: the prompt, after a preemption also the output so far."""
    cached_tokens: int = field(default=0, init=False)
    """Number of prompt tokens it found in the prefix cache when it was first admitted."""
    first_step: int | None = field(default=None, init=False)
    """Number of the step that ends with its first token; None: there was none yet."""
    spans: list[range] = field(default_factory=list, init=False)
    """The steps that ended with its tokens, in runs without a gap; put end to end, the j-th number is the
    step of token j. A run is noted when it is over: by the end of the sequence or by a preemption."""
    received_blocks: int = field(default=0, init=False)
    """Number of blocks of its prompt that come from the engine which computed them."""
    preemptions: int = field(default=0, init=False)
    lost_tokens: int = field(default=0, init=False)
    """Number of tokens in the KV cache that its preemptions discarded; they are computed again, not given
    again."""

    critical_evictions: int = field(default=0, init=False)
    """Number of its preemptions in its output phase, where the scheduler tells the phases apart."""

    ticket: int = field(default=-1, init=False)
    """The number of the sequence in the order of submission."""
    joined: int = field(default=-1, init=False)
    """The number of the sequence in the order of joining the batch; a new one after every preemption."""
    given_before: int = field(default=0, init=False)
    """Number of output tokens given in ``spans``."""
    steps_before: int = field(default=0, init=False)
    """Number of steps in ``spans``, counted where ``made`` is known."""
    span_start: int = field(default=-1, init=False)
    """Number of the first step of the current span."""
    shared_blocks: int = field(default=0, init=False)
    """Number of its first blocks that are in the prefix cache."""
    thinking: bool = field(default=False, init=False)
    """Whether it is in the batch and the next token it gives is a thought."""
    swapped: bool = field(default=False, init=False)
    """Whether its blocks are in host memory."""

    @property
    def hands_over(self) -> bool:
        """Whether it is the prefill for another engine."""
        return self.decode is not None

    def prompt(self) -> EngineSequence:
        """A sequence that computes this one's prompt, for another engine to decode."""
        return EngineSequence(
            self.request_id,
            self.prompt_tokens,
            1,
            priority=self.priority,
            generates=False,
            decode=self,
            adapter=self.adapter,
            token_ids=self.token_ids,
            prefix_hashes=self.prefix_hashes,
        )

    @property
    def last_step(self) -> int | None:
        """Number of the step of its last token, if it is not preempted (again) before; ``None`` before the
        first token."""
        if self.first_step is None:
            return None
        if self.span_start < 0:
            return self.spans[-1][-1]
        return self.step_of(self.output_tokens - 1)

    def step_of(self, token: int) -> int:
        """Number of the step of an output token (from 0) that the current span, if nothing ends it, gives."""
        if self.made is None:
            return self.span_start + token - self.given_before
        return self.span_start + bisect_right(self.made, token) - self.steps_before

    def given_tokens(self, next_step: int) -> int:
        """Number of output tokens given before step ``next_step``."""
        running = next_step - self.span_start if self.span_start >= 0 else 0
        if self.made is None:
            return self.given_before + running
        steps = self.steps_before + running
        return self.made[steps - 1] if steps else 0

    def drafts(self, steps: int, guessed: int) -> tuple[int, int]:
        """Number of tokens guessed for it in its first ``steps`` steps, so many a draft, and of those that
        it was given."""
        verified = [step for step, count in enumerate(self.accepted[:steps]) if count >= 0]
        made = self.made or []
        return guessed * len(verified), sum(made[step] - made[step - 1] - 1 for step in verified)

    def draft_of(self, step: int) -> int:
        """Number of guessed tokens that a step of the current span accepts; below 0: it has no draft."""
        return self.accepted[self.steps_before + step - self.span_start]

    def stored_tokens(self, next_step: int) -> int:
        """Number of tokens of the sequence in the KV cache before step ``next_step``, if it is in the
        batch."""
        if self.span_start < 0:
            return self.prefilled_tokens
        return self.prompt_tokens + self.given_tokens(next_step) - 1

    def begin_span(self, step: int) -> None:
        """Begin a span: from ``step`` on, every step ends with tokens of the sequence. One that resumes has
        no draft at first."""
        self.span_start = step
        if self.first_step is None:
            self.first_step = step
        elif self.made is not None:
            steps = self.steps_before
            if self.made[steps] > self.given_before + 1:
                self.made.insert(steps, self.given_before + 1)
                self.accepted.insert(steps, _NO_DRAFT)
            self.accepted[steps] = _NO_DRAFT

    def close_span(self, next_step: int) -> None:
        """Close the span: the step before ``next_step`` was its last."""
        if next_step > self.span_start:
            steps = range(self.span_start, next_step)
            if self.made is None:
                self.spans.append(steps)
            else:  # the steps of its tokens one by one
                given = [self.given_before, *(self.given_tokens(step + 1) for step in steps)]
                for step, before, after in zip(steps, given, given[1:], strict=False):
                    self.spans += [range(step, step + 1)] * (after - before)
            self.given_before = self.given_tokens(next_step)
            self.steps_before += len(steps)
        self.span_start = -1
