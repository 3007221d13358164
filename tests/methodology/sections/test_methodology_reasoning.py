"""The test of reasoning: what its marker takes, what it sends, what it makes of canned and replayed loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_levels import rows_of
from canned_runs import answer
from replayed_sut import ReplayedSUT

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import reasoning
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.objective import metric, ms
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.workloads.mixture import CHAT_AND_REASONING

MS = 1_000_000
THINKS = "fast?think_mean_tokens=120&think_spread=0.5&think_budget_tokens=200&think_hard_cap_tokens=300"


def parameters(**given: Any) -> reasoning.Parameters:
    return build(reasoning.Parameters, given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"compliance": "conditional"}, "not part of the draft"),
        ({"max_critical_evictions": -1}, "max_critical_evictions must be 0 or more"),
        ({"max_critical_evictions": 0.5}, "max_critical_evictions must be a whole number"),
        ({"max_budget_force_rate": 5}, "max_budget_force_rate must lie between 0 and 1"),
        ({"ttot_p95": 5}, "did you mean ttot_p95_ms"),
        ({"requests": "auto", "ttot_p95_ms": 5}, "cannot evaluate ttot.p95"),
        ({"rate": 2, "concurrency": 2}, "exclude each other"),
    ],
)
def test_mistakes(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        parameters(**given)


def test_mistakes_are_told_together() -> None:
    with pytest.raises(SuiteError) as told:
        parameters(ttot_p95_ms=-1, max_think_share=3, output_itl_p99=4)
    assert all(name in str(told.value) for name in ("ttot_p95_ms", "max_think_share", "output_itl_p99_ms"))


def test_the_default_load_is_the_mix_at_poisson_arrivals() -> None:
    asked = parameters()
    (plan,) = reasoning.TEST.plans(asked, ReplayedSUT().setting(asked.workload))
    assert plan.load == OpenLoop(1.0, "poisson")
    assert plan.workload is CHAT_AND_REASONING
    assert plan.requests == 1000
    assert parameters(concurrency=4).load == ClosedLoop(4)
    assert parameters(rate=3, arrival="uniform").load == OpenLoop(3, "uniform")


def test_limits_become_objectives() -> None:
    asked = parameters(ttot_p95_ms=300, max_critical_evictions=0, max_budget_force_rate=0.05)
    assert [str(each) for each in asked.objectives] == [
        "ttot.p95 <= 300 ms", "budget_force_rate <= 0.05", "critical_evictions <= 0",
    ]  # fmt: skip


def canned(plan: LoadPlan) -> Observation:
    """Every second request reasons: it thinks until 20 ms before its first visible content, which its third
    chunk brings; of the first reply the server does not say whether it was evicted."""
    seen = answer(plan, [100.0] * plan.requests)
    if plan.phase is not Phase.MEASURE:
        return seen
    records = seen.records
    thinks = np.arange(len(records)) % 2 == 0
    first = records.first_content_ns
    told = np.zeros(len(records), dtype=np.int64)
    told[0] = MISSING
    return replace(
        seen,
        records=replace(
            records,
            class_label=["reasoning" if each else "chat" for each in thinks.tolist()],
            first_reasoning_ns=np.where(thinks, first - 60 * MS, MISSING),
            thinking_end_ns=np.where(thinks, first - 20 * MS, MISSING),
            last_reasoning_ns=np.where(thinks, first - 20 * MS, MISSING),
            reasoning_tokens=np.where(thinks, 1, MISSING),
            thinking_end_reason=["converged" if each else None for each in thinks.tolist()],
            critical_evictions=told,
        ),
    )


def test_the_procedure_on_canned_records() -> None:
    asked = parameters(ttot_p95_ms=41, ttfo_p95_ms=49, max_critical_evictions=0, max_budget_force_rate=0.1,
                       ttot_p99_ms=21, concurrency=4, requests=200)  # fmt: skip
    setting = ReplayedSUT().setting("synthetic-uniform")
    result = drive(reasoning.TEST.procedure(asked, setting), canned)
    assert result.metrics["ttot.p95"].point == 20.0
    assert result.metrics["ttot.p95"].n == result.metrics["ttot[reasoning].p95"].n == 100
    assert result.metrics["ttot[chat].p95"].point is None
    assert result.metrics["ttfo[chat].p95"].point == pytest.approx(100.0)
    judged = {
        each.objective.metric: each.verdict for each in gate(asked.objectives, result.metrics).objectives
    }
    assert judged == {
        "ttot.p95": GateVerdict.PASS,
        "ttot.p99": GateVerdict.INCONCLUSIVE,  # nearer than the spread of one run
        "ttfo.p95": GateVerdict.FAIL,
        "budget_force_rate": GateVerdict.PASS,
        "critical_evictions": GateVerdict.INCONCLUSIVE,  # one request does not say it
    }
    kinds = rows_of(result, "reasoning_replies")
    assert kinds["… without reasoning, in no TTOT"] == ("100",)
    assert kinds["Reasoning ended: converged"] == ("100",)
    assert result.section == ""
    assert "not part of the draft" in str(result.notes[-1])


def test_a_replayed_engine_that_thinks() -> None:
    """Its metrics agree with what the model of the engine decided about every request."""
    sut = ReplayedSUT(f"{THINKS}&scheduler=phase")
    result = sut.measure(reasoning.TEST, rate=0.5, requests=300, ttot_p50_ms=60, max_critical_evictions=0)
    records = result.observations[0].records
    forced = sum(reason in ("overthinking", "hard_cap") for reason in records.thinking_end_reason)
    assert 0 < forced < 300
    assert result.metrics["budget_force_rate"].point == forced / 300
    assert result.metrics["budget_force_rate[overthinking]"].point == forced / 300
    assert result.metrics["think_tokens.mean"].point == pytest.approx(records.reasoning_tokens.mean())
    assert result.metrics["think_tokens.max"].point == 200
    step_ms = result.metrics["output_itl.p50"].point
    assert step_ms is not None
    assert result.metrics["ttot.p50"].point == pytest.approx(step_ms, rel=0.5), "one step of the engine"
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.PASS
    assert {*rows_of(result, "reasoning_by_class")} == {"chat", "reasoning"}
    assert result.metrics["ttot[chat].p95"].n + result.metrics["ttot[reasoning].p95"].n == 300


def test_an_engine_that_does_not_think_has_no_ttot() -> None:
    limit = [metric("ttot[chat].p95", "ms") <= 60 * ms]
    result = ReplayedSUT("fast").measure(reasoning.TEST, "quick", ttot_p95_ms=60, max_critical_evictions=0,
                                         max_budget_force_rate=0.5, slo=limit)  # fmt: skip
    found = gate(result.objectives, result.metrics)
    assert {each.verdict for each in found.objectives} == {GateVerdict.INCONCLUSIVE}
    assert any("TTOT is not measurable" in note for note in map(str, result.notes))
    assert rows_of(result, "reasoning_results")["Critical evictions"][0].startswith("not measurable")
