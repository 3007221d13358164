"""What the streams looked like: tokens per chunk, coalesced reads, reasoning (METHODOLOGY §7).

All figures are over the requests that ended ``ok``; ``None`` means that nothing was there to count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.stats.percentiles import percentiles


@dataclass(frozen=True, slots=True)
class TokensPerChunk:
    """The chunk-size distribution that option A of section 4.6.3 asks for."""

    chunks: int
    mean: float
    p50: float
    p99: float
    max: int


def single_token_share(records: Records) -> float | None:
    """Content chunks with exactly one token / content chunks with a token count (section B.2.1, AMB-13)."""
    sizes = _attributed_sizes(records)
    return float(np.mean(sizes == 1)) if sizes.size else None


def tokens_per_chunk(records: Records) -> TokensPerChunk | None:
    """Distribution of the tokens in a content chunk, over chunks with a token count."""
    sizes = _attributed_sizes(records)
    if not sizes.size:
        return None
    p50, p99 = percentiles(sizes.astype(np.float64), (50.0, 99.0))
    return TokensPerChunk(sizes.size, float(sizes.mean()), float(p50), float(p99), int(sizes.max()))


def coalesced_share(records: Records) -> float | None:
    """Content chunks that shared a read with an earlier one / content chunks: their spacing is not known."""
    chunks = int(np.diff(records.chunk_offsets)[records.ok].sum())
    return float(records.coalesced_chunks[records.ok].sum()) / chunks if chunks else None


def noncontent_first_share(records: Records) -> float | None:
    """Requests whose first output was not content (whitespace or reasoning) / requests with content.

    Above 0 the report owes the note of section 5.1.3.1 (AMB-29).
    """
    content = records.first_content_ns
    seen = records.ok & (content != MISSING)
    if not seen.any():
        return None
    early = np.zeros(len(records), dtype=bool)
    for other in (records.first_nonempty_ns, records.first_reasoning_ns):
        early |= (other != MISSING) & (other < content)
    return float(np.mean(early[seen]))


def reasoning_share(records: Records) -> float | None:
    """Reasoning tokens / output tokens, over requests with an output token count (AMB-29).

    A server that streams reasoning without counting it is read from its chunks: those from the first
    reasoning output up to the first content have their share of the request's tokens.
    """
    counted = records.ok & (records.output_tokens != MISSING)
    total = int(records.output_tokens[counted].sum())
    if total == 0:
        return None
    stated = records.reasoning_tokens
    streamed = _streamed_reasoning_share(records) * records.output_tokens
    reasoning = np.where(stated != MISSING, stated, streamed)
    return float(reasoning[counted].sum()) / total


def _streamed_reasoning_share(records: Records) -> npt.NDArray[np.float64]:
    """Per request the share of its chunks, weighted with their tokens, that came as reasoning."""
    owner = np.repeat(np.arange(len(records)), np.diff(records.chunk_offsets))
    first, content = records.first_reasoning_ns[owner], records.first_content_ns[owner]
    thinking = (first != MISSING) & (records.chunk_ns >= first)
    thinking &= (content == MISSING) | (records.chunk_ns < content)
    weights = chunk_weights(records)
    reasoning = np.bincount(owner, weights=weights * thinking, minlength=len(records))
    every = np.bincount(owner, weights=weights, minlength=len(records))
    return np.divide(reasoning, every, out=np.zeros(len(records)), where=every > 0)


def chunk_weights(records: Records) -> npt.NDArray[np.float64]:
    """Tokens of each content chunk; chunks of requests without an attribution count alike."""
    attributed = records.chunk_tokens != MISSING
    return np.where(attributed, records.chunk_tokens, 1).astype(np.float64)


def _attributed_sizes(records: Records) -> IntColumn:
    of_ok = np.repeat(records.ok, np.diff(records.chunk_offsets))
    return np.asarray(records.chunk_tokens[of_ok & (records.chunk_tokens != MISSING)])


__all__ = [
    "TokensPerChunk",
    "chunk_weights",
    "coalesced_share",
    "noncontent_first_share",
    "reasoning_share",
    "single_token_share",
    "tokens_per_chunk",
]
