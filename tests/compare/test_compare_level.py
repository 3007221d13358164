"""The sessions that tell the present level of a metric."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.compare.regression import present_level


def test_few_sessions_count_all() -> None:
    assert present_level([0.0, 0.5, 9.0]) == [0, 1, 2]
    assert present_level([0.0] * 12) == list(range(2, 12))


def test_what_is_before_a_change_does_not_count() -> None:
    noise = np.random.default_rng(1).normal(0, 0.01, 20)
    assert present_level([*noise[:15], *(noise[15:] + 0.2)]) == [15, 16, 17, 18, 19]


def test_broken_nights_do_not_count_even_if_two_of_them_are_alike() -> None:
    logs = np.random.default_rng(2).normal(0, 0.01, 10)
    logs[[3, 8]] += 0.3
    assert present_level(list(logs)) == [0, 1, 2, 4, 5, 6, 7, 9]


def test_sessions_without_noise_are_not_far_from_each_other() -> None:
    assert present_level([0.0, 1e-12, 0.0, 0.0, 0.0]) == [0, 1, 2, 3, 4]


def test_of_unchanged_sessions_one_in_a_hundred_series_loses_some() -> None:
    series = np.random.default_rng(3).normal(0, 0.01, (500, 8))
    assert sum(len(present_level(list(each))) < 8 for each in series) <= 12
