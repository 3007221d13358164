"""Workloads with the lengths, and if wanted the shared prefixes, of a recorded trace."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.dataset import DatasetIdentity, observed_lengths, texts_digest
from pytest_llmbench.workloads.lengths import MOST_TOKENS
from pytest_llmbench.workloads.stream import BulkRandom, StreamedWorkload, derived_seed
from pytest_llmbench.workloads.synthetic import HIGHEST_CL100K_ID, name_mistakes, specified

MOONCAKE_BLOCK: Final = 512
"""Tokens that one hash id stands for in Mooncake's traces."""

_REMEMBERED_BLOCKS: Final = 4096
LONGEST_MS: Final = 366 * 86_400_000.0
"""Longest trace, in milliseconds: a year."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One request of a trace: when, how long, and what its prompt consists of."""

    offset_ms: float
    """Time from the start of the trace, in milliseconds."""
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """Ids of the blocks of the prompt, in order; equal ids are equal content. Empty if they are not known."""


@dataclass(frozen=True, slots=True)
class TraceWorkload(StreamedWorkload):
    """Random ids with the lengths of a trace, in its order. The workload starts over after the last entry.

    An entry without hash ids takes its ids from one generator ``random.Random(seed)``. An entry with them
    is made of blocks of ``block_tokens`` ids, each from a seed of its own made of the seed, the repetition
    of the trace and the hash id, cut to the input length: prompts that began alike in the trace begin alike
    here. ``prefix_id`` numbers the last blocks that were shared with an earlier request, from 0: hash ids
    themselves may be larger than any column of records holds. Lengths repeat when the trace begins again,
    contents do not.
    """

    draws_anew = True

    name: str
    entries: tuple[TraceEntry, ...] = field(compare=False, repr=False)
    dataset: DatasetIdentity
    block_tokens: int = MOONCAKE_BLOCK
    highest_token_id: int = HIGHEST_CL100K_ID
    timed: bool = True
    """Whether the trace has instants; without them ``arrival="trace"`` cannot be used."""
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = name_mistakes(self.name) + self.dataset.mistakes()
        mistakes += _entry_mistakes(self.entries, self.block_tokens)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)
        rows = (f"{e.offset_ms} {e.input_tokens} {e.output_tokens} {e.hash_ids}" for e in self.entries)
        object.__setattr__(self, "digest", texts_digest(rows))

    @property
    def offsets_ns(self) -> tuple[int, ...]:
        if not self.timed:
            return ()
        return tuple(round(entry.offset_ms * 1_000_000) for entry in self.entries)

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        repetition = index = 0
        numbers: dict[int, int] = {}
        while True:
            seen: set[int] = set()
            blocks = BlockContents(seed, repetition, self.block_tokens, self._block)
            for entry in self.entries:
                shared = shared_blocks(entry.hash_ids, seen)
                ids = (
                    blocks.prompt(entry.hash_ids, entry.input_tokens)
                    if entry.hash_ids
                    else self._ids(generator, entry.input_tokens)
                )
                last = entry.hash_ids[shared - 1] if shared else None
                yield PlannedRequest(
                    index=index,
                    max_tokens=entry.output_tokens,
                    input_tokens=entry.input_tokens,
                    token_ids=ids,
                    prefix_id=None if last is None else numbers.setdefault(last, len(numbers)),
                    shared_prefix_tokens=min(shared * self.block_tokens, entry.input_tokens),
                )
                index += 1
            repetition += 1

    def _ids(self, generator: BulkRandom, tokens: int) -> array[int]:
        return generator.randints(0, self.highest_token_id, tokens)

    def _block(self, seed: int, tokens: int) -> array[int]:
        return self._ids(BulkRandom(seed), tokens)

    def specification(self) -> Mapping[str, Any]:
        input_length, output_length, sharing = _stated(self)
        ids = {"min": 0, "max": self.highest_token_id}
        return specified(
            input_length,
            output_length,
            domain="random",
            language="none",
            sharing=sharing,
            dataset=self.dataset.specification() | {"content_sha256": self.digest},
            order=["token ids; of an entry with hash ids one generator per block"],
            generation={"token_ids": ids, "block_tokens": self.block_tokens},
        )


