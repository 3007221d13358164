"""Compares the server's token counts of prompts with those of the tokenizer that the SUT file names as its
own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from pytest_llmbench.harness.sut.probed import Stoppable
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, Phase, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.tokens.hugging_face import HuggingFaceTokenizer
from pytest_llmbench.workloads.prompts import text_of
from pytest_llmbench.workloads.sequence import passing

FACT: Final = "tokenizer.agreement"
"""Name of the fact: a mapping with ``prompts``, the number that was counted again, their mean ``tokens`` by
the tokenizer, and ``least`` and ``most``, by how much the server counts more. If both are equal, that is what
it adds."""
PROMPTS: Final = 32
"""How many of the first prompts of a load are counted again, after the load, when nothing is being
measured."""


class CountedPrompts:
    """A load generator whose measured loads carry the fact :data:`FACT`."""

    def __init__(self, inner: Stoppable, tokenizer: HuggingFaceTokenizer) -> None:
        self._inner = inner
        self._tokenizer = tokenizer

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        seen = self._inner.run(plan, on_record)
        if plan.phase is not Phase.MEASURE:
            return seen
        return replace(seen, facts=seen.facts | agreement(plan, seen.records, self._tokenizer.count))

    def stop(self, reason: str) -> None:
        """End the running load early, from any thread."""
        self._inner.stop(reason)

    def close(self) -> None:
        self._inner.close()


def agreement(plan: LoadPlan, records: Records, count: Callable[[str], int]) -> Facts:
    """The fact :data:`FACT`; none if the server counted none of the prompts. Turns of sessions are left out:
    a server counts the template of each of their messages."""
    server = TOKEN_SOURCES.index(TokenSource.SERVER_USAGE)
    told = records.ok & (records.token_source == server) & (records.input_tokens != MISSING)
    told &= records.index < plan.first + PROMPTS
    theirs = dict(zip(records.index[told].tolist(), records.input_tokens[told].tolist(), strict=True))
    ours: dict[int, int] = {}
    for request in passing(plan.workload, plan.first, min(PROMPTS, plan.requests), plan.seed):
        text = text_of(request) if request.index in theirs and request.turn is None else None
        if text is not None:
            ours[request.index] = count(text)
    if not ours:
        return Facts()
    beyond = [theirs[index] - tokens for index, tokens in ours.items()]
    told_of = {
        "prompts": len(ours),
        "tokens": float(np.mean(list(ours.values()))),
        "least": min(beyond),
        "most": max(beyond),
    }
    return Facts.of(Origin.MEASURED, {FACT: told_of}, "usage of the server against the tokenizer file")
