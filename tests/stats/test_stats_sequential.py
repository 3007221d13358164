"""Boundaries as published; intervals that hold at all looks together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pytest_llmbench.stats.looks import (
    LEAST_TAIL,
    MOST_LOOKS,
    batch_size,
    planned_looks,
    spent,
)
from pytest_llmbench.stats.ratios import exact_share_interval


def boundaries(most: int, every: int, alpha: float) -> list[float]:
    from scipy.special import ndtri

    return [-float(ndtri(look.tail)) for look in planned_looks(most, every, alpha)]


def test_the_boundaries_are_those_of_lan_and_demets() -> None:
    # Five equal looks, two-sided 5 %, O'Brien-Fleming type spending.
    assert boundaries(500, 100, 0.05) == pytest.approx([4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-4)


def test_one_look_is_an_ordinary_interval() -> None:
    assert boundaries(1000, 1000, 0.05) == pytest.approx([1.959964], abs=1e-5)


def test_all_of_the_error_is_spent_at_the_end_and_hardly_any_before() -> None:
    assert spent(0.0, 0.05) == 0.0
    assert spent(1.0, 0.05) == 0.05
    assert spent(0.25, 0.05) < 1e-4
    assert all(a < b for a, b in itertools.pairwise(spent(t / 20, 0.05) for t in range(2, 21)))


def test_brownian_motion_crosses_as_often_as_was_allowed() -> None:
    looks = planned_looks(2000, 100, 0.05)
    random = np.random.default_rng(3)
    paths = np.cumsum(random.normal(size=(20_000, 20)), axis=1) / np.sqrt(np.arange(1, 21))
    from scipy.special import ndtri

    bounds = np.array([-ndtri(look.tail) for look in looks])
    crossed = (np.abs(paths[:, 20 - len(bounds) :]) >= bounds).any(axis=1).mean()
    assert crossed == pytest.approx(0.05, abs=0.005)


def test_a_long_load_is_looked_at_no_more_than_a_hundred_times() -> None:
    looks = planned_looks(1_000_000, 100, 0.05)
    assert len(looks) <= MOST_LOOKS
    assert looks[-1].n == 1_000_000
    assert min(look.tail for look in looks) >= LEAST_TAIL


def test_a_load_that_ended_before_its_most_spends_what_is_left() -> None:
    whole, cut = planned_looks(1000, 100, 0.05), planned_looks(1000, 100, 0.05, closing=450)
    assert cut[-1].n == 450
    assert cut[-1].tail > whole[len(cut) - 1].tail
    assert cut[-1].tail == pytest.approx(0.025, rel=0.02)


def test_batch_size_pays_for_not_knowing_the_variance() -> None:
    series = np.random.default_rng(5).normal(size=5000)
    assert batch_size(series, 1e-6) < 0.8 * 5000


def test_clopper_pearson_known_answers() -> None:
    # Nine of ten, 95 %: (0.55498, 0.99747); none of ten: upper end 1 - 0.025^(1/10).
    assert exact_share_interval(9, 10, tail=0.025) == pytest.approx((0.554984, 0.997471), abs=1e-6)
    assert exact_share_interval(0, 10, tail=0.025) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert exact_share_interval(10, 10, tail=0.025) == pytest.approx((0.025**0.1, 1.0))


def test_a_share_of_fewer_effective_trials_has_a_wider_interval() -> None:
    lower, upper = exact_share_interval(990, 1000, tail=0.025)
    wider = exact_share_interval(990, 1000, tail=0.025, effective_n=100)
    assert wider[0] < lower < 0.99 < upper < wider[1]