def shared_blocks(hash_ids: Sequence[int], seen: set[int]) -> int:
    """How many of the first blocks are among those ``seen``; all of them are added to these."""
    shared = next((k for k, block in enumerate(hash_ids) if block not in seen), len(hash_ids))
    seen.update(hash_ids)
    return shared


@lru_cache(maxsize=8)
def _stated(workload: TraceWorkload) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Input lengths, output limits and prefix sharing; remembered, since every plan's key asks for them."""
    entries, size = workload.entries, workload.block_tokens
    seen: set[int] = set()
    shared = [min(shared_blocks(e.hash_ids, seen) * size, e.input_tokens) for e in entries]
    return (
        observed_lengths([entry.input_tokens for entry in entries]),
        observed_lengths([entry.output_tokens for entry in entries]),
        stated_sharing(shared),
    )


def stated_sharing(shared_tokens: Sequence[int]) -> dict[str, Any]:
    """Prefix sharing as section 4.3.1 wants it stated. ``shared_tokens``: for each request the tokens with
    which an earlier one began."""
    sharers = [tokens for tokens in shared_tokens if tokens]
    length: dict[str, Any] = {"type": "fixed", "params": {"tokens": 0}}
    if sharers:
        stated = observed_lengths(sharers)
        length = {"type": stated["type"], "params": stated["params"]}
    return {"fraction": len(sharers) / len(shared_tokens), "length": length}


class BlockContents:
    """The contents of the blocks of one pass through a trace."""

    def __init__(
        self, seed: int, repetition: int, block_tokens: int, draw: Callable[[int, int], array[int]]
    ) -> None:
        """``draw``: draws so many ids from a seed. Each block has a seed of its own, made of the seed, the
        repetition of the trace and the hash id."""
        self._purpose = (seed, repetition)
        self._block_tokens = block_tokens
        self._draw = draw
        self._content: dict[int, array[int]] = {}

    def prompt(self, hash_ids: Sequence[int], tokens: int) -> array[int]:
        """The blocks one after the other, cut to ``tokens``."""
        ids = array("I")
        for block in hash_ids:
            ids += self._block(block)
        return ids[:tokens]

    def _block(self, block: int) -> array[int]:
        if block not in self._content:
            if len(self._content) >= _REMEMBERED_BLOCKS:
                del self._content[next(iter(self._content))]
            seed, repetition = self._purpose
            own = derived_seed(seed, f"trace {repetition} block {block}")
            self._content[block] = self._draw(own, self._block_tokens)
        return self._content[block]


def _entry_mistakes(entries: tuple[TraceEntry, ...], block_tokens: int) -> list[str]:
    if not entries:
        return ["the trace has no entries"]
    found = [f"block_tokens is {block_tokens}: give a whole number, at least 1"] if block_tokens < 1 else []
    wrong: dict[str, list[int]] = {}
    before = 0.0
    for place, entry in enumerate(entries):
        complaints = {
            f"have an input or output length below 1 or above {MOST_TOKENS:,}": not (
                1 <= entry.input_tokens <= MOST_TOKENS and 1 <= entry.output_tokens <= MOST_TOKENS
            ),
            "come before the entry ahead of them, or before 0": not entry.offset_ms >= before,
            "come more than a year after the start": entry.offset_ms > LONGEST_MS,
            "have too few hash ids for their length": bool(entry.hash_ids)
            and len(entry.hash_ids) * block_tokens < entry.input_tokens,
        }
        before = max(before, entry.offset_ms)
        for complaint in (text for text, holds in complaints.items() if holds):
            wrong.setdefault(complaint, []).append(place)
    return found + [
        f"{len(places)} entries {complaint}, the first is number {places[0]}"
        for complaint, places in wrong.items()
    ]
