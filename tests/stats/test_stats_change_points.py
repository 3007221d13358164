"""Change points: known answers, false alarms, what is too little."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.stats.change_points import (
    FEWEST_BETWEEN,
    SIGNIFICANCE,
    _best_of,
    change_points,
    fewest_values,
)

STEP = [10.0, 10.3, 9.8, 10.1, 9.9, 10.2, 14.1, 13.8, 14.0, 14.3, 13.9, 14.2]


def energy_by_the_formula(x: list[float], y: list[float]) -> float:
    """Q as the paper writes it, loop by loop."""
    n, m = len(x), len(y)
    between = sum(abs(a - b) for a in x for b in y) * 2 / (n * m)
    within = [
        sum(abs(v[i] - v[k]) for i in range(len(v)) for k in range(i + 1, len(v)))
        * 2 / (len(v) * (len(v) - 1))
        for v in (x, y)
    ]  # fmt: skip
    return n * m / (n + m) * (between - sum(within))


def test_the_split_is_the_best_by_the_formula_of_the_paper() -> None:
    values = np.random.default_rng(3).normal(size=9).tolist()
    found = _best_of(np.abs(np.subtract.outer(values, values)), [(0, 9)])
    assert found is not None
    by_hand = {at: energy_by_the_formula(values[:at], values[at:]) for at in range(3, 7)}
    assert found.at == max(by_hand, key=by_hand.__getitem__)
    assert found.q == pytest.approx(by_hand[found.at])


def test_a_step_is_found_where_it_is() -> None:
    (point,) = change_points(STEP)
    assert point.at == 6
    assert 2 / 924 * 0.3 < point.p_value < 2 / 924 * 3  # 2 of the 924 orders of halves fall apart so


def test_two_steps_are_found_and_what_follows_them_is_left_alone() -> None:
    generator = np.random.default_rng(1)
    values = np.concatenate([generator.normal(level, 0.5, 15) for level in (10, 16, 12)])
    assert [point.at for point in change_points(values)] == [15, 30]


def test_the_same_values_give_the_same_points() -> None:
    assert change_points(STEP) == change_points(list(STEP))


def test_a_series_without_a_change_has_a_point_as_often_as_the_significance_says() -> None:
    generator = np.random.default_rng(5)
    alarms = sum(bool(change_points(generator.normal(size=20), significance=0.05)) for _ in range(60))
    assert alarms <= 9  # 3 are expected; more than 9 come once in a thousand times


@pytest.mark.parametrize("values", [[], [5.0], STEP[:10], [7.0] * 40])
def test_too_few_values_and_equal_ones_have_none(values: list[float]) -> None:
    assert change_points(values) == []


def test_how_many_values_it_takes() -> None:
    assert fewest_values(0.05) == 9
    assert fewest_values() == fewest_values(SIGNIFICANCE) == 11


def test_enormous_values_have_their_change_points_too() -> None:
    (point,) = change_points([1e307 * value - 1.2e308 for value in STEP])
    assert point.at == 6


def test_very_many_values_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 2000 values"):
        change_points([1.0] * 2001)


def test_a_single_odd_value_is_no_new_level() -> None:
    values = [10.0, 10.1, 9.9, 10.2, 9.8, 10.0, 55.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.1, 10.0]
    assert change_points(values) == []


@pytest.mark.parametrize(
    ("values", "significance", "said"),
    [([1.0] * 11 + [float("nan")], 0.01, "finite"), (STEP, 0.0005, "0.001"), (STEP, 1.0, "below 1")],
)
def test_what_is_no_series(values: list[float], significance: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        change_points(values, significance=significance)


@settings(max_examples=6)
@given(
    st.floats(0.1, 1000.0),
    st.floats(-1e3, 1e3),
    st.lists(st.floats(0.0, 1.0), min_size=8, max_size=12),
    st.integers(0, 1),
)
def test_scale_and_origin_do_not_matter(scale: float, origin: float, noise: list[float], step: int) -> None:
    values = np.array([0.01 * own + 5.0 * step * (at >= len(noise)) for at, own in enumerate(noise * 2)])
    moved = change_points(scale * values + origin)
    assert [point.at for point in moved] == [point.at for point in change_points(values)]
    assert all(FEWEST_BETWEEN <= point.at <= len(values) - FEWEST_BETWEEN for point in moved)
