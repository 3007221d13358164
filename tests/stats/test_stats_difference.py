from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from queue_models import ar1

from pytest_llmbench.stats.difference import (
    Bounded,
    difference_interval,
    long_run_correlation,
    paired_mean_interval,
    paired_percentile_interval,
    relative_change_interval,
)


def test_mover_of_symmetric_arms_adds_squares() -> None:
    lower, upper = difference_interval(Bounded(10.0, 7.0, 13.0), Bounded(20.0, 16.0, 24.0))
    assert (lower, upper) == pytest.approx((5.0, 15.0))


def test_mover_keeps_asymmetry() -> None:
    lower, upper = difference_interval(Bounded(10.0, 7.0, 10.0), Bounded(20.0, 20.0, 24.0))
    assert (lower, upper) == pytest.approx((10.0, 15.0))


def test_what_is_common_drops_out() -> None:
    arms = Bounded(10.0, 7.0, 13.0), Bounded(20.0, 17.0, 23.0)
    assert difference_interval(*arms, correlation=1.0) == pytest.approx((10.0, 10.0))
    assert difference_interval(*arms, correlation=-1.0) == pytest.approx((4.0, 16.0))


def test_arms_that_differ_by_a_constant_differ_by_it_for_sure() -> None:
    skewed = Bounded(10.0, 9.0, 15.0), Bounded(13.0, 12.0, 18.0)
    assert difference_interval(*skewed, correlation=1.0) == (3.0, 3.0)
    # Without the far ends the sides cannot be matched: the cautious formula.
    far_open = Bounded(10.0, None, 15.0), Bounded(13.0, 12.0, None)
    assert difference_interval(*far_open, correlation=1.0) == (pytest.approx(-1.0), None)


def test_an_open_arm_opens_the_side_it_bounds() -> None:
    closed = Bounded(20.0, 16.0, 24.0)
    assert difference_interval(Bounded(10.0, 7.0, None), closed) == (None, pytest.approx(15.0))
    assert difference_interval(closed, Bounded(10.0, 7.0, None)) == (pytest.approx(-15.0), None)
    assert relative_change_interval(Bounded(10.0, None, 13.0), closed)[1] is None


def test_relative_change_on_the_logarithm() -> None:
    e = math.exp
    lower, upper = relative_change_interval(Bounded(e(2), e(1.7), e(2.3)), Bounded(e(3), e(2.6), e(3.4)))
    assert lower == pytest.approx(e(0.5) - 1)
    assert upper == pytest.approx(e(1.5) - 1)


def test_ends_at_zero() -> None:
    closed = Bounded(10.0, 8.0, 12.0)
    lower, upper = relative_change_interval(closed, Bounded(5.0, 0.0, 7.0))
    assert lower == -1.0
    assert upper is not None
    assert relative_change_interval(Bounded(5.0, 0.0, 7.0), closed).upper is None
    with pytest.raises(ValueError, match="positive"):
        relative_change_interval(Bounded(0.0, 0.0, 1.0), closed)


def test_long_run_correlation() -> None:
    random = np.random.default_rng(0)
    common, own = random.normal(size=20_000), random.normal(size=20_000)
    assert long_run_correlation(common, common) == pytest.approx(1.0)
    assert long_run_correlation(common, -3 * common) == pytest.approx(-1.0)
    assert long_run_correlation(common, 0.6 * common + 0.8 * own) == pytest.approx(0.6, abs=0.03)
    assert long_run_correlation(common, np.ones(20_000)) == 0.0


def test_pairs_have_to_match() -> None:
    with pytest.raises(ValueError, match="paired samples differ in length"):
        paired_mean_interval(np.ones(3), np.ones(4))


def test_a_constant_overhead_is_found_exactly() -> None:
    before = np.random.default_rng(1).lognormal(3, 1, size=2000)
    for q in (50.0, 95.0, 99.0):
        assert paired_percentile_interval(before, before + 5, q) == pytest.approx((5.0, 5.0), abs=1e-4)
        change = paired_percentile_interval(before, 1.2 * before, q, relative=True)
        assert change == pytest.approx((0.2, 0.2))
    assert paired_mean_interval(before, before + 5) == pytest.approx((5.0, 5.0))
    relative = paired_mean_interval(before, 1.2 * before, relative=True)
    assert relative == pytest.approx((0.2, 0.2))


def test_samples_that_cannot_support_it_leave_the_interval_open() -> None:
    random = np.random.default_rng(1)
    before, after = random.lognormal(size=(2, 100))
    lower, upper = paired_percentile_interval(before, after, 99.0)
    assert (lower, upper) == (None, None)
    assert paired_mean_interval(before[:20], after[:20]) == (None, None)
    assert paired_percentile_interval([], [], 50.0) == (None, None)
    assert None not in paired_percentile_interval(before, after, 50.0)


STATISTICS = (50.0, 95.0, 99.0, None)


def coverage(n: int, correlation: float, times: int, relative: bool) -> dict[float | None, float]:
    """Log-normal arms with 0.9² of the logarithm's variance in common."""
    held: dict[float | None, list[bool]] = {q: [] for q in STATISTICS}
    for time in range(times):
        random = np.random.default_rng([31, time])
        common = ar1(correlation, n, random) if correlation else random.normal(size=n)
        before = np.exp(0.8 * (0.9 * common + math.sqrt(0.19) * random.normal(size=n)))
        after = 1.3 * np.exp(0.7 * (0.9 * common + math.sqrt(0.19) * random.normal(size=n)))
        for q in STATISTICS:
            if q is None:
                one, two = math.exp(0.32), 1.3 * math.exp(0.245)
                interval = paired_mean_interval(before, after, relative=relative)
            else:
                z = NormalDist().inv_cdf(q / 100)
                one, two = math.exp(0.8 * z), 1.3 * math.exp(0.7 * z)
                interval = paired_percentile_interval(before, after, q, relative=relative)
            truth = two / one - 1 if relative else two - one
            lower, upper = interval
            held[q].append((lower is None or lower <= truth) and (upper is None or truth <= upper))
    return {q: float(np.mean(found)) for q, found in held.items()}


def test_coverage_of_paired_differences() -> None:
    assert min(coverage(600, 0.0, times=60, relative=False).values()) >= 0.88


@pytest.mark.slow
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("n", "correlation"), [(1000, 0.0), (3000, 0.7)])
def test_coverage_of_paired_differences_of_dependent_requests(
    n: int, correlation: float, relative: bool
) -> None:
    held = coverage(n, correlation, times=200, relative=relative)
    assert min(held.values()) >= 0.91, held
