"""The gaps between the tokens of each request, in nanoseconds, from its chunks (section 4.6.3).

Four ways to see tokens in chunks. Whichever is taken, the first token has no gap: TTFT is never in ITL.

- ``direct``: the gap between chunks of one token; what chunks have several tokens are handled as by B.
- ``A``: the gap between chunks, whatever they hold. It is called Time Between Chunks, not ITL.
- ``B``: all tokens of a chunk at its arrival: one gap to the chunk before, then zeros.
- ``C``: the server's own instant of every token, on its clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from pytest_llmbench.metrics.chunking import chunk_weights, differences
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records

Option = Literal["direct", "A", "B", "C"]


class Gaps(NamedTuple):
    """The gaps of some consecutive requests."""

    ns: IntColumn
    """The gaps in nanoseconds, request after request."""
    counts: IntColumn
    """Number of gaps of each eligible request; 0 where they cannot be known."""
    excluded: int
    """Number of successful requests left out because they have fewer output tokens than required."""
    starts_ns: IntColumn
    """The instant of the first token of each eligible request; 0 where it has none."""


def gaps_of(records: Records, option: Option, min_output_tokens: int) -> Iterator[Gaps]:
    """The gaps of the successful requests with at least ``min_output_tokens``, some requests at a time, in
    their order."""
    for block in records.blocks():
        eligible = block.ok & (_output_tokens(block) >= min_output_tokens)
        chosen = block.select(eligible)
        ns, counts = _gaps(chosen, option)
        yield Gaps(ns, counts, int(block.ok.sum()) - int(eligible.sum()), _first_ns(chosen, option))


def has_unknown_chunk(records: Records) -> BoolColumn:
    """For each request, whether it has a chunk with an unknown number of tokens."""
    unknown = records.chunk_tokens == MISSING
    if not unknown.any():
        return np.zeros(len(records), dtype=bool)
    return np.asarray(np.bincount(_owner(records)[unknown], minlength=len(records)) > 0)


def _output_tokens(records: Records) -> IntColumn:
    """Output tokens of each request; a missing count is derived from the chunks."""
    known = records.output_tokens != MISSING
    if known.all():
        return records.output_tokens
    seen = np.bincount(_owner(records), weights=chunk_weights(records), minlength=len(records))
    return np.where(known, records.output_tokens, seen.astype(np.int64))


def _gaps(records: Records, option: Option) -> tuple[IntColumn, IntColumn]:
    """The gaps of all requests, and how many each of them has."""
    if option == "C":
        return differences(records.server_token_ns, np.diff(records.server_token_offsets))
    counts = np.diff(records.chunk_offsets)
    if option == "A" or bool((records.chunk_tokens == 1).all()):
        return differences(records.chunk_ns, counts)
    tokens = chunk_weights(records).astype(np.int64)
    owner = _owner(records)
    held = tokens > 0  # a chunk without a token (half a character, say) is no arrival of one
    if option == "B":
        held &= ~has_unknown_chunk(records)[owner]
    return _token_gaps(records.chunk_ns[held], tokens[held], owner[held], len(records))


def _first_ns(records: Records, option: Option) -> IntColumn:
    at_ns, offsets = (
        (records.server_token_ns, records.server_token_offsets)
        if option == "C"
        else (records.chunk_ns, records.chunk_offsets)
    )
    first = np.zeros(len(records), dtype=np.int64)
    held = np.diff(offsets) > 0
    first[held] = at_ns[offsets[:-1][held]]
    return first


def _token_gaps(
    at_ns: IntColumn, tokens: IntColumn, owner: IntColumn, requests: int
) -> tuple[IntColumn, IntColumn]:
    """The gaps between tokens if all tokens of a chunk arrive together: the first has the gap to the chunk
    before, the others zero."""
    places = np.cumsum(tokens) - tokens
    gaps = np.zeros(int(tokens.sum()), dtype=np.int64)
    gaps[places] = np.diff(at_ns, prepend=0)
    first_chunk = np.flatnonzero(np.diff(owner, prepend=-1))
    inner = np.ones(len(gaps), dtype=bool)
    inner[places[first_chunk]] = False
    per_request = np.bincount(owner, weights=tokens, minlength=requests).astype(np.int64)
    return gaps[inner], np.maximum(per_request - 1, 0)


def _owner(records: Records) -> IntColumn:
    """For each chunk, the index of its request."""
    return np.repeat(np.arange(len(records)), np.diff(records.chunk_offsets))
