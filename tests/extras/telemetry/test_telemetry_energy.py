"""Energy in a window, by hand: counters, power, ends, gaps, wraps, and what is not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_llmbench.extras.telemetry.metrics import Energy, energy
from pytest_llmbench.model.telemetry import DeviceSeries

S = 1_000_000_000


def series(
    at_s: Any, *, wraps: float | None = None, gone_s: float | None = None, **values: Any
) -> DeviceSeries:
    return DeviceSeries(
        id="gpu",
        kind="gpu",
        name="model",
        at_ns=np.asarray(np.asarray(at_s, dtype=np.float64) * S, dtype=np.int64),
        values={name: np.asarray(own, dtype=np.float64) for name, own in values.items()},  # type: ignore[misc]
        energy_wraps_at_j=wraps,
        vanished_ns=None if gone_s is None else round(gone_s * S),
    )


def over(told: DeviceSeries, *edges_s: float) -> Energy:
    return energy(told, np.array([round(edge * S) for edge in edges_s], dtype=np.int64))


TEN = np.arange(0, 10.5, 0.5)


def test_a_counter_is_interpolated_at_both_ends() -> None:
    told = series([0, 1, 2, 3], energy_j=[100, 200, 400, 500])
    found = over(told, 0.5, 2.25)
    assert found.total_j == pytest.approx(50 + 200 + 25)
    assert found.by == "counter"
    slices = over(told, 0.5, 1, 2.25).joules
    assert slices is not None
    assert slices.tolist() == pytest.approx([50, 225])


def test_power_is_the_trapezoid_with_interpolated_ends() -> None:
    told = series([0, 1, 3], power_w=[100, 200, 400])
    found = over(told, 0.5, 2)
    assert found.total_j == pytest.approx((150 + 200) / 2 * 0.5 + (200 + 300) / 2)
    assert found.by == "power"


def test_a_counter_that_wraps_goes_on_where_it_is_known_to_begin_again() -> None:
    at = [0, 1, 2, 3]
    assert over(series(at, energy_j=[80, 90, 0, 10], wraps=100), 0, 3).total_j == pytest.approx(30)
    fell = over(series(at, energy_j=[80, 90, 0, 10]), 0, 3)
    assert (fell.joules, fell.why) == (None, "fell")
    by_power = over(series(at, energy_j=[80, 90, 0, 10], power_w=[10] * 4), 0, 3)
    assert (by_power.total_j, by_power.by, by_power.why) == (pytest.approx(30), "power", "fell")


def test_a_counter_that_stands_still_gives_way_to_power() -> None:
    never = series(TEN, energy_j=[5] * 21, power_w=[10] * 21)
    assert (over(never, 0, 10).total_j, over(never, 0, 10).why) == (pytest.approx(100), "stood_still")
    stopped = series(TEN, energy_j=np.minimum(TEN, 4) * 10, power_w=[10] * 21)
    assert (over(stopped, 0, 10).total_j, over(stopped, 0, 10).why) == (pytest.approx(100), "stood_still")
    alone = over(series(TEN, energy_j=[5] * 21), 0, 10)
    assert (alone.joules, alone.why) == (None, "stood_still")


def test_a_counter_may_stand_still_while_nothing_is_drawn() -> None:
    idle = series(TEN, energy_j=np.maximum(TEN - 5, 0) * 10, power_w=np.where(TEN > 5, 10, 0))
    found = over(idle, 0, 10)
    assert (found.total_j, found.by, found.why) == (pytest.approx(50), "counter", None)


def test_a_counter_that_is_brought_up_to_date_rarely_is_known_where_it_moves() -> None:
    by_second = over(series(TEN, energy_j=np.floor(TEN) * 10), 0, 10)
    assert by_second.total_j == pytest.approx(100)
    rarely = series(np.arange(0, 60, 0.5), energy_j=np.arange(0, 60, 0.5) // 5, power_w=[1] * 120)
    found = over(rarely, 0, 50)
    assert (found.joules, found.why) == (None, "rarely")


@pytest.mark.parametrize("quantity", ["energy_j", "power_w"])
def test_a_gap_of_more_than_three_seconds_is_void_where_it_is_in_the_window(quantity: str) -> None:
    at = np.array([0, 1, 2, 3, 6.5, 7.5, 8.5])
    told = series(at, **{quantity: at * 10 + 1})
    assert over(told, 2, 7).why == "gap"
    assert over(told, 0.5, 2.5).total_j is not None
    assert over(told, 6.75, 8).total_j is not None
    just = np.array([0, 1, 4, 5, 6])
    assert over(series(just, **{quantity: just * 10 + 1}), 0, 6).total_j is not None


def test_what_has_no_reading_at_an_end_is_void() -> None:
    told = series(TEN, power_w=[10] * 21)
    assert over(told, -0.4, 10.4).total_j == pytest.approx(108)  # nearer than the distance of two readings
    assert over(told, -1, 5).why == "not_covered"
    assert over(told, 5, 11).why == "not_covered"
    gone = series(TEN, power_w=[10] * 21, gone_s=10.5)
    assert over(gone, 5, 12).why == "vanished"
    assert over(gone, 5, 9).total_j == pytest.approx(40)


def test_readings_without_a_value_are_none_and_a_device_without_power_has_no_energy() -> None:
    told = series([0, 1, 2], power_w=[10, np.nan, 30])
    assert over(told, 0, 2).total_j == pytest.approx(40)
    assert over(series([0, 1, 2], utilisation=[1, 1, 1]), 0, 2).why == "no_power"
    assert over(series([0, 1, 2], power_w=[np.nan] * 3), 0, 2).why == "no_power"
