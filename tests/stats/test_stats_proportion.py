from __future__ import annotations

import pytest

from pytest_llmbench.stats.proportion import wilson_interval


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (990, 1000), (1, 1)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_same_interval_as_scipy(successes: int, trials: int, level: float) -> None:
    from scipy.stats import binomtest

    reference = binomtest(successes, trials).proportion_ci(level, method="wilson")
    expected = (reference.low, reference.high)
    assert wilson_interval(successes, trials, level=level) == pytest.approx(expected, abs=1e-12)


def test_the_extremes_are_touched_but_not_certain() -> None:
    lower, upper = wilson_interval(100, 100)
    assert upper == 1.0
    assert lower is not None
    assert 0.95 < lower < 0.97
    assert wilson_interval(0, 100)[0] == 0.0


def test_dependent_trials_are_worth_less() -> None:
    assert wilson_interval(50, 100, effective_n=25.0) == pytest.approx(
        wilson_interval(25, 50, effective_n=25)
    )
    assert wilson_interval(500, 1000, effective_n=100.0) == pytest.approx(wilson_interval(50, 100))


def test_no_trials_say_nothing() -> None:
    assert wilson_interval(0, 0) == (None, None)


def test_more_successes_than_trials() -> None:
    with pytest.raises(ValueError, match="5 successes of 4"):
        wilson_interval(5, 4)
