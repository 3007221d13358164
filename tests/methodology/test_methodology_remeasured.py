"""A load that this machine spoiled is measured again with new requests; what the system did is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from canned_levels import QueueServer, canned_setting, prompts
from canned_runs import answer
from replayed_sut import QUARTER, ReplayedSUT

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.offered import shortfalls
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.methodology.remeasured import disturbed, host_text, void_causes
from pytest_llmbench.methodology.sections import guardrail, itl, prefix_cache, ttft
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import ValidityVerdict
from pytest_llmbench.model.observation import BEHIND_SCHEDULE, INTERRUPTED_BY_CTRL_C, Observation, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload
from pytest_llmbench.workloads.trace import TraceEntry, TraceWorkload

LATE = SelfCheck(send_lag_p99_ns=44_000_000)
S = 1_000_000_000


@dataclass
class Disturbed:
    """Answers plans; of the measured ones those whose number ``spoiled`` names were sent late."""

    spoiled: Callable[[int], bool]
    execute: Callable[[LoadPlan], Observation] = answer
    plans: list[LoadPlan] = field(default_factory=list)

    def __call__(self, plan: LoadPlan) -> Observation:
        seen = self.execute(plan)
        if plan.phase is not Phase.MEASURE:
            return seen
        self.plans.append(plan)
        if not self.spoiled(len(self.plans)) or not isinstance(plan.load, OpenLoop):
            return seen
        return replace(seen, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=44_000_000))


def setting(**more: Any) -> Setting:
    return Setting(workload("synthetic-uniform"), 42, warmup=WarmupPolicy(5, 0, 3), **more)


def first_tokens(world: Disturbed, chosen: Setting, **given: Any) -> TestResult:
    parameters = ttft.Parameters(**{"rate": 20, "requests": 100, **given})
    return drive(ttft.TEST.procedure(parameters, chosen), world)


def judged(result: TestResult) -> ValidityVerdict:
    return validity(result.observations, Budget()).verdict


def test_the_next_attempt_has_new_requests_and_stands_for_the_load() -> None:
    world = Disturbed(lambda number: number == 1)
    result = first_tokens(world, setting())
    assert [(plan.first, plan.attempt, plan.title) for plan in world.plans] == [
        (0, 1, "measure"),
        (100, 2, "measure (attempt 2)"),
    ]
    (seen,) = result.observations
    assert seen.plan is world.plans[1]
    assert judged(result) is ValidityVerdict.VALID
    (void,) = result.void_loads
    assert (void.label, void.attempt, void.requests) == ("measure", 1, 100)
    assert "sends were late by 44 ms" in void.causes[0]
    assert any("attempt 1 was void" in note for note in map(str, result.notes))
    # The digest is of what counts, and says which part of the sequence that is.
    assert result.facts.value("workload.slices") == [[100, 100]]


@pytest.mark.parametrize("remeasure", [0, 1, 2, 5])
def test_the_last_attempt_counts_and_voids_the_test(remeasure: int) -> None:
    world = Disturbed(lambda _: True)
    result = first_tokens(world, setting(remeasure=remeasure))
    assert len(world.plans) == remeasure + 1
    assert [plan.first for plan in world.plans] == [100 * number for number in range(remeasure + 1)]
    assert len(result.void_loads) == remeasure
    assert len(result.observations) == 1
    assert judged(result) is ValidityVerdict.INVALID


def test_each_run_has_attempts_of_its_own() -> None:
    world = Disturbed(lambda number: number in (1, 3, 4))
    result = first_tokens(world, setting(), runs=2)
    assert [(plan.label, plan.attempt, plan.first) for plan in world.plans] == [
        ("run 1 of 2", 1, 0),
        ("run 1 of 2", 2, 100),
        ("run 2 of 2", 1, 200),
        ("run 2 of 2", 2, 300),
        ("run 2 of 2", 3, 400),
    ]
    assert [run.plan.attempt for run in result.observations] == [2, 3]
    assert judged(result) is ValidityVerdict.VALID
    assert [void.label for void in result.void_loads] == ["run 1 of 2", "run 2 of 2", "run 2 of 2"]


def test_undisturbed_runs_are_what_they_were_before() -> None:
    world = Disturbed(lambda _: False)
    result = first_tokens(world, setting(), runs=3)
    assert [plan.first for plan in world.plans] == [0, 100, 200]
    assert result.void_loads == ()


def test_a_load_that_ends_at_a_look_goes_on_behind_what_it_sent() -> None:
    def ends_early(plan: LoadPlan) -> Observation:
        seen = answer(plan.with_(requests=min(plan.requests, 60)))
        return replace(seen, plan=plan, stopped="decided" if plan.looks is not None else None)

    world = Disturbed(lambda number: number == 1, ends_early)
    first_tokens(world, setting(), requests="auto", max_requests=500, p50_ms=500.0)
    assert [plan.first for plan in world.plans] == [0, 60]


class _FixedPrompts(WithFixedOutput):
    """Has the same prompts whatever the seed, as a trace with recorded prompts would."""

    @property
    def offsets_ns(self) -> tuple[int, ...]:
        return tuple(i * 50_000_000 for i in range(40))

    @property
    def standard(self) -> bool:
        return False

    @property
    def draws_anew(self) -> bool:
        return False


@pytest.mark.parametrize(("caching", "plans"), [("disabled", 2), ("enabled", 1), (None, 1)])
def test_a_trace_is_sent_again_where_no_cache_can_have_kept_it(caching: str | None, plans: int) -> None:
    facts = Facts.of(Origin.DECLARED, {"sut.prefix_caching": caching})
    trace = _FixedPrompts(SyntheticWorkload("recorded", Fixed(20), Fixed(5)), 5)
    world = Disturbed(lambda number: number == 1)
    chosen = replace(setting(facts=facts), workload=trace)
    result = first_tokens(world, chosen, workload=trace, arrival="trace", rate=None, requests=None)
    assert [plan.first for plan in world.plans] == [0] * plans
    assert len(result.void_loads) == plans - 1


def test_a_trace_of_lengths_is_sent_again_with_other_prompts() -> None:
    entries = tuple(TraceEntry(i * 50.0, 20, 5) for i in range(40))
    trace = TraceWorkload("recorded", entries, DatasetIdentity("trace", "1", "all"))
    world = Disturbed(lambda number: number == 1)
    result = first_tokens(
        world, replace(setting(), workload=trace), workload=trace, arrival="trace", rate=None, requests=None
    )
    once, again = world.plans
    assert once.first == again.first == 0
    assert once.load == again.load
    sent = prompts(world.plans)
    assert len(set(sent)) == len(sent) == 80
    assert len(result.void_loads) == 1


def test_a_schedule_that_was_given_up_is_taken_up_again() -> None:
    def gives_up(plan: LoadPlan) -> Observation:
        late = f"the load generator was 5.2 s {BEHIND_SCHEDULE}"
        void = plan.phase is Phase.MEASURE and plan.attempt == 1
        return answer(plan, interrupted=late if void else None)

    world = Disturbed(lambda _: False, gives_up)
    result = first_tokens(world, setting())
    assert len(world.plans) == 2
    assert result.void_loads[0].causes == (f"the load generator was 5.2 s {BEHIND_SCHEDULE}",)
    assert judged(result) is ValidityVerdict.VALID


def late_to_leave(plan: LoadPlan) -> Observation:
    """Sends begun in time whose last byte the server took later and later."""
    seen = answer(plan)
    count = len(seen.records)
    slow = seen.records.submitted_ns + np.arange(count) * 50_000_000
    return replace(seen, records=replace(seen.records, submitted_ns=slow))


def test_a_server_that_is_slow_to_take_requests_is_not_this_machine() -> None:
    world = Disturbed(lambda _: False, late_to_leave)
    result = first_tokens(world, setting())
    (seen,) = result.observations
    assert len(world.plans) == 1
    assert shortfalls(seen)
    assert not disturbed(seen)
    assert judged(result) is ValidityVerdict.INVALID


@pytest.mark.parametrize(
    ("late", "told", "load", "verdict"),
    [
        pytest.param(True, {"interrupted": INTERRUPTED_BY_CTRL_C}, {}, "INVALID", id="Ctrl-C"),
        pytest.param(False, {"ttft_ms": 30_000.0}, {}, "VALID", id="slow"),
        pytest.param(False, {"failures": 50}, {}, "INVALID", id="failures"),
        pytest.param(True, {"failures": 60}, {}, "INVALID", id="a server that is gone"),
        pytest.param(True, {}, {"rate": None, "concurrency": 4}, "VALID", id="a closed loop has no schedule"),
    ],
)
def test_what_is_measured_once(late: bool, told: dict[str, Any], load: dict[str, Any], verdict: str) -> None:
    world = Disturbed(
        lambda _: late, lambda plan: answer(plan, **(told if plan.phase is Phase.MEASURE else {}))
    )
    result = first_tokens(world, setting(), **load)
    assert len(world.plans) == 1
    assert result.void_loads == ()
    assert judged(result) is ValidityVerdict[verdict]


def all_at_once(plan: LoadPlan, **check: Any) -> Observation:
    """Every chunk of a reply has the instant of the last one."""
    seen = answer(plan)
    records = seen.records
    last = np.repeat(records.last_content_ns, np.diff(records.chunk_offsets))
    together = replace(records, chunk_ns=last, first_content_ns=records.last_content_ns)
    return replace(seen, records=together, selfcheck=SelfCheck(**check))


@pytest.mark.parametrize(
    ("check", "attempts"),
    [
        ({"loop_lag_p99_ns": 60_000_000}, 3),
        ({"waited_for_core_share": 0.3}, 3),
        ({"loop_lag_p99_ns": 1_000_000, "waited_for_core_share": 0.01}, 1),
        ({}, 1),
    ],
)
def test_a_stream_that_looks_buffered_is_read_again_where_it_was_read_late(
    check: dict[str, Any], attempts: int
) -> None:
    world = Disturbed(lambda _: False, lambda plan: all_at_once(plan, **check))
    result = first_tokens(world, setting(), rate=None, concurrency=4)
    assert len(world.plans) == attempts
    assert judged(result) is ValidityVerdict.INVALID
    (seen,) = result.observations
    assert disturbed(seen) is (attempts > 1)
    if attempts > 1:
        assert "arrived all at once" in void_causes(seen)[0]
        assert "arrived all at once" in host_text(seen)


def test_levels_of_a_sweep_take_as_many_attempts() -> None:
    def counted(remeasure: int) -> tuple[int, ValidityVerdict]:
        world = Disturbed(lambda _: True, QueueServer())
        chosen = replace(canned_setting(), remeasure=remeasure)
        parameters = itl.Parameters(capacity_rps=40.0, levels_percent=(50.0,))
        result = drive(itl.TEST.procedure(parameters, chosen), world)
        attempts = [plan.attempt for plan in world.plans if isinstance(plan.load, OpenLoop)]
        assert max(attempts) == remeasure + 1
        assert len(result.void_loads) == remeasure
        return len(attempts), judged(result)

    assert counted(0)[1] is ValidityVerdict.INVALID
    assert counted(3)[1] is ValidityVerdict.INVALID


class OpenLoopSUT(ReplayedSUT):
    """Spoils the first attempt at every measured open loop."""

    def run(self, plan: LoadPlan) -> Observation:
        seen = super().run(plan)
        if plan.phase is Phase.MEASURE and plan.attempt == 1 and isinstance(plan.load, OpenLoop):
            return replace(seen, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=44_000_000))
        return seen


def test_each_state_of_the_prefix_cache_is_made_again_before_the_same_requests() -> None:
    calm = ReplayedSUT().measure(prefix_cache.TEST, "quick", rate=20.0)
    sut = OpenLoopSUT()
    result = sut.measure(prefix_cache.TEST, "quick", rate=20.0)
    assert [level.role for level in result.levels if level.role in ("disabled", "cold", "warm")] == [
        "disabled", "cold", "warm"
    ]  # fmt: skip
    assert len(result.void_loads) == 3
    # Known: whatever was spoiled, every state holds what it holds in a calm session.
    for metric in ("cache_hit_rate", "cache_hit_rate[cold]", "cached_input_share"):
        assert result.metrics[metric].point == pytest.approx(calm.metrics[metric].point, abs=1e-12)
    counted = [run for run in result.observations if run.plan.attempt == 2]
    assert len({run.sequence_sha256 for run in counted}) == 1
    assert validity(result.observations, Budget(), None, (0, 1, 2)).verdict is ValidityVerdict.VALID


def test_a_cache_that_cannot_be_emptied_is_not_measured_again() -> None:
    sut = OpenLoopSUT(can_be_fresh=False)
    result = sut.measure(prefix_cache.TEST, "quick", rate=20.0)
    warm = [plan for plan in sut.plans if plan.label == "cache warm"]
    off = [plan for plan in sut.plans if plan.label == "cache disabled"]
    assert (len(off), len(warm)) == (2, 1)
    assert judged(result) is ValidityVerdict.INVALID


def test_configurations_of_guardrails_keep_their_requests() -> None:
    sut = OpenLoopSUT(QUARTER)
    result = sut.measure(guardrail.TEST, "quick", capacity_rps=25.0, levels_percent=[25], duration_s=1)
    counted = [
        result.observations[level.observation]
        for level in result.levels
        if level.percent_of_capacity == 25 and level.observation is not None and "(not" not in level.role
    ]
    assert len(counted) == 4
    assert {run.plan.attempt for run in counted} == {2}
    assert len({run.sequence_sha256 for run in counted}) == 1


def test_one_line_says_what_this_machine_did() -> None:
    plan = LoadPlan("measure", workload("synthetic-uniform"), OpenLoop(20.0), 50, seed=1, attempt=3)
    check = replace(
        LATE,
        waited_for_core_share=0.31,
        stolen_share=0.02,
        cpu_share=0.1,
        priority="nice 0 (raising it to -10 was refused: Permission denied)",
    )
    assert host_text(answer(plan, selfcheck=check)) == (
        "this machine woke up 44 ms late, measured by: sends behind their schedule by 44 ms at P99 (limit "
        "10 ms); ready to run and without a core for 31 % of the time; 2 % of the CPU stolen by the "
        "hypervisor; priority nice 0 (raising it to -10 was refused: Permission denied); 3 attempts void: "
        "free its CPU"
    )


def test_a_generator_with_too_much_to_do_is_told_otherwise() -> None:
    plan = LoadPlan("measure", workload("synthetic-uniform"), OpenLoop(20_000.0), 50, seed=1)
    text = host_text(answer(plan, selfcheck=replace(LATE, cpu_share=0.98)))
    assert text.startswith("the load generator fell 44 ms behind, measured by: ")
    assert text.endswith("98 % of a core used by the measuring process; 1 attempt void: lower the rate or "
                         "give more --llm-workers")  # fmt: skip


def test_of_a_closed_loop_there_is_no_lag_to_tell() -> None:
    plan = LoadPlan("measure", workload("synthetic-uniform"), ClosedLoop(2), 50, seed=1)
    assert not disturbed(answer(plan, selfcheck=LATE))
