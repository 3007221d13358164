from __future__ import annotations

import numpy as np
import pytest
from queue_models import ar1, mm1_waits

from pytest_llmbench.stats.stationarity import change_across, drift, warm_up_end


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


def ramp(extra: float, n: int = 1000, seed: int = 1) -> np.ndarray:
    """Level 100 with noise; the first 200 samples higher by ``extra`` that dies away."""
    noise = np.random.default_rng(seed).normal(100, 5, size=n)
    noise[:200] += np.linspace(extra, 0, 200)
    return noise


def criterion_spelled_out(samples: np.ndarray) -> int:
    means = samples[: len(samples) // 5 * 5].reshape(-1, 5).mean(axis=1)
    worth = [
        np.square(means[d:] - means[d:].mean()).sum() / (len(means) - d) ** 2 for d in range(len(means) - 5)
    ]
    return int(np.argmin(worth)) * 5


def test_warm_up_is_cut_where_the_criterion_says() -> None:
    for seed in range(5):
        samples = ramp(100.0, seed=seed)
        assert warm_up_end(samples) == criterion_spelled_out(samples)
        assert 130 <= criterion_spelled_out(samples) <= 260


def test_a_series_without_warm_up_keeps_nearly_all() -> None:
    cut = [warm_up_end(ramp(0.0, seed=seed)) for seed in range(40)]
    assert all(found is not None for found in cut)
    assert np.median([found for found in cut if found is not None]) < 100


def test_a_series_that_only_settles_late_has_no_end_of_warm_up() -> None:
    late = np.concatenate((np.linspace(100, 0, 700), np.zeros(300)))
    assert warm_up_end(late) is None
    assert warm_up_end(np.arange(49.0)) is None


def test_a_constant_has_nothing_to_cut() -> None:
    assert warm_up_end(np.full(100, 3.0)) == 0


def test_a_drift_is_found_with_its_size() -> None:
    noise = np.random.default_rng(3).normal(0, 5, size=4000)
    found = drift(100 + np.linspace(-10, 10, 4000) + noise)
    assert found is not None
    assert found.windows == 20
    assert found.change == pytest.approx(0.2, abs=0.02)
    lower, upper = found.interval
    assert lower is not None
    assert upper is not None
    assert lower < 0.2 < upper
    assert found.drifting()


def test_a_drift_of_no_size_is_none() -> None:
    """Significant, and 2 %."""
    noise = np.random.default_rng(3).normal(0, 1, size=4000)
    found = drift(100 + np.linspace(-1, 1, 4000) + noise)
    assert found is not None
    assert found.p_value < 0.01
    assert not found.drifting()
    assert found.drifting(most=0.01)


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
