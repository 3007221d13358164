"""All ten tests in one session, in virtual time: no prompt goes out twice to one system unless the cache is
the subject, the same prompts go out whatever else is selected, and in whatever order, and ``--llm-plan``
counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_llmbench.harness.execution import SharedRuns, drive
from pytest_llmbench.harness.plan import AMOUNTS, DryRun, known_of
from pytest_llmbench.harness.setting import setting_for, warmup_for
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import SENDS_AGAIN, TESTS, definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.registry import names
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import STANDARD_VARIANTS, parse_scenario, with_overrides
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.sequence import drawn
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

ENGINE = "fast?step_base_us=4800&decode_us_per_sequence=24&prefill_us_per_token=40"
"""The embedded engine at a quarter of its speed: a search has a quarter of the requests in as many loads."""
Given = dict[str, Any]
QUESTIONS = {"accuracy", "integrity"} & {*names("tests")}
"""Tests whose requests are given questions, the same ones each time, or that ask twice by design."""
JOBS: tuple[tuple[str, Given], ...] = tuple(
    (name, given)
    for name, given in (
        ("grid", {"input_tokens": 300, "output_tokens": 16, "concurrency": 3}),
        ("batch", {"prompts": 12, "runs": 2}),
        ("recovery", {"rate": 20, "prompts": 60, "window_s": 2}),
        ("speculative", {"prompts": 12}),
    )
    if name in names("tests")
)
"""Jobs of extras, whose load is their own."""
OF_EXTRAS: tuple[tuple[str, Given], ...] = tuple(
    (name, given)
    for name in names("tests")
    if name not in {*QUESTIONS, *dict(JOBS)}
    for given in ({"rate": 20}, {"concurrency": 3, "runs": 2}, {"rate": 20, "workload": "profile:XRANK"})
)
SUITE: tuple[tuple[str, Given], ...] = (
    ("ttft", {"rate": 20}),
    ("ttft", {"rate": 20, "p50_ms": 500}),
    ("ttft", {"rate": 20, "requests": 30}),
    ("ttft", {"rate": 20, "workload": WithFixedOutput(SYNTHETIC_UNIFORM, 32)}),
    ("ttft", {"concurrency": 3, "runs": 2}),
    ("ttft", {"rate": 50, "requests": "auto", "max_requests": 300, "p50_ms": 500}),
    ("goodput", {"rate": 20, "ttft_ms": 500}),
    ("job", {"prompts": 40}),
    ("job", {"prompts": 40, "concurrency": 4, "runs": 3}),
    ("reasoning", {"rate": 20}),
    ("sessions", {"rate": 2}),
    ("sessions", {"sessions": 3, "total_sessions": 5, "runs": 2}),
    ("sessions", {"job_p95_s": 900, "min_jobs_per_hour": 300, "maximum": 300}),
    ("throughput", {}),
    ("throughput", {"ttft_p99_ms": 100, "arrival": "gamma", "burstiness": 0.5}),
    ("throughput", {"load_model": "closed"}),
    ("throughput", {"min_concurrency": 4, "max_concurrency": 64, "concurrency_step": 8}),
    ("throughput", {"min_rate": 20, "rate_step": 20}),
    ("tradeoff", {}),
    ("tradeoff", {"capacity_rps": 30, "levels_percent": [10, 50, 100]}),
    ("itl", {}),
    ("itl", {"capacity_rps": 40, "levels_percent": [25, 75]}),
    ("capacity", {}),
    ("capacity", {"ttft_p99_ms": 100}),
    ("fairness", {}),
    ("fairness", {"capacity_rps": 30, "requests_per_class": 12}),
    ("prefix_cache", {}),
    ("prefix_cache", {"requests": 40, "rate": 20}),
    ("memory_pressure", {}),
    ("memory_pressure", {"capacity": 5, "levels_percent": [100, 150]}),
    ("long_context", {}),
    ("long_context", {"lengths": [512, 1024, 2048]}),
    ("guardrail", {}),
    ("guardrail", {"capacity_rps": 30, "levels_percent": [50], "without": "no single filters"}),
    *OF_EXTRAS,
    *JOBS,
)
PLANNED: tuple[tuple[str, Given], ...] = (
    ("ttft", {"rate": 50, "requests": "auto", "max_requests": 300, "p50_ms": 500}),
    ("sessions", {"sessions": 3, "total_sessions": 5, "runs": 2}),
    *OF_EXTRAS[:1],
    *JOBS,
    ("capacity", {"ttft_p99_ms": 100}),
    ("prefix_cache", {}),
    ("guardrail", {"capacity_rps": 30, "levels_percent": [50], "without": "no single filters"}),
)


@dataclass
class Session:
    """Tests on one system that share what they can. Its variants are one server, the worst case."""

    settings: Settings = Settings(endpoint=f"replay:{ENGINE}", scale="quick", allow_overload=True)
    runs: SharedRuns = field(default_factory=SharedRuns)
    engines: dict[tuple[str, bool], ReplayEngine] = field(default_factory=dict)
    """By variant, and whether requests generate tokens."""
    state: int = 0
    sent: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    """Prompt → test and variant that it was sent by; forgotten where the server's state is made anew."""
    again: list[str] = field(default_factory=list)
    seen: dict[str, list[Observation]] = field(default_factory=dict)
    """What each test saw."""

    def measure(self, test: str, given: Given) -> None:
        chosen, who = definition(test), named(test, given)
        parameters, setting = self.asked(test, given)
        self.seen[who] = []

        def execute(plan: LoadPlan) -> Observation:
            seen = self.runs.find("sut", plan, who, str(self.state))
            if seen is None:
                seen = self._send(plan, test, who)
                self.runs.keep("sut", plan, who, str(self.state), seen)
            self.seen[who].append(seen)
            return seen

        drive(chosen.procedure(parameters, setting), execute)

    def asked(self, test: str, given: Given) -> tuple[Any, Setting]:
        parameters, known = build(definition(test).parameters, given), known_of(self.settings)
        about = {"warmup": warmup_for("quick"), "facts": known.facts, "variants": known.variants}
        return parameters, setting_for(parameters, self.settings, **about)

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


