"""From the steps that made the tokens to the chunks that carried them, for all requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn
from pytest_llmbench.simulator.replay_flight import Flight
from pytest_llmbench.simulator.stream_quirks import StreamOptions


@dataclass(frozen=True)
class Chunks:
    """Chunks of all requests, one request after another."""

    offsets: IntColumn
    """Request i owns the chunks ``[offsets[i], offsets[i + 1])``."""
    stamps_ns: IntColumn
    tokens: IntColumn
    reasoning_counts: IntColumn
    """Chunks of reasoning of each request; they come first."""
    output_tokens: IntColumn
    """Tokens of each request."""
    think_tokens: IntColumn
    """Those of them that are reasoning."""
    server_ns: IntColumn
    """When the engine made each token, request after request; empty if nobody asked."""

    @property
    def counts(self) -> IntColumn:
        return np.diff(self.offsets)

    def at(self, positions: IntColumn, there: BoolColumn) -> IntColumn:
        """The stamp at each position, MISSING where it is not ``there``."""
        column = np.full(len(positions), MISSING, dtype=np.int64)
        column[there] = self.stamps_ns[positions[there]]
        return column


@dataclass(frozen=True)
class Steps:
    """The steps of a plan, as the client could see them."""

    first: int
    """Number of the plan's first step."""
    read_ns: IntColumn
    """When the client reads what each step made."""
    to_client_ns: int
    """So long before it was made."""


def chunks_of(flights: Sequence[Flight], steps: Steps, stream: StreamOptions, seed: int) -> Chunks:
    """All chunks that were read. ``seed`` is that of speculative decoding."""
    made_in, offsets = _token_steps(flights, steps.first)
    stamps_ns, lengths = steps.read_ns[made_in], np.diff(offsets)
    server_ns = stamps_ns - steps.to_client_ns if stream.server_timestamps else np.empty(0, dtype=np.int64)
    held = [(i, flight.read_ns) for i, flight in enumerate(flights) if flight.read_ns is not None]
    if held:
        if stream.server_timestamps:
            server_ns = _of_those_read(server_ns, offsets, held)
        stamps_ns, offsets = _held_back(stamps_ns, offsets, held)
        lengths = np.diff(offsets)
    thinks = [flight.sequence.think_tokens if flight.sequence is not None else 0 for flight in flights]
    think_tokens = np.minimum(np.array(thinks, dtype=np.int64), lengths)
    if stream.tokens_per_chunk == 1 and stream.draft_tokens == 0:
        ones = np.ones(len(stamps_ns), dtype=np.int64)
        return Chunks(offsets, stamps_ns, ones, think_tokens, lengths, think_tokens, server_ns)
    closes = _closes(flights, lengths, think_tokens, stream, seed)
    ends = np.flatnonzero(closes)
    closed_before = np.concatenate(([0], np.cumsum(closes))).astype(np.int64)
    chunk_offsets = closed_before[offsets]
    return Chunks(
        offsets=chunk_offsets,
        stamps_ns=stamps_ns[ends],
        tokens=np.diff(ends, prepend=-1),
        reasoning_counts=closed_before[offsets[:-1] + think_tokens] - chunk_offsets[:-1],
        output_tokens=lengths,
        think_tokens=think_tokens,
        server_ns=server_ns,
    )


def _of_those_read(
    server_ns: IntColumn, offsets: IntColumn, held: Sequence[tuple[int, IntColumn]]
) -> IntColumn:
    """The engine's instants without those of tokens that never reached the client."""
    parts = np.split(server_ns, offsets[1:-1])
    for i, read_ns in held:
        parts[i] = parts[i][: len(read_ns)]
    return np.concatenate(parts)


def _held_back(
    stamps_ns: IntColumn, offsets: IntColumn, held: Sequence[tuple[int, IntColumn]]
) -> tuple[IntColumn, IntColumn]:
    """The stamps with those of the replies that were held back, which may be fewer than the tokens made."""
    parts = np.split(stamps_ns, offsets[1:-1])
    for i, read_ns in held:
        parts[i] = read_ns
    lengths = [len(part) for part in parts]
    return np.concatenate(parts), np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _token_steps(flights: Sequence[Flight], first_step: int) -> tuple[IntColumn, IntColumn]:
    """The step of every token, request after request, and where each request begins in that list."""
    spans = [flight.spans(first_step) for flight in flights]
    bounds = np.array([span for rows in spans for span in rows], dtype=np.int64).reshape(-1, 2)
    lengths = bounds[:, 1] - bounds[:, 0] + 1
    begins = np.cumsum(lengths) - lengths
    steps = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(bounds[:, 0] - begins, lengths)
    per_flight = [sum(last - first + 1 for first, last in rows) for rows in spans]
    return steps, np.concatenate(([0], np.cumsum(per_flight))).astype(np.int64)


def _closes(
    flights: Sequence[Flight], lengths: IntColumn, think_tokens: IntColumn, stream: StreamOptions, seed: int
) -> BoolColumn:
    """Which tokens are the last of their chunk. The first token goes out at once; so do the last of the
    thoughts and the last of all."""
    begins = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(begins, lengths)
    if stream.draft_tokens > 0:
        closes = _drafted(flights, lengths, think_tokens, stream, seed)
    else:
        size = stream.tokens_per_chunk
        thinks = np.repeat(think_tokens, lengths)
        after_thoughts = (thinks > 0) & (place >= thinks)
        closes = np.where(after_thoughts, (place - thinks) % size == size - 1, place % size == 0)
    closes[(begins + lengths - 1)[lengths > 0]] = True
    closes[(begins + think_tokens - 1)[think_tokens > 0]] = True
    return closes


def _drafted(
    flights: Sequence[Flight], lengths: IntColumn, think_tokens: IntColumn, stream: StreamOptions, seed: int
) -> BoolColumn:
    """Speculative decoding draws the sizes, reply by reply, as the served engine does."""
    parts: list[npt.NDArray[np.bool_]] = []
    for flight, length, thinks in zip(flights, lengths.tolist(), think_tokens.tolist(), strict=True):
        closes = np.zeros(length, dtype=bool)
        end = -1
        for size in stream.chunk_tokens(seed, flight.reply_number):
            end = min(end + size, thinks - 1) if end < thinks - 1 else end + size
            if end >= length:
                break
            closes[end] = True
        parts.append(closes)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=bool)


__all__ = ["Chunks", "Steps", "chunks_of"]
