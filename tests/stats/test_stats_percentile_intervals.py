from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from queue_models import ar1, mm1_waits

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.stats import percentiles
from pytest_llmbench.stats.percentiles import (
    Worth,
    bounded_by_higher,
    in_order,
    median_worth,
    ordered_interval,
    ordered_percentile_interval,
    percentile_worth,
    percentile_worths,
    series_memory,
)
from pytest_llmbench.stats.runs import Interval


def test_independent_samples_keep_their_worth() -> None:
    samples = np.random.default_rng(1).exponential(size=10_000)
    for q in (50.0, 95.0, 99.0):
        worth = percentile_worth(samples, q)
        assert worth.samples > 5000
        assert worth.freedom == 24


def test_dependence_costs() -> None:
    worths = [percentile_worth(ar1(0.8, 10_000, np.random.default_rng(seed)), 50.0) for seed in range(20)]
    # The indicator of the median of AR(1): ρ_k = 2/π · arcsin(0.8^k), τ = 1 + 2 Σ ρ_k = 6.0.
    assert np.median([worth.samples for worth in worths]) == pytest.approx(10_000 / 6.0, rel=0.25)


def test_a_tail_is_worth_little_more_than_the_median() -> None:
    """A slow queue under noisy service: the rare event shows nothing of it."""
    random = np.random.default_rng(6)
    series = random.exponential(size=4000) + np.maximum(ar1(0.99, 4000, random), 0)
    n, median = len(series), median_worth(series, lags=series_memory(series))
    tail = percentile_worth(series, 99.0)
    assert n / tail.samples - 1 >= 0.5 * (n / median.samples - 1) * 0.999


@pytest.mark.parametrize("n", [5, 30, 50, 300, 3000])
def test_together_percentiles_are_worth_what_each_is_alone(n: int) -> None:
    qs = (50.0, 90.0, 95.0, 99.0, 99.9)
    for series in (np.random.default_rng(n).exponential(size=n), ar1(0.9, n, np.random.default_rng(n))):
        assert percentile_worths(series, qs) == [percentile_worth(series, q) for q in qs]
    assert [worth.samples for worth in percentile_worths([], qs)] == [0.0] * 5


def test_a_median_between_two_levels_is_worth_what_their_turns_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sample's own median lies on the level that it has seen more of, among the noise of that one."""
    random = np.random.default_rng(5)
    slow = np.cumsum(random.random(1000) > 0.99) % 2 == 1
    samples = np.where(slow, 3.0, 1.0) * (1 + 0.1 * random.exponential(size=1000))
    turns = median_worth(slow.astype(float), lags=series_memory(samples)).samples
    assert percentile_worth(samples, 50.0).samples < 1.2 * turns
    monkeypatch.setattr(percentiles, "_MUCH_LESS", 0.0)
    assert percentile_worth(samples, 50.0).samples > 2 * turns


def test_a_sample_of_a_few_memories_is_open_above() -> None:
    ordered = np.arange(1.0, 1001.0)
    assert ordered_interval(ordered, 50.0, Worth(400.0, 24.0, recalled=0.05)).upper is not None
    few = Worth(400.0, 24.0, recalled=0.2)
    assert ordered_interval(ordered, 50.0, few).upper is None
    assert few.usable_above(1000, 0.95) is None
    assert few.required(6, 1000, 0.95) >= 1000 * 0.2 * (1.96 / 0.8) ** 2
    assert ordered_interval(ordered, 50.0, Worth(1000.0, 24.0, recalled=0.2)).upper is not None


def test_few_degrees_of_freedom_discount() -> None:
    assert Worth(1000.0, 1e6).discounted(0.95) == pytest.approx(1000, rel=1e-4)
    assert Worth(1000.0, 5.0).discounted(0.95) == pytest.approx(1000 * (1.959964 / 2.570582) ** 2, rel=1e-5)


def test_of_certain_worth_the_interval_is_that_of_order_statistics() -> None:
    ordered = np.arange(1.0, 1001.0)
    certain = Worth(1000.0, 1e9)
    for q in (50.0, 99.0):
        plain = ordered_percentile_interval(ordered, q, effective_n=certain.discounted(0.95))
        assert ordered_interval(ordered, q, certain) == plain


def test_the_upper_end_alone_is_moved_out() -> None:
    ordered = np.sort(np.random.default_rng(2).exponential(size=5000))
    worth = Worth(500.0, 1e9)
    plain = ordered_percentile_interval(ordered, 90.0, effective_n=worth.discounted(0.95))
    lower, upper = ordered_interval(ordered, 90.0, worth)
    assert lower == plain.lower
    assert upper is not None
    assert plain.upper is not None
    assert plain.upper < upper < 1.1 * plain.upper


def test_too_few_effective_samples_open_the_upper_end() -> None:
    samples = mm1_waits(0.9, 1000, np.random.default_rng(3))
    lower, upper = ordered_interval(np.sort(samples), 99.0, percentile_worth(samples, 99.0))
    assert lower is not None
    assert upper is None


def test_the_memory_is_the_longer_of_two() -> None:
    """One sample drowns the rest of the series; whether it lies above the median does not."""
    samples = ar1(0.9, 4000, np.random.default_rng(4))
    samples[17] = 1e6
    assert series_memory(samples) > 10


def test_several_runs_are_two_levels() -> None:
    random = np.random.default_rng(5)
    runs = [random.normal(size=1000) for _ in range(4)]
    apart = [run + shift for run, shift in zip(runs, (-1.0, 0.0, 0.0, 1.0), strict=True)]
    assert percentile_worth(runs, 50.0).samples > 1500
    assert percentile_worth(apart, 50.0).samples < 100
    assert percentile_worth(apart, 50.0).freedom < 5


@pytest.mark.parametrize("samples", [np.zeros(200), np.arange(3.0), np.array([5.0])])
def test_degenerate_samples(samples: np.ndarray) -> None:
    lower, upper = ordered_interval(np.sort(samples), 50.0, percentile_worth(samples, 50.0))
    point = float(np.median(samples))
    assert lower is None or lower <= point
    assert upper is None or upper >= point


def test_ends_of_several_percentiles_are_in_order() -> None:
    given = [Interval(2.0, None), Interval(1.0, 8.0), Interval(None, 7.0), Interval(5.0, None)]
    assert in_order(given) == [(1.0, 8.0), (1.0, 8.0), (1.0, 8.0), (5.0, None)]
    assert in_order([]) == []


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("n", [12, 200, 1000])
def test_percentiles_of_one_distribution_are_in_order(load: float, n: int) -> None:
    for seed in range(10):
        found = distribution("x", mm1_waits(load, n, np.random.default_rng([22, seed])))
        rising = [found[f"x.{name}"] for name in ("p50", "p90", "p95", "p99", "p99_9")]
        for one, other in pairwise(rising):
            assert (one.point or 0.0) <= (other.point or 0.0)
            assert one.lower is None or (other.lower is not None and one.lower <= other.lower)
            assert other.upper is None or (one.upper is not None and one.upper <= other.upper)


def test_what_bounds_a_percentile_bounds_lower_ones() -> None:
    ends = [Interval(1.0, None), Interval(2.0, 9.0), Interval(3.0, 4.0), Interval(3.5, 8.0)]
    bounded = bounded_by_higher(ends, [None, None, 7.0, None])
    assert bounded == [Interval(1.0, 7.0), Interval(2.0, 7.0), Interval(3.0, 4.0), Interval(3.5, 8.0)]
    assert bounded_by_higher(ends, [None] * 4) == ends
