"""Did a reply arrive as a stream, or all at once? Who holds chunks back turns TTFT into something else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.records import MISSING, Records

FEWEST_CHUNKS = 8
"""Replies of fewer chunks say nothing."""
SPREAD = 0.02
"""First and last chunk of a buffered reply lie within this share of its end-to-end latency …"""
PACE = 0.1
"""… and its chunks follow one another in less than this share of the time that those of a stream take …"""
ALONE_NS = 250_000
"""… or, where no reply is a stream to compare with, in less than this on average: after a long prompt any
answer is a small share of the latency."""


class Buffering(NamedTuple):
    replies: int
    """Looked at: successes of eight chunks or more."""
    buffered: int
    pace_ns: float | None = None
    """Median time between the chunks of a reply that is a stream; None without one."""

    @property
    def share(self) -> float:
        return self.buffered / self.replies if self.replies else 0.0


def buffering(records: Records, pace_ns: float | None = None) -> Buffering:
    """How many replies arrived all at once.

    Beside a long wait in a queue even a true stream is short: what tells a buffered reply from it is the
    pace, against ``pace_ns`` or that of the other replies. Where no reply is a stream, the pace by itself.
    """
    spreads, wholes, gaps = [], [], []
    for block in records.blocks():
        counts = np.diff(block.chunk_offsets)
        looked = block.ok & (counts >= FEWEST_CHUNKS) & (block.first_content_ns != MISSING)
        spreads.append((block.last_content_ns - block.first_content_ns)[looked])
        wholes.append((block.last_content_ns - block.submitted_ns)[looked])
        gaps.append((counts - 1)[looked])
    spread, whole = np.concatenate(spreads), np.concatenate(wholes)
    if not len(spread):
        return Buffering(0, 0)
    pace, short = spread / np.concatenate(gaps), spread <= SPREAD * whole
    if pace_ns is None and not short.all():
        pace_ns = float(np.median(pace[~short]))
    short &= pace <= (ALONE_NS if pace_ns is None else PACE * pace_ns)
    return Buffering(len(spread), int(short.sum()), pace_ns)
