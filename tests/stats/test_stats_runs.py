from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.stats.percentiles import percentile, percentiles
from pytest_llmbench.stats.runs import as_runs, pooled


def test_one_vector_is_one_run() -> None:
    (run,) = as_runs(np.array([1, 2, 3]))
    assert run.dtype == np.float64
    assert run.tolist() == [1.0, 2.0, 3.0]


def test_empty_runs_are_dropped() -> None:
    runs = as_runs([np.array([]), np.array([1.0]), np.array([2.0, 3.0])])
    assert [len(run) for run in runs] == [1, 2]
    assert pooled(runs).tolist() == [1.0, 2.0, 3.0]
    assert pooled(as_runs([])).tolist() == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unobserved_values_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        as_runs(np.array([1.0, bad]))


def test_a_matrix_is_no_run() -> None:
    with pytest.raises(ValueError, match="one-dimensional"):
        as_runs([np.ones((2, 2))])


def test_percentile_interpolates_between_order_statistics() -> None:
    samples = np.array([40.0, 10.0, 30.0, 20.0])
    assert percentile(samples, 50) == 25.0
    assert percentile(samples, 90) == pytest.approx(37.0)  # position 2.7 of 0..3
    assert percentiles(samples, (0, 100)).tolist() == [10.0, 40.0]
    assert percentile(np.array([7.0]), 99.9) == 7.0


def test_no_samples_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile(np.array([]), 50)
