"""The gaps between tokens, once more from the stored instants (section 5.4.3).

Gone through block by block, so that there may be more gaps than memory has room for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pytest_llmbench.compliance.look import NoEvidenceError
from pytest_llmbench.compliance.stored import chunk_counts, has
from pytest_llmbench.model.records import BLOCK_ENTRIES, IntColumn, Records
from pytest_llmbench.stats.clusters import Clusters
from pytest_llmbench.stats.counted_order import look_up
from pytest_llmbench.stats.percentiles import ordered_percentile, percentile_ranks

FEWEST_TOKENS = 50
"""Output tokens of a request that counts (AMB-12)."""
_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
"""That are compared with what is stated."""
_NS_PER_MS = 1e6


@dataclass(frozen=True, eq=False)
class _Part:
    """Gaps of some of the requests."""

    ns: IntColumn
    owner: IntColumn
    """Number of the request that each gap belongs to."""
    eligible: int

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        return self.ns / _NS_PER_MS

    @cached_property
    def counts(self) -> IntColumn:
        return np.bincount(self.owner, minlength=self.eligible)

    @property
    def jitter(self) -> npt.NDArray[np.float64]:
        """Sample standard deviation (n - 1) per request with two gaps or more."""
        several = self.counts >= 2
        sums = np.bincount(self.owner, weights=self.values, minlength=self.eligible)
        means = np.divide(sums, self.counts, out=np.zeros(self.eligible), where=self.counts > 0)
        around = np.square(self.values - means[self.owner])
        squares = np.bincount(self.owner, weights=around, minlength=self.eligible)
        return np.asarray(np.sqrt(squares[several] / (self.counts[several] - 1)))

    @property
    def longest(self) -> npt.NDArray[np.float64]:
        peaks = np.full(self.eligible, -np.inf)
        np.maximum.at(peaks, self.owner, self.values)
        return np.asarray(peaks[self.counts > 0])


@dataclass(frozen=True, eq=False)
class Gaps:
    """Of the eligible requests of one level, in ms."""

    records: Records
    option: str
    """``direct`` or B (each token at the arrival of its chunk), A (chunks), C (the server's instants)."""

    def __len__(self) -> int:
        return len(self.pool)

    @cached_property
    def eligible(self) -> int:
        return sum(part.eligible for part in self._parts())

    @property
    def excluded(self) -> int:
        """Successes that are not eligible."""
        return int(self.records.ok.sum()) - self.eligible

    @cached_property
    def zeros(self) -> int:
        return sum(int((part.ns == 0).sum()) for part in self._parts())

    @cached_property
    def jitter(self) -> npt.NDArray[np.float64]:
        return np.concatenate([part.jitter for part in self._parts()])

    @cached_property
    def longest(self) -> npt.NDArray[np.float64]:
        return np.concatenate([part.longest for part in self._parts()])

    @cached_property
    def pool(self) -> Clusters:
        """All gaps, for what needs them in order."""
        counts = np.concatenate([part.counts[part.counts > 0] for part in self._parts()])
        pool = Clusters(counts, (len(counts),), self._clusters, _NS_PER_MS)
        look_up(pool.ordered, percentile_ranks(len(pool), _PERCENTILES) if len(pool) else ())
        return pool

    def _clusters(self) -> Iterator[tuple[IntColumn, IntColumn]]:
        for part in self._parts():
            yield part.ns, part.counts[part.counts > 0]

    def statistic(self, name: str) -> float:
        """``p50`` … ``p99_9``, ``mean``, ``std`` of all gaps (AMB-36)."""
        n = len(self)
        if not n:
            raise NoEvidenceError("samples")
        if name not in ("mean", "std"):
            return ordered_percentile(self.pool.ordered, float(name[1:].replace("_", ".")))
        mean = sum(float(part.values.sum()) for part in self._parts()) / n
        if name == "mean":
            return mean
        around = sum(float(np.square(part.values - mean).sum()) for part in self._parts())
        return math.sqrt(around / (n - 1)) if n > 1 else math.nan

    def _parts(self) -> Iterable[_Part]:
        return self._made() if self._few is None else self._few

    @cached_property
    def _few(self) -> list[_Part] | None:
        chunks = len(self.records.chunk_ns) + len(self.records.server_token_ns)
        return list(self._made()) if chunks <= BLOCK_ENTRIES else None

    def _made(self) -> Iterator[_Part]:
        for block in self.records.blocks():
            tokens = np.where(has(block.output_tokens), block.output_tokens, _seen_tokens(block))
            chosen = block.select(block.ok & (tokens >= FEWEST_TOKENS))
            instants, owner = _token_instants(chosen, self.option)
            same = np.diff(owner) == 0
            yield _Part(np.diff(instants)[same], owner[1:][same], len(chosen))


def zeros_of_chunks(records: Records) -> int:
    """Gaps of zero that tokens sharing a chunk cause, among eligible requests: N - 1 for a chunk of N."""
    zeros = 0
    for block in records.blocks():
        eligible = block.ok & (block.output_tokens >= FEWEST_TOKENS)
        tokens = block.chunk_tokens[np.repeat(eligible, chunk_counts(block))]
        zeros += int(np.maximum(tokens - 1, 0).sum())
    return zeros


def _token_instants(records: Records, option: str) -> tuple[IntColumn, IntColumn]:
    """One instant per token (per chunk with A), and the request that it belongs to."""
    if option == "C":
        counts = np.diff(records.server_token_offsets)
        return records.server_token_ns, np.repeat(np.arange(len(records)), counts)
    owner = np.repeat(np.arange(len(records)), chunk_counts(records))
    if option == "A":
        return records.chunk_ns, owner
    known = has(records.chunk_tokens)
    tokens = np.where(known, records.chunk_tokens, 1)
    if option == "B":
        # A chunk of unknown size leaves its whole request without gaps.
        unknown = np.bincount(owner, weights=~known, minlength=len(records)) > 0
        tokens = np.where(unknown[owner], 0, tokens)
    if bool((tokens == 1).all()):
        return records.chunk_ns, owner
    return np.repeat(records.chunk_ns, tokens), np.repeat(owner, tokens)


def _seen_tokens(records: Records) -> IntColumn:
    owner = np.repeat(np.arange(len(records)), chunk_counts(records))
    weights = np.where(has(records.chunk_tokens), records.chunk_tokens, 1)
    return np.bincount(owner, weights=weights, minlength=len(records)).astype(np.int64)


__all__ = ["FEWEST_TOKENS", "Gaps", "zeros_of_chunks"]
