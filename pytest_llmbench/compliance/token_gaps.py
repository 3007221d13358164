"""The gaps between tokens, once more from the stored instants (section 5.4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pytest_llmbench.compliance.stored import chunk_counts, has
from pytest_llmbench.model.records import IntColumn, Records

FEWEST_TOKENS = 50
"""Output tokens of a request that counts (AMB-12)."""


@dataclass(frozen=True, eq=False)
class Gaps:
    """Of the eligible requests of one level, in ms."""

    values: npt.NDArray[np.float64]
    owner: IntColumn
    """Number of the request that each gap belongs to."""
    eligible: int
    excluded: int

    @cached_property
    def counts(self) -> IntColumn:
        return np.bincount(self.owner, minlength=self.eligible)

    @cached_property
    def jitter(self) -> npt.NDArray[np.float64]:
        """Sample standard deviation (n - 1) per request with two gaps or more."""
        several = self.counts >= 2
        sums = np.bincount(self.owner, weights=self.values, minlength=self.eligible)
        means = np.divide(sums, self.counts, out=np.zeros(self.eligible), where=self.counts > 0)
        around = np.square(self.values - means[self.owner])
        squares = np.bincount(self.owner, weights=around, minlength=self.eligible)
        return np.asarray(np.sqrt(squares[several] / (self.counts[several] - 1)))

    @cached_property
    def longest(self) -> npt.NDArray[np.float64]:
        peaks = np.full(self.eligible, -np.inf)
        np.maximum.at(peaks, self.owner, self.values)
        return np.asarray(peaks[self.counts > 0])


def gaps_of(records: Records, option: str) -> Gaps:
    """By ``direct`` or B (each token at the arrival of its chunk), A (chunks), C (the server's instants)."""
    tokens = np.where(has(records.output_tokens), records.output_tokens, _seen_tokens(records))
    eligible = records.ok & (tokens >= FEWEST_TOKENS)
    chosen = records.select(eligible)
    instants, owner = _token_instants(chosen, option)
    same = np.diff(owner) == 0
    return Gaps(
        values=np.diff(instants)[same] / 1e6,
        owner=owner[1:][same],
        eligible=len(chosen),
        excluded=int(records.ok.sum()) - len(chosen),
    )


def zeros_of_chunks(records: Records) -> int:
    """Gaps of zero that tokens sharing a chunk cause, among eligible requests: N - 1 for a chunk of N."""
    eligible = records.ok & (records.output_tokens >= FEWEST_TOKENS)
    tokens = records.chunk_tokens[np.repeat(eligible, chunk_counts(records))]
    return int(np.maximum(tokens - 1, 0).sum())


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
    return np.repeat(records.chunk_ns, tokens), np.repeat(owner, tokens)


def _seen_tokens(records: Records) -> IntColumn:
    owner = np.repeat(np.arange(len(records)), chunk_counts(records))
    weights = np.where(has(records.chunk_tokens), records.chunk_tokens, 1)
    return np.bincount(owner, weights=weights, minlength=len(records)).astype(np.int64)


__all__ = ["FEWEST_TOKENS", "Gaps", "gaps_of", "zeros_of_chunks"]
