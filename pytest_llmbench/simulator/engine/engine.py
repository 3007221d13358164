"""Continuous batching by steps: the engine as pure arithmetic, without clock, socket or event loop.

Time does not pass in here. :meth:`Engine.step` works out the next step of the batch from what has been
submitted so far and says how long it takes; whoever drives the engine lets that time pass, in reality or on
a virtual clock, and only then hands out the step's tokens. What is submitted meanwhile joins a later step.

The work of a step does not grow with the number of tokens it makes, apart from copying one list: the end of
every sequence is known from the step of its first token on and waits in a table under its step number, and so
does the end of its thoughts; the KV blocks that a step needs are counted in a table as well.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.guardrails import Guardrails
from pytest_llmbench.simulator.engine.kv_cache import KVCache
from pytest_llmbench.simulator.engine.scheduling import (
    AdapterMemory,
    EngineTotals,
    Preemption,
    StepResult,
    choose_victim,
    still_thinks,
    waiting_queue,
)
from pytest_llmbench.simulator.engine.sequence import (
    DraftLaw,
    EngineSequence,
    OutputLengthLaw,
    ThinkLaw,
)


class QueueFullError(Exception):
    """Raised when ``max_waiting`` sequences wait already: a server answers 429 or 503."""


class Engine:
    """The engine with its queue, batch and caches. Deterministic: the same submissions between the same steps
    give the same results.

    A step first gives a token to every sequence that decodes (several, with speculative decoding); what is
    left of ``max_num_batched_tokens`` goes to prompts, first to those begun, then to waiting sequences in
    their order while there are places (``max_num_seqs``) and KV blocks. A prompt that does not fit is
    prefilled in chunks over several steps, if that is allowed. The step that completes a prompt gives the
    first token.

    A prompt takes all its blocks when it is admitted; output takes them as it grows. When there are too few
    for a step, sequences give way until there are enough, and nobody is admitted in that step.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.guardrails = Guardrails(config)
        """The input and output filters, before and after the batch; whoever submits applies the input
        filter."""
        self.totals = EngineTotals()
        self._law = OutputLengthLaw(config.eos_mean_tokens, config.seed)
        self._thoughts = ThinkLaw(config)
        self._drafts = DraftLaw(config)
        self._speculates = config.speculative_tokens > 0
        self._memory = KVCache(config)
        self._adapters = AdapterMemory(config)
        self._waiting = waiting_queue(config.scheduler)
        self._queued = self._waiting.members
        self._most_thinking = config.max_num_seqs if config.max_think_seqs is None else config.max_think_seqs
        self._expected: dict[EngineSequence, None] = {}
        self._reserved: dict[EngineSequence, None] = {}
        self._received: deque[EngineSequence] = deque()
        self._sending: dict[EngineSequence, None] = {}
        self._prefilling: list[EngineSequence] = []
        self._decoding: dict[EngineSequence, None] = {}
        self._thinking = 0
        self._ends: dict[int, list[EngineSequence]] = {}
        self._answers: dict[int, list[EngineSequence]] = {}
        self._decoding_kv_tokens = 0
        self._moved_blocks = 0
        self._next_step = 0
        self._submitted = 0
        self._joined = 0

    @property
    def waiting(self) -> int:
        """Number of sequences in the queue, including those that were preempted and those whose prompt is
        still to come from another engine."""
        return len(self._waiting) + len(self._expected) + len(self._reserved) + len(self._received)

    @property
    def running(self) -> int:
        """Number of sequences in the batch, including those whose prompts are being prefilled."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, or nothing before a transfer of blocks has ended."""
        if self._decoding or self._prefilling or self._received:
            return False
        if not self._queued:
            return True
        # The head of the queue may wait for blocks that are being sent or received.
        head = self._waiting.head() if self._sending or self._reserved else None
        return head is not None and not self._memory.fits(head, head.prompt_tokens + head.given_before)

    @property
    def full(self) -> bool:
        """Whether the queue accepts no further sequence."""
        limit = self.config.max_waiting
        return limit is not None and len(self._waiting) >= limit

    @property
    def next_step(self) -> int:
        """Number of the next step."""
        return self._next_step

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that sequences hold, 0 to 1."""
        return self._memory.used / self._memory.blocks

    def cached_tokens(self, sequence: EngineSequence) -> int:
        """Number of tokens at the beginning of its prompt that the prefix cache holds. Looking does not
        change the order of eviction."""
        self._memory.identify(sequence)
        return self._memory.found_tokens(sequence, sequence.prompt_tokens)

    def submit(self, sequence: EngineSequence) -> None:
        """Queue a sequence.

        ValueError if it can never run, QueueFullError if the queue is full: refusing such a request is the
        caller's part.
        """
        self._require_possible(sequence)
        if self.full:
            raise QueueFullError(f"{len(self._waiting)} sequences wait already")
        self._number(sequence)
        self._waiting.push(sequence)

    def _require_possible(self, sequence: EngineSequence) -> None:
        if sequence.prompt_tokens < 1 or sequence.max_tokens < 1:
            raise ValueError("a sequence needs at least one prompt token and one output token")
        if sequence.prompt_tokens + sequence.max_tokens > self.config.context_limit_tokens:
            raise ValueError(
                f"{sequence.prompt_tokens} prompt tokens and {sequence.max_tokens} output tokens exceed the "
                f"context of {self.config.context_limit_tokens}"
            )

    def _number(self, sequence: EngineSequence) -> None:
        """Give a sequence that comes in its number, and draw its lengths from the laws."""
        thoughts, reason = self._thoughts.draw()
        if thoughts and not (sequence.thinks and sequence.generates):
            thoughts, reason = 0, None
        if not sequence.generates:
            self._law.skip()
            sequence.output_tokens = 1
        elif thoughts >= sequence.max_tokens:
            self._law.skip()
            sequence.think_tokens = sequence.output_tokens = sequence.max_tokens
            sequence.finish_reason = "length"
        else:
            answer, sequence.finish_reason = self._law.draw(
                sequence.max_tokens - thoughts, sequence.min_tokens - thoughts, sequence.ignore_eos
            )
            sequence.think_tokens, sequence.think_reason = thoughts, reason
            sequence.output_tokens = thoughts + answer
        cut = self.guardrails.cut(sequence.output_tokens) if sequence.generates else None
        if cut is not None:
            sequence.output_tokens, sequence.withheld_tokens = cut
            sequence.finish_reason = "content_filter"
            if sequence.output_tokens <= sequence.think_tokens:
                sequence.think_tokens, sequence.think_reason = sequence.output_tokens, None
        sequence.thinking = still_thinks(sequence)
        sequence.ticket = self._submitted
        self._submitted += 1
        if self._speculates:
            self._drafts.draw(sequence)
        self._memory.identify(sequence)

    def abort(self, sequence: EngineSequence) -> bool:
        """Remove a sequence, wherever it is. Returns False if it has finished already, or was never
        submitted."""
        if sequence in self._decoding or sequence in self._prefilling:
            self._take_out(sequence)
            return True
        if self._waiting.discard(sequence):
            return True
        if sequence in self._expected:
            del self._expected[sequence]
            return True
        if sequence in self._received:
            self._received.remove(sequence)
        elif sequence in self._reserved:
            del self._reserved[sequence]
        elif sequence in self._sending:
            del self._sending[sequence]
        else:
            return False
        self._memory.free(sequence, self._next_step)
        return True

    # -- prefill in one engine, decode in another ------------------------------------------------------

    def expect(self, sequence: EngineSequence) -> None:
        """Accept a sequence whose prompt another engine has computed.

        It waits for its blocks (:meth:`reserve`), for what belongs into them (:meth:`receive`), and then for
        a place in the batch, before those in the queue. Its last prompt token is computed again, as only
        computing gives the next. ValueError if it can never run.
        """
        self._require_possible(sequence)
        self._number(sequence)
        self._expected[sequence] = None

    def expects(self, sequence: EngineSequence) -> bool:
        """Whether the sequence waits for its blocks."""
        return sequence in self._expected

    def reserve(self) -> list[EngineSequence]:
        """Give expected sequences their blocks, in order, while there are enough and no preempted one waits.

        Returns those whose blocks may be sent from now on: ``received_blocks`` of each, all that the prefix
        cache does not have.
        """
        given = []
        while self._expected and not self._waiting:
            sequence = next(iter(self._expected))
            found = self._memory.admit(sequence, sequence.prompt_tokens, share=True)
            if found is None:
                break
            sequence.target_tokens = sequence.prompt_tokens
            sequence.prefilled_tokens = sequence.prompt_tokens - 1
            sequence.received_blocks = self._memory.blocks_for(sequence.prompt_tokens - found)
            del self._expected[sequence]
            self._reserved[sequence] = None
            given.append(sequence)
        return given

    def receive(self, sequence: EngineSequence, took_ns: int) -> bool:
        """Note that the blocks of a sequence have arrived; it may join the batch. Returns False if it has
        been aborted since."""
        if sequence not in self._reserved:
            return False
        del self._reserved[sequence]
        self._received.append(sequence)
        self.totals.transfers += 1
        self.totals.transfer_ns += took_ns
        return True

    def release(self, sequence: EngineSequence) -> None:
        """Free the blocks of a sequence that was prefilled for another engine, once they have been sent. Does
        nothing a second time."""
        if sequence in self._sending:
            del self._sending[sequence]
            self._memory.free(sequence, self._next_step)

    def load_adapter(self, name: str) -> None:
        """Load an adapter now, as a call asks for it: the next step of a working engine waits for it."""
        self._adapters.load(name, waited_for=not self.idle)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter, which its next use then loads again. What runs keeps it."""
        self._adapters.unload(name)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running sequences keep their blocks, but no later prompt finds them."""
        self._memory.forget_prefixes()

    def step(self) -> StepResult:
        """Work out the next step. RuntimeError if there is nothing to do (``idle``)."""
        if self.idle:
            raise RuntimeError("a step of an idle engine: nothing has been submitted")
        index = self._next_step
        if self._memory.grow(index):
            return self._work(index, admit=True)
        if self.config.preemption != "off":
            preempted = self._preempt(index)
            result = self._work(index, admit=False)
            result.preempted = preempted
            return result
        if self.config.out_of_memory == "engine":
            return self._crash(index)
        failed = []
        while not self._memory.grow(index):  # the last to join that needs a block fails first
            short = self._memory.think_tier_short(index)
            needy = (s for s in self._decoding if self._memory.needs_block(s, index))
            victim = max(needy, key=lambda s: (short and s.thinking, s.joined))
            self._take_out(victim)
            victim.finish_reason = "error"
            failed.append(victim)
        self.totals.failed += len(failed)
        result = self._work(index, admit=True)
        result.failed = tuple(failed)
        return result

    def glide(
        self, now_ns: int, until_ns: int, sample_ns: int, ends_ns: array[int]
    ) -> tuple[int, Sequence[EngineSequence]]:
        """Take the steps from ``now_ns`` on that begin before ``until_ns`` and only give every sequence of
        the batch its next token: what :meth:`step` would do in each, without a result for each.

        The last is the first that ends after ``sample_ns``, or with the last token of a sequence. Appends the
        end of each to ``ends_ns``; returns the last of them, and the sequences that have finished with it.
        """
        decoding = len(self._decoding)
        if self._prefilling or not decoding or self._speculates or self._adapters.loading:
            return now_ns, ()
        if (self._queued or self._received) and decoding < self.config.max_num_seqs:
            return now_ns, ()
        ends, answers, grow, note = self._ends, self._answers, self._memory.grow, ends_ns.append
        first = index = self._next_step
        kv_tokens, fixed_us = self._decoding_kv_tokens, self.config.decode_step_us(decoding)
        per_token_us, adapters_us = self.config.kv_us_per_token, self._adapters.step_us()
        while now_ns < until_ns and now_ns <= sample_ns:
            if index in answers or index + 1 in answers or not grow(index):
                break
            # step_ns, most of it done before
            now_ns += round((fixed_us + per_token_us * kv_tokens + adapters_us) * 1000.0)
            kv_tokens += decoding
            index += 1
            note(now_ns)
            if index - 1 in ends:
                break
        self._next_step, self._decoding_kv_tokens = index, kv_tokens
        self.totals.generated_tokens += decoding * (index - first)
        return now_ns, self._end_step(index - 1) if index - 1 in ends else ()

    def _work(self, index: int, admit: bool) -> StepResult:
        admitted: list[EngineSequence] = []
        resumed: tuple[EngineSequence, ...] = ()
        if admit and (self._queued or self._received):
            admitted, resumed = self._admit(index)
        decoded = list(self._decoding)
        decoding, kv_tokens, prefill_tokens, pairs = len(decoded), self._decoding_kv_tokens, 0, 0
        first_tokens: list[EngineSequence] = []
        counts: list[int] = []
        if self._speculates:
            drafts = (accepted for sequence in decoded if (accepted := sequence.draft_of(index)) >= 0)
            self.totals.drafts.update(drafts)
            counts = [s.given_tokens(index + 1) - s.given_tokens(index) for s in decoded]
        self._decoding_kv_tokens += sum(counts) if counts else decoding
        if self._prefilling:
            prefill_tokens, prefix_tokens, pairs = self._prefill(
                self.config.max_num_batched_tokens - decoding
            )
            kv_tokens += prefix_tokens
            first_tokens, recomputed = self._complete_prompts(index)
            decoded += recomputed
            if self._speculates:
                counts += [1] * len(recomputed)
        duration_ns = self.config.step_ns(
            prefill_tokens, decoding, kv_tokens, pairs, self._moved_blocks, self._adapters.step_us()
        )
        if self._moved_blocks:
            self.totals.swapped_blocks += self._moved_blocks
            self._moved_blocks = 0
        self.totals.generated_tokens += sum(counts) if counts else len(decoded)
        for sequence in first_tokens:
            self.totals.generated_tokens += sequence.generates
        answering = self._answers.pop(index, [])
        finished = self._end_step(index)
        # fmt: off
        # By place: by name it takes half as long again.
        return StepResult(
            index, duration_ns, prefill_tokens, kv_tokens, admitted, first_tokens, decoded, finished,
            answering, (), resumed, (), counts,
        )
        # fmt: on

    # -- making room -----------------------------------------------------------------------------------

    def _preempt(self, index: int) -> tuple[Preemption, ...]:
        events = []
        protect = self.config.scheduler == "phase"
        while not self._memory.grow(index):
            candidates = [*self._prefilling, *self._decoding]
            victim = choose_victim(candidates, self.config.preemption_victim, protect, index)
            # A prompt under way is not worth the move to host memory.
            swap = self.config.preemption == "swap" and victim.span_start >= 0
            lost = 0 if swap else victim.stored_tokens(index)
            events.append(Preemption(victim, lost, swap, protect and not victim.thinking))
            victim.critical_evictions += events[-1].critical
            held_blocks = self._take_out(victim)
            self._moved_blocks += held_blocks if swap else 0
            victim.preemptions += 1
            victim.lost_tokens += lost
            victim.swapped = swap
            victim.prefilled_tokens = 0
            self._waiting.push(victim)
        self.totals.preemptions += len(events)
        self.totals.lost_tokens += sum(event.lost_tokens for event in events)
        self.totals.critical_evictions += sum(event.critical for event in events)
        return tuple(events)

    def _crash(self, index: int) -> StepResult:
        """The step of a crash: everything in the engine fails, what waits included, and the cache is empty
        afterwards."""
        between = (*self._expected, *self._reserved, *self._received)
        failed = (*self._prefilling, *self._decoding, *self._waiting.clear(), *between)
        for sequence in failed:
            sequence.finish_reason = "error"
            if sequence.span_start >= 0:
                sequence.close_span(index)
        self._memory = KVCache(self.config)
        self._adapters = AdapterMemory(self.config)
        for table in (self._prefilling, self._decoding, self._ends, self._answers):
            table.clear()
        for place in (self._expected, self._reserved, self._received, self._sending):
            place.clear()
        self._decoding_kv_tokens = self._thinking = 0
        self._next_step += 1
        self.totals.failed += len(failed)
        self.totals.crashes += 1
        recovery_ns = round(self.config.recovery_ms * 1e6)
        return StepResult(index, recovery_ns, 0, 0, [], [], [], [], [], failed=failed, crashed=True)

    # -- taking in -------------------------------------------------------------------------------------

    def _admit(self, index: int) -> tuple[list[EngineSequence], tuple[EngineSequence, ...]]:
        """Move sequences from the queue into the batch while there are places, tokens and blocks.

        Returns those that come for the first time, and the others. Nobody overtakes the head of the queue.
        """
        budget = self.config.max_num_batched_tokens - len(self._decoding)
        for sequence in self._prefilling:
            budget -= sequence.target_tokens - sequence.prefilled_tokens
        admitted: list[EngineSequence] = []
        resumed: list[EngineSequence] = []
        places = self.config.max_num_seqs
        while self._received and budget > 0 and self.running < places:
            if self._received[0].thinking and self._thinking >= self._most_thinking:
                break
            if not self._adapters.fits(self._received[0].adapter):
                break
            resumed.append(self._received.popleft())
            budget -= self._join(resumed[-1], index)
        while budget > 0 and self._queued and self.running < places:
            head = self._waiting.head(self._thinking < self._most_thinking)
            if head is None or not self._adapters.fits(head.adapter) or not self._allot(head, budget):
                break
            self._waiting.discard(head)
            (resumed if head.preemptions else admitted).append(head)
            budget -= self._join(head, index)
        return admitted, tuple(resumed)

    def _allot(self, sequence: EngineSequence, budget: int) -> bool:
        """Give a waiting sequence its blocks; returns False if there are too few, or the step has no room for
        it."""
        tokens = sequence.prompt_tokens + sequence.given_before
        if not (self.config.chunked_prefill or sequence.swapped):
            whole = tokens - self._memory.found_tokens(sequence, tokens)
            if whole > budget:
                return False
        found = self._memory.admit(sequence, tokens, share=not sequence.swapped)
        if found is None:
            return False
        sequence.target_tokens = tokens
        sequence.prefilled_tokens = found
        if sequence.preemptions:
            self.totals.resume_hit_tokens += found
        else:
            sequence.cached_tokens = found
            if self._memory.prefix is not None:
                self.totals.prefix_query_tokens += sequence.prompt_tokens
                self.totals.prefix_hit_tokens += found
        return True

    def _join(self, sequence: EngineSequence, index: int) -> int:
        """Put a sequence that has its blocks into the batch; returns how many tokens of the step it takes."""
        sequence.joined = self._joined
        self._joined += 1
        self._thinking += sequence.thinking
        self._adapters.join(sequence.adapter)
        if not sequence.swapped:
            self._prefilling.append(sequence)
            return sequence.target_tokens - sequence.prefilled_tokens
        sequence.swapped = False
        self._moved_blocks += self._memory.blocks_for(sequence.target_tokens - 1)
        self._begin_decoding(sequence, index)
        self._decoding_kv_tokens += sequence.target_tokens
        return 1

    # -- working ---------------------------------------------------------------------------------------

    def _prefill(self, budget: int) -> tuple[int, int, int]:
        """Spend the budget on prompts in order.

        Returns the tokens processed, the tokens that their earlier chunks hold, and the pairs of attention.
        """
        processed = held = pairs = 0
        for sequence in self._prefilling:
            before = sequence.prefilled_tokens
            chunk = min(sequence.target_tokens - before, budget - processed)
            if chunk > 0:
                processed += chunk
                held += before
                pairs += chunk * before + chunk * (chunk + 1) // 2
                sequence.prefilled_tokens += chunk
                self._memory.keep(sequence)
        self.totals.prefill_tokens += processed
        return processed, held, pairs

    def _complete_prompts(self, index: int) -> tuple[list[EngineSequence], list[EngineSequence]]:
        """Let the sequences whose prompts are complete begin to decode; returns those that give their first
        token, and the others."""
        complete = [s for s in self._prefilling if s.prefilled_tokens == s.target_tokens]
        if not complete:
            return [], []
        self._prefilling = [s for s in self._prefilling if s.prefilled_tokens < s.target_tokens]
        first_tokens: list[EngineSequence] = []
        recomputed: list[EngineSequence] = []
        for sequence in complete:
            (recomputed if sequence.given_before else first_tokens).append(sequence)
            self._begin_decoding(sequence, index)
            self._decoding_kv_tokens += sequence.target_tokens + 1
        return first_tokens, recomputed

    def _begin_decoding(self, sequence: EngineSequence, index: int) -> None:
        sequence.begin_span(index)
        self._decoding[sequence] = None
        given = sequence.given_before
        self._ends.setdefault(sequence.step_of(sequence.output_tokens - 1), []).append(sequence)
        if given <= sequence.think_tokens < sequence.output_tokens:
            self._answers.setdefault(sequence.step_of(sequence.think_tokens), []).append(sequence)
        self._memory.begin_decoding(sequence)

    def _end_step(self, index: int) -> list[EngineSequence]:
        """Count the step, and remove the sequences that gave their last token in it; returns these."""
        self._next_step = index + 1
        finished = self._ends.pop(index, [])
        for sequence in finished:
            self._leave_decoding(sequence)
            if sequence.decode is not None:
                self._sending[sequence] = None
                sequence.decode.prefix_hashes = sequence.prefix_hashes
                sequence.decode.cached_tokens = sequence.cached_tokens
        for sequence in self._answers.get(self._next_step, ()):
            self._memory.stop_thinking(sequence, self._next_step)
            sequence.thinking = False
            self._thinking -= 1
        return finished

    # -- taking out ------------------------------------------------------------------------------------

    def _take_out(self, sequence: EngineSequence) -> int:
        """Remove a sequence from the batch before its end; returns how many blocks it held."""
        if sequence not in self._decoding:
            self._prefilling.remove(sequence)
            self._thinking -= sequence.thinking
            self._adapters.leave(sequence.adapter)
            return self._memory.free(sequence, self._next_step)
        last_step = sequence.last_step
        assert last_step is not None
        self._ends[last_step].remove(sequence)
        answers_at = sequence.step_of(sequence.think_tokens)
        if sequence in self._answers.get(answers_at, ()):
            self._answers[answers_at].remove(sequence)
        return self._leave_decoding(sequence)

    def _leave_decoding(self, sequence: EngineSequence) -> int:
        """Free what a decoding sequence holds: the blocks of its prompt and of the tokens it has given so
        far.

        What must be sent to another engine is held beyond that.
        """
        if sequence.hands_over:
            held = self._memory.holding(sequence, self._next_step)
            self._memory.stop_growing(sequence)
        else:
            held = self._memory.free(sequence, self._next_step)
        self._thinking -= sequence.thinking
        self._adapters.leave(sequence.adapter)
        self._decoding_kv_tokens -= sequence.prompt_tokens + sequence.given_tokens(self._next_step)
        sequence.close_span(self._next_step)
        del self._decoding[sequence]
        return held
