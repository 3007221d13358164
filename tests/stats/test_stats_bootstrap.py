from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_models import ar1

from pytest_llmbench.stats import bootstrap
from pytest_llmbench.stats.bootstrap import mean_interval, percentile_interval, ratio_interval
from pytest_llmbench.stats.runs import Interval


def spelled_out(runs: Sequence[np.ndarray], block: int, seed: int, resamples: int) -> list[np.ndarray]:
    """The resamples themselves, one sample after another."""
    places = [(run, position) for run in runs for position in range(len(run))]
    blocks = math.ceil(len(places) / block)
    drawn = np.random.default_rng(seed).integers(len(places), size=(resamples, blocks))
    made = []
    for row in drawn:
        sample = [
            run[(position + step) % len(run)]
            for run, position in (places[start] for start in row)
            for step in range(block)
        ]
        made.append(np.array(sample[: len(places)]))
    return made


def between(statistics: Sequence[float], n: int, block: int) -> tuple[float, float]:
    from scipy import stats

    blocks = n / block
    tail = stats.norm.cdf(math.sqrt(blocks / (blocks - 1)) * stats.t.ppf(0.025, blocks - 1))
    return float(np.quantile(statistics, tail)), float(np.quantile(statistics, 1 - tail))


CASES = [([40], 1), ([40], 4), ([40], 7), ([25, 18], 5), ([9, 30, 12], 9)]


@pytest.mark.parametrize(("lengths", "block"), CASES)
def test_intervals_are_those_of_the_resamples_spelled_out(lengths: list[int], block: int) -> None:
    random = np.random.default_rng(2)
    runs = [random.lognormal(size=length) for length in lengths]
    made = spelled_out(runs, block, seed=17, resamples=120)
    n = sum(lengths)
    options = {"seed": 17, "block": block, "resamples": 120}
    assert mean_interval(runs, **options) == pytest.approx(between([m.mean() for m in made], n, block))
    for q in (30, 50):
        expected = between([float(np.percentile(m, q)) for m in made], n, block)
        assert percentile_interval(runs, q, **options) == pytest.approx(expected)


@pytest.mark.parametrize(("lengths", "block"), CASES)
def test_ratios_are_drawn_in_pairs(lengths: list[int], block: int) -> None:
    random = np.random.default_rng(4)
    below = [random.lognormal(size=length) for length in lengths]
    above = [run * random.normal(3, 0.1, size=len(run)) for run in below]
    tops = spelled_out(above, block, seed=5, resamples=90)
    bottoms = spelled_out(below, block, seed=5, resamples=90)
    ratios = [float(a.sum() / b.sum()) for a, b in zip(tops, bottoms, strict=True)]
    expected = between(ratios, sum(lengths), block)
    assert ratio_interval(above, below, seed=5, block=block, resamples=90) == pytest.approx(expected)


def test_the_seed_decides_and_nothing_else() -> None:
    samples = np.random.default_rng(0).exponential(size=300)
    assert mean_interval(samples, seed=1) == mean_interval(samples, seed=1)
    assert mean_interval(samples, seed=1) != mean_interval(samples, seed=2)
    assert percentile_interval(samples, 50, seed=1) == percentile_interval(samples, 50, seed=1)


def test_chunks_of_work_do_not_change_the_draws() -> None:
    samples = np.random.default_rng(0).exponential(size=bootstrap._CELLS // 10)
    expected = between([m.mean() for m in spelled_out([samples], 100, 3, 40)], len(samples), 100)
    assert mean_interval(samples, seed=3, block=100, resamples=40) == pytest.approx(expected)


def test_independent_samples_give_the_textbook_interval() -> None:
    samples = np.random.default_rng(6).normal(100, 10, size=2500)
    lower, upper = mean_interval(samples, seed=1)
    assert lower is not None
    assert upper is not None
    assert upper - lower == pytest.approx(2 * 1.96 * 10 / 50, rel=0.1)


def test_dependence_widens_the_interval() -> None:
    samples = ar1(0.9, 10_000, np.random.default_rng(6))

    def width(interval: Interval) -> float:
        assert interval.lower is not None
        assert interval.upper is not None
        return interval.upper - interval.lower

    widening = width(mean_interval(samples, seed=1)) / width(mean_interval(samples, seed=1, block=1))
    assert widening == pytest.approx(math.sqrt(1.9 / 0.1), rel=0.25)
    assert width(percentile_interval(samples, 50, seed=1)) > 2 * width(
        percentile_interval(samples, 50, seed=1, block=1)
    )


@pytest.mark.parametrize("samples", [[], [3.0]])
def test_no_interval_from_fewer_than_two_samples(samples: list[float]) -> None:
    vector = np.array(samples)
    assert mean_interval(vector, seed=1) == (None, None)
    assert percentile_interval(vector, 50, seed=1) == (None, None)
    assert ratio_interval(vector, vector, seed=1) == (None, None)


def test_a_constant_is_certain() -> None:
    assert mean_interval(np.full(50, 0.1), seed=1) == (0.1, 0.1)
    assert percentile_interval(np.full(50, 0.1), 50, seed=1) == (0.1, 0.1)


def test_mistakes_are_refused() -> None:
    ones = np.ones(5)
    with pytest.raises(ValueError, match="differ in length"):
        ratio_interval(ones, np.ones(4), seed=1)
    with pytest.raises(ValueError, match="positive"):
        ratio_interval(ones, np.zeros(5), seed=1)
    with pytest.raises(ValueError, match="a block has 1 to 5"):
        mean_interval(ones, seed=1, block=6)
    with pytest.raises(ValueError, match="confidence level"):
        mean_interval(ones, seed=1, level=95)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    samples=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60),
    parts=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_intervals_stay_within_the_samples(samples: list[float], parts: int, seed: int) -> None:
    runs = [np.array(part) for part in np.array_split(samples, parts)]
    lowest, highest = min(samples), max(samples)
    slack = 1e-9 * max(abs(lowest), abs(highest))
    for lower, upper in (
        mean_interval(runs, seed=seed, resamples=50),
        percentile_interval(runs, 50, seed=seed, resamples=50),
    ):
        assert lower is not None
        assert upper is not None
        assert lowest - slack <= lower <= upper <= highest + slack


def test_memory_stays_bounded() -> None:
    import tracemalloc

    samples = np.random.default_rng(0).exponential(size=10_000)
    tracemalloc.start()
    try:
        mean_interval(samples, seed=1, block=1, resamples=1000)
        percentile_interval(samples, 50, seed=1, block=5, resamples=1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50e6
