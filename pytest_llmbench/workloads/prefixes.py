"""The shared prefixes of a workload as requests, with which a warm prefix cache is filled (AMB-18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.sequence import drawn


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
