from __future__ import annotations

import math

import numpy as np
import pytest
from queue_models import ar1

from pytest_llmbench.metrics.fairness import (
    jain,
    jain_interval,
    jain_of_means_interval,
    jain_spread,
    starvation_rate,
)
from pytest_llmbench.stats.backlog import Backlog
from pytest_llmbench.stats.spectral import mean_interval, spread, upper_end


def test_jain_of_known_shares() -> None:
    assert jain(np.array([1.0, 1.0, 1.0])) == 1.0
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert jain(np.array([1.0, 2.0, 3.0])) == pytest.approx(36 / 42)
    assert jain(np.array([1e200, 2e200, 3e200])) == pytest.approx(36 / 42)


def test_jain_is_undefined_without_shares() -> None:
    assert jain(np.array([])) is None
    assert jain(np.zeros(4)) is None
    with pytest.raises(ValueError, match="not negative"):
        jain(np.array([1.0, -1.0]))
    assert jain_interval(np.zeros(50)) == (None, None)
    assert jain_interval(np.array([3.0])) == (None, None)


def test_the_error_of_jain_is_that_of_many_samples() -> None:
    """Of c² = 1/J - 1, by drawing anew."""
    random = np.random.default_rng(0)
    squares = []
    for _ in range(400):
        index = jain(random.gamma(4.0, size=1000))
        assert index is not None
        squares.append(1 / index - 1)
    of = jain_spread(random.gamma(4.0, size=1000))
    assert of is not None
    assert of.error == pytest.approx(np.std(squares), rel=0.15)


def test_the_interval_holds_the_index_of_longer_waits() -> None:
    waits = np.tile([0.0, 0.0, 0.0, 0.2], 500)
    latencies = 3 + 0.1 * np.random.default_rng(2).normal(size=2000) + waits
    of = Backlog((waits,), 8.0)
    plain, found = jain_interval(latencies), jain_interval(latencies, backlog=of)
    longer = latencies + of.stretch(0.95) * waits
    index, worse = (one.sum() ** 2 / (2000 * np.square(one).sum()) for one in (latencies, longer))
    assert plain.lower is not None
    assert worse < plain.lower
    assert found.lower == pytest.approx(index - math.hypot(index - plain.lower, index - worse))
    assert found.upper == plain.upper
    # Waits that vary less than the rest make latencies more alike.
    waits = np.tile([0.9, 1.1], 1000)
    latencies = waits + np.random.default_rng(2).exponential(size=2000)
    of = Backlog((waits,), 8.0)
    plain, found = jain_interval(latencies), jain_interval(latencies, backlog=of)
    index, better = jain(latencies), jain(of.drawn_out(latencies)[0])
    assert index is not None
    assert better is not None
    assert better > index
    assert found.lower == plain.lower
    assert found.upper == pytest.approx(index + math.hypot(plain.upper - index, better - index))  # type: ignore[operator]


def test_waits_that_are_in_no_sample_leave_the_interval_as_it_is() -> None:
    random = np.random.default_rng(2)
    waits, shares = random.exponential(size=2000), random.gamma(4.0, size=2000)
    of = Backlog((waits,), 8.0)
    assert jain(of.drawn_out(shares)[0]) != pytest.approx(jain(shares), rel=0.01)
    assert jain_interval(shares, backlog=of) == jain_interval(shares)


def test_equal_shares_are_certain() -> None:
    assert jain_interval(np.full(100, 2.5)) == (1.0, 1.0)


def test_the_interval_stays_within_the_range_of_the_index_and_around_it() -> None:
    for seed in range(20):
        x = np.random.default_rng(seed).lognormal(sigma=0.7, size=60)
        point = jain(x)
        lower, upper = jain_interval(x)
        assert upper is not None
        assert point is not None
        assert 1 / 60 <= (1 / 60 if lower is None else lower) <= point <= upper <= 1


def test_one_giant_bounds_the_index_nowhere_below() -> None:
    x = np.append(np.random.default_rng(1).lognormal(size=99), 1e6)
    lower, upper = jain_interval(x)
    assert lower is None
    assert upper == 1.0


def test_the_interval_does_not_depend_on_the_unit() -> None:
    x = np.random.default_rng(3).lognormal(sigma=0.5, size=500)
    assert jain_interval(x) == pytest.approx(jain_interval(x * 1000))


def test_one_excursion_leaves_a_lower_end_of_jain() -> None:
    """A fiftieth of the samples waits in a row: what their mean square is at most, nothing tells."""
    random = np.random.default_rng(4)
    x = 3.0 + random.gamma(2.0, 0.2, size=20_000)
    x[17_000:17_400] += np.linspace(0.0, 12.0, 400)
    squares = np.square(x)
    assert mean_interval((squares,), of=spread((squares,), lags=400)).upper is None
    lower, upper = jain_interval(x)
    assert lower is not None
    assert 0.3 < lower < 0.8 < jain(x) < upper


