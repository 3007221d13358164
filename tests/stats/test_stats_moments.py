from __future__ import annotations

import math

import numpy as np
import pytest
from queue_models import mm1_percentile, mm1_waits

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.estimate import EstimateKind
from pytest_llmbench.stats.crude import (
    moment_bound,
    power_mean_bound,
)


def test_the_bound_of_two_values_is_markovs() -> None:
    """Every batch has as many of 1 and 3, so there is no error: E[(X - 1)⁴] = 2⁴ / 2."""
    samples = np.tile([1.0, 3.0], 800)
    found = moment_bound((samples,), 99.0, lags=1)
    assert found == pytest.approx((1 + (16 / 2 * 100) ** (1 / 4), 4.0))
    shorter = moment_bound((samples,), 99.0, lags=67)
    assert shorter == pytest.approx((1 + 400 ** (1 / 3), 3.0))
    between = moment_bound((samples,), 99.0, lags=20)
    assert between is not None
    assert between.power == pytest.approx(3 + math.log(80 / 24) / 2)
    assert moment_bound((np.full(1000, 3.0),), 99.0, lags=1) == (3.0, 4.0)


def test_the_power_mean_of_two_values() -> None:
    samples = np.tile([1.0, 3.0], 800)
    assert power_mean_bound((samples,), lags=1) == pytest.approx((8 ** (1 / 4), 4.0))
    assert power_mean_bound((samples,), lags=67) == pytest.approx((4 ** (1 / 3), 3.0))
    assert power_mean_bound((samples,), lags=101) is None
    assert power_mean_bound((samples - 2.0,), lags=1) is None


def test_a_sample_of_few_memories_has_a_farther_bound() -> None:
    """The power is 3 for both; of 16 memories the error is 1.96 times as long."""
    samples = np.random.default_rng(5).exponential(size=1600)
    long, short = (moment_bound((samples,), 99.0, lags=lags) for lags in (70, 100))
    assert long is not None
    assert short is not None
    assert short.power == long.power == 3.0
    assert short.end > long.end


def test_what_all_latencies_have_in_common_is_not_multiplied() -> None:
    """Latencies of 1000 ms and a little: the bound counts from the smallest."""
    samples = np.random.default_rng(6).exponential(size=1000)
    plain, shifted = (moment_bound((one,), 99.0, lags=1) for one in (samples, samples + 1000.0))
    assert plain is not None
    assert shifted is not None
    assert shifted.end == pytest.approx(plain.end + 1000.0)


def test_it_grows_with_the_percentile_and_with_the_unit() -> None:
    samples = np.random.default_rng(1).exponential(size=10_000)
    ends = [moment_bound((samples,), q, lags=3) for q in (50.0, 90.0, 99.0, 99.9)]
    assert all(ends)
    assert [one.end for one in ends if one] == sorted(one.end for one in ends if one)
    scaled = moment_bound((1e150 * samples,), 99.0, lags=3)
    assert scaled is not None
    assert scaled.end == pytest.approx(1e150 * ends[2].end)  # type: ignore[union-attr]


def test_without_enough_samples_there_is_no_bound() -> None:
    samples = np.random.default_rng(2).exponential(size=1000)
    assert moment_bound((samples,), 99.0, lags=1) is not None
    assert moment_bound((samples[:500],), 99.0, lags=1) is not None
    assert moment_bound((samples[:499],), 90.0, lags=1) is None
    assert moment_bound((samples,), 99.9, lags=1) is None
    assert moment_bound((samples,), 90.0, lags=63) is None
    assert moment_bound((samples - 1.0,), 90.0, lags=1) is None


def test_runs_have_batches_of_their_own() -> None:
    samples = np.random.default_rng(3).exponential(size=1000)
    whole = moment_bound((samples,), 99.0, lags=1)
    halves = moment_bound((samples[:500], samples[500:]), 99.0, lags=1)
    assert whole is not None
    assert halves is not None
    assert halves.end == pytest.approx(whole.end, rel=0.01)


def test_it_holds_and_decides_in_a_queue() -> None:
    """M/M/1 at 70 %, 1000 requests: P99 stays open by order statistics, and its bound is of use."""
    true, held, decided = mm1_percentile(0.7, 99.0), [], []
    for seed in range(60):
        waits = mm1_waits(0.7, 1000, np.random.default_rng([21, seed]))
        found = distribution("x", waits)["x.p99"]
        held.append(found.upper is None or found.upper >= true)
        decided.append(found.upper is not None and found.upper < 3 * true)
    assert np.mean(held) >= 0.93
    assert np.mean(decided) >= 0.75


def test_the_estimate_says_how_its_end_was_found() -> None:
    waits = mm1_waits(0.7, 1000, np.random.default_rng([21, 2]))
    found = distribution("x", waits)["x.p99"]
    assert found.upper is not None
    assert found.kind is EstimateKind.CRUDE
    assert distribution("x", waits)["x.p50"].kind is EstimateKind.SAMPLE


def test_a_far_limit_on_the_median_decides_where_order_statistics_are_open() -> None:
    """Replies of 20 ms in lockstep, four at a time: dependent, and nowhere near a second."""
    random = np.random.default_rng(3)
    for _ in range(20):
        steps = np.repeat(20.0 + random.exponential(0.4, 50), 4)
        assert distribution("e2e", steps)["e2e.p50"].upper is not None
        assert distribution("e2e", steps)["e2e.p50"].upper < 60.0  # type: ignore[operator]
