"""Whole procedures repeated: their seeds, what is reported of them, and runs that went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_llmbench.harness.comparison.replication import repeated, replication
from pytest_llmbench.harness.execution.drive import drive
from pytest_llmbench.methodology import catalogue
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.judgement import Finding, Validity
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, ClockAnchor, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.workloads.catalogue import workload

SETTING = Setting(workload("synthetic-uniform"), seed=42)
PLAN = LoadPlan("measure", SETTING.workload, ClosedLoop(1), 1, seed=0)


def result(seed: int, *seen: Observation) -> TestResult:
    metrics = {"figure": Estimate(float(seed), None, None, 0.95, 1, "test", "count")}
    if seed != 42:
        metrics["only_later"] = Estimate.undefined(unit="count", method="test")
    return TestResult("fake", "0", "Fake", metrics, (), (), (), seen, WarmupReport(), Facts())


def definition() -> TestDefinition:
    def procedure(_: object, setting: Setting) -> Procedure[TestResult]:
        seen = yield replace(PLAN, seed=setting.seed)
        return result(setting.seed, seen)

    return TestDefinition("fake", "0", "Fake", ttft.Parameters, procedure, lambda *_: (), lambda *_: ())


def observed(plan: LoadPlan, interrupted: str | None = None) -> Observation:
    return Observation(plan, Records.from_rows(()), 0, 1, ClockAnchor(0, 0), interrupted=interrupted)


def valid(_: TestResult) -> Validity:
    return Validity()


def test_each_run_has_a_seed_of_its_own_and_the_first_is_reported() -> None:
    seeds: list[int] = []

    def execute(plan: LoadPlan) -> Observation:
        seeds.append(plan.seed)
        return observed(plan)

    found = drive(repeated(definition(), ttft.Parameters(), SETTING, 3, valid), execute)
    assert seeds[0] == 42
    assert len(set(seeds)) == 3
    assert found.metrics["figure"].point == 42.0
    assert found.by_run["figure"] == tuple(map(float, seeds))
    assert found.by_run["only_later"] == (None, None, None)
    assert len(found.observations) == 1
    assert any("first of 3 runs" in note for note in found.notes)


def test_the_seeds_are_the_same_in_every_session() -> None:
    def run() -> TestResult:
        return drive(repeated(definition(), ttft.Parameters(), SETTING, 3, valid), observed)

    assert run().by_run == run().by_run


def test_a_void_run_voids_the_result() -> None:
    def judge(seen: TestResult) -> Validity:
        ok = seen.metrics["figure"].point == 42.0
        return Validity((Finding("send_lag", ok=ok, voids=True, message="fell behind"),))

    found = drive(repeated(definition(), ttft.Parameters(), SETTING, 3, judge), observed)
    assert [(finding.voids, finding.message) for finding in found.findings] == [
        (True, "run 2 of 3: fell behind"),
        (True, "run 3 of 3: fell behind"),
    ]


def test_a_run_that_was_cut_short_ends_the_repetition_and_shows() -> None:
    numbers: Iterator[int] = iter(range(9))

    def execute(plan: LoadPlan) -> Observation:
        return observed(plan, INTERRUPTED_BY_CTRL_C if next(numbers) == 1 else None)

    found = drive(repeated(definition(), ttft.Parameters(), SETTING, 3, valid), execute)
    assert [run.interrupted for run in found.observations] == [None, INTERRUPTED_BY_CTRL_C]
    assert next(numbers) == 2  # the third run was not begun


def test_a_single_run_has_nothing_by_run() -> None:
    found = drive(repeated(definition(), ttft.Parameters(), SETTING, 1, valid), observed)
    assert found.by_run == {}


@pytest.mark.parametrize(
    ("test", "given", "runs", "whole", "least_runs"),
    [
        ("ttft", {"rate": 5.0}, 3, 1, 3),
        ("ttft", {"rate": 5.0, "runs": 5}, 3, 1, 5),
        ("throughput", {"runs": 4}, None, 4, 1),
        ("throughput", {}, 3, 3, 1),
        ("capacity", {"ttft_p99_ms": 500}, 3, 3, 1),
        ("capacity", {"ttft_p99_ms": 500}, None, 1, 1),
    ],
)
def test_a_load_of_the_authors_choice_is_repeated_all_else_as_a_whole(
    test: str, given: dict[str, float], runs: int | None, whole: int, least_runs: int
) -> None:
    parameters = catalogue.definition(test, where="here").parameters(**given)
    found = replication(parameters, SETTING, runs)
    assert (found.whole, found.setting.least_runs) == (whole, least_runs)
    assert found.parameters.runs == (least_runs if whole == 1 and test == "ttft" else None)
