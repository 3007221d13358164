"""Metrics that go through a long run a block at a time say what they say of the whole."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.metrics import chunking, itl, latency, server_side, throughput
from pytest_llmbench.metrics.balance import tokens_in_flight
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import BLOCK, BLOCK_ENTRIES, Records
from pytest_llmbench.stats import clusters
from pytest_llmbench.stats.counted import CountedOrder, ecdf
from pytest_llmbench.stats.shape import modality, tail_variation


class InBlocks(Records):
    """Says that it is long."""

    at_once = 37

    @classmethod
    def like(cls, records: Records, at_once: int = 37) -> InBlocks:
        long = cls(**{column.name: getattr(records, column.name) for column in fields(Records)})
        object.__setattr__(long, "at_once", at_once)
        return long

    def blocks(self, size: int = BLOCK, entries: int = BLOCK_ENTRIES) -> Iterator[Records]:
        return super().blocks(min(size, self.at_once), entries)


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
    return whole, InBlocks.like(whole)


def _itl(option: itl.Option, part: str, records: Records) -> Any:
    return getattr(itl.itl_samples(records, option, min_output_tokens=3), part)


OPTIONS: tuple[itl.Option, ...] = ("direct", "A", "B", "C")
VECTORS: dict[str, Callable[[Records], Any]] = dict(latency.FAMILIES) | {
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


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("size", [23, 10_000])
def test_gaps_too_many_to_keep_have_the_same_distribution_to_the_last_digit(
    option: itl.Option, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimates of gaps that are kept and sorted, and of gaps counted in passes over the records."""
    whole, other = _gappy(1), _gappy(2)
    runs = [itl.itl_samples(run, option, min_output_tokens=3) for run in (whole, other)]
    assert isinstance(runs[0].clusters.ordered, np.ndarray)
    expected = itl.itl_distribution(runs)
    # Fixed sizes of memory, which no caller has a reason to choose.
    monkeypatch.setattr(itl, "KEPT", 100)
    monkeypatch.setattr(clusters, "SORTED", 50)
    long = [itl.itl_samples(InBlocks.like(run, size), option, min_output_tokens=3) for run in (whole, other)]
    assert isinstance(long[0].clusters.ordered, CountedOrder)
    assert itl.itl_distribution(long) == expected
    assert any(estimate.closed for estimate in expected.values())
    for one, two in zip(runs, long, strict=True):
        assert one.counts == two.counts
        assert one.counts.zeros > 0 or option == "A"
        np.testing.assert_array_equal(itl.jitter_ms(one), itl.jitter_ms(two))
        np.testing.assert_array_equal(itl.longest_pause_ms(one), itl.longest_pause_ms(two))
        assert modality(one.clusters) == modality(two.clusters)
        assert tail_variation(one.clusters) == tail_variation(two.clusters)
        assert ecdf(one.clusters.ordered) == ecdf(two.clusters.ordered)


def _gappy(seed: int) -> Records:
    """Gaps of all kinds: spread, alike, of no length, short replies, failed requests, chunks of no token, of
    several and of an unknown number, counts that are missing."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(300):
        sent, tokens = 1_000_000 * index, int(random.integers(1, 60))
        gaps = random.lognormal(16, 0.5, tokens).astype(np.int64) if index % 4 else np.full(tokens, 5_000_000)
        gaps[random.random(tokens) < 0.05] = 0
        chunks = (sent + np.cumsum(gaps)).tolist()
        sizes = [1] * tokens if index % 9 == 0 else random.choice([0, 1, 1, 1, 2, 3], tokens).tolist()
        row = RequestRecord(index, f"{index}", Phase.MEASURE, submitted_ns=sent, chunk_ns=chunks)
        row.chunk_tokens = sizes if index % 7 else []
        row.output_tokens = sum(sizes) if index % 5 else None
        row.outcome = Outcome.OK if random.random() > 0.1 else Outcome.TIMEOUT
        row.server_token_ns = chunks if index % 6 else []
        rows.append(row)
    return Records.from_rows(rows)


def test_gaps_too_many_to_keep_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million gaps would be 8 MB."""
    requests, chunks = 2000, 500
    rows = Records.from_rows(
        RequestRecord(i, "", Phase.MEASURE, submitted_ns=i, output_tokens=chunks, outcome=Outcome.OK)
        for i in range(requests)
    )
    many = replace(
        rows,
        chunk_offsets=np.arange(requests + 1) * chunks,
        chunk_ns=np.arange(requests * chunks),
        chunk_tokens=np.ones(requests * chunks, dtype=np.int64),
    )
    monkeypatch.setattr(itl, "KEPT", 10_000)
    tracemalloc.start()
    try:
        samples = itl.itl_samples(InBlocks.like(many, 20), "direct")
        _, peak = tracemalloc.get_traced_memory()
        assert samples.counts.gaps == requests * (chunks - 1)
        assert peak < 2_000_000
        tracemalloc.reset_peak()
        assert len(itl.jitter_ms(samples)) == requests
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_tokens_in_flight() -> None:
    whole, long = _long()
    one, other = (tokens_in_flight(throughput.Window(r, 50_000_000, 350_000_000)) for r in (whole, long))
    assert one.point is not None
    assert other.point == pytest.approx(one.point, rel=1e-12)
    assert other.upper == pytest.approx(one.upper, rel=1e-9)


def test_blocks_hold_no_more_chunks_than_asked_for() -> None:
    whole, _ = _long()
    cut = list(whole.blocks(entries=20))
    assert np.concatenate([block.index for block in cut]).tolist() == whole.index.tolist()
    assert all(len(block.chunk_ns) <= 20 or len(block) == 1 for block in cut)
    assert all(len(block.server_token_ns) <= 20 or len(block) == 1 for block in cut)
    assert len(cut) < 150
    assert [len(block) for block in whole.blocks(entries=1)] == [1] * len(whole)
    assert next(iter(whole.blocks())) is whole
    assert [len(block) for block in Records.from_rows(()).blocks()] == [0]


def test_shares_and_rates() -> None:
    whole, long = _long()
    assert chunking.tokens_per_chunk(long) == chunking.tokens_per_chunk(whole)
    assert chunking.single_token_share(long) == chunking.single_token_share(whole)
    assert chunking.noncontent_first_share(long) == chunking.noncontent_first_share(whole)
    assert chunking.reasoning_share(long) == pytest.approx(chunking.reasoning_share(whole), rel=1e-12)
    assert itl.choose_option(long) == itl.choose_option(whole)
    assert itl.itl_samples(long, "A", min_output_tokens=3).counts.excluded > 0
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
