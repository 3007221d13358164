from __future__ import annotations

import math

import numpy as np
import pytest
from queue_models import ar1, mm1_waits
from scipy import stats
from scipy.fft import dct

from pytest_llmbench.stats.dependence import memory
from pytest_llmbench.stats.spectral import (
    Spread,
    mean_interval,
    memories_required,
    spread,
    student_interval,
    upper_end,
    with_rise,
)


def test_the_spread_of_independent_samples_is_the_textbooks() -> None:
    samples = np.random.default_rng(1).normal(100, 10, size=10_000)
    of = spread(samples)
    assert of is not None
    assert of.error == pytest.approx(0.1, rel=0.3)
    assert of.freedom == 24
    assert of.worth > 5000
    assert of.skewness == pytest.approx(0.0, abs=0.03)


def test_the_error_is_the_mean_of_squared_cosines() -> None:
    samples = np.random.default_rng(2).normal(size=200)
    of = spread(samples, lags=10, tested=False)
    assert of is not None
    cosines = round(of.freedom)
    assert cosines == 5  # 200 / 40: no more than n / 4 m
    at = (np.arange(200) + 0.5) / 200
    projections = [math.sqrt(2 / 200) * samples @ np.cos(math.pi * j * at) for j in range(1, cosines + 1)]
    assert of.error == pytest.approx(math.sqrt(np.mean(np.square(projections)) / 200))


@pytest.mark.parametrize("correlation", [0.5, 0.8, 0.95])
def test_the_error_of_ar1(correlation: float) -> None:
    """ω² = (1 + ρ) / (1 - ρ)."""
    random = np.random.default_rng(3)
    squares = []
    for _ in range(40):
        of = spread(ar1(correlation, 5000, random), tested=False)
        assert of is not None
        squares.append(5000 * of.error**2)
    assert np.mean(squares) == pytest.approx((1 + correlation) / (1 - correlation), rel=0.2)


def test_the_memory_grows_with_the_correlation() -> None:
    random = np.random.default_rng(4)
    short, long = (np.median([memory(ar1(c, 5000, random)) for _ in range(20)]) for c in (0.5, 0.95))
    assert short < 10
    assert 40 < long < 130
    assert memory(np.random.default_rng(1).normal(size=5000)) <= 3


def test_a_memory_beyond_the_first_look_is_found() -> None:
    block = np.repeat(np.random.default_rng(5).normal(size=20), 1000)
    assert memory(block) > 600


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_the_unit_does_not_matter(scale: float) -> None:
    samples = mm1_waits(0.7, 2000, np.random.default_rng(6))
    one, other = spread(samples), spread(samples * scale)
    assert one is not None
    assert other is not None
    assert other.error == pytest.approx(one.error * scale)
    assert other[1:] == pytest.approx(one[1:])


def test_constants_and_few_samples() -> None:
    assert spread(np.arange(9.0)) is None
    assert mean_interval(np.arange(9.0)) == (None, None)
    assert spread(np.full(20, 0.1)) == (0.0, 19.0, 0.0, 20.0, 0.0, 0.0, None)
    assert mean_interval(np.full(20, 0.1)) == pytest.approx((0.1, 0.1))


def test_without_skewness_the_interval_is_students() -> None:
    lower, upper = student_interval(5.0, Spread(2.0, 7.0, 0.0, 100.0), level=0.9)
    assert (lower, upper) == pytest.approx(stats.t.interval(0.9, 7, loc=5, scale=2))


def test_skewness_lengthens_its_own_side_alone() -> None:
    plain = student_interval(0.0, Spread(1.0, 20.0, 0.0, 100.0))
    right = student_interval(0.0, Spread(1.0, 20.0, 0.3, 100.0))
    left = student_interval(0.0, Spread(1.0, 20.0, -0.3, 100.0))
    assert right.lower == plain.lower
    assert right.upper > 1.15 * plain.upper  # type: ignore[operator]
    assert (left.lower, left.upper) == pytest.approx((-right.upper, plain.upper))  # type: ignore[operator]


def test_skewness_beyond_its_correction_opens_its_side() -> None:
    """1 + 6 β (-t - β) ≤ 0: a cube root of nothing, which the mirrored formula passed off as an end."""
    right = student_interval(0.0, Spread(1.0, 3.0, 0.4, 100.0))
    assert right.lower is not None
    assert right.upper is None
    assert student_interval(0.0, Spread(1.0, 3.0, -0.4, 100.0)).lower is None


def certain(error: float) -> Spread:
    """With the normal quantile, 1.96."""
    return Spread(error / 1.959964, 1e9, 0.0, 100.0)


def test_the_upper_end_is_its_own_fixed_point() -> None:
    for power in (1.0, 1.5, 2.0):
        end = upper_end(10.0, certain(2.0), 0.95, power)
        assert end is not None
        assert end == pytest.approx(10.0 + 2.0 * (end / 10.0) ** power)
    assert upper_end(10.0, certain(2.6), 0.95, 2.0) is None
    assert upper_end(0.0, certain(0.0), 0.95) == 0.0


def test_an_error_of_most_of_the_value_bounds_nothing_above() -> None:
    assert upper_end(10.0, certain(7.9), 0.95) == pytest.approx(10 / 0.21)
    assert upper_end(10.0, certain(8.1), 0.95) is None


