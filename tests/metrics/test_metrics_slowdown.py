"""Slowdown of jobs against the same jobs alone, of times that are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pytest_llmbench.methodology.search.session_probes import PROBES, probe_numbers
from pytest_llmbench.metrics.definitions import is_metric
from pytest_llmbench.metrics.session_figures import Jobs, Slowdowns, slowdown_metrics, slowdowns
from pytest_llmbench.stats.runs import FloatArray

MEDIAN = 1.6
"""Of the slowdowns of the model."""


def jobs(
    llm_s: Sequence[float] | FloatArray,
    pause_s: Sequence[float] | FloatArray,
    *,
    session: Sequence[int] | None = None,
    failed: Sequence[int] = (),
) -> Jobs:
    llm, pause, count = np.asarray(llm_s, float), np.asarray(pause_s, float), len(llm_s)
    own = np.arange(count) if session is None else np.asarray(session)
    one = np.ones(count, dtype=np.int64)
    complete = ~np.isin(own, failed)
    nothing = np.zeros(count)
    return Jobs(own, one, one, complete, llm + pause, llm, nothing, pause, nothing)


def test_each_job_is_divided_by_the_same_one_alone() -> None:
    loaded = jobs([4.0, 9.0, 2.0, 8.0], [4.0, 1.0, 2.0, 0.0], session=[2, 0, 3, 1])
    alone = jobs([3.0, 2.0], [1.0, 4.0])  # of sessions 0 and 2
    found = slowdowns(loaded, alone, (0, 2))
    assert found.llm.tolist() == [2.0, 3.0]  # in the order in which they began under load
    assert found.job.tolist() == [8.0 / 6.0, 10.0 / 4.0]
    metrics = slowdown_metrics([found])
    assert metrics["job_llm_slowdown.p50"].point == 2.5
    assert metrics["job_slowdown.max"].point == 2.5
    assert metrics["job_slowdown.mean"].unit == "ratio"
    assert metrics["job_slowdown.mean"].n == 2
    assert all(map(is_metric, metrics))


def test_pairs_that_were_not_completed_are_left_out() -> None:
    loaded = jobs([4.0, 6.0, 5.0, 7.0], [0.0] * 4, failed=[1])
    alone = jobs([2.0, 2.0, 2.0], [0.0] * 3, failed=[2])
    found = slowdowns(loaded, alone, (0, 1, 3))
    assert found.job.tolist() == found.llm.tolist() == [2.0]


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [slowdowns(jobs([], []), jobs([], []), ())],
        [slowdowns(jobs([2.0], [1.0]), jobs([], []), (0,))],
        [slowdowns(jobs([2.0], [1.0]), jobs([0.0], [1.0]), (0,))],
    ],
)
def test_what_was_not_measured_is_no_slowdown_of_one(pairs: list[Slowdowns]) -> None:
    for estimate in slowdown_metrics(pairs, "no session was probed alone").values():
        assert estimate.point is None
        assert estimate.method == "no session was probed alone"


def test_probes_are_spread_evenly() -> None:
    assert probe_numbers(5, 10) == (1, 3, 5, 7, 9)
    assert probe_numbers(20, 3) == (0, 1, 2)
    assert probe_numbers(1, 9) == (4,)
    for probes, sessions in ((40, 500), (7, 11), (6, 10)):
        numbers = probe_numbers(probes, sessions)
        assert len(set(numbers)) == probes
        assert list(numbers) == sorted(numbers)
        assert 0 <= numbers[0] <= numbers[-1] < sessions


def _run(generator: np.random.Generator, memory: float) -> tuple[Slowdowns, float]:
    """A load of 500 jobs whose sizes differ ten-fold, and whose slowdown goes slowly up and down: log-normal
    around MEDIAN, with that correlation from one job to the next. And the ratio of the means of the load and
    of as many probes that are not paired."""
    count, level = 500, generator.normal()
    levels = np.empty(count)
    for place in range(count):
        level = memory * level + np.sqrt(1 - memory**2) * generator.normal()
        levels[place] = level
    alone, pause = generator.lognormal(1.0, 1.0, count), generator.lognormal(1.0, 1.0, count)
    noise, noise_alone = generator.normal(0.0, 0.05, (2, count))
    under_load = alone * MEDIAN * np.exp(0.3 * levels + noise)
    numbers = list(probe_numbers(PROBES, count))
    probes = jobs((alone * np.exp(noise_alone))[numbers], pause[numbers])
    found = slowdowns(jobs(under_load, pause), probes, numbers)
    unpaired = under_load.mean() / generator.lognormal(1.0, 1.0, PROBES).mean()
    return found, float(unpaired)


def _coverage(runs: int, memory: float) -> tuple[float, float, float]:
    """Share of closed intervals, share of these that hold the truth; and the standard deviation of the
    estimate beside that of the ratio of unpaired means."""
    closed = held = 0
    points, unpaired = [], []
    for seed in range(runs):
        found, ratio = _run(np.random.default_rng(seed), memory)
        estimate = slowdown_metrics([found])["job_llm_slowdown.p50"]
        assert estimate.point is not None
        points.append(estimate.point)
        unpaired.append(ratio)
        if estimate.lower is not None and estimate.upper is not None:
            closed += 1
            held += estimate.lower <= MEDIAN <= estimate.upper
    return closed / runs, held / max(closed, 1), float(np.std(points) / np.std(unpaired))


def test_the_interval_of_the_median_holds_the_truth_and_pairs_are_sharper_than_means() -> None:
    closed, held, spread = _coverage(60, 0.5)
    assert closed >= 0.75
    assert held >= 0.95
    assert spread < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.0, 0.8, 0.95])
def test_the_interval_holds_the_truth_however_long_the_load_remembers(memory: float) -> None:
    closed, held, _ = _coverage(500, memory)
    assert held >= 0.94, (closed, held)
    assert closed >= (0.75 if memory < 0.9 else 0.25)
