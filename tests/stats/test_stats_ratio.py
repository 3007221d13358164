from __future__ import annotations

import numpy as np
import pytest
from queue_models import ar1

from pytest_llmbench.stats.ratios import ratio_of


def test_the_point_is_the_ratio_of_sums() -> None:
    found = ratio_of([np.array([1.0, 2.0]), np.array([6.0])], [np.array([2.0, 4.0]), np.array([6.0])])
    assert found.point == 9 / 12
    assert found.of is None
    assert found.interval(0.95) == (None, None)


def test_a_constant_ratio_is_known_exactly() -> None:
    below = np.random.default_rng(1).uniform(1, 2, 200)
    found = ratio_of(3 * below, below)
    assert found.interval(0.95) == pytest.approx((3.0, 3.0))


def test_dependent_samples_that_are_worth_few_bound_nothing() -> None:
    counts = np.repeat([5.0, 50.0, 5.0, 20.0], 100)
    assert ratio_of(counts, np.ones(400)).interval(0.95) == (None, None)


def test_coverage_of_the_rate_of_arrivals_in_bursts() -> None:
    """Two rates in turns, each kept for 20 slices on average; of which the bootstrap held 52 in 100."""
    held = []
    for seed in range(200):
        random = np.random.default_rng([32, seed])
        state = (np.cumsum(random.random(400) < 0.05) + random.integers(0, 2)) % 2
        lower, upper = ratio_of(random.poisson(np.where(state == 1, 15.0, 5.0)), np.ones(400)).interval(0.95)
        held.append((lower is None or lower <= 10) and (upper is None or upper >= 10))
    assert np.mean(held) >= 0.91


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        ratio_of(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="positive denominators"):
        ratio_of(np.ones(3), np.array([1.0, 0.0, 1.0]))
    assert ratio_of(np.exp(ar1(0.5, 500, np.random.default_rng(2))), np.ones(500)).interval(0.95).lower
