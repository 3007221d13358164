"""One list of lengths, fresh words: requests as long as those of another sequence of the same workload, with
other prompts.

The lengths that are drawn decide much of what a run measures (throughput of a job by some per cent, its tail
by more), and say nothing about the system. So loads that are compared get one list of lengths: their
difference is that of the systems, *on this list*. The words are new in each load, so that no prefix cache
helps.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.sharing import SharesPrefixes
from pytest_llmbench.workloads.stream import StreamedWorkload, derived_seed

CHANGED = "words"
"""What the change is called among the declared ones."""


@dataclass(frozen=True, slots=True)
class SameLengths(StreamedWorkload):
    """Request i is request i of ``base`` with ``lengths_seed`` (lengths, class, shared prefix, cut), with ids
    drawn with the seed of the load: prefix by prefix where they occur first, then what is the request's own.

    It keeps the name and the standing of its base, whose laws it has, and declares the change.
    """

    base: StreamedWorkload
    lengths_seed: int

    @property
    def name(self) -> str:
        return self.base.name  # type: ignore[attr-defined, no-any-return]

    @property
    def standard(self) -> bool:
        return self.base.standard

    @property
    def draws_anew(self) -> bool:
        return True

    def shared_prefixes(self, seed: int) -> Sequence[int]:  # noqa: ARG002 - they are as long with every seed
        """Lengths of the shared prefixes, which are those of the list."""
        return self.base.shared_prefixes(self.lengths_seed) if isinstance(self.base, SharesPrefixes) else ()

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        draw = self.base.rewording()
        assert draw is not None, f"{self.name} has no other words"
        generator = BulkRandom(derived_seed(seed, CHANGED))
        prefixes: dict[int, array[int]] = {}
        for request in self.base.stream(self.lengths_seed):
            shared, number = request.shared_prefix_tokens, request.prefix_id
            if number is None:
                yield replace(request, token_ids=draw(generator, request, request.input_tokens))
                continue
            if number not in prefixes:
                prefixes[number] = draw(generator, request, shared)
            own = draw(generator, request, request.input_tokens - shared)
            yield replace(request, token_ids=prefixes[number] + own)

    def specification(self) -> Mapping[str, Any]:
        base = dict(self.base.specification())
        change = {
            "what": CHANGED,
            "rule": f"lengths of the sequence of seed {self.lengths_seed}, ids drawn by the load's own seed",
            "lengths_seed": self.lengths_seed,
        }
        return base | {"deviations": [*base.get("deviations", ()), change]}


def with_lengths_of(workload: Workload, seed: int) -> Workload:
    """The workload with the lengths that it draws with ``seed``, whatever the seed of a load; unchanged where
    its prompts cannot be drawn anew: a data set, a trace and sessions have texts of their own."""
    if isinstance(workload, StreamedWorkload):
        return SameLengths(workload, seed) if workload.rewording() is not None else workload
    relisted = getattr(workload, "with_lengths_of", None)
    return workload if relisted is None else relisted(seed)


def lengths_seed_of(workload: Workload) -> int | None:
    """The seed of the list of lengths that the workload has; None where lengths are drawn with the rest."""
    found = getattr(workload, "lengths_seed", None)
    return found if isinstance(found, int) else None
