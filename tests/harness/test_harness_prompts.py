"""No prompt goes out twice to one system in a session, unless the cache is the subject; and the same prompts
go out whatever else is selected, and in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_llmbench.harness.execution.drive import drive
from pytest_llmbench.harness.execution.session_loads import SentBefore, SharedRuns
from pytest_llmbench.harness.plan import foreseen
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.setting import setting_for, warmup_for
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import SENDS_AGAIN, TESTS, definition
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario.scenario import parse_scenario
from pytest_llmbench.simulator.scenario.variants import STANDARD_VARIANTS, with_overrides
from pytest_llmbench.workloads.adapted import Salted, WithFixedOutput
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sequence import drawn
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

SETTINGS = Settings(endpoint="replay:fast", scale="quick", allow_overload=True)
ENGINE = "fast?step_base_us=4800&decode_us_per_sequence=24&prefill_us_per_token=40"
"""The embedded engine at a quarter of its speed: a search has a quarter of the requests in as many loads."""
SUITE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ttft", {"rate": 20}),
    ("ttft", {"rate": 20, "p50_ms": 500}),
    ("ttft", {"rate": 40}),
    ("ttft", {"rate": 20, "requests": 30}),
    ("ttft", {"rate": 20, "workload": WithFixedOutput(SYNTHETIC_UNIFORM, 32)}),
    ("ttft", {"concurrency": 2}),
    ("goodput", {"rate": 20, "ttft_ms": 500}),
    ("reasoning", {"rate": 20}),
    ("sessions", {"rate": 2}),
    ("sessions", {"sessions": 3, "total_sessions": 5}),
    ("sessions", {"rate": 2, "max_slowdown": 2}),
    ("sessions", {"job_p95_s": 900, "min_jobs_per_hour": 900, "maximum": 900}),
    ("sessions", {"job_p50_s": 20, "find": "jobs_per_hour", "maximum": 400}),
    ("non_generative", {"rate": 20}),
    ("non_generative", {"concurrency": 4, "latency_p50_ms": 500}),
    ("non_generative", {"rate": 20, "workload": "profile:XRANK"}),
    ("throughput", {}),
    ("throughput", {"ttft_p99_ms": 100}),
    ("throughput", {"load_model": "closed"}),
    ("throughput", {"min_rate": 20, "max_rate": 60, "rate_step": 20}),
    ("tradeoff", {}),
    ("tradeoff", {"levels_percent": [25, 50, 75]}),
    ("tradeoff", {"capacity_rps": 40}),
    ("itl", {}),
    ("itl", {"capacity_rps": 40}),
    ("capacity", {}),
    ("capacity", {"ttft_p99_ms": 20}),
    ("capacity", {"initial": 3, "output_tokens": 64}),
    ("fairness", {}),
    ("fairness", {"load_percent": 70}),
    ("prefix_cache", {}),
    ("memory_pressure", {}),
    ("memory_pressure", {"capacity": 6, "levels_percent": [100, 150]}),
    ("long_context", {}),
    ("long_context", {"lengths": [1024, 3000, 4096]}),
    ("guardrail", {}),
)


@dataclass
class Session:
    """Tests on one system that share what they can. Its variants are one server, the worst case."""

    runs: SharedRuns = field(default_factory=SharedRuns)
    engines: dict[tuple[str, bool], ReplayEngine] = field(default_factory=dict)
    """By variant, and whether requests generate tokens."""
    state: int = 0
    sent: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    """Prompt → test and variant that it was sent by; forgotten where the server's state is made anew."""
    again: list[str] = field(default_factory=list)
    asked: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    """Of each test the label, the seed and the first request of every plan."""

    def measure(self, test: str, given: dict[str, Any]) -> TestResult:
        who, chosen = f"{test} {given}", definition(test)
        parameters = build(chosen.parameters, given)
        known = foreseen(SETTINGS)
        warmup = warmup_for("quick")
        setting = setting_for(parameters, SETTINGS, warmup=warmup, facts=known.facts, variants=known.variants)
        self.asked[who] = []

        def execute(plan: LoadPlan) -> Observation:
            self.asked[who].append((plan.label, plan.seed, plan.first))
            seen = self.runs.find("sut", plan, who, str(self.state))
            if seen is None:
                seen = self._send(plan, test, who)
                self.runs.keep("sut", plan, who, str(self.state), seen)
            return seen

        return drive(chosen.procedure(parameters, setting), execute)

    def _send(self, plan: LoadPlan, test: str, who: str) -> Observation:
        if plan.fresh_state:
            self.sent.clear()
            self.state += 1
        generates = definition(test).parameters.generates
        engine = (plan.variant, generates)
        if engine not in self.engines:
            options = STANDARD_VARIANTS[plan.variant] if plan.variant else {}
            scenario = with_overrides(parse_scenario(ENGINE), options)
            self.engines[engine] = ReplayEngine(scenario, generates=generates)
        seen = self.engines[engine].run(plan)
        last = int(seen.records.index.max()) + 1 - plan.first
        for request in drawn(plan.workload, plan.first, last, plan.seed):
            prompt = bytes(memoryview(request.token_ids)) if request.token_ids is not None else b""
            before = self.sent.get(prompt)
            if before is None:
                self.sent[prompt] = (who, plan.variant)
            elif not (test in SENDS_AGAIN and before[0] == who and before[1] != plan.variant):
                self.again.append(f"{who}: {plan.label!r} sends what {before} sent")
        return seen


