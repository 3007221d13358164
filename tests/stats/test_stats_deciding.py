"""How many times the samples decide a limit: by its formula, and by doing it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmbench.stats.deciding import LEAST, MOST, PREDICTED, chance, times_to_close, times_to_decide
from pytest_llmbench.stats.ratios import exact_share_interval
from pytest_llmbench.stats.runs import Interval

Z = 1.959963984540054


@pytest.mark.parametrize("errors", [1.2, 1.5, 1.9])
def test_as_many_larger_samples_decide_as_predicted(errors: float) -> None:
    """The true distance is drawn from what the sample tells, then a larger sample from the truth."""
    times = times_to_decide(0.0, Interval(-Z, Z), errors)
    random = np.random.default_rng([4, round(10 * errors)])
    true = random.normal(errors, 1.0, 20_000)
    again = random.normal(true, 1 / math.sqrt(times))
    decided = np.abs(again) > Z / math.sqrt(times)
    assert LEAST < times < MOST
    assert np.mean(decided) == pytest.approx(PREDICTED, abs=0.012)
    assert chance(errors, times, Z) == pytest.approx(PREDICTED)


def test_it_takes_more_the_nearer_the_limit_is() -> None:
    limits = (199, 170, 150, 140, 120, 100)
    asked = [times_to_decide(100.0, Interval(50.0, 200.0), limit) for limit in limits]
    assert asked == sorted(asked)
    assert 16 < asked[2] < MOST
    assert asked[-1] == math.inf
    assert times_to_decide(100.0, Interval(50.0, 200.0), 1e9) == LEAST


def test_latencies_are_taken_by_their_logarithms() -> None:
    """From 100, 160 is as far as 62.5; of a figure that may be negative, 160 as far as 40."""
    ends = Interval(50.0, 200.0)
    assert times_to_decide(100.0, ends, 160.0) == pytest.approx(times_to_decide(100.0, ends, 62.5))
    ends = Interval(-20.0, 220.0)
    assert times_to_decide(100.0, ends, 200.0) == pytest.approx(times_to_decide(100.0, ends, 0.0))


def test_the_lower_end_stands_in_for_one_that_is_missing_above() -> None:
    """Three times as far above: from 100 to 200 for 79, which lies below by a factor of 2^(1/3)."""
    lower = 100.0 / 2 ** (1 / 3)
    closed, opened = (times_to_decide(100.0, Interval(lower, upper), 170.0) for upper in (200.0, None))
    assert opened == pytest.approx(closed)
    assert times_to_decide(100.0, Interval(None, None), 170.0) == LEAST
    assert times_to_decide(100.0, Interval(100.0, None), 170.0) == LEAST


def test_a_crude_end_has_to_become_another_one_first() -> None:
    ends = Interval(60.0, 200.0)
    for limit in (199.0, 170.0, 150.0):
        crude, usual = (times_to_decide(100.0, ends, limit, crude=each) for each in (True, False))
        assert crude == (3 * usual if 3 * usual <= MOST else math.inf)
    assert times_to_decide(100.0, ends, 170.0, crude=True) < math.inf
    assert times_to_decide(100.0, ends, 62.0, crude=True) == times_to_decide(100.0, ends, 62.0)


def test_a_share_of_all_comes_nearer_as_fast_as_there_are_samples() -> None:
    """All of 200 good, at least 99 % wanted: twice 200 · 0.0183 / 0.0101 decide it for a true 99.8 %."""
    ends = Interval(*exact_share_interval(200, 200, tail=0.025))
    times = times_to_decide(1.0, ends, 0.99)
    assert times == pytest.approx(3.67, abs=0.01)
    n = math.ceil(200 * times)
    good = np.random.default_rng(8).binomial(n, 0.998, 400)
    decided = [exact_share_interval(int(count), n, tail=0.025)[0] >= 0.99 for count in good]
    assert np.mean(decided) >= 0.7


def test_another_level_takes_more() -> None:
    """The same error, at the level of an early look."""
    usual = times_to_decide(0.0, Interval(-Z, Z), 1.9)
    strict = times_to_decide(0.0, Interval(-2.5758293, 2.5758293), 1.9, level=0.99)
    assert strict > usual


def test_few_samples_ask_for_more_than_would_close_an_end() -> None:
    assert times_to_close(400, 100) == pytest.approx(4 * (1.25 + 0.5))
    assert times_to_close(400, 10_000) == pytest.approx(1.0001 * 1.3)
