"""Shared prefixes: which requests begin with one, and how often they really do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.sequence import passing

FLAG_BLOCK = 10
"""Number of requests per shuffled list of flags."""


@runtime_checkable
class SharesPrefixes(Protocol):
    """A workload that knows its shared prefixes before drawing."""

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        """Lengths of its shared prefixes in tokens; index k belongs to ``prefix_id`` k.

        Empty where they are not known ahead.
        """


def sharing_flags(generator: random.Random, fraction: float) -> Iterator[bool]:
    """Whether request 0, 1, … begins with a shared prefix: exactly the share, to within one request in ten.

    A sequence of known length would shuffle one list with exactly round(fraction · n) carriers. Here n is ten
    and the next list is shuffled when the last is used up, so that a shorter sequence stays the beginning of
    a longer one and every stretch of it has the share that the audit looks for.
    """
    given = blocks = 0
    while True:
        blocks += 1
        carriers = round(fraction * FLAG_BLOCK * blocks) - given
        given += carriers
        flags = [True] * carriers + [False] * (FLAG_BLOCK - carriers)
        generator.shuffle(flags)
        yield from flags


def realised_sharing(workload: Workload, first: int, count: int, seed: int) -> dict[str, Any]:
    """The realised sharing of prefixes in a stretch of the sequence, for the fact
    ``workload.prefix_sharing``.

    Keys: ``realised_fraction``, ``contexts`` (lengths of the prefixes in tokens), ``realised_by_rank``
    (requests per prefix). Of a workload that does not know its prefixes ahead, those that occur, the most
    frequent first. Empty for a workload whose requests share none.
    """
    every, uses, lengths = 0, Counter[int](), dict[int, int]()
    for request in passing(workload, first, count, seed):
        every += 1
        prefix = request.prefix_id
        if prefix is not None:
            uses[prefix] += 1
            lengths[prefix] = max(lengths.get(prefix, 0), request.shared_prefix_tokens)
    known = workload.shared_prefixes(seed) if isinstance(workload, SharesPrefixes) else ()
    if not every or (not uses and not known):
        return {}
    if known:
        contexts = list(known)
        by_rank = [uses[rank] for rank in range(len(contexts))]
    else:
        ranked = uses.most_common()
        contexts = [lengths[prefix] for prefix, _ in ranked]
        by_rank = [times for _, times in ranked]
    return {
        "realised_fraction": uses.total() / every,
        "contexts": contexts,
        "realised_by_rank": by_rank,
    }
