"""The paged KV cache. Only blocks in the prefix cache have an identity; all others are merely counted.

Every decoding sequence takes a further block once in ``block_tokens`` steps, and in which of them is known
when it begins. So the blocks that a step needs are read from a table of ``block_tokens`` entries, whatever
the size of the batch. With speculative decoding the table has an entry for each step ahead.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from pytest_llmbench.simulator.engine.config import EngineConfig, think_blocks
from pytest_llmbench.simulator.engine.sequence import EngineSequence


def chained_hashes(token_ids: Sequence[int], block_tokens: int, known: Sequence[int] = ()) -> tuple[int, ...]:
    """Prefix hashes of a prompt: one per full block, each over the block's tokens and the hash before it.

    So equal hashes mean equal beginnings up to that block. A block that is not full has none. ``known``:
    those of its first blocks, of a prompt that begins in the same way.
    """
    hashes = list(known)
    before = hashes[-1] if hashes else 0
    for start in range(len(hashes) * block_tokens, len(token_ids) - block_tokens + 1, block_tokens):
        before = hash((before, *token_ids[start : start + block_tokens]))
        hashes.append(before)
    return tuple(hashes)


class PrefixCache:
    """The blocks that the prefix cache keeps, with the number of sequences that use each.

    A block without a user stays until it is evicted.
    """

    def __init__(self) -> None:
        self._references: dict[int, int] = {}
        # In the order of eviction. A plain dict would search all its dead entries for its first one.
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._stale: set[int] = set()
        """Blocks in use that no later prompt may find, because they were computed before :meth:`forget`."""
        self.evictions = 0

    def __len__(self) -> int:
        """Number of blocks kept, used or not."""
        return len(self._references)

    def __contains__(self, block: int) -> bool:
        return block in self._references

    @property
    def used(self) -> int:
        """Number of blocks that at least one sequence uses; these are never evicted."""
        return len(self._references) - len(self._unused)

    def hits(self, hashes: Sequence[int], most: int) -> int:
        """How many of the first ``most`` blocks are kept, up to the first that is not."""
        kept, stale = self._references, self._stale
        for found, block in enumerate(hashes[:most]):
            if block not in kept or block in stale:
                return found
        return min(most, len(hashes))

    def newly_used(self, hashes: Sequence[int]) -> int:
        """How many of these kept blocks nobody uses at present."""
        return sum(map(self._unused.__contains__, hashes))

    def acquire(self, hashes: Sequence[int]) -> None:
        """Add a user to blocks, those that :meth:`hits` has found or others, which are kept from now on."""
        references, unused, stale = self._references, self._unused, self._stale
        for block in hashes:
            count = references.get(block)
            if count is None:
                references[block] = 1
                continue
            references[block] = count + 1
            if not count:
                del unused[block]
            if stale:
                stale.discard(block)  # somebody has computed it anew

    def release(self, hashes: Sequence[int]) -> None:
        """Take one user from these blocks. The last block is evicted first, as beginnings are shared more
        often."""
        references, unused, stale = self._references, self._unused, self._stale
        for block in reversed(hashes):
            count = references[block] - 1
            references[block] = count
            if count:
                continue
            if block in stale:
                stale.remove(block)
                del references[block]
            else:
                unused[block] = None

    def forget(self) -> None:
        """Forget everything kept so far: none of it is found any more.

        Blocks in use stay until their last user has gone.
        """
        for block in self._unused:
            del self._references[block]
        self._unused.clear()
        self._stale.update(self._references)

    def evict(self, count: int) -> None:
        """Evict the ``count`` blocks that have been unused for longest."""
        for _ in range(count):
            block, _ = self._unused.popitem(last=False)
            del self._references[block]
        self.evictions += count


_Due = list[int] | Counter[int]
_NO_PERIOD = 1 << 62


class KVCache:
    """The KV cache as the number of blocks that each sequence holds.

    A sequence that decodes holds its prompt and all output tokens but the newest.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.block_tokens = config.kv_block_tokens
        self.blocks = config.kv_blocks
        self.prefix = PrefixCache() if config.prefix_caching else None
        self._tiered = config.scheduler == "phase"
        self._plain = self.prefix is None and not self._tiered
        """Whether all blocks are alike and go to whoever asks first, so that only their number must be
        kept."""
        self._think_limit = think_blocks(config.kv_blocks, config.output_kv_share)
        self._private = 0
        self._held_by_thinking = 0
        speculates = config.speculative_tokens > 0
        self._period = _NO_PERIOD if speculates else self.block_tokens
        self._due: _Due = Counter() if speculates else [0] * self.block_tokens
        self._due_thinking: _Due = Counter() if speculates else [0] * self.block_tokens

    @property
    def used(self) -> int:
        """Number of blocks that sequences hold."""
        return self._private + (0 if self.prefix is None else self.prefix.used)

    @property
    def available(self) -> int:
        """Number of blocks that can be taken: free, or kept in the prefix cache without a user."""
        return self.blocks - self.used

    def holding(self, sequence: EngineSequence, next_step: int) -> int:
        """Number of blocks that a sequence (one that has some) holds before step ``next_step``."""
        if sequence.span_start < 0:
            return self.blocks_for(sequence.target_tokens)
        return self.blocks_for(sequence.prompt_tokens + sequence.given_tokens(next_step) - 1)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    # -- a step's growth -------------------------------------------------------------------------------

    def grow(self, step: int) -> bool:
        """Take the blocks that decoding needs in this step. Returns False, and takes none, if there are too
        few."""
        row = step % self._period
        if self._plain:
            held = self._private + self._due[row]
            if held > self.blocks:
                return False
            self._private = held
            return True
        thinking = self._due_thinking[row]
        need = self._due[row] + thinking
        if not need:
            return True
        if need > self.available or self._held_by_thinking + thinking > self._think_limit:
            return False
        self._held_by_thinking += thinking
        self._take(need)
        return True

    def think_tier_short(self, step: int) -> bool:
        """Whether the tier of the sequences that think is the one with too few blocks for this step."""
        thinking = self._due_thinking[step % self._period]
        return self._held_by_thinking + thinking > self._think_limit

    def needs_block(self, sequence: EngineSequence, step: int) -> bool:
        """Whether a decoding sequence takes a further block in this step."""
        return sequence.span_start >= 0 and step % self._period in self._rows(sequence)

    def _rows(self, sequence: EngineSequence) -> Iterable[int]:
        """The entries of the table in which it takes a block each; an entry may come several times."""
        if sequence.made is not None:
            first, last = sequence.span_start + 1, sequence.last_step
            assert last is not None
            held = [self.holding(sequence, step) for step in range(first, last + 2)]
            return [first + n for n, (a, b) in enumerate(pairwise(held)) for _ in range(b - a)]
        # The step with g tokens given before it stores token prompt + g, the first of a block if it is 1 more
        # than a multiple of block_tokens; g = given_before + (step - span_start).
        row = sequence.span_start - sequence.given_before + 1 - sequence.prompt_tokens
        return (row % self._period,)

    def begin_decoding(self, sequence: EngineSequence) -> None:
        """Let a sequence take its blocks as it grows, from now on. Call it after its span has begun."""
        self._note(sequence, 1, thinking=sequence.thinking)

    def stop_growing(self, sequence: EngineSequence) -> None:
        """Let a decoding sequence take no further blocks. Call it before its span is closed."""
        self._note(sequence, -1, thinking=sequence.thinking)

    def _note(self, sequence: EngineSequence, blocks: int, *, thinking: bool) -> None:
        due = self._due_thinking if self._tiered and thinking else self._due
        for row in self._rows(sequence):
            due[row] += blocks
            if isinstance(due, Counter) and not due[row]:
                del due[row]

    def stop_thinking(self, sequence: EngineSequence, next_step: int) -> None:
        """Move the blocks of a decoding sequence to the output tier, as it begins its answer."""
        if self._tiered:
            self._held_by_thinking -= self.holding(sequence, next_step)
            self._note(sequence, -1, thinking=True)
            self._note(sequence, 1, thinking=False)

    # -- coming and going ------------------------------------------------------------------------------

    def identify(self, sequence: EngineSequence) -> None:
        """Compute the prefix hashes of a prompt whose tokens are known, if there is a prefix cache."""
        if self.prefix is not None and sequence.prefix_hashes is None and sequence.token_ids is not None:
            sequence.prefix_hashes = chained_hashes(sequence.token_ids, self.block_tokens)

    def found_tokens(self, sequence: EngineSequence, tokens: int) -> int:
        """Number of the first ``tokens`` tokens that the prefix cache has; at least one is left to
        compute."""
        return self._hits(self._shareable(sequence), tokens) * self.block_tokens

    def _hits(self, hashes: Sequence[int], tokens: int) -> int:
        return self.prefix.hits(hashes, (tokens - 1) // self.block_tokens) if self.prefix is not None else 0

    def fits(self, sequence: EngineSequence, tokens: int) -> bool:
        """Whether there are enough blocks for its first ``tokens`` tokens."""
        return self._missing(self._shareable(sequence), tokens)[1] <= self.available

    def _missing(self, hashes: Sequence[int], tokens: int) -> tuple[int, int]:
        """Number of blocks (of so many tokens) that the prefix cache has, and number of available blocks that
        the rest and the unused ones among them would take."""
        hits = self._hits(hashes, tokens)
        revived = self.prefix.newly_used(hashes[:hits]) if self.prefix is not None else 0
        return hits, self.blocks_for(tokens) - hits + revived

    def admit(self, sequence: EngineSequence, tokens: int, share: bool) -> int | None:
        """Take the blocks for its first ``tokens`` tokens; returns how many of those tokens the prefix cache
        had.

        ``None``, and nothing taken, if there are too few. At least one token is left to compute, since only
        computing gives the next. ``share=False``: bring all from elsewhere (host memory).
        """
        blocks = self.blocks_for(tokens)
        if self._plain:
            if blocks > self.blocks - self._private:
                return None
            self._private += blocks
            return 0
        held_by_thinking = self._held_by_thinking + (blocks if self._tiered and sequence.thinking else 0)
        hashes = self._shareable(sequence) if share else ()
        hits, taken = self._missing(hashes, tokens)
        if taken > self.available or held_by_thinking > self._think_limit:
            return None
        if self.prefix is not None:
            self.prefix.acquire(hashes[:hits])
        sequence.shared_blocks = hits
        self._held_by_thinking = held_by_thinking
        self._take(blocks - hits)
        return hits * self.block_tokens

    def keep(self, sequence: EngineSequence) -> None:
        """Put the full blocks of the prompt that have been computed by now into the prefix cache.

        A block that another sequence computed at the same time is kept once.
        """
        if self.prefix is None:
            return
        hashes = self._shareable(sequence)
        computed = min(sequence.prefilled_tokens // self.block_tokens, len(hashes))
        fresh = hashes[sequence.shared_blocks : computed]
        self.prefix.acquire(fresh)
        self._private -= len(fresh)
        sequence.shared_blocks = max(sequence.shared_blocks, computed)

    def free(self, sequence: EngineSequence, next_step: int) -> int:
        """Free all blocks it holds; returns how many there were. Call it before its span is closed."""
        held = self.holding(sequence, next_step)
        if sequence.span_start >= 0:
            self.stop_growing(sequence)
        if self._plain:
            self._private -= held
            return held
        if self._tiered and sequence.thinking:
            self._held_by_thinking -= held
        self._private -= held - sequence.shared_blocks
        if self.prefix is not None and sequence.shared_blocks:
            self.prefix.release(self._shareable(sequence)[: sequence.shared_blocks])
        sequence.shared_blocks = 0
        return held

    def forget_prefixes(self) -> None:
        """Forget what has been computed so far, so that no later prompt finds it.

        The blocks that sequences hold do not change.
        """
        if self.prefix is not None:
            self.prefix.forget()

    def _shareable(self, sequence: EngineSequence) -> Sequence[int]:
        hashes = sequence.prefix_hashes if self.prefix is not None else None
        return hashes[: sequence.prompt_tokens // self.block_tokens] if hashes else ()

    def _take(self, blocks: int) -> None:
        self._private += blocks
        if self.prefix is not None:
            excess = self._private + len(self.prefix) - self.blocks
            if excess > 0:
                self.prefix.evict(excess)
