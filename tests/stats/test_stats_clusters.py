from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.stats.clusters import Clusters


def of(*runs: list[int]) -> Clusters:
    return Clusters.from_offsets([np.array(run) for run in runs])


def test_empty_clusters_are_dropped_and_runs_kept_apart() -> None:
    clusters = of([0, 2, 2, 5], [0, 0], [0, 1])
    assert clusters.counts.tolist() == [2, 3, 1]
    assert clusters.run_lengths == (2, 0, 1)
    assert [run.tolist() for run in clusters.by_run(np.array([1.0, 2.0, 3.0]))] == [[1, 2], [3]]


def test_sums_and_largest() -> None:
    clusters, values = of([0, 2, 2, 5]), np.array([1.0, 5.0, 2.0, 9.0, 3.0])
    assert clusters.sums(values).tolist() == [6, 14]
    assert clusters.sums(values > 2).tolist() == [1, 2]
    assert clusters.largest(values).tolist() == [5, 9]
    nothing = of([0, 0])
    assert nothing.sums(np.array([])).tolist() == []
    assert nothing.largest(np.array([])).tolist() == []
    assert Clusters.from_offsets([]).counts.tolist() == []


@pytest.mark.parametrize("q", [50.0, 90.0, 99.0])
def test_copies_are_worth_one_each(q: int) -> None:
    once = np.random.default_rng(1).normal(size=4000)
    values = np.repeat(once, 25)
    worth = of(list(range(0, 100_001, 25))).percentile_worth(values, np.sort(values), q).samples
    assert worth == pytest.approx(4000, rel=0.15)


@pytest.mark.parametrize("q", [50.0, 99.0])
def test_independent_samples_are_worth_their_number(q: float) -> None:
    values = np.random.default_rng(1).normal(size=100_000)
    worth = of(list(range(0, 100_001, 25))).percentile_worth(values, np.sort(values), q).samples
    assert worth >= 80_000


def test_clusters_that_depend_on_each_other_are_worth_less() -> None:
    once = np.repeat(np.random.default_rng(1).normal(size=400), 10)
    values = np.repeat(once, 25)
    worth = of(list(range(0, 100_001, 25))).percentile_worth(values, np.sort(values), 50.0).samples
    assert worth == pytest.approx(400, rel=0.4)


def test_ties_are_no_trouble() -> None:
    clusters = of(list(range(0, 1001, 10)))
    same = np.full(1000, 3.0)
    assert clusters.percentile_worth(same, same, 90.0).samples == 1000
    mostly = np.concatenate((np.full(100, 1.0), np.full(900, 3.0)))
    assert 1 <= clusters.percentile_worth(mostly, np.sort(mostly), 99.0).samples <= 1000
