"""The shape of streams: tokens per chunk, coalesced reads, reasoning, buffering (section 4.6).

All figures are over the requests that ended ``ok``; ``None`` means that nothing was there to count.

Whether a reply arrived as a stream or all at once is of another kind: who holds chunks back turns TTFT into
something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.stats.counted import percentiles_of_counts, summed_counts


@dataclass(frozen=True, slots=True)
class TokensPerChunk:
    """The distribution of chunk sizes that option A of section 4.6.3 asks for."""

    chunks: int
    mean: float
    p50: float
    p99: float
    max: int


Runs = Records | Sequence[Records]
"""The records of one run or of several together."""


def single_token_share(records: Runs) -> float | None:
    """Content chunks with exactly one token / content chunks with a token count (section B.2.1, AMB-13)."""
    counts = _size_counts(records)
    chunks = int(counts.sum())
    return float(counts[1:2].sum()) / chunks if chunks else None


def tokens_per_chunk(records: Runs) -> TokensPerChunk | None:
    """Distribution of the tokens in a content chunk, over chunks with a token count."""
    counts = _size_counts(records)
    chunks = int(counts.sum())
    if not chunks:
        return None
    p50, p99 = percentiles_of_counts(counts, (50.0, 99.0))
    sizes = np.arange(len(counts))
    return TokensPerChunk(chunks, float((sizes * counts).sum()) / chunks, p50, p99, len(counts) - 1)


def coalesced_share(records: Records) -> float | None:
    """Content chunks that shared a read with an earlier one / content chunks. The gaps before them are not
    known."""
    chunks = int(np.diff(records.chunk_offsets)[records.ok].sum())
    return float(records.coalesced_chunks[records.ok].sum()) / chunks if chunks else None


def gathered_share(records: Runs) -> float | None:
    """Content chunks that were sent together with an earlier one / content chunks.

    As :func:`coalesced_share`, without those that ran together in a read that was late here.
    """
    chunks = together = 0
    for block in _blocks(records):
        chunks += int(np.diff(block.chunk_offsets)[block.ok].sum())
        together += int((block.coalesced_chunks - block.unresolved_chunks)[block.ok].clip(0).sum())
    return together / chunks if chunks else None


def noncontent_first_share(records: Runs) -> float | None:
    """Requests whose first output was not content (but white space or reasoning) / requests with content.

    Above 0 the report owes the note of section 5.1.3.1 (AMB-29).
    """
    every = with_early = 0
    for block in _blocks(records):
        content = block.first_content_ns
        seen = block.ok & (content != MISSING)
        early = np.zeros(len(block), dtype=bool)
        for other in (block.first_nonempty_ns, block.first_reasoning_ns):
            early |= (other != MISSING) & (other < content)
        every += int(seen.sum())
        with_early += int((early & seen).sum())
    return with_early / every if every else None


def reasoning_share(records: Runs) -> float | None:
    """Reasoning tokens / output tokens, over requests with an output token count (AMB-29).

    A server that streams reasoning without counting it is read from its chunks: those from the first
    reasoning output up to the first content have their share of the request's tokens.
    """
    total, reasoned = 0, 0.0
    for block in _blocks(records):
        counted = block.ok & (block.output_tokens != MISSING)
        total += int(block.output_tokens[counted].sum())
        stated = block.reasoning_tokens
        streamed = _streamed_reasoning_share(block) * block.output_tokens
        reasoned += float(np.where(stated != MISSING, stated, streamed)[counted].sum())
    return reasoned / total if total else None


def _streamed_reasoning_share(records: Records) -> npt.NDArray[np.float64]:
    """Share of each request's tokens that came as reasoning, by its chunks weighted with their tokens."""
    if (records.first_reasoning_ns == MISSING).all():  # mostly so, and there may be millions of chunks
        return np.zeros(len(records))
    owner = chunk_owners(records)
    first, content = records.first_reasoning_ns[owner], records.first_content_ns[owner]
    thinking = (first != MISSING) & (records.chunk_ns >= first)
    thinking &= (content == MISSING) | (records.chunk_ns < content)
    weights = chunk_weights(records)
    reasoning = np.bincount(owner, weights=weights * thinking, minlength=len(records))
    every = np.bincount(owner, weights=weights, minlength=len(records))
    return np.divide(reasoning, every, out=np.zeros(len(records)), where=every > 0)


def chunk_owners(records: Records) -> IntColumn:
    """For each chunk, the index of its request."""
    return np.repeat(np.arange(len(records)), np.diff(records.chunk_offsets))


def chunk_weights(records: Records) -> npt.NDArray[np.float64]:
    """Weight of each content chunk: its tokens, or 1 in requests whose tokens are not attributed to
    chunks."""
    attributed = records.chunk_tokens != MISSING
    return np.where(attributed, records.chunk_tokens, 1).astype(np.float64)


def _size_counts(records: Runs) -> IntColumn:
    """Number of chunks with 0, 1, 2 … tokens, up to the largest there is; chunks without a token count are
    left out."""
    counts = np.zeros(0, dtype=np.int64)
    for block in _blocks(records):
        of_ok = np.repeat(block.ok, np.diff(block.chunk_offsets))
        if (block.chunk_tokens == 1).all():  # mostly so, and quicker
            ones = int(of_ok.sum())
            counts = summed_counts(counts, np.array([0, ones] if ones else [], dtype=np.int64))
            continue
        sizes = block.chunk_tokens[of_ok & (block.chunk_tokens != MISSING)]
        counts = summed_counts(counts, np.bincount(sizes))
    return counts


