"""Deadlines: the defaults of a quick server, more for a slow one, and what the user says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from canned_levels import QueueServer, canned_setting
from replayed_sut import ReplayedSUT

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.harness.setting import setting_for, warmup_for
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.methodology.sections import capacity, long_context, ttft
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Deadlines, LoadPlan
from pytest_llmbench.model.record import Outcome, Phase

USUAL = Deadlines()


def _plans(
    server: Callable[[LoadPlan], Observation], test: TestDefinition, setting: Setting, **given: Any
) -> list[LoadPlan]:
    sent: list[LoadPlan] = []

    def run(plan: LoadPlan) -> Observation:
        sent.append(plan)
        return server(plan)

    drive(test.procedure(build(test.parameters, given), setting), run)
    return sent


def _measured(plans: list[LoadPlan]) -> list[Deadlines]:
    return [plan.deadlines for plan in plans if plan.phase is Phase.MEASURE]


def test_a_quick_server_gets_the_defaults() -> None:
    plans = _plans(QueueServer(), ttft.TEST, canned_setting(), requests=5)
    assert _measured(plans) == [USUAL]


def test_a_slow_one_gets_twenty_times_what_it_took() -> None:
    """One at a time it takes 8 s to the first token and 10 s for all: 160 s are 60, doubled twice."""
    slow = QueueServer(slots=64, service_s=10.0, first_ms=8_000)
    (deadlines,) = _measured(_plans(slow, ttft.TEST, canned_setting(), requests=5))
    assert deadlines == Deadlines(first_byte_s=240.0, between_chunks_s=240.0, drain_s=240.0)


def test_the_first_probe_is_waited_for_like_a_whole_reply() -> None:
    plans = _plans(QueueServer(), ttft.TEST, canned_setting(), requests=5)
    assert plans[0].phase is Phase.PROBE
    assert plans[0].deadlines.between_chunks_s >= USUAL.total_s
    assert plans[1].deadlines == USUAL


def test_a_loaded_server_makes_nobody_more_patient() -> None:
    """A queue of minutes beyond capacity is not the speed of the system."""
    server = QueueServer(slots=4, service_s=2.0, first_ms=1_000)
    plans = _plans(server, capacity.TEST, canned_setting(), initial=64, maximum=64, min_completion=0.0)
    assert {deadlines.between_chunks_s for deadlines in _measured(plans)} == {60.0}


def test_what_the_user_says_stands() -> None:
    slow = QueueServer(slots=64, service_s=10.0, first_ms=8_000)
    setting = replace(canned_setting(), deadlines=USUAL.waiting(30.0), timeout_s=30.0)
    plans = _plans(slow, ttft.TEST, setting, requests=5)
    assert {plan.deadlines.between_chunks_s for plan in plans} == {30.0}
    assert {plan.deadlines.first_byte_s for plan in plans} == {30.0}
    assert _measured(plans)[0].drain_s == 240.0


def test_long_contexts_are_measured_however_long_they_take() -> None:
    """Known beforehand: 2 ms per token are 262 s to the first token of the longest, and 65 s of 32768."""
    sut = ReplayedSUT("fast?prefill_us_per_token=2000")
    result = sut.measure(long_context.TEST, "standard", lengths=[1024, 32768, 131072], requests=3)
    assert all(level.n_ok == level.n_submitted for level in result.levels)
    longest = result.metrics["ttft[131072].p50"].point
    assert longest is not None
    assert longest > 250_000
    assert validity(result.observations, Budget(), result.budgeted).verdict == "valid"


def test_a_timeout_is_named_as_ours_with_what_extends_it() -> None:
    sut = ReplayedSUT("fast?prefill_us_per_token=2000")
    keep = {"deadlines": USUAL.waiting(60.0), "timeout_s": 60.0}
    result = sut.measure(long_context.TEST, "standard", keep=keep, lengths=[1024, 2048, 32768], requests=3)
    assert result.levels[-1].errors == {Outcome.TIMEOUT: 3}
    (reason,) = validity(result.observations, Budget(), result.budgeted).reasons
    assert "the load generator gave up 3 at its own deadlines" in reason
    assert "--llm-timeout or timeout_s" in reason


@pytest.mark.parametrize(("marker", "option", "wait_s"), [(None, None, 60), (None, 300, 300), (5, 300, 5)])
def test_the_marker_stands_before_the_option(
    marker: float | None, option: float | None, wait_s: float
) -> None:
    setting = setting_for(
        build(ttft.TEST.parameters, {"timeout_s": marker}),
        Settings(timeout=option),
        warmup=warmup_for("standard"),
    )
    assert setting.deadlines.between_chunks_s == wait_s
    assert setting.timeout_s == (marker or option)
    assert setting.deadlines.total_s >= max(600, 2 * wait_s)
