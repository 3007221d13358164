"""Prompts whose length, as the server counts it with its chat template, is exactly the drawn one (AMB-32).

Which text that is can only be found by counting as the server does, so such a workload is bound to one when
it is measured; before that, for a plan or a check, it has the lengths and the ids of the workload it was made
from. With the SUT's own tokenizer the server need not be asked for every prompt, and ids can be its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import highest_id, with_lengths_of
from pytest_llmbench.workloads.readable import as_ids, exact_prompt, readable_ids, reordered
from pytest_llmbench.workloads.stream import BulkRandom, derived_seed, streamed

if TYPE_CHECKING:
    from pytest_llmbench.probes.token_count import ServerTokenCount
    from pytest_llmbench.tokens import HuggingFaceTokenizer

Count = Callable[[str], int]
MOST_CALLS = 100_000
_LIKE_PROMPTS = (8, 40, 120)
"""Lengths in words of the prompts for which the server is asked."""
_WORDS = " the early train would always wait beside our quiet harbor while two people carry heavy paper boxes"
"""Counted in two orders, to see whether a text has the tokens of its words."""
_UNLIKE_OTHERS = "Größe 漢字 = 3141592653; int main(void) { return x->y; }"
"""A text that vocabularies rarely agree about, as they do about plain words."""


class TokenCounter:
    """Counts tokens as one server does; nothing is opened before the first count.

    Without a ``tokenizer`` the server is asked for every text. With its own it is asked about four, to learn
    what it adds to every prompt: special tokens, chat template.
    """

    def __init__(
        self, make: Callable[[], ServerTokenCount], server: str, tokenizer: HuggingFaceTokenizer | None = None
    ) -> None:
        self._make = make
        self._opened: ServerTokenCount | None = None
        self._added: int | None = None
        self._words_add_up: bool | None = None
        """Whether a text in another order has as many tokens; None while nobody needed to know."""
        self._url = server
        self.tokenizer = tokenizer

    @property
    def server(self) -> str:
        """A key that tells counters apart, and says in reports who counts."""
        if self.tokenizer is None:
            return self._url
        return f"{self._url}, by {self.tokenizer.name}; the template as far as the server counts it"

    def __call__(self, text: str) -> int:
        if self.tokenizer is None:
            return self._asked(text)
        if self._added is None:
            self._added = self._found_added(self.tokenizer.count)
        return self.tokenizer.count(text) + self._added

    def _found_added(self, count: Count) -> int:
        """How many tokens the server counts beyond the text: the same for every prompt; 0 where it counts
        none.

        Raises SUTError where it is not the same: then the tokenizer is not that of the server.
        """
        from pytest_llmbench.probes.token_count import UncountedError

        prompts = [readable_ids(BulkRandom(words), words) for words in _LIKE_PROMPTS]
        texts = [*(reference_tokenizer().decode(as_ids(ids)).strip() for ids in prompts), _UNLIKE_OTHERS]
        try:
            told = [(self._asked(text), count(text)) for text in texts]
        except UncountedError:
            return 0
        added = {theirs - ours for theirs, ours in told}
        if len(added) == 1:
            return added.pop()
        seen = ", ".join(f"{theirs} where it has {ours}" for theirs, ours in told)
        raise SUTError(
            f"the server counts differently from the tokenizer of the SUT file ({self.tokenizer!r}): {seen}; "
            f"what it adds to a prompt would be between {min(added)} and {max(added)} tokens",
            where=self._url,
            remedy="name the tokenizer.json of the served model, or leave file out of [tokenizer]; then the "
            "server counts every prompt",
        )

    def _asked(self, text: str) -> int:
        if self._opened is None:
            self._opened = self._make()
        return self._opened(text)

    def unseen(self, text: str, seed: int) -> str:
        """A prompt as long as ``text`` that the server has not seen: where it counts by running the model,
        its prefix cache holds whatever was counted, and TTFT would be that of a cached prompt."""
        if self.tokenizer is not None or self._opened is None or not self._opened.leaves_traces:
            return text
        if self._words_add_up is None:
            self._words_add_up = self(_WORDS) == self(reordered(_WORDS, self, 0))
        return reordered(text, self, seed) if self._words_add_up else text

    @property
    def shows_prompts(self) -> bool:
        """The server has run the model on the very prompts that it is to be measured with."""
        return self._words_add_up is False

    def close(self) -> None:
        if self._opened is not None:
            self._opened.__exit__(None, None, None)
            self._opened = None


@dataclass(frozen=True)
class ExactLengths:
    """A workload with the lengths of ``base``, with text of exactly that length in place of its ids, or with
    other ids."""

    base: Workload
    server: str = ""
    """The server whose tokens are counted; empty before the workload is bound to one."""
    count: TokenCounter | None = field(default=None, compare=False, repr=False)
    vocabulary: HuggingFaceTokenizer | None = field(default=None, compare=False, repr=False)
    """The vocabulary from which ids are drawn, where they are sent as such."""

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def standard(self) -> bool:
        return False

    @property
    def draws_anew(self) -> bool:
        return streamed(self.base).draws_anew

    @property
    def shows_prompts(self) -> bool:
        """The server has seen its prompts before they are measured."""
        return self.count is not None and self.count.shows_prompts

    @property
    def lengths_seed(self) -> int | None:
        return streamed(self.base).lengths_seed

    def with_lengths_of(self, seed: int) -> ExactLengths:
        """The workload with the lengths that its base draws with ``seed``; its texts have a seed anyway."""
        return replace(self, base=with_lengths_of(self.base, seed))

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        """The first ``count`` requests; those of the base before the workload is bound to a server."""
        drawn = self.base.requests(count, seed)
        if self.vocabulary is not None:
            return [_of_ids(request, self.vocabulary, seed) for request in drawn]
        return drawn if self.count is None else [_of_text(request, self.count, seed) for request in drawn]

    def specification(self) -> Mapping[str, Any]:
        stated = dict(self.base.specification())
        if (vocabulary := self.vocabulary) is not None:
            ids, kept = vocabulary.ordinary_ids, stated.get("generation")
            first, last, sha256 = int(ids[0]), int(ids[-1]), vocabulary.sha256
            drawn = {"min": first, "max": last, "ordinary": len(ids), "sha256": sha256}
            exactly = {"exact": True, "tokenizer": vocabulary.name}
            return stated | {
                "content": {**stated["content"], "domain": "random", "language": "none"},
                "input_length": {**stated["input_length"], **exactly},
                "generation": {**(kept if isinstance(kept, Mapping) else {}), "token_ids": drawn},
            }
        stated.pop("structured_output", None)  # the prompt is words of the length, tools and all
        stated["content"] = {**stated["content"], "domain": "readable random words", "language": "English"}
        stated["input_length"] = {
            **stated["input_length"],
            "exact": self.count is not None,
            "tokenizer": f"that of the SUT, chat template included ({self.server or 'not bound yet'})",
        }
        return stated


def bound(
    workload: Workload, counter: TokenCounter | None, vocabulary: HuggingFaceTokenizer | None = None
) -> Workload:
    """``workload`` bound to the server to ask; unchanged if it needs none, or where ids are sent (a replay).

    ``vocabulary``: that of the server to which ids are sent, if it is known. Raises SuiteError for a workload
    with ids beyond it.
    """
    if vocabulary is not None:
        if isinstance(workload, ExactLengths):
            return replace(workload, server=vocabulary.sha256, vocabulary=vocabulary)
        highest, last = highest_id(workload), int(vocabulary.ordinary_ids[-1])
        if highest > last:
            raise SuiteError(
                f"it draws token ids up to {highest}, but {vocabulary.name} ends at {last}",
                where=f"workload {workload.name!r}",
                remedy="use a workload of exact lengths (exact = true), which draws its ids from it, "
                'or send prompts as text ([request] prompt = "text")',
            )
    if not isinstance(workload, ExactLengths) or counter is None:
        return workload
    return replace(workload, server=counter.server, count=counter)


def _of_text(request: PlannedRequest, count: TokenCounter, seed: int) -> PlannedRequest:
    own_seed = _seed_of(request, seed)
    found = exact_prompt(request.input_tokens, count, own_seed, trimmed=count.tokenizer is not None)
    return replace(
        request, token_ids=None, text=count.unseen(found.text, own_seed), structured=None, expected=None
    )


def _of_ids(request: PlannedRequest, vocabulary: HuggingFaceTokenizer, seed: int) -> PlannedRequest:
    """The request with as many ids as it is to have, drawn among those that are not special."""
    ids = vocabulary.ordinary_ids
    places = BulkRandom(_seed_of(request, seed)).randints(0, len(ids) - 1, request.input_tokens)
    token_ids = as_ids(ids[np.frombuffer(places, dtype=np.uint32)])
    return replace(request, structured=None, expected=None, text=None, token_ids=token_ids)


def _seed_of(request: PlannedRequest, seed: int) -> int:
    return derived_seed(seed, f"exact/{request.index}")
