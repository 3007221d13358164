"""The interval of a job: known answers of each rule, and how often it holds the truth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from pytest_llmbench.metrics.jobs import half_widths, job_interval
from pytest_llmbench.model.estimate import EstimateKind, SavedSpread

Logs = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
T2, T4, T7 = 4.302653, 2.776445, 2.364624
"""Student's t at 95 %, two-sided, with 2, 4 and 7 degrees of freedom (any printed table)."""


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
def test_one_run_with_nothing_saved_is_exact_and_spreads_by_the_factor(factor: float) -> None:
    found = job_interval([12.5], factor)
    assert (found.point, found.kind) == (12.5, EstimateKind.ASSUMED_SPREAD)
    assert found.lower == pytest.approx(12.5 / factor)
    assert found.upper == pytest.approx(12.5 * factor)
    assert found.half == pytest.approx(math.log(factor))


def test_two_runs_tell_no_spread_of_their_own() -> None:
    found = job_interval([10.0, 40.0], 1.5)
    assert found.point == pytest.approx(20.0)
    assert (found.lower, found.upper) == (pytest.approx(20 / 1.5), pytest.approx(30.0))
    assert found.kind is EstimateKind.ASSUMED_SPREAD


def test_three_runs_by_student() -> None:
    """Logarithms 0, 0.1, 0.2 above ln 100: mean 0.1, deviation 0.1."""
    found = job_interval([100 * math.exp(each) for each in (0.0, 0.1, 0.2)], 1.5)
    half = T2 * 0.1 / math.sqrt(3)
    assert found.point == pytest.approx(100 * math.exp(0.1))
    assert found.half == pytest.approx(half, rel=1e-6)
    assert (found.lower, found.upper) == pytest.approx(
        (100 * math.exp(0.1 - half), 100 * math.exp(0.1 + half)), rel=1e-6
    )
    assert found.kind is EstimateKind.RUNS


def test_a_floor_below_five_runs_and_none_from_five_on() -> None:
    three, five = job_interval([50.0] * 3, 1.5), job_interval([50.0] * 5, 1.5)
    assert three.half == pytest.approx(T2 * 0.012 / math.sqrt(3), rel=1e-6)
    assert five.half == pytest.approx(0.0, abs=1e-12)
    assert (five.lower, five.point, five.upper) == pytest.approx((50.0, 50.0, 50.0))
    spread = job_interval([50 * math.exp(0.01 * each) for each in (-1, 0, 0, 0, 1)], 1.5)
    assert spread.half == pytest.approx(T4 * 0.01 * math.sqrt(0.5) / math.sqrt(5), rel=1e-6)


def test_a_saved_spread_stands_in_for_one_and_two_runs_only() -> None:
    saved = SavedSpread(0.05, 8)
    one, two = job_interval([10.0], 1.5, saved=saved), job_interval([10.0, 10.0], 1.5, saved=saved)
    assert one.half == pytest.approx(T7 * 0.05, rel=1e-6)
    assert two.half == pytest.approx(T7 * 0.05 / math.sqrt(2), rel=1e-6)
    assert one.kind is two.kind is EstimateKind.SAVED_SPREAD
    three = job_interval([10.0, 10.0, 10.0], 1.5, saved=saved)
    assert (three.kind, three.half) == (EstimateKind.RUNS, pytest.approx(T2 * 0.012 / 3**0.5, rel=1e-6))


def test_a_saved_spread_is_never_taken_for_less_than_3_percent_and_one_run_has_none() -> None:
    assert job_interval([10.0], 1.5, saved=SavedSpread(0.0, 8)).half == pytest.approx(T7 * 0.03, rel=1e-6)
    nothing = job_interval([10.0], 1.5, saved=SavedSpread(0.0, 1))
    assert (nothing.kind, nothing.half) == (EstimateKind.ASSUMED_SPREAD, pytest.approx(math.log(1.5)))


@pytest.mark.parametrize("runs", [[1e-12], [1e300], [1e-300, 1e300], [1e-300, 1.0, 1e300], [3.0] * 50])
def test_figures_of_any_size_have_a_finite_interval_round_their_point(runs: list[float]) -> None:
    found = job_interval(runs, 3.0, saved=None)
    assert 0.0 <= found.lower <= found.point <= found.upper < math.inf


