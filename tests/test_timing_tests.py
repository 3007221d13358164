"""Timing tests are run again where, and only where, the machine was taken away from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from timing_tests import Disturbance, Instant, TimingTests

from pytest_llmbench.generator.host_watch import HostCpu

SUITE = """
import pytest

ATTEMPTS = []

@pytest.fixture(scope="module")
def machine():
    ATTEMPTS.append("machine")
    if len(ATTEMPTS) == 1:
        raise OSError("not yet")

@pytest.mark.timing
def test_of_timing(machine):
    ATTEMPTS.append("test")
    assert ATTEMPTS.count("test") >= {needed}

def test_of_something_else():
    assert ATTEMPTS
"""


@pytest.fixture
def outcomes(pytester: pytest.Pytester):
    """Of a suite whose timing test needs so many attempts, while so much of the CPU is stolen."""

    def run(needed: int, stolen: float) -> pytest.RunResult:
        pytester.makeini(
            "[pytest]\nmarkers =\n    timing: x\nasyncio_default_fixture_loop_scope = function\n"
        )
        pytester.makepyfile(SUITE.replace("{needed}", str(needed)))
        again = TimingTests(0.0, lambda _: Disturbance(stolen, 0.0))
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[again])

    return run


def test_a_disturbed_one_is_run_again(outcomes) -> None:
    found = outcomes(needed=2, stolen=0.3)
    found.assert_outcomes(passed=2)
    found.stdout.fnmatch_lines(["run again, for 30% of the CPU stolen, 0%*: *::test_of_timing"])


def test_an_undisturbed_one_is_not(outcomes) -> None:
    found = outcomes(needed=1, stolen=0.01)
    found.assert_outcomes(passed=1, errors=1)
    assert "run again" not in found.stdout.str()


def test_one_that_fails_every_time_fails(outcomes) -> None:
    outcomes(needed=99, stolen=0.3).assert_outcomes(passed=1, failed=1)


def test_the_counters_of_the_kernel(tmp_path: Path) -> None:
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=65000000\n")
    now = replace(Instant.now(pressure), host=HostCpu(None, 130, 1120))
    found = Disturbance.since(Instant(now.at_s - 100.0, 5.0, HostCpu(None, 100, 1000)), now)
    assert found.stolen == pytest.approx(0.25)
    assert found.waiting == pytest.approx(0.6, abs=0.01)
    pressure.unlink()
    assert Instant.now(pressure).waiting_s == 0.0
