from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest
from metric_rows import row

from pytest_llmbench.metrics.itl import (
    ItlSamples,
    choose_option,
    itl_distribution,
    itl_samples,
    jitter_ms,
    longest_pause_ms,
    server_clock_misfit,
)
from pytest_llmbench.model.estimate import EstimateKind
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import Records

NAMES = [f"itl.{name}" for name in ("p50", "p90", "p95", "p99", "p99_9", "mean", "std")]


def records(*rows: RequestRecord) -> Records:
    return Records.from_rows(rows)


def gaps(samples: ItlSamples) -> list[list[float]]:
    return [part.tolist() for part in np.split(samples.values, samples.offsets[1:-1])]


MIXED = (
    row(0, submitted=0, chunks=(100, 110, 125), chunk_tokens=(1, 1, 1)),
    row(1, submitted=1, chunks=(50, 70, 100, 160), chunk_tokens=(2, 1, 3, 0), tokens=6),
)


def test_direct_and_b_give_further_tokens_of_a_chunk_no_gap() -> None:
    for option in ("direct", "B"):
        found = itl_samples(records(*MIXED), option, min_output_tokens=1)  # type: ignore[arg-type]
        assert gaps(found) == [[10, 15], [0, 20, 30, 0, 0]]
        assert (found.counts.zeros, found.counts.eligible, found.counts.label) == (3, 2, "ITL")


def test_a_is_between_chunks() -> None:
    found = itl_samples(records(*MIXED), "A", min_output_tokens=1)
    assert gaps(found) == [[10, 15], [20, 30, 60]]
    assert (found.counts.zeros, found.counts.label) == (0, "Time Between Chunks")


def test_an_empty_chunk_is_no_token_arrival() -> None:
    seen = records(row(0, chunks=(10, 20, 40), chunk_tokens=(1, 0, 1), tokens=2))
    assert gaps(itl_samples(seen, "direct", min_output_tokens=1)) == [[30]]


def test_c_is_the_servers_clock() -> None:
    server = [5_000_000, 7_500_000, 7_500_000, 11_000_000]
    seen = records(
        row(0, chunks=(100, 110), chunk_tokens=(2, 2), tokens=4, server_token_ns=server),
        row(1, submitted=1, chunks=(100, 110), chunk_tokens=(2, 2), tokens=4),
    )
    found = itl_samples(seen, "C", min_output_tokens=1)
    assert gaps(found) == [[2.5, 0, 3.5], []]
    assert (found.counts.eligible, found.counts.zeros) == (2, 1)


def test_the_first_token_has_no_gap_whatever_the_ttft() -> None:
    soon, late = ((start, start + 5.0, start + 11.0) for start in (10.0, 9000.0))
    for option in ("direct", "A", "B"):
        found = [
            itl_samples(records(row(chunks=chunks)), option, min_output_tokens=1)  # type: ignore[arg-type]
            for chunks in (soon, late)
        ]
        assert gaps(found[0]) == gaps(found[1]) == [[5, 6]]


def test_short_and_failed_requests_stay_out_and_the_short_are_counted() -> None:
    long = tuple(float(at) for at in range(50))
    seen = records(
        row(0, chunks=long),
        row(1, submitted=1, chunks=long[:49]),
        row(2, submitted=2, chunks=long, outcome=Outcome.TRUNCATED),
        row(3, submitted=3, chunks=long[:10], tokens=60),
    )
    found = itl_samples(seen, "direct")
    assert (found.counts.eligible, found.counts.excluded) == (2, 1)
    assert found.counts.excluded_share == pytest.approx(1 / 3)
    assert np.diff(found.offsets).tolist() == [49, 9]
    assert itl_samples(records(), "direct").counts.excluded_share is None


def test_a_missing_count_is_read_from_the_chunks() -> None:
    long = tuple(float(at) for at in range(30))
    seen = records(
        unknown(row(0, chunks=long, chunk_tokens=[2] * 30)),
        unknown(row(1, submitted=1, chunks=long, chunk_tokens=[1] * 30)),
    )
    found = itl_samples(seen, "direct")
    assert (found.counts.eligible, found.counts.excluded) == (1, 1)


