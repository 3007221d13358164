"""Shared prefixes: which requests begin with one, and how often they really do; and they as
requests, with which a warm prefix cache is filled (AMB-18).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.sequence import drawn, passing

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


@dataclass(frozen=True)
class Prefixes:
    """One request of one output token for every shared prefix in the first ``among`` requests of ``base``.

    Only the prefixes, not whole prompts: a cache that held the measured prompts themselves would show a
    benefit that no traffic has.
    """

    base: Workload
    among: int

    @property
    def name(self) -> str:
        return f"prefixes of {self.base.name}"

    @property
    def standard(self) -> bool:
        return False

    def count(self, seed: int) -> int:
        """How many different prefixes there are."""
        return len(self._carriers(seed))

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [_prefix_of(request, index) for index, request in enumerate(self._carriers(seed)[:count])]

    def specification(self) -> Mapping[str, Any]:
        return dict(self.base.specification())

    def _carriers(self, seed: int) -> list[PlannedRequest]:
        """The first request with each prefix; the longest of those whose prefixes have an id in common. Of a
        session only its first turn: what later ones share is their own history, and no other session's."""
        longest: dict[int, PlannedRequest] = {}
        for request in drawn(self.base, 0, self.among, seed):
            first = request.turn is None or request.turn.number == 1
            if request.prefix_id is not None and first:
                held = longest.get(request.prefix_id)
                if held is None or held.shared_prefix_tokens < request.shared_prefix_tokens:
                    longest[request.prefix_id] = request
        return list(longest.values())


def _prefix_of(request: PlannedRequest, index: int) -> PlannedRequest:
    # Tools go in a field of their own, and some servers refuse a message without any text.
    length = request.shared_prefix_tokens + (request.structured is not None)
    ids, text = request.token_ids, request.text
    if ids is not None:
        ids, text = ids[:length], None
    elif text is not None:
        tokenizer = reference_tokenizer()
        text = tokenizer.decode(tokenizer.encode(text)[:length])
    return replace(
        request, index=index, max_tokens=1, input_tokens=length, token_ids=ids, text=text, turn=None
    )