def _blocks(records: Runs) -> Iterator[Records]:
    for run in [records] if isinstance(records, Records) else records:
        yield from run.blocks()


FEWEST_CHUNKS = 8
"""Fewest chunks of a reply that says anything about buffering."""
SPREAD = 0.02
"""Largest share of a buffered reply's end-to-end latency between its first and last chunk."""
PACE = 0.1
"""Largest mean time between the chunks of a buffered reply, as a share of that of true streams."""
ALONE_NS = 250_000
"""Largest mean time between its chunks, in nanoseconds, where no reply is a stream to compare with: after a
long prompt any answer is a small share of the latency."""


class Buffering(NamedTuple):
    replies: int
    """Number of replies examined: successes of eight chunks or more."""
    buffered: int
    pace_ns: float | None = None
    """Median time between the chunks of the replies that are streams, in nanoseconds; None without one."""

    @property
    def share(self) -> float:
        return self.buffered / self.replies if self.replies else 0.0


def buffering(records: Runs, pace_ns: float | None = None) -> Buffering:
    """How many replies arrived all at once, in one run or in several together.

    Beside a long wait in a queue even a true stream is short: what tells a buffered reply from it is the
    pace, against ``pace_ns`` or that of the other replies. Where no reply is a stream, the pace by itself.
    """
    spreads, wholes, gaps = [], [], []
    for block in _blocks(records):
        counts = np.diff(block.chunk_offsets)
        looked = block.ok & (counts >= FEWEST_CHUNKS) & (block.first_content_ns != MISSING)
        spreads.append((block.last_content_ns - block.first_content_ns)[looked])
        wholes.append((block.last_content_ns - block.submitted_ns)[looked])
        gaps.append((counts - 1)[looked])
    if not any(map(len, spreads)):
        return Buffering(0, 0)
    spread, whole = np.concatenate(spreads), np.concatenate(wholes)
    pace, short = spread / np.concatenate(gaps), spread <= SPREAD * whole
    if pace_ns is None and not short.all():
        pace_ns = float(np.median(pace[~short]))
    short &= pace <= (ALONE_NS if pace_ns is None else PACE * pace_ns)
    return Buffering(len(spread), int(short.sum()), pace_ns)


LEADING, FEWEST_BEHIND = 8, 4
"""How many pieces at the beginning of a reply are examined for a pause after them, and the fewest pieces
behind those."""
TIMES_THE_PACE = 5.0
"""A pause is longer than the mean wait for each later piece by at least this factor."""


class EarlyPause(NamedTuple):
    """The pause after the first pieces of text that most replies have at the same place."""

    replies: int
    """Number of replies examined: successes of twelve pieces or more."""
    paused: int = 0
    """Number of replies that pause there."""
    after: int = 0
    """Number of pieces before the pause."""
    pause_ns: float = 0.0
    """Median of the pauses, in nanoseconds."""
    pace_ns: float = 0.0
    """Median, over the same replies, of the mean wait for a later piece, in nanoseconds."""

    @property
    def share(self) -> float:
        return self.paused / self.replies if self.replies else 0.0


def early_pause(records: Runs) -> EarlyPause:
    """The early pause of the replies, a sign that their first text was sent ahead of the rest.

    A busy server makes pauses too (the prefill of others, preemption), but not always behind the same piece.
    """
    leading, paces = [np.zeros((0, LEADING))], [np.zeros((0, LEADING))]
    for block in _blocks(records):
        ends = block.chunk_offsets[1:]
        begun = np.diff(block.chunk_offsets) > 0
        first = block.chunk_offsets[:-1]
        if not (block.chunk_ns[first[begun]] == block.first_content_ns[begun]).all():  # seldom so, and slower
            owner = chunk_owners(block)
            early = block.chunk_ns < block.first_content_ns[owner]  # white space, reasoning
            first = first + np.bincount(owner[early], minlength=len(block))
        looked = block.ok & (block.first_content_ns != MISSING) & (ends - first >= LEADING + FEWEST_BEHIND)
        places = first[looked, np.newaxis] + np.arange(LEADING + 1)
        instants, last = block.chunk_ns[places], ends[looked, np.newaxis] - 1
        behind = block.chunk_ns[last] - instants[:, 1:]
        leading.append(np.diff(instants))
        paces.append(behind / (last - places[:, 1:]))
    gaps, pace = np.concatenate(leading), np.concatenate(paces)
    paused = gaps > TIMES_THE_PACE * pace
    counts = paused.sum(axis=0)
    at = int(counts.argmax())
    if not counts[at]:
        return EarlyPause(len(gaps))
    pauses = gaps[paused[:, at], at], pace[paused[:, at], at]
    return EarlyPause(len(gaps), int(counts[at]), at + 1, *map(float, map(np.median, pauses)))


def differences(instants: IntColumn, counts: IntColumn) -> tuple[IntColumn, IntColumn]:
    """The gaps between the instants of each request, and how many gaps each has.

    ``counts`` tells how many instants each request has.
    """
    gaps = np.diff(instants)
    inner = np.ones(len(gaps), dtype=bool)
    firsts = (np.cumsum(counts) - counts)[counts > 0]
    inner[firsts[1:] - 1] = False
    return gaps[inner], np.maximum(counts - 1, 0)