def test_a_mean_whose_error_outgrows_it_is_open_above() -> None:
    samples = np.array([1.0, 2.0] * 10)
    assert mean_interval(samples, of=Spread(0.5, 3.0, 0.0, 3.0)) == (1.0, None)
    assert mean_interval(samples, of=Spread(0.1, 1e9, 0.0, 20.0)).upper == pytest.approx(
        1 + 0.5 / (1 - 1.959964 * 0.1 / 0.5)
    )


def test_the_first_report_of_a_newcomer_has_no_end_at_three_hundred_times_its_mean() -> None:
    """Few latencies, some of them forty times the others: open above, or an end that means something."""
    for seed in range(200):
        random = np.random.default_rng([12, seed])
        samples = random.exponential(5.0, size=random.integers(15, 60)) + 1.0
        samples[: 1 + seed % 3] *= 40
        upper = mean_interval(samples).upper
        assert upper is None or upper < 10 * samples.mean()


def test_a_slow_queue_under_noisy_service_is_remembered() -> None:
    """A lag by itself tells little of it, since the queue is a tenth of the variance."""
    random = np.random.default_rng(13)
    found = []
    for _ in range(20):
        series = random.normal(size=4000) + 0.2 * ar1(0.995, 4000, random)
        found.append((memory(series, scales=False), memory(series)))
    one, several = np.median(found, axis=0)
    assert one < 15
    assert several > 30
    assert np.mean([memory(random.normal(size=4000)) <= 2 for _ in range(100)]) > 0.9


def test_the_lowest_frequencies_count_alone_where_the_spectrum_rises() -> None:
    trend = np.cumsum(np.random.default_rng(14).normal(size=400))
    level, rising = spread(trend, lags=1, tested=False), spread(trend, lags=1)
    assert level is not None
    assert rising is not None
    assert rising.error > 1.4 * level.error
    assert rising.freedom in (4, 8)


def test_an_end_is_lengthened_as_far_as_the_memory_asks() -> None:
    """1 / (1 - z √(m / n)) of what dependence costs, and open above 0.8."""
    of = Spread(1.0, 1e9, 0.0, 50.0, dependence=1.0, recalled=0.04)
    assert of.lengthening(0.95) == pytest.approx(1 / (1 - 1.959964 * 0.2))
    assert of._replace(dependence=0.0).lengthening(0.95) == 1.0
    assert of._replace(recalled=0.17).lengthening(0.95) is None
    assert memories_required(0.17, 0.95) == pytest.approx(0.17 * (1.959964 / 0.8) ** 2)
    lower, upper = student_interval(0.0, of)
    assert (lower, upper) == pytest.approx((-3.2231, 3.2231), abs=1e-3)


@pytest.mark.parametrize("n", [262_147, 1_300_021])
def test_a_long_run_of_an_awkward_length_is_cut_for_the_transform(n: int) -> None:
    """Both lengths are primes. The error is that of the whole, to a small part of its own uncertainty."""
    samples = ar1(0.6, n, np.random.default_rng(11))
    found = spread(samples, lags=20, tested=False)
    assert found is not None
    whole = samples - samples.mean()
    cosines = round(found.freedom)
    powers = np.square(dct(whole, type=2)[1 : cosines + 1]) / (2 * n)
    assert found.error == pytest.approx(math.sqrt(powers.mean() / n), rel=0.02)
    assert found.error == pytest.approx(2 / math.sqrt(n), rel=0.3)


@pytest.mark.parametrize("between", [0.0, 0.5])
def test_coverage_of_the_mean_of_a_few_runs(between: float) -> None:
    """Runs that differ by more than their samples explain are the units then."""
    held = []
    for seed in range(300):
        random = np.random.default_rng([8, seed])
        runs = [ar1(0.6, 300, random) + between * random.normal() for _ in range(4)]
        of = spread(runs)
        assert of is not None
        lower, upper = student_interval(float(np.mean(np.concatenate(runs))), of)
        assert lower is not None
        assert upper is not None
        held.append(lower <= 0 <= upper)
    assert np.mean(held) >= 0.92


def test_runs_that_agree_keep_the_degrees_of_freedom_of_their_samples() -> None:
    random = np.random.default_rng(9)
    alike = spread([random.normal(size=1000) for _ in range(3)])
    apart = spread([random.normal(size=1000) + shift for shift in (-5.0, 0.0, 5.0)])
    assert alike is not None
    assert apart is not None
    assert alike.freedom > 20
    assert apart.freedom == pytest.approx(2.0, abs=0.1)
    assert apart.error == pytest.approx(5 / math.sqrt(3), rel=0.05)


def test_the_end_of_a_mean_allows_for_a_hidden_queue() -> None:
    assert with_rise(10.2, 10.0, 0.3, 0.4) == pytest.approx(10.5)
    assert with_rise(10.6, 10.0, 0.3, 0.4) == 10.6
    assert with_rise(10.2, 10.0, 0.3, 0.0) == 10.2
    assert with_rise(None, 10.0, 0.3, 0.4) is None
    assert with_rise(10.2, 10.0, 0.3, math.inf) is None
    latencies = 1 + np.random.default_rng(5).permutation(np.tile([-1.0, 1.0], 1000))
    plain, risen = mean_interval(latencies), mean_interval(latencies, rise=0.5)
    independent = stats.norm.ppf(0.975) * latencies.std() / math.sqrt(2000)
    assert risen.lower == plain.lower
    assert risen.upper == pytest.approx(latencies.mean() + math.hypot(independent, 0.5))
