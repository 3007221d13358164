"""Metrics that go through a long run a block at a time say what they say of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.metrics import chunking, itl, latency, server_side, throughput
from pytest_llmbench.model.outcome import Outcome, Phase
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import BLOCK, Records


class InBlocks(Records):
    """Says that it is long."""

    def blocks(self, size: int = BLOCK) -> Iterator[Records]:
        return super().blocks(min(size, 37))


def _row(index: int, random: np.random.Generator) -> RequestRecord:
    sent, tokens = 1_000_000 * index, int(random.integers(1, 9))
    chunks = (sent + np.cumsum(random.integers(1, 90_000, size=tokens))).tolist()
    sizes = random.integers(1, 4, size=tokens).tolist()
    ok = random.random() > 0.1
    return RequestRecord(
        index, f"{index}", Phase.MEASURE, scheduled_ns=sent - 3, dispatched_ns=sent - 2, submitted_ns=sent,
        first_event_ns=chunks[0], first_nonempty_ns=chunks[0], first_content_ns=chunks[min(1, tokens - 1)],
        first_reasoning_ns=chunks[0] if index % 5 == 0 else None, chunk_ns=chunks,
        chunk_tokens=sizes if index % 7 else [], last_content_ns=chunks[-1], finished_ns=chunks[-1] + 9,
        input_tokens=index % 11, output_tokens=sum(sizes), outcome=Outcome.OK if ok else Outcome.TIMEOUT,
        queue_wait_ns=index if index % 3 else None, prefill_ns=7, server_token_ns=chunks,
    )  # fmt: skip


def _long() -> tuple[Records, Records]:
    random = np.random.default_rng(1)
    whole = Records.from_rows(_row(index, random) for index in range(400))
    return whole, InBlocks(**{column.name: getattr(whole, column.name) for column in fields(Records)})


def _itl(option: itl.Option, part: str, records: Records) -> Any:
    return getattr(itl.itl_samples(records, option, min_output_tokens=3), part)


OPTIONS: tuple[itl.Option, ...] = ("direct", "A", "B", "C")
VECTORS: dict[str, Callable[[Records], Any]] = dict(latency.FAMILIES) | {
    "dispatch_lag": latency.dispatch_lag_ms,
    "ttft_reasoning": latency.ttft_reasoning_ms,
    "input_tokens": latency.ttft_input_tokens,
    **server_side.PARTS_OF_TTFT,
    **{
        f"itl {option} {part}": partial(_itl, option, part)
        for option in OPTIONS
        for part in ("values", "offsets")
    },
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_are_the_same_number_for_number(name: str) -> None:
    whole, long = _long()
    assert len(list(long.blocks())) == 11
    np.testing.assert_array_equal(VECTORS[name](long), VECTORS[name](whole))


def test_shares_and_rates() -> None:
    whole, long = _long()
    assert chunking.tokens_per_chunk(long) == chunking.tokens_per_chunk(whole)
    assert chunking.single_token_share(long) == chunking.single_token_share(whole)
    assert chunking.noncontent_first_share(long) == chunking.noncontent_first_share(whole)
    assert chunking.reasoning_share(long) == pytest.approx(chunking.reasoning_share(whole), rel=1e-12)
    assert itl.choose_option(long) == itl.choose_option(whole)
    assert itl.itl_samples(long, "A", min_output_tokens=3).excluded > 0
    for rate in (
        throughput.output_token_throughput,
        throughput.input_token_throughput,
        throughput.request_throughput,
    ):
        one, other = (rate([throughput.Window(r, 50_000_000, 350_000_000)], seed=1) for r in (whole, long))
        assert one.n == other.n
        assert other.point == pytest.approx(one.point, rel=1e-12)
        assert other.upper == pytest.approx(one.upper, rel=1e-9)


def test_several_runs_are_taken_together() -> None:
    whole, _ = _long()
    halves = [whole.part(0, 150), whole.part(150, 400)]
    assert chunking.tokens_per_chunk(halves) == chunking.tokens_per_chunk(whole)
    assert chunking.noncontent_first_share(halves) == chunking.noncontent_first_share(whole)
