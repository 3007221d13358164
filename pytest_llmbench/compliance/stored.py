"""Vectorized questions about the stored records, and which percentiles are actually reported.

A run may have more chunks than memory has room for: whatever is asked of chunks is asked block by block.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.model.result import TestResult

_NUMBER = re.compile(r"[<>≈~]?\s*\d")
_ROW_NAMES = {
    "p50": "P50",
    "p90": "P90",
    "p95": "P95",
    "p99": "P99",
    "p99_9": "P99.9",
    "mean": "Mean",
    "min": "Min",
    "max": "Max",
}


def has(column: IntColumn) -> BoolColumn:
    return np.asarray(column != MISSING)


def has_first_token(records: Records) -> BoolColumn:
    """The valid TTFT samples: successful, with both instants."""
    return np.asarray(records.ok & has(records.submitted_ns) & has(records.first_content_ns))


def first_output_before_content(records: Records) -> BoolColumn:
    """Requests with output that is no content (whitespace, reasoning) ahead of the first content token."""
    before = np.zeros(len(records), dtype=bool)
    for other in (records.first_nonempty_ns, records.first_reasoning_ns):
        before |= has(other) & (other < records.first_content_ns)
    return np.asarray(records.ok & before)


def chunk_counts(records: Records) -> IntColumn:
    return np.diff(records.chunk_offsets)


def chunk_token_sums(records: Records) -> tuple[IntColumn, BoolColumn]:
    """Tokens over all chunks of each request, and whether every one of its chunks has a count."""
    sums, complete = [], []
    for block in records.blocks():
        if (block.chunk_tokens == 1).all():  # mostly so, and quicker
            sums.append(chunk_counts(block))
            complete.append(np.ones(len(block), dtype=bool))
            continue
        known = has(block.chunk_tokens)
        sums.append(_per_request(np.where(known, block.chunk_tokens, 0), block.chunk_offsets))
        complete.append(_per_request((~known).astype(np.int64), block.chunk_offsets) == 0)
    return np.concatenate(sums), np.concatenate(complete)


class ChunkSizes(NamedTuple):
    """The content chunks of successful requests, by size."""

    chunks: int
    known: int
    """The chunks with a token count."""
    single: int
    """The chunks of exactly one token."""
    several: int

    @property
    def single_share(self) -> float | None:
        """The share of single-token chunks among those with a token count; None where no chunk has one."""
        return self.single / self.known if self.known else None


def chunk_sizes(records: Records) -> ChunkSizes:
    chunks = known = single = several = 0
    for block in records.blocks():
        every = block.chunk_tokens
        tokens = every if block.ok.all() else every[np.repeat(block.ok, chunk_counts(block))]
        of_one = int(np.count_nonzero(tokens == 1))
        chunks += len(tokens)
        single += of_one
        if of_one == len(tokens):  # mostly so
            known += of_one
            continue
        known += int(np.count_nonzero(has(tokens)))
        several += int(np.count_nonzero(tokens > 1))
    return ChunkSizes(chunks, known, single, several)


def in_flight_peak(records: Records) -> int:
    """Most requests in flight at once, each from its dispatch to its end. An end frees its place first."""
    both = has(records.dispatched_ns) & has(records.finished_ns)
    instants = np.concatenate((records.finished_ns[both], records.dispatched_ns[both]))
    steps = np.concatenate((np.full(int(both.sum()), -1), np.ones(int(both.sum()), dtype=np.int64)))
    if not len(instants):
        return 0
    return int(np.cumsum(steps[np.lexsort((steps, instants))]).max())


def row_of(result: TestResult, statistic: str) -> str | None:
    """The value that the results table prints for a statistic; None without table or row."""
    for table in result.tables:
        if table.id == "ttft_results":
            for row in table.rows:
                if row and row[0].split()[-1:] == [_ROW_NAMES.get(statistic, statistic)]:
                    return row[1] if len(row) > 1 else ""
    return None


def reported(result: TestResult, statistic: str) -> bool:
    """A TTFT statistic is reported when it is defined and its row, if there is one, shows a number."""
    estimate = result.metrics.get(f"ttft.{statistic}")
    if estimate is None or estimate.point is None:
        return False
    cell = row_of(result, statistic)
    return cell is None or _NUMBER.match(cell.strip()) is not None


def _per_request(values: IntColumn, offsets: IntColumn) -> IntColumn:
    running = np.concatenate(([0], np.cumsum(values))).astype(np.int64)
    return np.asarray(running[offsets[1:]] - running[offsets[:-1]])