def unknown(request: RequestRecord) -> RequestRecord:
    request.output_tokens = None
    return request


def test_chunks_of_unknown_size() -> None:
    seen = records(row(0, chunks=(1, 3, 6), chunk_tokens=()), *MIXED[1:])
    assert gaps(itl_samples(seen, "direct", min_output_tokens=1))[0] == [2, 3]
    assert gaps(itl_samples(seen, "B", min_output_tokens=1)) == [[], [0, 20, 30, 0, 0]]
    assert gaps(itl_samples(seen, "A", min_output_tokens=1))[0] == [2, 3]


def test_the_order_of_choice() -> None:
    single = row(0, chunks=range(20), chunk_tokens=[1] * 20)
    server = {"server_token_ns": list(range(0, 20_000_000, 1_000_000))}
    assert choose_option(records(single)) == "direct"
    with_server = row(0, chunks=range(20), chunk_tokens=[1] * 20, **server)
    assert choose_option(records(with_server)) == "direct"
    nearly = row(0, chunks=range(20), chunk_tokens=[1] * 19 + [2])
    assert choose_option(records(nearly)) == "direct"
    at_the_border = row(0, chunks=range(20), chunk_tokens=[1] * 18 + [2] * 2)
    assert choose_option(records(at_the_border)) == "A"
    assert choose_option(records(row(0, chunks=range(20), chunk_tokens=[1] * 19 + [2], **server))) == "C"
    assert choose_option(records(row(0, chunks=range(20), chunk_tokens=()))) == "A"
    assert choose_option(records(row(0, chunks=range(20), chunk_tokens=(), **server))) == "C"


@pytest.mark.parametrize(
    ("told_ms", "option"),
    [
        pytest.param([160 * i for i in range(32)], "A", id="longer than the reply was waited for"),
        pytest.param(list(range(32)), "A", id="all of it within 31 ms"),
        pytest.param([20 * i for i in range(32)], "C", id="the time that it took"),
        pytest.param([12 * i for i in range(32)], "A", id="less than its chunks took to come"),
    ],
)
def test_server_instants_have_to_fit_between_the_arrivals(told_ms: list[int], option: str) -> None:
    """Eight tokens in each of four chunks, 160 ms apart: 480 ms, and 140 more for the first chunk."""
    reply = row(
        0, chunks=(200, 360, 520, 680), chunk_tokens=(8, 8, 8, 8), tokens=32,
        server_token_ns=[ms * 1_000_000 for ms in told_ms],
    )  # fmt: skip
    assert choose_option(records(reply)) == option
    assert server_clock_misfit(records(reply)) == (0.0 if option == "C" else 1.0)


def test_instants_for_a_part_of_the_requests_are_none() -> None:
    one = row(0, chunks=range(4), chunk_tokens=[2] * 4, server_token_ns=[1, 2, 3])
    other = row(1, submitted=1, chunks=range(4), chunk_tokens=[2] * 4)
    assert choose_option(records(one, other)) == "A"
    failed = row(1, submitted=1, chunks=(), outcome=Outcome.TIMEOUT)
    assert choose_option(records(one, failed)) == "C"


def drawn(values: Sequence[Sequence[float]]) -> ItlSamples:
    offsets = np.concatenate(([0], np.cumsum([len(own) for own in values])))
    flat = [gap for own in values for gap in own]
    return ItlSamples.of("direct", np.array(flat, dtype=np.float64), offsets)


def test_jitter_and_longest_pause() -> None:
    found = drawn([[1, 2, 3], [], [7], [4, 4, 10, 6]])
    assert jitter_ms(found) == pytest.approx([1.0, math.sqrt(24 / 3)])
    assert longest_pause_ms(found).tolist() == [3, 7, 10]
    assert len(jitter_ms(drawn([[], []]))) == len(longest_pause_ms(drawn([[], []]))) == 0


