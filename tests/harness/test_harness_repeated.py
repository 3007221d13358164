"""Whole procedures repeated: their seeds, what is reported of them, and runs that went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmbench.harness.comparison.arms import in_turns
from pytest_llmbench.harness.comparison.replication import (
    ArmRuns,
    Replication,
    cut_short,
    replication,
    runs_of,
)
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology import catalogue
from pytest_llmbench.methodology.measuring.validity import Budget
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.judgement import Finding
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


def observed(plan: LoadPlan, interrupted: str | None = None) -> Observation:
    return Observation(plan, Records.from_rows(()), 0, 1, ClockAnchor(0, 0), interrupted=interrupted)


def runs(whole: int, execute: Callable[[LoadPlan], Observation] = observed, *bad: int) -> ArmRuns:
    """So many runs of a test on one arm; those of the numbers ``bad`` find that they are void."""
    own = Replication(ttft.Parameters(), whole=whole)

    def procedure(_: str, number: int) -> Procedure[TestResult]:
        seed = own.setting(SETTING, number).seed
        seen = yield replace(PLAN, seed=seed)
        void = Finding.of("send_lag")
        return replace(result(seed, seen), findings=(void,) if number in bad else ())

    found = in_turns(procedure, ["only"], whole, lambda _, plan: execute(plan), seed=1, cut=cut_short)
    return runs_of(found["only"], whole)


def test_each_run_has_a_seed_of_its_own_and_the_first_is_reported() -> None:
    seeds: list[int] = []

    def execute(plan: LoadPlan) -> Observation:
        seeds.append(plan.seed)
        return observed(plan)

    found = runs(3, execute).result
    assert seeds[0] == 42
    assert len(set(seeds)) == 3
    assert found.metrics["figure"].point == 42.0
    assert found.by_run["figure"] == tuple(map(float, seeds))
    assert found.by_run["only_later"] == (None, None, None)
    assert len(found.observations) == 1
    assert any("first of 3 runs" in note for note in map(str, found.notes))


def test_the_seeds_are_the_same_in_every_session() -> None:
    assert runs(3).by_run == runs(3).by_run


def test_a_void_run_voids_the_result() -> None:
    found = runs(3, observed, 0, 1, 2).invalid(Budget())
    late = [finding for finding in found if "sends were late" in finding.message]
    assert [(finding.voids, finding.note.parameters["run"]) for finding in late] == [(True, 2), (True, 3)]


@pytest.mark.parametrize("why", [INTERRUPTED_BY_CTRL_C, "the budget is spent"])
def test_a_run_that_was_cut_short_ends_the_repetition_and_shows(why: str) -> None:
    numbers: Iterator[int] = iter(range(9))
    found = runs(3, lambda plan: observed(plan, why if next(numbers) == 1 else None))
    assert [run.interrupted for run in found.result.observations] == [None, why]
    assert [len(values) for values in found.by_run.values()] == [2, 2]
    assert next(numbers) == 2  # the third run was not begun


def test_a_first_run_that_was_cut_short_is_reported_as_it_is() -> None:
    found = runs(3, lambda plan: observed(plan, INTERRUPTED_BY_CTRL_C))
    assert len(found.every) == 1
    assert found.result == found.every[0]


def test_a_single_run_has_nothing_by_run() -> None:
    assert runs(1).result.by_run == {}


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
    found = replication(parameters, Settings(save="x", runs=runs))
    assert (found.whole, found.least_runs) == (whole, least_runs)
    assert found.parameters.runs == (least_runs if whole == 1 and test == "ttft" else None)


TTFT, CAPACITY = ttft.Parameters(rate=5.0), catalogue.definition("capacity", where="here").parameters()


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({}, 1),
        ({"runs": 5}, 1),
        ({"save": "x"}, 1),
        ({"compare": "x", "runs": 4}, 4),
        ({"baseline_endpoint": "replay"}, 6),
        ({"baseline_endpoint": "replay", "runs": 5}, 6),
        ({"calibrate": True}, 8),
        ({"endpoints": ("replay", "b=replay")}, 3),
    ],
)
def test_how_many_runs_by_the_options(settings: dict[str, Any], runs: int) -> None:
    searching = replication(CAPACITY, Settings(**settings))
    assert (searching.least_runs, searching.whole) == (1, runs)
    loading = replication(TTFT, Settings(**settings))
    several = len(settings.get("endpoints", ())) > 1  # each of their runs has a warm-up
    assert (loading.least_runs, loading.whole) == ((1, runs) if several else (runs, 1))
    more = replication(replace(TTFT, runs=10), Settings(**settings))
    assert more.runs == (10 if settings and settings != {"runs": 5} else 1)
