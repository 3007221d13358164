"""Alarms, the summary of pacing errors, and the bounded log."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from pytest_llmbench.simulator.serving.driver import RecentValues
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth, GroundTruthLog, parse_ground_truth
from pytest_llmbench.timing import Alarm, LoopAlarm, TimerFdAlarm, best_alarm

linux = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")


@pytest.mark.asyncio
@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=linux)])
async def test_an_alarm_is_never_early_and_lets_others_run(*, exact: bool) -> None:
    alarm: Alarm = TimerFdAlarm(asyncio.get_running_loop()) if exact else LoopAlarm()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.0005)

    neighbour = asyncio.create_task(other())
    try:
        lateness = []
        for wait_ns in (50_000_000, 700_000, 0, -1_000_000, 3_000_000):
            deadline_ns = time.monotonic_ns() + wait_ns
            await alarm.until(deadline_ns)
            lateness.append(time.monotonic_ns() - deadline_ns)
        assert min(lateness) >= 0
        assert min(lateness) < 20_000_000
        assert turns > 3
    finally:
        neighbour.cancel()
        alarm.close()


@linux
def test_linux_has_the_exact_alarm() -> None:
    async def scenario() -> str:
        alarm = best_alarm(asyncio.get_running_loop())
        alarm.close()
        return alarm.name

    assert asyncio.run(scenario()) == "timerfd"


def test_recent_values_are_summarised() -> None:
    values = RecentValues(capacity=100)
    assert values.summary_us() == {"n": 0, "p50": None, "p99": None, "max": None}
    for value in range(1, 1001):
        values.note(value * 1000)
    assert values.summary_us() == {"n": 100, "p50": 950.0, "p99": 999.0, "max": 1000.0}


def test_the_log_is_bounded_and_counts_what_it_drops() -> None:
    log = GroundTruthLog(capacity=3)
    assert log.json_lines() == b""
    for i in range(5):
        log.add(GroundTruth(f"r{i}", received_ns=i, prompt_tokens=1))
    assert (len(log), log.dropped) == (3, 2)
    assert [truth.request_id for truth in parse_ground_truth(log.json_lines().decode())] == ["r2", "r3", "r4"]


def test_the_log_of_a_long_load_is_no_larger_than_16_mib() -> None:
    log, long = GroundTruthLog(), GroundTruth("r", received_ns=1, prompt_tokens=1)
    long.token_ns = [10**18] * 100_000  # two megabytes of digits
    for _ in range(10):
        log.add(long)
    assert 14 * 2**20 < len(log.json_lines()) <= 16 * 2**20
    assert len(log) + log.dropped == 10
