from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import find_peaks

from pytest_llmbench.stats.shape import (
    FINEST_BANDWIDTH,
    PROMINENCE,
    _peaks,
    modality,
    tail_class,
    tail_variation,
)


def lognormal(centre: float, sigma: float, n: int, seed: int = 0) -> np.ndarray:
    return centre * np.exp(sigma * np.random.default_rng([seed, n]).normal(size=n))


@given(st.lists(st.integers(0, 30) | st.integers(90, 100), min_size=3, max_size=60))
def test_its_peaks_are_those_that_scipy_finds(heights: list[int]) -> None:
    """Level ones, those at the edges and those of the least prominence among them."""
    density = np.array([*heights, 100], dtype=np.float64)
    places, _ = find_peaks(density, prominence=PROMINENCE * 100.0)
    assert _peaks(density).tolist() == places.tolist()


@pytest.mark.parametrize("n", [1000, 5000, 100_000])
@pytest.mark.parametrize("seed", range(5))
def test_one_regime_is_one_mode(n: int, seed: int) -> None:
    found = modality(lognormal(30.0, 0.3, n, seed))
    assert not found.multimodal
    assert found.modes == pytest.approx([30.0], rel=0.1)
    assert found.zeros == 0


def test_two_regimes_are_two_modes_where_they_are() -> None:
    samples = np.concatenate((lognormal(20.0, 0.1, 8000), lognormal(90.0, 0.1, 2000)))
    found = modality(samples)
    assert found.multimodal
    assert found.modes == pytest.approx([20.0, 90.0], rel=0.05)


@pytest.mark.parametrize(("share", "modes"), [(0.005, 1), (0.15, 2)])
def test_a_small_bump_is_no_mode(share: float, modes: int) -> None:
    few = round(10_000 * share)
    samples = np.concatenate((lognormal(20.0, 0.1, 10_000 - few), lognormal(90.0, 0.1, few)))
    assert len(modality(samples).modes) == modes


def test_zeros_are_left_out_and_counted() -> None:
    samples = np.concatenate((np.zeros(700), lognormal(30.0, 0.3, 1000)))
    found = modality(samples)
    assert (len(found.modes), found.zeros) == (1, 700)
    assert modality(np.zeros(5)) == ((), 5, 0.0, ((), ()))
    assert modality(np.array([])) == ((), 0, 0.0, ((), ()))


def test_equal_samples_are_one_mode() -> None:
    assert modality(np.full(50, 7.0)).modes == (7.0,)
    assert modality(np.array([7.0])).modes == (7.0,)


def test_ticks_of_a_clock_are_no_modes() -> None:
    ticks = np.round(lognormal(30.0, 0.05, 50_000) / 0.1) * 0.1
    assert len(modality(ticks).modes) == 1


def test_two_exact_values_are_two_modes() -> None:
    """A model of an engine has gaps without any spread; most of them alike, so that the quartiles are too."""
    found = modality(np.concatenate((np.full(9000, 25.0), np.full(1000, 60.0))))
    assert found.modes == pytest.approx([25.0, 60.0], rel=0.01)


@pytest.mark.parametrize("farthest", [60.0, 9e6])
def test_the_histogram_holds_every_sample_in_its_bin(farthest: float) -> None:
    samples = np.concatenate((np.zeros(500), lognormal(25.0, 0.1, 9000), np.full(500, farthest)))
    edges, shares = modality(samples).histogram
    assert len(edges) == len(shares) + 1 <= 121
    widths = np.diff(np.log(edges))
    assert widths == pytest.approx(widths[0])
    assert np.histogram(samples, edges)[0] / len(samples) == pytest.approx(shares, abs=3e-4)
    assert sum(shares) == pytest.approx(0.95)
    assert shares[-1] == pytest.approx(0.05)


def test_the_histogram_of_equal_samples_is_one_bin_around_them() -> None:
    (low, high), shares = modality(np.array([0.0, 7.0, 7.0, 7.0])).histogram
    assert low < 7.0 < high
    assert shares == (0.75,)


def test_the_bandwidth_is_silvermans() -> None:
    found = modality(lognormal(30.0, 0.5, 10_000))
    assert found.bandwidth == pytest.approx(0.9 * 0.5 * 10_000**-0.2, rel=0.05)
    assert modality(lognormal(30.0, 0.01, 10_000)).bandwidth == FINEST_BANDWIDTH


def test_the_tail_of_an_exponential_law() -> None:
    samples = np.random.default_rng(5).exponential(size=200_000)
    variation = tail_variation(samples)
    assert variation == pytest.approx(1.0, abs=0.03)
    assert tail_class(variation) == "exponential"


def test_heavy_and_light_tails() -> None:
    random = np.random.default_rng(5)
    heavy, light = (
        tail_variation(random.pareto(2.5, size=50_000)),
        tail_variation(random.uniform(size=50_000)),
    )
    assert heavy is not None
    assert light is not None
    assert tail_class(heavy) == "heavy"
    assert light == pytest.approx(0.577, abs=0.02)
    assert tail_class(light) == "light"


@pytest.mark.parametrize(
    ("variation", "name"),
    [(1.21, "heavy"), (1.2, "exponential"), (0.8, "exponential"), (0.79, "light")],
)
def test_the_borders(variation: float, name: str) -> None:
    assert tail_class(variation) == name


def test_known_excesses() -> None:
    # P90 of 0 … 299 is 269.1: excesses 0.9 … 29.9.
    excesses = np.arange(30) + 0.9
    assert tail_variation(np.arange(300.0)) == pytest.approx(excesses.std(ddof=1) / excesses.mean())


def test_too_few_for_a_tail() -> None:
    assert tail_variation(np.arange(150.0)) is None
    assert tail_variation(np.array([])) is None
    assert tail_variation(np.full(1000, 4.0)) is None


def test_millions_of_gaps_are_quick() -> None:
    samples = lognormal(30.0, 0.3, 2_500_000)
    started = time.process_time()
    assert not modality(samples).multimodal
    assert time.process_time() - started < 5.0
