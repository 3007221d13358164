"""A test with a budget of time: how its load is cut, when it ends, what it says beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.compare.limits import RegressionLimit
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.budget import (
    DECIDED,
    FEWEST_REQUESTS,
    ROUNDS,
    TIME_IS_UP,
    Spending,
    budget_of,
    detectable,
    shaped,
)
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.parameters import TestParameters, build, seconds_of
from pytest_llmbench.methodology.sections import job, throughput, ttft
from pytest_llmbench.model.estimate import SavedSpread
from pytest_llmbench.model.observation import ClockAnchor, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import Records
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

PLAN = LoadPlan("run", SYNTHETIC_UNIFORM, ClosedLoop(8), 1, seed=1)
SECOND = 1_000_000_000
PLAIN, AB = Settings(), Settings(baseline_endpoint="http://127.0.0.1:1")


def of_ttft(**given: Any) -> TestParameters:
    return build(ttft.Parameters, given)


def shaped_ttft(settings: Settings, seconds: float, **given: Any) -> ttft.Parameters:
    found = shaped(of_ttft(**given), settings, seconds)
    assert isinstance(found, ttft.Parameters)
    return found


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("90s", 90), ("1.5 h", 5400), ("45", 45), (7, 7)])
def test_a_budget_is_a_time(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("wrong", ["soon", "5 min", "-5m", "", 0, -1, math.inf, True])
def test_what_is_no_time_is_a_mistake(wrong: Any) -> None:
    with pytest.raises(SuiteError, match="budget"):
        of_ttft(budget=wrong)


def test_the_budget_of_a_session_is_shared_and_that_of_a_marker_is_its_own() -> None:
    session = Settings(budget="5m")
    assert budget_of(of_ttft(), session, tests=3) == 100
    assert budget_of(of_ttft(budget="2m"), session, tests=3) == 120
    assert budget_of(of_ttft(), PLAIN, tests=3) is None


@pytest.mark.parametrize("asked", [{"runs": 3}, {"rate": 5, "requests": "auto", "p99_ms": 100}])
def test_who_says_how_much_is_sent_has_no_budget(asked: dict[str, Any]) -> None:
    assert budget_of(of_ttft(**asked), Settings(budget="5m"), tests=1) is None


def test_a_search_takes_the_time_that_it_takes() -> None:
    assert budget_of(build(throughput.Parameters, {}), Settings(budget="5m"), tests=1) is None


def test_an_open_loop_that_is_compared_is_cut_into_twelve_rounds() -> None:
    # 80 % of 300 s for 2 arms of 12 runs: 10 s each, at 20 requests per second.
    assert shaped_ttft(AB, 300, rate=20).requests == 200
    assert shaped_ttft(Settings(compare="main"), 300, rate=20).requests == 400
    assert shaped_ttft(AB, 1, rate=1).requests == FEWEST_REQUESTS
    assert shaped_ttft(AB, 300, rate=20, requests=50).requests == 50


def test_an_open_loop_alone_goes_on_until_its_limits_are_decided() -> None:
    found = shaped_ttft(PLAIN, 300, rate=20, p99_ms=100)
    assert (found.requests, found.max_requests, found.max_seconds) == ("auto", 4800, 240)
    assert shaped_ttft(PLAIN, 300, rate=20).requests == 4800, "nothing is limited, so nothing ends it"


def test_a_job_is_what_it_is() -> None:
    asked = build(job.Parameters, {"prompts": 500})
    assert shaped(asked, AB, 300) == asked


class Arms:
    """Two arms of runs of one second, with figures by arm and number of the run."""

    def __init__(self, candidate: list[float], baseline: list[float], seconds: float, margin: float = 0.02):
        self.values: dict[int, float] = {}
        self.given = {"candidate": candidate, "baseline": baseline}
        limits = (RegressionLimit("e2e.p50", margin, "test"),)
        self.spending = Spending(seconds, ("candidate", "baseline"), self._figures, limits)
        self.at = 0

    def _figures(self, _: str, seen: Observation) -> Mapping[str, float | None]:
        return {"e2e.p50": self.values[seen.started_ns]}

    def send(self, arm: str, **changes: Any) -> str | None:
        plan = PLAN.with_(**changes)
        why = self.spending.declines(arm, plan)
        if why is None:
            begin = self.at * SECOND
            self.at += 1
            number = len(self.spending.figures[arm]) % len(self.given[arm])
            self.values[begin] = self.given[arm][number]
            seen = Observation(plan, Records.concatenate([]), begin, begin + SECOND, ClockAnchor(0, 0))
            self.spending.note(arm, plan, seen)
        return why

    def until_the_end(self) -> str:
        for _ in range(200):
            for arm in ("candidate", "baseline"):
                why = self.send(arm)
                if why is not None:
                    return why
        raise AssertionError("it never ends")


NOISY = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8]


def test_a_clear_change_ends_the_test_before_its_time() -> None:
    arms = Arms([1.5 * value for value in NOISY[:5]], NOISY, seconds=40)
    assert arms.until_the_end() == DECIDED
    assert 3 <= arms.spending.rounds <= 6
    assert 0.97 < arms.spending.level < 1, "an early look has a higher level than the last one"


def test_no_clear_change_takes_the_time_and_no_more() -> None:
    arms = Arms([1.02 * value for value in NOISY[::-1]], NOISY, seconds=24)
    assert arms.until_the_end() == TIME_IS_UP
    assert arms.spending.rounds == 12
    assert 0.97 <= arms.spending.level < 0.99, "the looks before it have spent a part"


def test_a_round_that_has_begun_is_finished() -> None:
    arms = Arms([1.02 * value for value in NOISY[::-1]], NOISY, seconds=10)
    for _ in range(4):
        assert arms.send("candidate") is None
        assert arms.send("baseline") is None
    assert arms.send("candidate") is None
    assert arms.send("baseline") is None, "its round has begun"
    assert arms.send("baseline") is not None


def test_three_rounds_are_made_whatever_they_take() -> None:
    arms = Arms(NOISY, NOISY[::-1], seconds=0.5)
    assert arms.until_the_end() == TIME_IS_UP
    assert arms.spending.rounds == 3


def test_warm_ups_count_as_time_and_are_never_declined() -> None:
    arms = Arms([1.02 * value for value in NOISY[::-1]], NOISY, seconds=24)
    for _ in range(10):
        assert arms.send("candidate", phase=Phase.WARMUP) is None
    assert arms.until_the_end() == TIME_IS_UP
    assert arms.spending.rounds == 7


def test_a_run_that_is_measured_again_is_one_run() -> None:
    arms = Arms(NOISY, NOISY, seconds=24)
    for _ in range(3):
        arms.send("candidate")
        arms.send("baseline")
    assert arms.send("candidate", attempt=2) is None
    assert arms.spending.rounds == 3


def test_what_is_found_follows_the_noise() -> None:
    limits = (RegressionLimit("ttft.p50", 0.02, "a"), RegressionLimit("ttft.p99", 0.02, "a"))
    assumed = {each.metric: each for each in detectable(limits, {}, ROUNDS, requests=200)}
    assert assumed["ttft.p50"].assumed
    assert 0.05 < assumed["ttft.p50"].share < 0.09
    assert assumed["ttft.p99"].share > 0.5, "200 requests a run hold two beyond P99"
    saved = {each.metric: each for each in detectable(limits, {"ttft.p50": SavedSpread(0.01, 9)}, ROUNDS)}
    assert saved["ttft.p50"].share < assumed["ttft.p50"].share
    assert not saved["ttft.p50"].assumed


def test_equal_builds_are_seldom_called_slower() -> None:
    """All looks together err in 1.5 of 100 sessions a side: of 200 sessions at most 9 (binomial, 99.7 %)."""
    random, slower = np.random.default_rng(3), 0
    for _ in range(200):
        candidate, baseline = (list(np.exp(random.normal(0, 0.02, 12))) for _ in range(2))
        arms = Arms(candidate, baseline, seconds=24, margin=0.0)
        ended = arms.until_the_end()
        logs = np.log(candidate[: arms.spending.rounds]) - np.log(baseline[: arms.spending.rounds])
        slower += ended == DECIDED and logs.mean() > 0
    assert slower <= 9
