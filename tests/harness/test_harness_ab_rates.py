"""Two presets of the embedded engine that differ by 5 % are told apart; two equal ones are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ab_replays import session

from pytest_llmbench.harness.comparison.arms import drive_together
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.methodology.sections.ttft import TEST
from pytest_llmbench.model.judgement import ComparisonVerdict
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.catalogue import workload

SEEDS = 25


def test_five_percent_more_per_step_is_a_regression() -> None:
    found = session(0.05, seed=1)
    assert found.gated
    assert found.verdict is ComparisonVerdict.REGRESSED, found
    assert found.change.point == pytest.approx(0.05, abs=0.01)


def test_equal_presets_are_not_told_apart() -> None:
    found = session(0.0, seed=1, runs=6)
    assert found.verdict in (ComparisonVerdict.EQUIVALENT, ComparisonVerdict.NOT_WORSE), found
    assert found.baseline != found.candidate, "the arms answer by chance"


@pytest.mark.parametrize("who", ["candidate", "baseline"])
def test_ctrl_c_in_either_arm_leaves_both_with_a_result(who: str) -> None:
    engines = {name: ReplayEngine(parse_scenario("fast")) for name in ("candidate", "baseline")}
    parameters = build(TEST.parameters, {"rate": 20, "requests": 20, "runs": 3})
    setting = Setting(workload("synthetic-uniform"), 1, warmup=WarmupPolicy.none())

    def execute(name: str, plan: LoadPlan) -> Observation:
        cut = INTERRUPTED_BY_CTRL_C if (name, plan.label) == (who, "run 2 of 3") else None
        return replace(engines[name].run(plan), interrupted=cut)

    procedures = {name: TEST.procedure(parameters, setting) for name in engines}
    results = drive_together(procedures, execute, seed=1)
    assert set(results) == set(engines)
    for result in results.values():
        assert result.observations[-1].interrupted == INTERRUPTED_BY_CTRL_C
        assert result.observations[0].records.counts()["ok"] == 20


@pytest.mark.slow
def test_rates_over_many_seeds() -> None:
    slower = [session(0.05, seed, runs=5).verdict for seed in range(SEEDS)]
    equal = [session(0.0, seed, runs=5).verdict for seed in range(SEEDS)]
    assert slower.count(ComparisonVerdict.REGRESSED) >= 0.9 * SEEDS, slower
    assert equal.count(ComparisonVerdict.REGRESSED) == 0, equal
    kept = equal.count(ComparisonVerdict.EQUIVALENT) + equal.count(ComparisonVerdict.NOT_WORSE)
    assert kept >= 0.8 * SEEDS, equal
