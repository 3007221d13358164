"""Warm-up (section 4.5): both amounts, drain, probes that settle; pumped with canned observations."""

from __future__ import annotations

import pytest
from canned_runs import answer

from pytest_llmbench.errors import SUTError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.measuring.warmup import warm_up
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.workloads.catalogue import workload


def setting(**policy: float) -> Setting:
    return Setting(workload=workload("synthetic-uniform"), seed=42, warmup=WarmupPolicy(**policy))  # type: ignore[arg-type]


class Recorder:
    """Answers every plan and remembers it; probes take the given latencies in turn."""

    def __init__(self, probe_ms: list[float] | None = None, failures: bool = False) -> None:
        self.plans: list[LoadPlan] = []
        self.probe_ms = probe_ms or [100.0]
        self.failures = failures

    def __call__(self, plan: LoadPlan) -> Observation:
        self.plans.append(plan)
        if plan.phase is Phase.PROBE:
            done = sum(earlier.phase is Phase.PROBE for earlier in self.plans)
            return answer(plan, self.probe_ms[min(done - 1, len(self.probe_ms) - 1)])
        return answer(plan, failures=plan.requests if self.failures else 0)


def test_both_amounts_are_reached() -> None:
    seen = Recorder()
    report = drive(warm_up(setting()), seen)
    # A canned reply has 20 tokens, so 100 requests give 2000: the token amount is the larger one here.
    assert report.performed
    assert report.requests_ok >= 100
    assert 10_000 <= report.output_tokens < 10_000 + 25 * 20
    assert report.drained
    assert report.stabilised


def test_requests_are_the_larger_amount() -> None:
    report = drive(warm_up(setting(output_tokens=100)), Recorder())
    assert report.requests_ok == 100


def test_warm_up_prompts_are_not_the_measured_ones() -> None:
    seen = Recorder()
    chosen = setting()
    drive(warm_up(chosen), seen)
    measured = {tuple(r.token_ids or ()) for r in chosen.workload.requests(200, chosen.seed)}
    for plan in seen.plans:
        sent = plan.workload.requests(plan.first + plan.requests, plan.seed)[plan.first :]
        assert not measured & {tuple(r.token_ids or ()) for r in sent}


def test_rounds_go_on_in_the_sequence() -> None:
    seen = Recorder()
    drive(warm_up(setting()), seen)
    loads = [plan for plan in seen.plans if plan.phase is Phase.WARMUP]
    assert [plan.first for plan in loads] == [sum(p.requests for p in loads[:i]) for i in range(len(loads))]


def test_probes_stop_when_three_agree() -> None:
    # A probe's latency is TTFT plus 95 ms. After the first: 295, 245, 215, 213, 212; the last three agree.
    seen = Recorder([300, 200, 150, 120, 118, 117, 116])
    report = drive(warm_up(setting(output_tokens=100)), seen)
    assert report.probe_before_ms is not None
    assert len(report.probes_after_ms) == 5
    assert report.stabilised


def test_probes_that_never_settle_are_bounded() -> None:
    seen = Recorder([100, 500] * 20)
    report = drive(warm_up(setting(output_tokens=100)), seen)
    assert len(report.probes_after_ms) == 10
    assert not report.stabilised
    assert "not settled" in report.description


def test_a_dead_server_is_an_error_that_names_the_cause() -> None:
    with pytest.raises(SUTError, match=r"none of 100 warm-up requests succeeded.*canned failure"):
        drive(warm_up(setting()), Recorder(failures=True))


def test_no_warm_up_is_a_cold_start() -> None:
    seen = Recorder()
    report = drive(warm_up(setting(requests=0, output_tokens=0, probes=0)), seen)
    assert not report.performed
    assert not seen.plans


def test_replies_too_short_for_the_token_amount_end_all_the_same() -> None:
    seen = Recorder()
    report = drive(warm_up(setting(output_tokens=10_000_000, max_requests=300)), seen)
    assert report.requests_ok == 300
    assert report.output_tokens < 10_000_000


def test_impossible_policies_are_named() -> None:
    problems = WarmupPolicy(requests=-1, concurrency=0, tolerance=2).problems()
    assert len(problems) == 3
