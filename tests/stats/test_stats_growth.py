from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.stats.stationarity import (
    Steps,
    gauge_steps,
    growth,
    in_flight_at,
    in_flight_steps,
    is_growing,
    segment_means,
)

EPOCH = 7_000_000_000_000_000


def instants(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_requests_in_flight_step_up_and_down() -> None:
    steps = in_flight_steps(instants(0, 10, 20), instants(30, 20, 40))
    assert steps.at_ns.tolist() == [0, 10, 20, 30, 40]
    assert steps.values.tolist() == [1, 2, 2, 1, 0]
    assert steps.before == 0


def test_what_never_began_is_left_out_and_what_never_ended_stays() -> None:
    steps = in_flight_steps(instants(-1, 5, 8), instants(9, -1, 10))
    assert steps.at_ns.tolist() == [5, 8, 10]
    assert steps.values.tolist() == [1, 2, 1]


def test_each_request_finds_those_under_way() -> None:
    # The second ends as the third begins; the fourth never began, the fifth never ends.
    starts, ends = instants(0, 10, 20, -1, 25, 40), instants(30, 20, 50, 60, -1, 45)
    assert in_flight_at(starts, starts, ends).tolist() == [0, 1, 1, 0, 2, 2]
    assert in_flight_at(starts, starts[::-1], ends[::-1]).tolist() == [0, 1, 1, 0, 2, 2]
    assert in_flight_at(instants(15, -1, 44, 60), starts, ends).tolist() == [2, 0, 3, 1]
    assert in_flight_at(instants(), starts, ends).tolist() == []


def test_segment_means_weigh_time() -> None:
    # 0 until 15, then 4 until 40, then 1: halves and all.
    steps = Steps(instants(EPOCH + 15, EPOCH + 40), np.array([4.0, 1.0]), 0.0)
    assert segment_means(steps, EPOCH, EPOCH + 50) == pytest.approx((0.0, 2.0, 4.0, 4.0, 1.0))


def test_the_value_at_the_start_is_the_last_before_it() -> None:
    steps = Steps(instants(5, 100), np.array([3.0, 9.0]), 0.0)
    assert segment_means(steps, 10, 60) == (3.0,) * 5
    assert segment_means(steps, 100, 110) == (9.0,) * 5
    assert segment_means(steps, 0, 5) == (0.0,) * 5


def test_a_gauge_holds_its_first_reading_before_it() -> None:
    steps = gauge_steps(instants(20, 30), np.array([2.0, 7.0]))
    assert segment_means(steps, 0, 50) == pytest.approx((2.0, 2.0, 2.0, 7.0, 7.0))
    with pytest.raises(ValueError, match="a gauge needs readings"):
        gauge_steps(instants(), np.array([]))


def test_an_empty_window_has_no_means() -> None:
    with pytest.raises(ValueError, match="ends after it starts"):
        segment_means(Steps(instants(), np.array([]), 1.0), 5, 5)


@pytest.mark.parametrize(
    ("means", "growing"),
    [
        ((1.0, 2.0, 3.0, 4.0, 5.0), True),
        ((1.0, 1.5, 2.0, 2.5, 3.0), True),
        ((1.0, 1.2, 1.4, 1.6, 2.9), False),  # less than 2
        ((100.0, 105.0, 110.0, 115.0, 120.0), True),
        ((100.0, 105.0, 110.0, 115.0, 119.0), False),  # less than 20 %
        ((1.0, 3.0, 3.0, 6.0, 9.0), False),  # stands still once
        ((1.0, 9.0, 8.0, 20.0, 30.0), False),
        ((9.0, 7.0, 5.0, 3.0, 1.0), False),
        ((0.0, 0.0, 0.0, 0.0, 0.0), False),
    ],
)
def test_the_rule(means: tuple[float, ...], growing: bool) -> None:
    assert is_growing(means) is growing


def test_an_overloaded_server_grows_and_a_sufficient_one_does_not() -> None:
    second = 10**9
    starts = np.arange(0, 100 * second, second // 10)
    served = np.arange(len(starts)) * (second // 8) + second
    overloaded = growth(in_flight_steps(starts, served), 10 * second, 100 * second)
    assert overloaded.growing
    # 10 arrive and 8 leave per second; after t seconds there are 2 t more, minus the second's head start.
    assert overloaded.means[2] == pytest.approx(8 + 0.2 * 10 * 55, rel=0.05)
    assert not growth(in_flight_steps(starts, starts + second), 10 * second, 100 * second).growing


def test_many_simultaneous_events_are_one_step() -> None:
    steps = in_flight_steps(instants(*[5] * 64), instants(*[9] * 64))
    assert (steps.at_ns.tolist(), steps.values.tolist()) == ([5, 9], [64, 0])
