"""Prefixes that requests have in common: who begins with one, and how often that came true."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.workloads.sequence import drawn

FLAG_BLOCK = 10
"""Requests per shuffled list of flags."""


@runtime_checkable
class SharesPrefixes(Protocol):
    """A workload that knows its shared prefixes ahead of drawing."""

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        """Lengths of its shared prefixes in tokens; position k is that of ``prefix_id`` k.

        Empty where they are not known ahead.
        """


def sharing_flags(generator: random.Random, fraction: float) -> Iterator[bool]:
    """Whether request 0, 1, … begins with a shared prefix: exactly the share, to within one request in ten.

    METHODOLOGY §4.4 shuffles one list with exactly round(fraction · n) carriers. Here n is ten and the next
    list is shuffled when the last is used up, so that a shorter sequence stays the beginning of a longer
    one and every stretch of it has the share that the audit looks for.
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
    """What a stretch of the sequence really shares, for the fact ``workload.prefix_sharing``.

    Keys: ``realised_fraction``, ``contexts`` (lengths of the prefixes in tokens), ``realised_by_rank``
    (requests per prefix). Of a workload that does not know its prefixes ahead, those that occur, the most
    frequent first. Empty for a workload whose requests share none.
    """
    requests = drawn(workload, first, count, seed)
    sharers = [request for request in requests if request.prefix_id is not None]
    known = workload.shared_prefixes(seed) if isinstance(workload, SharesPrefixes) else ()
    if not requests or (not sharers and not known):
        return {}
    uses = Counter(request.prefix_id for request in sharers)
    if known:
        contexts = list(known)
        by_rank = [uses[rank] for rank in range(len(contexts))]
    else:
        lengths = _longest(sharers)
        ranked = uses.most_common()
        contexts = [lengths[prefix] for prefix, _ in ranked]
        by_rank = [times for _, times in ranked]
    return {
        "realised_fraction": len(sharers) / len(requests),
        "contexts": contexts,
        "realised_by_rank": by_rank,
    }


def _longest(sharers: Sequence[PlannedRequest]) -> dict[int | None, int]:
    lengths: dict[int | None, int] = {}
    for request in sharers:
        lengths[request.prefix_id] = max(lengths.get(request.prefix_id, 0), request.shared_prefix_tokens)
    return lengths


__all__ = ["FLAG_BLOCK", "SharesPrefixes", "realised_sharing", "sharing_flags"]
