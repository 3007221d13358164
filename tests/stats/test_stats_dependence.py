from __future__ import annotations

import math

import numpy as np
import pytest
from queue_models import ar1

from pytest_llmbench.stats.dependence import (
    autocovariance,
    block_length,
    effective_size,
    exceedances,
    percentile_effective_size,
)


def test_autocovariance_against_the_definition() -> None:
    samples = np.random.default_rng(3).normal(size=57)
    deviations = samples - samples.mean()
    expected = [float((deviations[: 57 - k] * deviations[k:]).sum()) / 57 for k in range(20)]
    assert autocovariance(samples, 19).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.8])
def test_effective_size_of_ar1(correlation: float) -> None:
    """τ = (1 + ρ) / (1 - ρ)."""
    n = 20_000
    random = np.random.default_rng(11)
    sizes = [effective_size(ar1(correlation, n, random)) for _ in range(10)]
    assert np.median(sizes) == pytest.approx(n * (1 - correlation) / (1 + correlation), rel=0.15)


@pytest.mark.parametrize("correlation", [0.5, 0.7])
def test_block_length_of_ar1(correlation: float) -> None:
    """G / g = 2 ρ / (1 - ρ²), so the optimum is (3/2 (2ρ / (1 - ρ²))² n)^(1/3)."""
    n = 20_000
    random = np.random.default_rng(12)
    lengths = [block_length(ar1(correlation, n, random)) for _ in range(20)]
    optimum = (1.5 * (2 * correlation / (1 - correlation**2)) ** 2 * n) ** (1 / 3)
    assert np.median(lengths) == pytest.approx(optimum, rel=0.2)


def test_independent_samples_are_worth_what_they_count() -> None:
    samples = np.random.default_rng(5).exponential(size=5000)
    assert effective_size(samples) > 4000
    assert block_length(samples) < 10
    assert percentile_effective_size(samples, 99) > 4000


def test_alternating_samples_are_not_worth_more_than_they_count() -> None:
    assert effective_size(np.tile([0.0, 1.0], 500)) == 1000


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_short_series_pass_as_independent(n: int) -> None:
    samples = np.arange(float(n))
    assert effective_size(samples) == n
    assert block_length(samples) == 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1e300, -5.0])
def test_constants_have_no_dependence(value: float) -> None:
    samples = np.full(100, value)
    assert effective_size(samples) == 100
    assert block_length(samples) == 1
    assert percentile_effective_size(samples, 99) == 100


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scale_does_not_matter(scale: float) -> None:
    samples = ar1(0.8, 1000, np.random.default_rng(1))
    assert effective_size(samples * scale) == pytest.approx(effective_size(samples))
    assert block_length(samples * scale) == block_length(samples)


def test_block_length_is_bounded() -> None:
    for n in (10, 12, 100, 1000):
        trend = np.arange(float(n))
        assert 1 <= block_length(trend) <= math.ceil(min(3 * math.sqrt(n), n / 3))
        assert 1 <= effective_size(trend) <= n


def test_sizes_add_up_over_runs() -> None:
    random = np.random.default_rng(8)
    runs = [ar1(0.8, 4000, random) for _ in range(3)]
    alone = sum(effective_size(run) for run in runs)
    assert effective_size(runs) == pytest.approx(alone, rel=0.1)
    assert block_length(runs) >= min(block_length(run) for run in runs)


def test_runs_at_different_levels_are_dependent() -> None:
    random = np.random.default_rng(9)
    runs = [random.normal(loc=level, size=2000) for level in (0.0, 10.0)]
    assert effective_size(runs) < 200 < sum(effective_size(run) for run in runs)


def test_the_shortest_run_bounds_the_block() -> None:
    random = np.random.default_rng(10)
    assert block_length([ar1(0.95, 5000, random), ar1(0.95, 6, random)]) <= 2


def test_exceedances_are_of_the_common_percentile() -> None:
    low, high = exceedances([np.arange(100.0), np.arange(100.0, 200.0)], 50)
    assert low.sum() == 0
    assert high.sum() == 100


def test_rare_exceedances_borrow_from_a_lower_percentile() -> None:
    (series,) = exceedances(np.arange(1000.0), 99.9)
    assert series.sum() == 20


def test_ties_at_the_top_still_show_their_clusters() -> None:
    samples = np.zeros(2000)
    samples[500:700] = 1.0  # P99 is the maximum: nothing lies above it
    assert percentile_effective_size(samples, 99) < 50
