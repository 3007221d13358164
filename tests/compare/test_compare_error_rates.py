"""Error rates of an A/B over simulated sessions: false alarms, power, and what interleaving is for."""

from __future__ import annotations

import math

import pytest
from ab_error_rates import DRIFT, SESSIONS, Design, designs, regressed

NOMINAL = 0.025
"""One side of a 95 % interval."""


def at_most(nominal: float, sessions: int) -> float:
    """A share that a rate of ``nominal`` exceeds once in a thousand times, by chance."""
    return nominal + 3.1 * math.sqrt(nominal * (1 - nominal) / sessions)


@pytest.mark.parametrize("drift", [0.0, DRIFT])
@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_no_change_is_rarely_called_a_regression(noise: float, drift: float) -> None:
    share = regressed(Design(3, noise, drift), 0.0, 0.0, sessions=600)
    assert share <= at_most(NOMINAL, 600)


def test_a_worsening_just_as_large_as_allowed_is_rarely_called_one() -> None:
    assert regressed(Design(5, 0.02), 0.05, 0.05, sessions=600) <= at_most(NOMINAL, 600)


def test_more_runs_find_five_percent_under_two_percent_of_noise() -> None:
    found = [regressed(Design(runs, 0.02), 0.05, 0.0, sessions=200) for runs in (3, 5, 10)]
    assert found == sorted(found)
    assert found[1] > 0.7
    assert found[2] > 0.95


def test_under_drift_pairs_are_right_where_one_arm_after_the_other_is_wrong() -> None:
    in_pairs = regressed(Design(5, 0.02, DRIFT), 0.0, 0.0, sessions=300)
    apart = regressed(Design(5, 0.02, DRIFT, interleaved=False), 0.0, 0.0, sessions=150)
    assert in_pairs <= at_most(NOMINAL, 300)
    assert apart > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("design", [d for d in designs() if d.interleaved], ids=str)
def test_false_alarms_keep_to_the_nominal_rate_in_every_design(design: Design) -> None:
    for change, margin in ((0.0, 0.0), (0.05, 0.05), (0.0, 0.05)):
        assert regressed(design, change, margin) <= at_most(NOMINAL, SESSIONS), (change, margin)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_interleaving_costs_little_without_drift_and_saves_much_with_it(noise: float) -> None:
    for runs in (5, 10):
        still = [regressed(Design(runs, noise, 0.0, pairs), 0.10, 0.0) for pairs in (True, False)]
        assert still[0] >= still[1] - 0.13
        moving = regressed(Design(runs, noise, DRIFT), 0.10, 0.0)
        assert moving >= still[0] - 0.03, "a steady drift drops out of the pairs"
        assert regressed(Design(runs, noise, DRIFT, interleaved=False), 0.0, 0.0) > 4 * NOMINAL
