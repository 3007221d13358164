"""Synthetic workloads: random token ids without meaning, lengths from declared laws.

The standard one, Synthetic-Uniform, isolates inference from content (section 4.3.2.1 and appendix A.1 of the
draft). Others of the same making are custom workloads: allowed, and completely specified by their parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.lengths import LengthLaw, Uniform, specification_of

HIGHEST_CL100K_ID: Final = 100_255
"""The last ordinary (non-special) id of cl100k_base."""

STANDARD_NAMES: Final = (
    "synthetic-uniform",
    "synthetic-skewed",
    "conversation",
    "code-completion",
    "long-context",
)
"""The five reference workloads of the draft (METHODOLOGY §4.2). Their names may not be borrowed."""


@dataclass(frozen=True, slots=True)
class SyntheticWorkload:
    """Requests of random token ids, drawn in the order of METHODOLOGY §4.3.

    One generator ``random.Random(seed)`` that nothing else draws from; per request the input length, then the
    output limit, then input-length times ``randint(0, highest_token_id)``. A shorter sequence is the
    beginning of a longer one.
    """

    name: str
    input_tokens: LengthLaw
    output_tokens: LengthLaw
    highest_token_id: int = HIGHEST_CL100K_ID
    tokenizer: str = "cl100k_base"
    """Whose ids they are. Another tokenizer or upper id makes the workload a custom one (AMB-32)."""
    temperature: float = 0.0

    def __post_init__(self) -> None:
        mistakes = _mistakes(self)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=f"workload {self.name!r}")

    @property
    def standard(self) -> bool:
        return self.name == "synthetic-uniform"

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        """The first ``count`` requests of the sequence of ``seed``, with ids and without text."""
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            # Python's generator ignores the sign: seed -42 would quietly repeat the sequence of 42.
            mistake = f"the seed is {seed!r}: give a whole number, not negative"
            raise SuiteError(mistake, where=f"workload {self.name!r}")
        generator = BulkRandom(seed)
        return [self._draw(index, generator) for index in range(count)]

    def _draw(self, index: int, generator: BulkRandom) -> PlannedRequest:
        input_tokens = self.input_tokens.draw(generator)
        max_tokens = self.output_tokens.draw(generator)
        return PlannedRequest(
            index=index,
            max_tokens=max_tokens,
            input_tokens=input_tokens,
            token_ids=generator.randints(0, self.highest_token_id, input_tokens),
            temperature=self.temperature,
        )

    def specification(self) -> Mapping[str, Any]:
        return {
            "input_length": specification_of(self.input_tokens, self.tokenizer),
            "output_length": specification_of(self.output_tokens, self.tokenizer) | {"control": "max_tokens"},
            "content": {
                "domain": "random",
                "language": "none",
                "system_prompt": {"present": False, "typical_tokens": 0},
            },
            "prefix_sharing": {"fraction": 0.0, "length": {"type": "fixed", "params": {"tokens": 0}}},
            "temperature": self.temperature,
            "stop": [],
            "generation": {
                "generator": "Python random.Random(seed)",
                "order": ["input length", "output limit", "token ids"],
                "token_ids": {"min": 0, "max": self.highest_token_id},
            },
        }


def _mistakes(workload: SyntheticWorkload) -> list[str]:
    found = []
    if not workload.name:
        found.append("it has no name: give it one, reports show it")
    uniform = (Uniform(128, 512), Uniform(64, 256), HIGHEST_CL100K_ID, "cl100k_base", 0.0)
    ours = (
        workload.input_tokens,
        workload.output_tokens,
        workload.highest_token_id,
        workload.tokenizer,
        workload.temperature,
    )
    if workload.name in STANDARD_NAMES and (workload.name, ours) != ("synthetic-uniform", uniform):
        found.append("the name belongs to a reference workload with other parameters: choose another name")
    if not 0 <= workload.highest_token_id < 2**32 - 1:
        found.append(f"highest_token_id is {workload.highest_token_id}: ids run from 0 to below 2**32 - 1")
    if not (math.isfinite(workload.temperature) and workload.temperature >= 0):
        found.append(f"temperature is {workload.temperature}: give a number, not negative")
    return found


SYNTHETIC_UNIFORM: Final = SyntheticWorkload("synthetic-uniform", Uniform(128, 512), Uniform(64, 256))
"""The reference workload Synthetic-Uniform, exactly as the draft generates it (appendix A.1.4)."""

__all__ = ["HIGHEST_CL100K_ID", "STANDARD_NAMES", "SYNTHETIC_UNIFORM", "SyntheticWorkload"]
