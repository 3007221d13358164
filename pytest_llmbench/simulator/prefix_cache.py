"""Blocks of prompts kept for later prompts that begin alike: chained hashes, reference counts, LRU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


def chained_hashes(token_ids: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """One hash per full block, each over the block's tokens and the hash before it.

    So equal hashes mean equal beginnings up to that block. A block that is not full has none.
    """
    hashes = []
    before = 0
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        before = hash((before, *token_ids[start : start + block_tokens]))
        hashes.append(before)
    return tuple(hashes)


class PrefixCache:
    """Which blocks are kept, and how many sequences use each. One without a user stays until evicted."""

    def __init__(self) -> None:
        self._references: dict[int, int] = {}
        # In the order of eviction. A plain dict would search all its dead entries for its first one.
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._stale: set[int] = set()
        """In use, but not to be found: computed before :meth:`forget`."""
        self.evictions = 0

    def __len__(self) -> int:
        """Blocks kept, used or not."""
        return len(self._references)

    def __contains__(self, block: int) -> bool:
        return block in self._references

    @property
    def used(self) -> int:
        """Blocks that at least one sequence uses; these are never evicted."""
        return len(self._references) - len(self._unused)

    def hits(self, hashes: Sequence[int], most: int) -> int:
        """How many of the first ``most`` blocks are kept, up to the first that is not."""
        found = 0
        while found < min(most, len(hashes)) and hashes[found] in self._references:
            if hashes[found] in self._stale:
                break
            found += 1
        return found

    def newly_used(self, hashes: Sequence[int]) -> int:
        """How many of these kept blocks nobody uses at present."""
        return sum(block in self._unused for block in hashes)

    def acquire(self, block: int) -> bool:
        """Use a block from now on. False if it was not kept: then it is now, with one user."""
        count = self._references.get(block)
        self._references[block] = 1 if count is None else count + 1
        self._unused.pop(block, None)
        self._stale.discard(block)  # somebody has computed it anew
        return count is not None

    def release(self, hashes: Sequence[int]) -> None:
        """One sequence less uses these. The last is evicted first, as beginnings are shared more often."""
        for block in reversed(hashes):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._stale:
                    self._stale.remove(block)
                    del self._references[block]
                else:
                    self._unused[block] = None

    def forget(self) -> None:
        """Nothing kept so far is found any more. Blocks in use stay until their last user has gone."""
        for block in self._unused:
            del self._references[block]
        self._unused.clear()
        self._stale.update(self._references)

    def evict(self, count: int) -> None:
        """Forget the ``count`` blocks that have been unused for longest."""
        for _ in range(count):
            block, _ = self._unused.popitem(last=False)
            del self._references[block]
        self.evictions += count


__all__ = ["PrefixCache", "chained_hashes"]
