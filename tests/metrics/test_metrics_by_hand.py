"""Every definition that verdict and audit rest on, beside loops in plain Python over the same requests."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from pytest_llmbench.metrics import itl, latency, throughput
from pytest_llmbench.metrics.balance import growth_in_flight, tokens_in_flight
from pytest_llmbench.metrics.kv_cache import out_of_memory_errors
from pytest_llmbench.metrics.throughput import Window, submitted_inside
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records

START_NS, END_NS = 100_000_000, 900_000_000
OPTIONS: tuple[itl.Option, ...] = ("direct", "A", "B", "C")


def _rows(seed: int, *, unknown_sizes: bool) -> list[RequestRecord]:
    """Streams of one to sixty chunks of no token, of one or of several; some fail, some reason."""
    chance, rows = random.Random(seed), []
    for index in range(150):
        sent = 7_000_000 * index + chance.randrange(1_000_000)
        at_ns = [sent + chance.randrange(1, 60_000_000)]
        while len(at_ns) < chance.randrange(1, 60):
            at_ns.append(at_ns[-1] + chance.randrange(0, 5) * 1_000_003)
        sizes = [chance.choice([0, 1, 1, 1, 2, 3]) for _ in at_ns]
        sizes[0] = max(sizes[0], 1)
        hidden = chance.choice([None, 0, 1])
        row = RequestRecord(index, f"{index}", Phase.MEASURE, submitted_ns=sent, chunk_ns=at_ns)
        row.first_reasoning_ns = at_ns[0] if index % 4 == 0 and len(at_ns) > 3 else None
        row.first_content_ns = at_ns[2] if row.first_reasoning_ns is not None else at_ns[0]
        row.last_content_ns, row.finished_ns = at_ns[-1], at_ns[-1] + 17
        row.chunk_tokens = [] if unknown_sizes and index % 7 == 0 else sizes
        row.input_tokens, row.output_tokens = chance.randrange(1, 300), sum(sizes)
        row.reasoning_tokens = hidden
        row.outcome = chance.choices([Outcome.OK, Outcome.TIMEOUT, Outcome.REFUSED], [8, 1, 1])[0]
        row.error = None if row.outcome is Outcome.OK else chance.choice(["CUDA out of memory", "reset"])
        row.server_token_ns = at_ns if index % 6 else []
        rows.append(row)
    return rows


@pytest.fixture(params=[3, 4])
def rows(request: pytest.FixtureRequest) -> list[RequestRecord]:
    return _rows(request.param, unknown_sizes=False)


def _window(rows: Sequence[RequestRecord]) -> Window:
    return Window(Records.from_rows(rows), START_NS, END_NS)


def _ok(rows: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [row for row in rows if row.outcome is Outcome.OK]


def _inside(at_ns: int | None) -> bool:
    return at_ns is not None and START_NS < at_ns <= END_NS


def _known(value: int | None) -> int:
    assert value is not None
    return value


def test_latencies_of_requests_submitted_in_the_window(rows: list[RequestRecord]) -> None:
    ttft, e2e, tpot = [], [], []
    for row in _ok(rows):
        if not _inside(row.submitted_ns):
            continue
        sent, first, last = (
            _known(row.submitted_ns),
            _known(row.first_content_ns),
            _known(row.last_content_ns),
        )
        ttft.append((first - sent) / 1e6)
        e2e.append((last - sent) / 1e6)
        reasoned = row.first_reasoning_ns
        began = first if reasoned is None else min(first, reasoned)
        tokens = _known(row.output_tokens) - (0 if reasoned is not None else row.reasoning_tokens or 0)
        if tokens >= 2:
            tpot.append((last - began) / 1e6 / (tokens - 1))
    samples = submitted_inside(_window(rows))
    np.testing.assert_allclose(latency.ttft_ms(samples), ttft, rtol=1e-12)
    np.testing.assert_allclose(latency.e2e_ms(samples), e2e, rtol=1e-12)
    np.testing.assert_allclose(latency.tpot_ms(samples), tpot, rtol=1e-12)


def test_rates_by_what_arrived_in_the_window(rows: list[RequestRecord]) -> None:
    tokens, completed, inputs = 0.0, 0, 0
    for row in _ok(rows):
        tokens += sum(size for at, size in zip(row.chunk_ns, row.chunk_tokens, strict=True) if _inside(at))
        completed += _inside(row.finished_ns)
        inputs += _known(row.input_tokens) if _inside(row.first_content_ns) else 0
    window, seconds = _window(rows), (END_NS - START_NS) / 1e9
    counted = throughput.output_tokens_per_slice(window, 1)
    assert counted is not None
    assert float(counted.sum()) == pytest.approx(tokens)
    assert throughput.completions(window) == completed
    assert throughput.input_tokens(window) == pytest.approx(inputs)
    assert throughput.output_token_throughput([window], seed=1).point == pytest.approx(tokens / seconds)
    assert throughput.request_throughput([window], seed=1).point == pytest.approx(completed / seconds)
    assert throughput.input_token_throughput([window], seed=1).point == pytest.approx(inputs / seconds)


def test_requests_in_flight_by_reading_them_at_many_instants(rows: list[RequestRecord]) -> None:
    readings = 2_000
    instants = [START_NS + (END_NS - START_NS) * (2 * i + 1) // (2 * readings) for i in range(readings)]
    flying = [sum(_known(r.submitted_ns) <= at < _known(r.finished_ns) for r in rows) for at in instants]
    fifths = [statistics.fmean(flying[i * readings // 5 : (i + 1) * readings // 5]) for i in range(5)]
    assert growth_in_flight(_window(rows)).means == pytest.approx(fifths, abs=0.05)


def test_tokens_in_flight_by_reading_them_at_many_instants(rows: list[RequestRecord]) -> None:
    readings, held = 2_000, []
    for i in range(readings):
        at = START_NS + (END_NS - START_NS) * (2 * i + 1) // (2 * readings)
        under_way = [row for row in rows if _known(row.submitted_ns) <= at < _known(row.finished_ns)]
        held.append(
            sum(
                _known(row.input_tokens)
                + sum(size for t, size in zip(row.chunk_ns, row.chunk_tokens, strict=True) if t <= at)
                for row in under_way
            )
        )
    assert tokens_in_flight(_window(rows)).point == pytest.approx(statistics.fmean(held), rel=0.01)


def _token_instants(row: RequestRecord, option: itl.Option) -> list[int]:
    if option == "C":
        return list(row.server_token_ns)
    if option == "A":
        return list(row.chunk_ns)
    if not row.chunk_tokens:  # of unknown size: one token each, or nothing to say with option B
        return [] if option == "B" else list(row.chunk_ns)
    return [at for at, size in zip(row.chunk_ns, row.chunk_tokens, strict=True) for _ in range(size)]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("unknown_sizes", [False, True])
def test_gaps_between_tokens(option: itl.Option, unknown_sizes: bool) -> None:
    rows, fewest = _rows(5, unknown_sizes=unknown_sizes), 20
    eligible = [row for row in _ok(rows) if _known(row.output_tokens) >= fewest]
    streams = [_token_instants(row, option) for row in eligible]
    gaps = [[(b - a) / 1e6 for a, b in pairwise(at)] for at in streams]
    pool = [gap for own in gaps for gap in own]
    samples = itl.itl_samples(Records.from_rows(rows), option, min_output_tokens=fewest)
    counts = samples.counts
    assert (counts.gaps, counts.eligible) == (len(pool), len(eligible))
    assert (counts.excluded, counts.zeros) == (len(_ok(rows)) - len(eligible), pool.count(0.0))
    jitter = [statistics.stdev(own) for own in gaps if len(own) >= 2]
    np.testing.assert_allclose(itl.jitter_ms(samples), jitter, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(itl.longest_pause_ms(samples), [max(own) for own in gaps if own])
    expected = {f"p{q}": statistics.quantiles(pool, n=100, method="inclusive")[q - 1] for q in (50, 90, 99)}
    expected |= {"mean": statistics.fmean(pool), "std": statistics.stdev(pool)}
    distribution = itl.itl_distribution(samples)
    for name, value in expected.items():
        assert distribution[f"itl.{name}"].point == pytest.approx(value, rel=1e-9)


def test_no_gaps_no_figure() -> None:
    samples = itl.itl_samples(Records.from_rows([]), "direct")
    found = itl.itl_distribution(samples)
    assert [found[f"itl.{name}"].point for name in ("p50", "mean", "std")] == [None, None, None]


def test_errors_of_memory(rows: list[RequestRecord]) -> None:
    """What the generator gave up itself says nothing of the server's memory."""
    refused = [row for row in rows if row.outcome is Outcome.REFUSED]
    expected = sum("memory" in (row.error or "") for row in refused)
    assert 0 < expected < sum("memory" in (row.error or "") for row in rows)
    assert out_of_memory_errors(Records.from_rows(rows)) == expected