def test_points_are_those_of_numpy() -> None:
    random = np.random.default_rng(1)
    runs = [drawn(random.lognormal(size=(40, 60)).tolist()) for _ in range(2)]
    every = np.concatenate([run.values for run in runs])
    found = itl_distribution(runs)
    assert list(found) == NAMES
    expected = [*np.percentile(every, [50, 90, 95, 99, 99.9]), every.mean(), every.std(ddof=1)]
    assert [found[name].point for name in NAMES] == pytest.approx(expected)
    assert {(estimate.n, estimate.unit) for estimate in found.values()} == {(4800, "ms")}


def test_without_gaps_nothing_is_defined() -> None:
    for nothing in ([], drawn([]), [drawn([[], []])]):
        found = itl_distribution(nothing, family="tbc")
        assert list(found) == [name.replace("itl", "tbc") for name in NAMES]
        assert not any(estimate.defined for estimate in found.values())


def test_gaps_of_a_request_are_not_independent() -> None:
    """100 requests of one speed each, copied 100 times, say no more than 100 gaps do."""
    speeds = np.random.default_rng(2).lognormal(3, 0.3, size=200)
    found = itl_distribution(drawn(np.repeat(speeds[:, None], 100, axis=1).tolist()))
    p99 = found["itl.p99"]
    assert p99.kind is EstimateKind.CRUDE
    assert p99.upper is not None
    assert p99.upper > np.percentile(speeds, 99)
    mean = found["itl.mean"]
    assert mean.upper is not None
    assert mean.lower is not None
    assert mean.upper - mean.lower == pytest.approx(4 * speeds.std() / math.sqrt(200), rel=0.4)


def test_few_requests_support_no_mean() -> None:
    found = itl_distribution(drawn(np.random.default_rng(3).lognormal(size=(20, 200)).tolist()))
    for name in ("itl.mean", "itl.std"):
        assert (found[name].lower, found[name].upper) == (None, None)
        assert found[name].n_required is not None
        assert found[name].n_required > 4000
    assert found["itl.p50"].closed


def clustered(random: np.random.Generator, requests: int, tokens: int) -> ItlSamples:
    """Log-normal gaps; half of the logarithm's variance lies between requests."""
    counts = random.integers(50, 2 * tokens - 50, size=requests)
    level = np.repeat(random.normal(size=requests), counts)
    values = np.exp(0.3 * level + 0.3 * random.normal(size=int(counts.sum())))
    return ItlSamples.of("direct", values, np.concatenate(([0], np.cumsum(counts))))


def coverage(requests: int, times: int) -> dict[str, float]:
    spread = 0.3 * math.sqrt(2)
    truth = {
        name: math.exp(spread * NormalDist().inv_cdf(q)) for name, q in {"p50": 0.5, "p99": 0.99}.items()
    }
    truth["mean"] = math.exp(spread**2 / 2)
    truth["std"] = truth["mean"] * math.sqrt(math.exp(spread**2) - 1)
    held: dict[str, list[bool]] = {name: [] for name in truth}
    for seed in range(times):
        found = itl_distribution(clustered(np.random.default_rng([51, seed]), requests, 80))
        for name, value in truth.items():
            lower, upper = found[f"itl.{name}"].lower, found[f"itl.{name}"].upper
            held[name].append((lower is None or lower <= value) and (upper is None or value <= upper))
    return {name: float(np.mean(found)) for name, found in held.items()}


def test_coverage_of_clustered_gaps() -> None:
    held = coverage(120, times=60)
    assert min(held.values()) >= 0.86, held


@pytest.mark.slow
@pytest.mark.parametrize("requests", [100, 1000])
def test_coverage_of_clustered_gaps_in_many(requests: int) -> None:
    held = coverage(requests, times=300)
    assert min(held.values()) >= 0.87, held
    assert min(held["p50"], held["p99"]) >= 0.92, held


@pytest.mark.slow
def test_millions_of_gaps_take_a_second() -> None:
    gap = np.random.default_rng(1).lognormal(size=(10_000, 250))
    samples = ItlSamples.of("direct", gap.ravel(), np.arange(0, 2_500_001, 250))
    started = time.perf_counter()
    itl_distribution(samples)
    jitter_ms(samples)
    assert time.perf_counter() - started < 5
