"""The prompts of the audit: published ones, others of the same lengths, and these once more."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal

from pytest_llmbench.model.reply_checks import FINGERPRINT, ExpectedAnswer
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.workloads.adapted import Salted, with_lengths_of
from pytest_llmbench.workloads.stream import (
    StreamedWorkload,
    derived_seed,
    rewording_of,
    single_requests,
)

NEW: Final = "new"
REPEATED: Final = "repeated"
PUBLISHED: Final = "published"
LOADED: Final = "loaded"

Kind = Literal["alone", "loaded"]

_READ: Final = ExpectedAnswer("", FINGERPRINT)


@dataclass(frozen=True, slots=True)
class AuditPrompts(StreamedWorkload):
    """``count`` prompts in a random order.

    ``alone``: each new prompt, soon after it the same once more, and the published one of the same length.
    ``loaded``: the new ones alone, for a load of its own. The published ones are those that ``base`` has with
    ``published_seed``. The new ones have their lengths and other words, which ``words_seed`` draws; those of
    a data set have a mark ahead instead.
    """

    base: Workload
    published_seed: int
    words_seed: int
    count: int
    kind: Kind

    @property
    def draws_anew(self) -> bool:
        """What it repeats is what the audit is about."""
        return True

    @property
    def name(self) -> str:
        return f"{self.base.name} (audit)"

    def places(self, seed: int) -> list[tuple[str, int]]:
        """What each request is: one of the labels, and the number of its prompt."""
        numbers = list(range(self.count))
        shuffled = random.Random(derived_seed(seed, "order"))
        if self.kind == "loaded":
            shuffled.shuffle(numbers)
            return [(LOADED, number) for number in numbers]
        # Once more in the next block, and not anywhere later: a machine that becomes faster must not look
        # like one that remembers.
        found: list[tuple[str, int]] = []
        for number in range(self.count + 1):
            block = [(NEW, number), (PUBLISHED, number)] if number < self.count else []
            block += [(REPEATED, number - 1)] if number else []
            shuffled.shuffle(block)
            found += block
        return found

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        published = list(islice(single_requests(self.base, self.published_seed), self.count))
        if rewording_of(self.base) is None:
            salted = Salted(self.base, f"audit {self.words_seed}")
            new = list(islice(salted.stream(self.published_seed), self.count))
        else:
            other = with_lengths_of(self.base, self.published_seed)
            new = list(islice(single_requests(other, self.words_seed), self.count))
        for index, (label, number) in enumerate(self.places(seed)):
            prompt = (published if label == PUBLISHED else new)[number]
            yield replace(prompt, index=index, class_label=label, expected=_READ)

    def specification(self) -> Mapping[str, Any]:
        base = dict(self.base.specification())
        change = {
            "what": "prompt",
            "rule": f"{self.count} prompts with the lengths of seed {self.published_seed}, in random order: "
            + ("new ones, each twice, and those of that seed" if self.kind == "alone" else "the new ones"),
            "published_seed": self.published_seed,
            "words_seed": self.words_seed,
        }
        return base | {"deviations": [*base.get("deviations", ()), change]}
