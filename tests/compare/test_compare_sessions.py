"""Sessions as the unit of replication: the interval has the spread between days in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pytest_llmbench.compare.limits import RegressionLimit, comparisons
from pytest_llmbench.compare.regression import compared_by_session, session_ratio
from pytest_llmbench.model.judgement import Comparison, ComparisonVerdict

SESSIONS = [[100.0, 101.0, 99.0], [104.0, 103.0, 105.0], [97.0, 98.0, 96.0], [101.0, 100.0, 102.0]]


def _logs(sessions: list[list[float]]) -> list[np.ndarray]:
    return [np.log(np.array(own)) for own in sessions]


def _compared(sessions: list[list[float | None]], candidate: list[float | None]) -> Comparison | None:
    return compared_by_session(
        "ttft.p50", "ms", "lower", sessions, candidate, margin=0.05, same_runs=False
    )  # fmt: skip


def test_the_interval_is_that_of_students_t_for_one_more_session() -> None:
    found = session_ratio(_logs(SESSIONS), np.log([110.0, 111.0, 109.0]), same_runs=False)
    figures = np.array([own.mean() for own in _logs(SESSIONS)])
    half = stats.t.ppf(0.975, 3) * figures.std(ddof=1) * math.sqrt(1 + 1 / 4)
    assert found.point == pytest.approx(np.log([110.0, 111.0, 109.0]).mean() - figures.mean())
    assert found.halfwidth == pytest.approx(half)
    assert found.freedom == 3


def test_few_days_that_are_alike_by_luck_make_no_narrower_interval_than_their_runs() -> None:
    noisy = [[90.0, 110.0, 100.0]] * 4
    found = session_ratio(_logs(noisy[:3]), np.log(noisy[3]), same_runs=False)
    deviation = np.log(noisy[0]).std(ddof=1)
    half = stats.t.ppf(0.975, 8) * deviation * math.sqrt(1 / 3 + 1 / 9)
    by_days = stats.t.ppf(0.975, 2) * deviation / math.sqrt(3)  # the candidate's own error
    assert found.halfwidth == pytest.approx(max(half, by_days))
    quiet = session_ratio(_logs([[100.0] * 3] * 3), np.log(noisy[0]), same_runs=False)
    assert quiet.error == pytest.approx(deviation / math.sqrt(3))
    assert quiet.freedom == 2


def test_runs_with_lengths_of_their_own_are_no_noise_where_all_sessions_have_them() -> None:
    stretches = np.array([1.0, 1.3, 0.8])
    sessions = [list(level * stretches) for level in (100, 102, 99)]
    found = session_ratio(_logs(sessions), np.log(103 * stretches), same_runs=True)
    figures = np.log([100, 102, 99])
    assert found.point == pytest.approx(math.log(103) - figures.mean())
    assert found.error == pytest.approx(figures.std(ddof=1) * math.sqrt(4 / 3))
    fewer = session_ratio(_logs(sessions), np.log(103 * stretches[:2]), same_runs=True)
    assert fewer.point == pytest.approx(found.point)


def test_one_run_of_each_session_is_a_figure() -> None:
    found = _compared([[100.0], [103.0], [98.0]], [101.0])
    assert found is not None
    assert found.unit_of_replication == "session"
    assert found.baseline == pytest.approx((100.0, 103.0, 98.0))
    assert found.candidate == pytest.approx((101.0,))
    assert found.change.lower is not None
    assert found.change.upper is not None
    assert found.change.lower < -0.05 < 0.05 < found.change.upper
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    assert "more saved sessions" in found.reason


def test_fewer_than_three_sessions_have_no_spread_and_those_without_the_figure_do_not_count() -> None:
    assert _compared([[100.0], [103.0]], [101.0]) is None
    assert _compared([[100.0], [103.0], [], [None], [98.0, None], [0.0]], [101.0]) is None
    found = _compared([[100.0], [103.0], [None], [98.0]], [101.0])
    assert found is not None
    assert len(found.baseline) == 3


@pytest.mark.parametrize("candidate", [[], [None], [100.0, None], [0.0]], ids=str)
def test_a_session_that_lacks_the_figure_is_never_judged_without_it(candidate: list[float | None]) -> None:
    found = _compared([[100.0], [103.0], [98.0]], candidate)
    assert found is not None
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    assert found.change.point is None
    assert found.reason.startswith("it is undefined in" if 0.0 not in candidate else "candidate measured 0")


def test_metrics_are_compared_by_session_where_three_have_them_and_by_run_elsewhere() -> None:
    runs: dict[str, list[float | None]] = {"ttft.p50": [100, 101, 102], "tpot.p50": [10, 11, 12]}
    old: dict[str, list[float | None]] = {"ttft.p50": [100, 101, 103]}
    limit = RegressionLimit("ttft.p50", 0.05, "test")
    found = comparisons(runs, runs, [limit], paired=False, sessions=[old, old, runs])
    assert {each.metric: each.unit_of_replication for each in found} == {
        "ttft.p50": "session",
        "tpot.p50": "run",
    }
    assert [each.gated for each in found] == [True, False]


def _regressed(sessions: int, between: float, within: float, count: int, *, change: float = 0.0) -> float:
    """Share of candidates called regressed whose true change is ``change``, with nothing allowed."""
    generator = np.random.default_rng(
        [sessions, round(1e4 * between), round(1e4 * within), round(1e4 * change)]
    )
    called = 0
    for _ in range(count):
        days = between * generator.standard_normal(sessions + 1)
        logs = days[:, None] + within * generator.standard_normal((sessions + 1, 3))
        found = session_ratio(list(logs[:-1]), logs[-1] + math.log1p(change), same_runs=False)
        called += found.point - found.halfwidth > 0
    return called / count


@pytest.mark.parametrize("sessions", [3, 5, 10])
@pytest.mark.parametrize("between", [0.0, 0.02])
def test_false_alarms_keep_to_their_rate(sessions: int, between: float) -> None:
    share = _regressed(sessions, between, 0.01, 2000)
    assert share <= 0.025 + 3.1 * math.sqrt(0.025 * 0.975 / 2000)
    if between:  # and are not bought with width
        assert share >= 0.01


def test_ten_percent_are_found_from_five_sessions_on() -> None:
    assert _regressed(5, 0.02, 0.01, 400, change=0.10) > 0.8
