from __future__ import annotations

import math

import numpy as np
import pytest
from queue_models import ar1, mm1_percentile, mm1_waits

from pytest_llmbench.stats.backlog import Backlog
from pytest_llmbench.stats.dependence import exceedances
from pytest_llmbench.stats.percentiles import median_worth, percentile_worth, series_memory
from pytest_llmbench.stats.ratios import exact_share_interval, share_of, share_within


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (990, 1000), (1, 1)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_same_interval_as_scipy(successes: int, trials: int, level: float) -> None:
    from scipy.stats import binomtest

    reference = binomtest(successes, trials).proportion_ci(level, method="exact")
    found = exact_share_interval(successes, trials, tail=(1 - level) / 2)
    assert found == pytest.approx((reference.low, reference.high), abs=1e-9)


def test_the_extremes_are_touched_but_not_certain() -> None:
    found = share_of(np.ones(100))
    assert found is not None
    assert (found.share, found.worth) == (1.0, 100.0)
    assert found.interval == pytest.approx((0.025**0.01, 1.0))
    none = share_of(np.zeros(100))
    assert none is not None
    assert none.interval.lower == 0.0


def test_dependent_trials_are_worth_less() -> None:
    assert exact_share_interval(50, 100, tail=0.025, effective_n=50) == pytest.approx(
        exact_share_interval(25, 50, tail=0.025)
    )
    scattered = np.random.default_rng(1).permutation(np.repeat([0.0, 1.0], 1000))
    bursts = np.repeat(np.random.default_rng(2).integers(0, 2, 200), 10).astype(float)
    one, other = share_of(scattered), share_of(bursts)
    assert one is not None
    assert other is not None
    assert other.worth < 0.3 * one.worth
    assert other.interval.upper - other.interval.lower > 2 * (one.interval.upper - one.interval.lower)  # type: ignore[operator]


def test_few_dependent_trials_bound_nothing_and_few_independent_ones_do() -> None:
    long = share_of(np.repeat([0.0, 1.0, 0.0], 100))
    assert long is not None
    assert long.interval == (None, None)
    few = share_of(np.array([1.0, 0.0, 1.0, 1.0, 0.0]))
    assert few is not None
    assert few.interval == pytest.approx(exact_share_interval(3, 5, tail=0.025))


def test_trials_that_ended_alike_are_not_taken_for_independent() -> None:
    """What came how close to its limit tells of the dependence, where the ends do not."""
    close = np.repeat(np.random.default_rng(3).integers(0, 2, 50), 20).astype(float)
    plain, told = share_of(np.ones(1000)), share_of(np.ones(1000), dependence=close)
    assert plain is not None
    assert told is not None
    assert told.interval.lower < plain.interval.lower  # type: ignore[operator]


def test_no_trials_say_nothing() -> None:
    assert share_of([]) is None


def test_more_successes_than_trials() -> None:
    with pytest.raises(ValueError, match="5 successes of 4"):
        exact_share_interval(5, 4, tail=0.025)


def test_coverage_of_a_share_in_bursts() -> None:
    held = []
    for seed in range(200):
        random = np.random.default_rng([31, seed])
        state = np.cumsum(random.random(2000) < 0.05) % 2 == random.integers(0, 2)
        found = share_of((random.random(2000) < np.where(state, 0.5, 0.05)).astype(float))
        assert found is not None
        lower, upper = found.interval
        held.append((lower is None or lower <= 0.275) and (upper is None or upper >= 0.275))
    assert np.mean(held) >= 0.92


def test_a_share_within_a_limit_is_worth_what_its_percentile_is() -> None:
    """A slow queue under noisy service: the rare misses show nothing of it."""
    waits = mm1_waits(0.8, 2000, np.random.default_rng(3)) + np.random.default_rng(4).exponential(2.0, 2000)
    scores = waits / np.percentile(waits, 99)
    found = share_within(scores)
    assert found is not None
    assert found.share == 0.99
    assert found.worth == pytest.approx(percentile_worth(scores, 99.0).samples, rel=0.02)
    alone = share_of((scores <= 1).astype(float), dependence=exceedances(scores, 99.0))
    assert alone is not None
    assert found.worth < alone.worth
    assert found.worth <= 2.1 * median_worth(scores, lags=series_memory(scores)).samples
    assert share_within([]) is None


def test_a_share_allows_for_a_hidden_queue_below() -> None:
    waits = np.tile([0.0] * 15 + [0.01] * 5, 100)
    scores = np.random.default_rng(1).permutation(np.tile([0.6, 0.98], 1000)) + waits
    of = Backlog((waits,), 10.0)
    rise = of.rise(scores).share
    assert rise > 0
    plain, risen = share_within(scores), share_within(scores, backlog=of)
    assert plain is not None
    assert risen is not None
    longer = scores + rise / waits.mean() * waits
    independent, _ = exact_share_interval(2000, 2000, tail=0.025)
    distance = math.hypot(1 - independent, 1 - np.mean(longer <= 1))
    assert risen.interval.lower == pytest.approx(1 - distance)
    assert risen.interval.lower < plain.interval.lower  # type: ignore[operator]
    assert risen.interval.upper == plain.interval.upper
    assert risen.share == plain.share


@pytest.mark.parametrize(("farthest", "kept"), [(1.2, 998), (0.99, 1000)])
def test_a_share_with_few_misses_is_bounded_by_how_far_the_others_stay_from_their_limit(
    farthest: float, kept: int
) -> None:
    """Scores near 0.25 of a slow level, two of a thousand above 1, or with a higher level: by the misses
    alone hardly anything."""
    scores = np.exp(0.1 * ar1(0.98, 1000, np.random.default_rng(5))) / 4
    scores[[400, 405]] = farthest
    found = share_within(scores)
    assert found is not None
    assert found.crude
    assert (found.ones, found.of) == (kept, 1000)
    independent, _ = exact_share_interval(998, 1000, tail=0.025, effective_n=500)
    assert found.interval.lower == pytest.approx(independent)


def test_the_end_of_a_share_is_as_dependent_as_the_percentile_that_it_names() -> None:
    """A quiet stretch of a queue whose true P95 is the limit: the few misses look independent."""
    scores = mm1_waits(0.7, 1000, np.random.default_rng([9, 32])) / mm1_percentile(0.7, 95.0)
    met, median = (scores <= 1).astype(float), median_worth(scores, lags=series_memory(scores))
    alone = share_of(met, dependence=exceedances(scores, 100 * met.mean()), median=median)
    found = share_within(scores)
    assert alone is not None
    assert found is not None
    assert alone.interval.lower is not None
    assert found.interval.lower is not None
    there = percentile_worth(scores, 100 * alone.interval.lower)
    usable = there.usable_above(1000, 0.95, fewest=1)
    own, _ = exact_share_interval(int(met.sum()), 1000, tail=0.025, effective_n=usable)
    assert found.interval.lower == pytest.approx(own)
    assert found.interval.lower < 0.95 < alone.interval.lower


def test_a_limit_that_no_request_keeps_has_a_share_of_zero() -> None:
    found = share_within(2 + mm1_waits(0.5, 200, np.random.default_rng(1)))
    assert found is not None
    assert (found.share, found.interval.lower) == (0.0, 0.0)