@pytest.fixture(scope="module")
def session() -> Session:
    """Of all tests; it is only read."""
    session = Session()
    for test, given in SUITE:
        session.measure(test, given)
    return session


def test_no_prompt_goes_out_twice_in_a_session_of_all_tests(session: Session) -> None:
    assert {test for test, _ in SUITE} == set(TESTS)
    assert not session.again
    assert len(session.sent) > 1_000
    assert session.asked["ttft {'rate': 20}"] == session.asked["ttft {'rate': 20, 'p50_ms': 500}"]


def test_the_same_prompts_go_out_whatever_else_is_selected_and_in_any_order(session: Session) -> None:
    wanted = [(test, given) for test, given in SUITE if test in ("ttft", "tradeoff", "capacity")]
    second = Session()
    for test, given in wanted[::-2]:
        second.measure(test, given)
    assert second.asked
    assert second.asked == {who: session.asked[who] for who in second.asked}


def _measured(sessions: BenchSession, nodeid: str, **given: Any) -> TestResult:
    test, sut = definition("ttft"), sessions.sut_from_settings()
    parameters = build(test.parameters, {"concurrency": 2, "requests": 20, **given})
    return sessions.measure(nodeid, test, parameters, sut, sessions.default_warmup()).result


def _digests(results: Sequence[TestResult]) -> list[str]:
    return [result.facts.value("workload.sequence_sha256") for result in results]


def test_what_is_measured_once_more_or_anew_has_prompts_of_its_own() -> None:
    session = BenchSession(SETTINGS)
    once = _measured(session, "t::a")
    shared = _measured(session, "t::b")
    rerun = _measured(session, "t::a")
    anew = _measured(session, "t::c", fresh=True)
    rerun_anew = _measured(session, "t::c", fresh=True)
    session.close()
    assert shared.observations[0].shared_from == "t::a"
    assert _digests([once]) == _digests([shared])
    assert len(set(_digests([once, rerun, anew, rerun_anew]))) == 4
    again = BenchSession(SETTINGS)
    assert _digests([_measured(again, "t::c", fresh=True)]) == _digests([anew])
    again.close()


def _list(prompts: int) -> DatasetWorkload:
    identity = DatasetIdentity("mine", "1", "all")
    return DatasetWorkload("mine", tuple(Prompt(f"Question {k}?", 8) for k in range(prompts)), identity)


def _share(result: TestResult) -> float | None:
    (found,) = [each for each in result.findings if each.check == "prompts_sent_before"] or [None]
    return None if found is None else found.value


def test_prompts_that_a_data_set_has_no_others_of_are_told() -> None:
    session = BenchSession(SETTINGS)
    workload = _list(3)
    three = _measured(session, "t::a", workload=workload)
    (finding,) = [each for each in three.findings if each.check == "prompts_sent_before"]
    assert finding.value == 1.0  # the warm-up had them all
    assert not finding.voids
    assert "100.0% of the measured prompts had been sent" in finding.message
    assert not three.validity.reasons
    session.close()


def test_a_large_data_set_is_sent_before_only_as_far_as_chance_has_it() -> None:
    session = BenchSession(SETTINGS)
    shares = [_share(_measured(session, f"t::{k}", workload=_list(400), requests=21 + k)) for k in range(4)]
    session.close()
    # 10 of the warm-up and some 20 of each test before it, of 400
    assert all(share is None or share < 0.4 for share in shares)
    assert shares[-1] is not None


def test_an_emptied_server_has_had_nothing() -> None:
    plan = LoadPlan("measure", _list(5), ClosedLoop(1), 5, seed=1)
    seen = ReplayEngine(parse_scenario("fast")).run(plan)
    sent = SentBefore()
    sent.note(("host", "#0"), "a", seen)
    assert sent.findings("a") == ()
    sent.note(("host", "#1"), "b", seen)
    assert sent.findings("b") == ()
    sent.note(("host", "#1"), "c", seen)
    (finding,) = sent.findings("c")
    assert finding.value == 1.0
    assert sent.findings("c") == ()


def test_a_load_that_is_sent_again_is_found_by_its_seed_too() -> None:
    plan = LoadPlan("measure", SyntheticWorkload("small", Fixed(8), Fixed(2)), ClosedLoop(2), 4, seed=1)
    engine, sent = ReplayEngine(parse_scenario("fast")), SentBefore()
    sent.note("host", "a", engine.run(plan.with_(phase=Phase.WARMUP)))
    sent.note("host", "b", engine.run(plan.with_(first=2)))
    (finding,) = sent.findings("b")
    assert finding.value == 0.5
    sent.note("host", "c", engine.run(plan.with_(seed=2)))
    assert sent.findings("c") == ()


def test_the_salt_of_one_arm_changes_no_lengths() -> None:
    setting = Setting(SYNTHETIC_UNIFORM, 42)
    one, other = (part_of(setting, Salted(SYNTHETIC_UNIFORM, arm), "load") for arm in ("a", "b"))
    assert one == other


@pytest.mark.parametrize("change", [{"seed": 43}, {"salt": "t::a"}, {"timeout_s": 5.0}], ids=str)
def test_what_makes_a_part_another_one(change: dict[str, Any]) -> None:
    setting = Setting(SYNTHETIC_UNIFORM, 42)
    assert part_of(setting, SYNTHETIC_UNIFORM, "load").seed != (
        part_of(replace(setting, **change), SYNTHETIC_UNIFORM, "load").seed
    )
