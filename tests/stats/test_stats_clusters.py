from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pytest_llmbench.stats import clusters as module
from pytest_llmbench.stats.clusters import Clusters
from pytest_llmbench.stats.counted import CountedOrder
from pytest_llmbench.stats.percentiles import ordered_percentile

FINE = 1_000_000
"""Whole numbers of normal samples: enough of them for no two to be alike."""


def run_of(values: Any, lengths: list[int], per_unit: float = 1.0, at_once: int = 1000) -> Clusters:
    """The values cut into clusters of these lengths, handed out ``at_once`` clusters at a time."""
    numbers = np.asarray(values, dtype=np.int64)
    counts = np.array(lengths, dtype=np.int64)
    ends = np.concatenate(([0], np.cumsum(counts)))

    def blocks() -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        for first in range(0, len(counts), at_once):
            own = counts[first : first + at_once]
            yield numbers[ends[first] : ends[first + len(own)]], own

    return Clusters(counts, (len(counts),), blocks, per_unit)


def alike(values: npt.NDArray[np.float64], length: int) -> Clusters:
    return run_of(np.rint(values * FINE), [length] * (len(values) // length), FINE)


def test_runs_are_kept_apart() -> None:
    clusters = Clusters.joined([run_of([1, 2, 3, 4, 5], [2, 3]), run_of([], []), run_of([6], [1])])
    assert clusters.counts.tolist() == [2, 3, 1]
    assert clusters.run_lengths == (2, 0, 1)
    assert [run.tolist() for run in clusters.by_run(np.array([1.0, 2.0, 3.0]))] == [[1, 2], [3]]
    assert np.concatenate(list(clusters.blocks())).tolist() == [1, 2, 3, 4, 5, 6]
    assert len(clusters) == 6


def test_sums_and_moments() -> None:
    clusters = run_of([10, 50, 20, 90, 30], [2, 3], 10.0)
    assert clusters.sums(lambda values: values).tolist() == [6, 14]
    assert clusters.sums(lambda values: values > 2).tolist() == [1, 2]
    assert clusters.total(np.square) == 1 + 25 + 4 + 81 + 9
    means, squares, largest, mean = clusters.moments
    assert means.tolist() == [3, pytest.approx(14 / 3)]
    assert squares.tolist() == [8, pytest.approx(4 + 81 + 9 - 3 * (14 / 3) ** 2)]
    assert largest.tolist() == [5, 9]
    assert mean == 4


def test_nothing() -> None:
    nothing = Clusters.joined([])
    assert len(nothing) == 0
    assert nothing.sums(lambda values: values).tolist() == []
    assert nothing.moments.largest.tolist() == []
    assert len(nothing.ordered) == 0


def test_copies_have_no_spread_of_their_own() -> None:
    """The mean of equal numbers is that number, to the last digit."""
    found = run_of([1_502_337] * 700, [7] * 100, 1e6).moments
    assert found.mean == 1.502337
    assert not found.squares.any()
    assert set(found.means.tolist()) == {1.502337}


@pytest.mark.parametrize("q", [50.0, 90.0, 99.0])
def test_copies_are_worth_one_each(q: float) -> None:
    found = []
    for seed in range(10):
        once = np.random.default_rng(seed).normal(size=4000)
        ((worth, _),) = alike(np.repeat(once, 25), 25).percentile_worths([q])
        found.append(worth.samples)
    # Each is an estimate with 24 degrees of freedom at most, and beyond the median the less of two.
    assert 2400 < np.median(found) < 4800


@pytest.mark.parametrize("q", [50.0, 99.0])
def test_independent_samples_are_worth_their_number(q: float) -> None:
    ((worth, _),) = alike(np.random.default_rng(1).normal(size=100_000), 25).percentile_worths([q])
    assert worth.samples >= 80_000


def test_clusters_that_depend_on_each_other_are_worth_less() -> None:
    once = np.repeat(np.random.default_rng(1).normal(size=400), 10)
    ((worth, _),) = alike(np.repeat(once, 25), 25).percentile_worths([50.0])
    assert worth.samples == pytest.approx(400, rel=0.4)


def test_ties_are_no_trouble() -> None:
    ((worth, _),) = run_of([3] * 1000, [10] * 100).percentile_worths([90.0])
    assert worth.samples == 1000
    ((worth, _),) = run_of([1] * 100 + [3] * 900, [10] * 100).percentile_worths([99.0])
    assert 1 <= worth.samples <= 1000


KINDS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "spread": lambda random, n: random.lognormal(16, 0.5, n),
    "ties": lambda random, n: random.integers(0, 3, n) * 5_000_000,
    "below zero": lambda random, n: random.normal(0, 1e6, n),
    "long pauses": lambda random, n: random.lognormal(16, 3.0, n),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_counted_and_in_any_blocks_everything_is_the_same(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(len(kind))
    lengths = random.integers(1, 30, size=300).tolist()
    values = np.rint(KINDS[kind](random, sum(lengths)))
    whole = run_of(values, lengths, 1e6)
    assert isinstance(whole.ordered, np.ndarray)
    cut = run_of(values, lengths, 1e6, at_once)
    monkeypatch.setattr(module, "SORTED", 100)
    assert isinstance(cut.ordered, CountedOrder)
    qs = (50.0, 90.0, 99.0, 99.9)
    assert cut.percentile_worths(qs) == whole.percentile_worths(qs)
    for q in qs:
        assert ordered_percentile(cut.ordered, q) == ordered_percentile(whole.ordered, q)
    for one, other in zip(cut.moments, whole.moments, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(cut.sums(np.square), whole.sums(np.square))
    assert cut.total(np.square) == whole.total(np.square)
