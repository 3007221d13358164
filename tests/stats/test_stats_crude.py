"""Crude ends: known answers, and what they hold on series whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from queue_models import ar1, mm1_percentile, mm1_waits

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.estimate import EstimateKind
from pytest_llmbench.stats.crude import Crude, level_factor
from pytest_llmbench.stats.ratios import share_within
from pytest_llmbench.stats.spectral import Spread

KNOWN = Spread(error=0.5, freedom=1e9, skewness=0.0, worth=10.0)


def test_an_end_moves_with_the_level() -> None:
    """1, 2 … 101, error of the mean 0.5: ℓ = 1.96 · 0.5 / 50."""
    values = np.random.default_rng(1).permutation(np.arange(1.0, 102.0))
    crude = Crude.of((values,), KNOWN, 0.95)
    assert crude is not None
    assert crude.factor == pytest.approx(math.exp(1.96 * 0.5 / 50), rel=1e-4)
    assert crude.of_mean().upper == pytest.approx(1 + 50 * crude.factor)
    lower, upper = crude.of_percentile(np.sort(values), 99.0, 101)
    assert lower is not None
    assert upper is not None
    # Of 101 independent values the largest lies beyond a share of 1 - 0.025^(1/101) of all.
    longer = ((1 - 0.025 ** (1 / 101)) / 0.01) ** 0.4
    assert upper == pytest.approx(1 + (101 * longer - 1) * crude.factor)


def test_a_share_is_bounded_by_the_percentile_that_the_limit_is_the_end_of() -> None:
    crude = Crude(0.0, 0.25, 1.5, 0.95)
    beyond = crude.share_above(1000, 0.5, 1.0)
    assert crude.of_percentile(np.linspace(0, 0.5, 1000), 100 * (1 - beyond), 1000).upper == pytest.approx(
        1.0
    )
    assert crude.share_above(1000, 0.01, 1.0) == pytest.approx((1 - 0.025**0.001) / 4)
    assert crude.share_above(1000, 0.9, 1.0) == 1.0


def test_few_samples_constant_ones_and_queues_of_any_length_have_none() -> None:
    assert Crude.of((np.arange(39.0),), KNOWN, 0.95) is None
    assert level_factor(0.0, KNOWN, 0.95) == 1.0
    same = Crude.of((np.full(200, 7.0),), KNOWN, 0.95)
    assert same is not None
    assert same.of_percentile(np.full(200, 7.0), 50.0, 200) == (7.0, 7.0)


def test_equal_samples_do_not_bound_what_they_are_too_few_to_show() -> None:
    same = np.full(200, 7.0)
    crude = Crude.of((same,), KNOWN, 0.95)
    assert crude is not None
    assert crude.of_percentile(same, 99.0, 200).upper == pytest.approx(
        7 * ((1 - 0.025 ** (1 / 200)) / 0.01) ** 0.4
    )
    assert crude.of_percentile(same, 99.9, 200).upper is None


Draw = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]
MODELS: dict[str, tuple[Draw, float]] = {
    "exponential": (lambda random, n: random.exponential(size=n), math.log(100)),
    "slow": (lambda random, n: np.exp(0.3 * ar1(0.97, n, random)), math.exp(0.3 * 2.3263)),
    "M/M/1 at 50%": (lambda random, n: 1 + mm1_waits(0.5, n, random), 1 + mm1_percentile(0.5, 99.0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_p99_of_two_hundred_holds_and_decides_three_times_the_truth(name: str) -> None:
    draw, true = MODELS[name]
    found = [distribution("x", draw(np.random.default_rng([7, seed]), 200))["x.p99"] for seed in range(100)]
    uppers = np.array([each.upper for each in found], dtype=np.float64)
    assert all(each.closed and each.kind is EstimateKind.CRUDE for each in found)
    assert np.mean(uppers >= true) >= 0.9
    assert np.mean(uppers <= 3 * true) >= 0.5


def test_an_end_between_two_levels_goes_as_far_as_the_effective_size_allows() -> None:
    """600 samples near 1 and 400 near 3, worth 20: as far as the 14 or 15 of 20 that P50 may have below it.
    Of one mode the error of the mean tells."""
    random = np.random.default_rng(3)
    values = np.repeat([1.0, 3.0], [600, 400]) * random.uniform(1.0, 1.05, 1000)
    crude = Crude.of((values,), KNOWN._replace(error=0.05), 0.95)
    assert crude is not None
    assert crude.of_percentile(np.sort(values), 50.0, 1000).upper == pytest.approx(1.1, abs=0.1)
    assert crude.of_percentile(np.sort(values), 50.0, 20).upper == pytest.approx(3.1, abs=0.1)
    assert crude.of_percentile(np.sort(values), 50.0, 4).upper == values.max()
    one = random.uniform(1.0, 1.05, 1000)
    crude = Crude.of((one,), KNOWN._replace(error=0.001), 0.95)
    assert crude is not None
    assert crude.of_percentile(np.sort(one), 50.0, 20) == crude.of_percentile(np.sort(one), 50.0, 1000)


def test_the_median_of_two_states_holds() -> None:
    """Levels 1 and 2 that change every 50 requests: a thousand requests see ten to thirty changes."""
    held = 0
    for seed in range(60):
        random = np.random.default_rng([8, seed])
        state = (np.cumsum(random.random(1000) > 0.98) + random.integers(2)) % 2
        upper = distribution("x", (1 + state) * (1 + 0.1 * random.exponential(size=1000)))["x.p50"].upper
        # Half of all requests are below 2, and half above.
        held += upper is not None and upper >= 2
    assert held >= 54


def test_all_of_a_thousand_far_below_their_limit_are_a_share_near_one() -> None:
    scores = 0.3 * np.exp(0.2 * ar1(0.97, 1000, np.random.default_rng(4)))
    found = share_within(scores)
    assert found is not None
    assert found.crude
    assert found.interval.lower is not None
    assert found.interval.lower > 0.99