def named(test: str, given: Given) -> str:
    return f"{test} {given}"


def plans(seen: Sequence[Observation]) -> list[tuple[str, int, int]]:
    """Of every plan the label, the seed and the first request."""
    return [(one.plan.label, one.plan.seed, one.plan.first) for one in seen]


@pytest.fixture(scope="module")
def session() -> Session:
    """Of all tests; it is only read."""
    session = Session()
    for test, given in SUITE:
        session.measure(test, given)
    return session


def test_all_tests_are_in_it() -> None:
    assert {test for test, _ in SUITE} == set(TESTS) - QUESTIONS


def test_no_prompt_goes_out_twice_in_a_session_of_all_tests(session: Session) -> None:
    assert not session.again
    assert len(session.sent) > 1_000
    one, two = (session.seen[named("ttft", given)] for given in ({"rate": 20}, {"rate": 20, "p50_ms": 500}))
    assert plans(one) == plans(two)


def test_the_same_prompts_go_out_whatever_else_is_selected_and_in_any_order(session: Session) -> None:
    wanted = [(test, given) for test, given in SUITE if test in ("ttft", "tradeoff", "capacity")]
    second = Session()
    for test, given in wanted[::-2]:
        second.measure(test, given)
    assert second.seen
    assert {who: plans(seen) for who, seen in second.seen.items()} == {
        who: plans(session.seen[who]) for who in second.seen
    }


@pytest.mark.parametrize(("test", "given"), PLANNED, ids=str)
def test_a_plan_counts_what_is_sent(test: str, given: Given) -> None:
    """Of a replay the dry run of ``--llm-plan`` is what the session does."""
    alone = Session()
    alone.measure(test, given)
    seen, settings = alone.seen[named(test, given)], alone.settings
    planned = DryRun(ENGINE, known_of(settings)).count("t", definition(test), *alone.asked(test, given))
    amounts = dict(zip(AMOUNTS, planned.amounts, strict=True))
    assert amounts["requests"] == sum(len(one.records) for one in seen)
    assert amounts["input_tokens"] == sum(int(one.records.requested_input_tokens.sum()) for one in seen)
    assert amounts["output_tokens"] == sum(int(one.records.output_tokens.clip(0).sum()) for one in seen)
    assert amounts["unmeasured"] == sum(len(o.records) for o in seen if o.plan.phase is not Phase.MEASURE)