def test_dependence_widens_the_interval_of_jain() -> None:
    x = np.repeat(np.random.default_rng(3).gamma(9.0, size=400), 10)
    wide, narrow = jain_interval(x), jain_interval(np.random.default_rng(1).permutation(x))
    assert wide.upper - wide.lower > 2 * (narrow.upper - narrow.lower)  # type: ignore[operator]


def held_by_jain(sigma: float, correlation: float, n: int, times: int) -> float:
    held = []
    for time in range(times):
        random = np.random.default_rng([11, time])
        normal = ar1(correlation, n, random) if correlation else random.normal(size=n)
        lower, upper = jain_interval(np.exp(sigma * normal))
        assert upper is not None
        # Log-normal: J = E[x]² / E[x²].
        held.append((0.0 if lower is None else lower) <= math.exp(-(sigma**2)) <= upper)
    return float(np.mean(held))


@pytest.mark.parametrize(("sigma", "correlation"), [(0.4, 0.0), (0.5, 0.8)])
def test_coverage_of_jain(sigma: float, correlation: float) -> None:
    assert held_by_jain(sigma, correlation, 500, times=200) >= 0.91


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "correlation"), [(0.3, 0.0), (0.5, 0.8), (1.0, 0.0)])
def test_coverage_of_jain_of_dependent_and_of_heavy_samples(sigma: float, correlation: float) -> None:
    assert held_by_jain(sigma, correlation, 2000, times=500) >= 0.93


def class_means(truth: tuple[float, ...], seed: int, n: int = 400) -> list[np.ndarray]:
    random = np.random.default_rng([12, seed])
    samples = [random.gamma(4.0, mean / 4, size=n) for mean in truth]
    return [x.mean() + x.std() / 20 * random.normal(size=2000) for x in samples]


@pytest.mark.parametrize("truth", [(2.0, 2.0), (2.0, 2.0, 2.0), (1.0, 1.6), (1.0, 1.2, 3.0)])
def test_coverage_of_jain_over_means(truth: tuple[float, ...]) -> None:
    """Alike in truth is the hard case: no resample reaches an index of 1."""
    value = jain(np.array(truth))
    assert value is not None
    held = []
    for seed in range(100):
        lower, upper = jain_of_means_interval(class_means(truth, seed), freedom=399)
        assert lower is not None
        assert upper is not None
        held.append(lower <= value <= upper)
    assert np.mean(held) >= 0.88


def test_unequal_means_bound_the_index_below_one() -> None:
    _, upper = jain_of_means_interval(class_means((1.0, 1.6), 1), freedom=399)
    assert upper is not None
    assert upper < 0.98


def test_jain_over_means_needs_groups() -> None:
    assert jain_of_means_interval([np.ones(10)], freedom=9) == (None, None)
    assert jain_of_means_interval([np.ones(10), np.zeros(10)], freedom=9) == (None, None)
    assert jain_of_means_interval([np.ones(10), np.ones(10)], freedom=9) == (1.0, 1.0)


def test_starvation_counts_waits_beyond_five_medians() -> None:
    found = starvation_rate(np.array([1.0] * 7 + [5.0, 5.1, 80.0]))
    assert (found.point, found.n) == (0.2, 10)
    assert not starvation_rate(np.array([])).defined


def test_starvation_pools_runs_for_the_median() -> None:
    assert starvation_rate([np.full(90, 1.0), np.full(10, 6.0)]).point == 0.1


def test_bursts_of_starvation_are_less_sure() -> None:
    waits = np.ones(2000)
    waits[500:540] = 9
    scattered = np.ones(2000)
    scattered[::50] = 9
    burst, spread = starvation_rate(waits), starvation_rate(scattered)
    assert burst.point == spread.point
    assert burst.upper is not None
    assert spread.upper is not None
    assert burst.upper - 0.02 > 5 * (spread.upper - 0.02)


def test_a_floor_far_below_decides_where_the_error_has_no_bound() -> None:
    """Log-normal latencies of σ = 1, four requests alike each time: moments close a third of them."""
    random = np.random.default_rng(11)
    truth, held, closed, by_moments = 1 / math.e, 0, 0, 0
    for _ in range(60):
        samples = np.repeat(np.exp(random.normal(size=800)), 4)
        of, lower = jain_spread(samples), jain_interval(samples).lower
        square = 1 / (jain(samples) or 1.0) - 1
        held += lower is None or lower <= truth
        closed += lower is not None
        by_moments += lower is not None and of is not None and upper_end(square, of, 0.95, 1.5) is None
    assert held >= 55
    assert closed >= 28
    assert by_moments >= 12
