"""Exact figures of long samples: counted percentiles, and autocovariance in parts."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.stats import dependence
from pytest_llmbench.stats.counted import percentiles_of_counts
from pytest_llmbench.stats.percentiles import percentiles
from pytest_llmbench.stats.stationarity import in_flight_steps, segment_means, time_under_way


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000])
def test_counted_percentiles_are_those_of_the_sample(n: int) -> None:
    sample = np.random.default_rng(n).integers(0, 9, size=n)
    qs = (0.0, 1.0, 50.0, 99.0, 99.9, 100.0)
    expected = percentiles(sample.astype(np.float64), qs)
    assert percentiles_of_counts(np.bincount(sample), qs) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="no samples"):
        percentiles_of_counts(np.zeros(3, dtype=np.int64), (50.0,))


@pytest.mark.parametrize("at_once", [7, 64, 999, 1000])
def test_autocovariance_in_parts(at_once: int) -> None:
    sample = np.cumsum(np.random.default_rng(5).normal(size=1000))
    whole = dependence.autocovariance(sample, 40)
    direct = [
        float((sample - sample.mean())[: 1000 - k] @ (sample - sample.mean())[k:]) / 1000 for k in (0, 1, 40)
    ]
    assert whole[[0, 1, 40]] == pytest.approx(direct, rel=1e-9)
    assert dependence.autocovariance(sample, 40, at_once=at_once) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("window", [(0, 1000), (150, 870), (-50, 2000)])
def test_time_under_way_adds_up_to_the_mean_in_flight(window: tuple[int, int]) -> None:
    random = np.random.default_rng(3)
    starts = np.sort(random.integers(0, 1000, size=200))
    ends = np.where(random.random(200) < 0.1, -1, starts + random.integers(0, 300, size=200))
    starts[::50] = -1
    low, high = window
    whole = segment_means(in_flight_steps(starts, ends), low, high)
    parts = sum(time_under_way(starts[k : k + 30], ends[k : k + 30], low, high) for k in range(0, 200, 30))
    assert parts / ((high - low) / 5) == pytest.approx(whole, rel=1e-9)