def test_the_unit_does_not_matter() -> None:
    runs = [3.1, 2.9, 3.3, 3.0]
    seconds, milliseconds = job_interval(runs, 1.5), job_interval([1000 * each for each in runs], 1.5)
    for name in ("point", "lower", "upper"):
        assert getattr(milliseconds, name) == pytest.approx(1000 * getattr(seconds, name))
    rate = job_interval([1 / each for each in runs], 1.5)
    assert (rate.lower, rate.upper) == pytest.approx((1 / seconds.upper, 1 / seconds.lower))


def test_many_figures_at_once_are_the_same_as_one_by_one() -> None:
    logs = np.log(np.array([[1.0, 5.0], [1.1, 5.0], [1.3, 5.2]]))
    each = [job_interval(np.exp(column), 2.0).half for column in logs.T]
    assert half_widths(logs, 2.0) == pytest.approx(each)
    assert half_widths(logs[:1], 2.0) == pytest.approx([math.log(2.0)] * 2)


def covered(logs: Logs, runs: int, of: int, saved: int | None = None) -> float:
    """The share of ``of`` sessions whose interval holds e^0, the truth."""
    generator, held = np.random.default_rng(1), 0
    for _ in range(of):
        spread = None
        if saved is not None:
            spread = SavedSpread(float(np.std(logs(generator, (saved,)), ddof=1)), saved)
        found = job_interval(np.exp(logs(generator, (runs,))), 1.5, saved=spread)
        held += found.lower <= 1.0 <= found.upper
    return held / of


def normal(spread: float) -> Logs:
    return lambda generator, shape: generator.normal(0.0, spread, shape)


def drifting(spread: float) -> Logs:
    """Each run is 1 % slower than the one before; the truth is that of the middle one."""

    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        steps = np.arange(shape[0]) - (shape[0] - 1) / 2
        return generator.normal(0.0, spread, shape) + 0.01 * steps

    return draw


@pytest.mark.parametrize("runs", [3, 5])
def test_it_holds_the_truth(runs: int) -> None:
    assert covered(normal(0.03), runs, 400) >= 0.92


@pytest.mark.parametrize(("spread", "wider"), [(0.01, 1.3), (0.02, 1.0), (0.03, 0.95)])
def test_three_runs_pass_at_the_truth_once_in_a_hundred_and_are_hardly_wider(
    spread: float, wider: float
) -> None:
    """``wider``: the mean half-width over that by Student's t with the true spread. Analytically, with
    s² / σ² from χ² with two degrees of freedom: 1.28, 0.95 and 0.91."""
    logs = np.random.default_rng(1).normal(0.0, spread, (3, 40_000))
    half = half_widths(logs, 1.5)
    assert np.mean(logs.mean(axis=0) + half < 0) <= 0.011
    assert float(half.mean()) <= wider * T2 * spread / math.sqrt(3)


def test_a_saved_spread_holds_the_truth() -> None:
    assert covered(normal(0.05), 1, 400, saved=5) >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.01, 0.02, 0.05, 0.2])
@pytest.mark.parametrize("model", [normal, drifting])
def test_coverage(model: Callable[[float], Logs], spread: float) -> None:
    for runs in (3, 4, 5, 10):
        assert covered(model(spread), runs, 4000) >= 0.94, runs
    for saved in (2, 5, 8, 20):
        assert covered(normal(spread), 1, 4000, saved=saved) >= 0.94, saved


@pytest.mark.slow
def test_what_came_in_none_of_the_runs_is_not_known() -> None:
    """A pause that doubles the figure of 45 % of the runs: five runs see none of it once in twenty times."""

    def paused(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.normal(0.0, 0.01, shape) + math.log(2.0) * ((generator.random(shape) < 0.45) - 0.45)

    assert 0.049 < (1 - 0.45) ** 5 < 0.051
    assert 0.90 <= covered(paused, 5, 4000) <= 0.97
