"""Prompts of exactly the drawn length as the server counts them, chat template included (AMB-32).

Which text that is can only be found by asking the server, so such a workload is bound to one when it is
measured; before that, for a plan or a check, it has the lengths and the ids of the workload it was made from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.probes.access import Access
from pytest_llmbench.workloads.exact_length import exact_prompt
from pytest_llmbench.workloads.stream import draws_anew

if TYPE_CHECKING:
    from pytest_llmbench.probes.token_count import ServerTokenCount

Count = Callable[[str], int]
_MOST_CALLS = 100_000


class TokenCounter:
    """Asks one server; nothing is opened before the first count."""

    def __init__(self, make: Callable[[], ServerTokenCount], server: str) -> None:
        self._make = make
        self._opened: ServerTokenCount | None = None
        self.server = server

    @classmethod
    def of(
        cls, base_url: str, model: str, api: str, access: Access, extra_body: Mapping[str, Any]
    ) -> TokenCounter:
        def make() -> ServerTokenCount:
            from pytest_llmbench.probes.token_count import ServerTokenCount

            return ServerTokenCount(
                base_url, model, api, access, extra_body=extra_body, most_calls=_MOST_CALLS
            )

        return cls(make, base_url)

    def __call__(self, text: str) -> int:
        if self._opened is None:
            self._opened = self._make()
        return self._opened(text)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.__exit__(None, None, None)
            self._opened = None


@dataclass(frozen=True)
class ExactLengths:
    """The lengths of ``base``, with text of exactly that length in place of its ids."""

    base: Workload
    server: str = ""
    """The server whose tokens are counted; empty while nobody's are."""
    count: Count | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def standard(self) -> bool:
        return False

    @property
    def draws_anew(self) -> bool:
        return draws_anew(self.base)

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        """The first ``count`` requests; those of the base while it is not bound to a server."""
        drawn = self.base.requests(count, seed)
        return drawn if self.count is None else [self._exact(request, seed) for request in drawn]

    def _exact(self, request: PlannedRequest, seed: int) -> PlannedRequest:
        assert self.count is not None
        digest = hashlib.sha256(f"{seed}/exact/{request.index}".encode()).digest()
        found = exact_prompt(request.input_tokens, self.count, int.from_bytes(digest[:8], "big"))
        return replace(request, token_ids=None, text=found.text)

    def specification(self) -> Mapping[str, Any]:
        stated = dict(self.base.specification())
        stated["content"] = {**stated["content"], "domain": "readable random words", "language": "English"}
        stated["input_length"] = {
            **stated["input_length"],
            "exact": self.count is not None,
            "tokenizer": f"that of the SUT, chat template included ({self.server or 'not bound yet'})",
        }
        return stated


def bound(workload: Workload, counter: TokenCounter | None) -> Workload:
    """``workload`` with the server to ask; as it is where it needs none, or where ids are sent (a replay)."""
    if not isinstance(workload, ExactLengths) or counter is None:
        return workload
    return replace(workload, server=counter.server, count=counter)
