from __future__ import annotations

import numpy as np
import pytest
from queue_models import ar1

from pytest_llmbench.stats.dependence import (
    autocovariance,
    effective_size,
    exceedances,
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


def test_independent_samples_are_worth_what_they_count() -> None:
    samples = np.random.default_rng(5).exponential(size=5000)
    assert effective_size(samples) > 4000
    assert effective_size(exceedances(samples, 99)) > 4000


def test_alternating_samples_are_not_worth_more_than_they_count() -> None:
    assert effective_size(np.tile([0.0, 1.0], 500)) == 1000


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_short_series_pass_as_independent(n: int) -> None:
    samples = np.arange(float(n))
    assert effective_size(samples) == n


@pytest.mark.parametrize("value", [0.0, 0.1, 1e300, -5.0])
def test_constants_have_no_dependence(value: float) -> None:
    samples = np.full(100, value)
    assert effective_size(samples) == 100
    assert effective_size(exceedances(samples, 99)) == 100


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scale_does_not_matter(scale: float) -> None:
    samples = ar1(0.8, 1000, np.random.default_rng(1))
    assert effective_size(samples * scale) == pytest.approx(effective_size(samples))


def test_sizes_add_up_over_runs() -> None:
    random = np.random.default_rng(8)
    runs = [ar1(0.8, 4000, random) for _ in range(3)]
    alone = sum(effective_size(run) for run in runs)
    assert effective_size(runs) == pytest.approx(alone, rel=0.1)


def test_runs_at_different_levels_are_dependent() -> None:
    random = np.random.default_rng(9)
    runs = [random.normal(loc=level, size=2000) for level in (0.0, 10.0)]
    assert effective_size(runs) < 200 < sum(effective_size(run) for run in runs)


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
    assert effective_size(exceedances(samples, 99)) < 50
