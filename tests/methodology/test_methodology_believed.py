"""Counts of output tokens that cannot be are in no figure of any test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.catalogue import workload

ASKED: dict[str, dict[str, Any]] = {
    "goodput": {"rate": 20.0, "requests": 100, "ttft_ms": 900.0, "tpot_ms": 60.0, "min_share": 0.5},
    "capacity": {"ttft_p99_ms": 900.0, "initial": 2, "maximum": 4},
    "tradeoff": {"capacity_rps": 20.0},
}


def measured(
    test: str, count: Callable[[Observation], Observation], *, ignore_eos: bool = False
) -> TestResult:
    """The result of a test of a server that counts in some way."""
    definition = TESTS[test]
    parameters = build(definition.parameters, ASKED[test])
    engine = ReplayEngine(parse_scenario("fast"))
    facts = engine.disclosure()
    setting = Setting(workload("synthetic-uniform"), 42, "quick", facts, ignore_eos=ignore_eos)

    def run(plan: LoadPlan) -> Observation:
        return count(engine.run(plan))

    return drive(definition.procedure(parameters, setting), run)


def counted(times: int, share: float = 1.0, *, unshown: int = 0) -> Callable[[Observation], Observation]:
    def count(seen: Observation) -> Observation:
        tokens = seen.records.output_tokens.copy()
        tokens[: round(share * len(tokens))] *= times
        records = replace(seen.records, output_tokens=tokens, unshown_tokens=np.full_like(tokens, unshown))
        return replace(seen, records=records)

    return count


def per_token(result: TestResult) -> list[bool]:
    """Whether each figure per token is defined: of the test, of its levels and of its runs."""
    every = [result.metrics, *(level.metrics for level in result.levels)]
    names = ("tpot", "output_tok", "goodput", "max_output_tok")
    return [each.defined for metrics in every for name, each in metrics.items() if name.startswith(names)]


@pytest.mark.parametrize("test", ASKED)
def test_no_figure_rests_on_counts_that_cannot_be(test: str) -> None:
    result, honest = measured(test, counted(3)), measured(test, counted(1))
    assert not any(per_token(result))
    assert any(per_token(honest))
    assert not any("tok/s" in cell for table in result.tables for row in table.rows for cell in row)
    assert "no figures per token: 100 % of the replies count more output tokens" in " ".join(
        map(str, result.notes)
    )
    came = [run.records for run in result.observations]
    assert all(records.output_tokens.max() > records.requested_max_tokens.max() for records in came)


def test_who_is_good_by_a_tpot_that_is_not_known_is_not_known() -> None:
    result = measured("goodput", counted(3))
    assert result.metrics["goodput_share"].point is None
    assert {row[0]: row[1] for row in result.tables[0].rows}["All limits together"] == "not measured"


@pytest.mark.parametrize(
    ("count", "ignore_eos", "believed"),
    [
        pytest.param(counted(9, 0.01), False, True, id="one reply in a hundred"),
        pytest.param(counted(9, 0.02), False, False, id="more than one in a hundred"),
        pytest.param(counted(1, unshown=50), False, False, id="more tokens than text"),
        pytest.param(counted(1, unshown=50), True, True, id="an end that was to be ignored"),
    ],
)
def test_what_can_be_is_believed(
    count: Callable[[Observation], Observation], ignore_eos: bool, believed: bool
) -> None:
    assert any(per_token(measured("goodput", count, ignore_eos=ignore_eos))) is believed
