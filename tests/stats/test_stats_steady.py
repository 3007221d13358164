from __future__ import annotations

import numpy as np
import pytest
from queue_models import ar1, mm1_waits
from scipy.stats import kendalltau, norm

from pytest_llmbench.stats.stationarity import change_across, drift


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


def test_a_drift_is_found_with_its_size() -> None:
    noise = np.random.default_rng(3).normal(0, 5, size=4000)
    found = drift(100 + np.linspace(-10, 10, 4000) + noise)
    assert found is not None
    assert found.change == pytest.approx(0.2, abs=0.02)
    assert found.drifting()


def test_a_drift_of_no_size_is_none() -> None:
    """Significant, and 2 %."""
    noise = np.random.default_rng(3).normal(0, 1, size=4000)
    found = drift(100 + np.linspace(-1, 1, 4000) + noise)
    assert found is not None
    assert found.p_value < 0.01
    assert not found.drifting()
    assert found.drifting(most=0.01)


def test_its_p_value_is_that_of_mann_and_kendall() -> None:
    samples = 100 + np.linspace(-0.5, 0.5, 4000) + np.random.default_rng(3).normal(0, 5, size=4000)
    medians = [np.median(part) for part in np.array_split(samples, 20)]
    score = kendalltau(range(20), medians).statistic * 20 * 19 / 2
    found = drift(samples)
    assert found is not None
    assert found.p_value == pytest.approx(2 * norm.sf((abs(score) - 1) / np.sqrt(20 * 19 * 45 / 18)))
    assert 0.05 < found.p_value < 0.9


def test_without_spread_there_is_no_trend() -> None:
    found = drift(np.full(500, 2.0))
    assert found is not None
    assert (found.change, found.p_value) == (0.0, 1.0)


def test_a_run_too_short_for_its_memory_is_not_judged() -> None:
    assert drift(np.arange(11.0)) is None
    assert drift(mm1_waits(0.95, 1000, np.random.default_rng(1)) + 1) is None
    assert drift(np.zeros(500)) is None


@pytest.mark.parametrize("model", ["independent", "ar1", "queue"])
def test_false_alarms_of_the_drift_test(model: str) -> None:
    alarms = []
    for seed in range(250):
        random = np.random.default_rng([6, seed])
        if model == "independent":
            samples = random.exponential(size=2000)
        elif model == "ar1":
            samples = 10 + ar1(0.8, 2000, random)
        else:
            samples = 1 + mm1_waits(0.5, 2000, random)
        found = drift(samples)
        if found is not None:
            alarms.append(found.p_value < 0.05)
    assert len(alarms) > 100
    assert np.mean(alarms) <= 0.1
