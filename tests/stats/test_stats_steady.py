from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.stats.steady import change_across


def test_a_level_series_does_not_change() -> None:
    assert change_across(np.full(5, 1000.0)) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("slope", "change"), [(20.0, 0.1), (-40.0, -0.2)])
def test_a_straight_line_changes_by_its_slope(slope: float, change: float) -> None:
    """1000 in the middle, five slices: slope · 5 / 1000."""
    assert change_across(1000.0 + slope * (np.arange(5) - 2)) == pytest.approx(change)


def test_one_high_slice_in_the_middle_is_no_trend() -> None:
    assert change_across(np.array([1.0, 1.0, 5.0, 1.0, 1.0])) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("slices", [[], [3.0], [0.0, 0.0, 0.0]])
def test_nothing_to_tell(slices: list[float]) -> None:
    assert change_across(np.array(slices)) is None
