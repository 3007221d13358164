"""All ten tests in one session, in virtual time: what each sends lies between the bounds of ``--llm-plan``,
no prompt goes out twice to one system unless the cache is the subject, and the same prompts go out whatever
else is selected, and in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_llmbench.harness import plan as planning
from pytest_llmbench.harness.execution.drive import drive
from pytest_llmbench.harness.execution.session_loads import SharedRuns
from pytest_llmbench.harness.plan import Amount, Sampler, foreseen
from pytest_llmbench.harness.setting import setting_for, warmup_for
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import SENDS_AGAIN, TESTS, definition
from pytest_llmbench.methodology.measuring.saturation import overload
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Scale, Setting
from pytest_llmbench.metrics.in_flight import queue_of
from pytest_llmbench.metrics.throughput import level_window
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario.scenario import parse_scenario
from pytest_llmbench.simulator.scenario.variants import STANDARD_VARIANTS, with_overrides
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.sequence import drawn
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

ENGINE = "fast?step_base_us=4800&decode_us_per_sequence=24&prefill_us_per_token=40"
"""The embedded engine at a quarter of its speed: a search has a quarter of the requests in as many loads."""
SLOWER = "fast?step_base_us=9600&decode_us_per_sequence=48&prefill_us_per_token=80"
"""An eighth of its speed, for the longer loads of the standard scale."""
Given = dict[str, Any]
SUITE: tuple[tuple[str, Given], ...] = (
    ("ttft", {"rate": 20}),
    ("ttft", {"rate": 20, "p50_ms": 500}),
    ("ttft", {"rate": 40}),
    ("ttft", {"rate": 20, "requests": 30}),
    ("ttft", {"rate": 20, "workload": WithFixedOutput(SYNTHETIC_UNIFORM, 32)}),
    ("ttft", {"concurrency": 3, "runs": 2}),
    ("ttft", {"rate": 50, "requests": "auto", "max_requests": 300, "p50_ms": 500}),
    ("ttft", {"rate": 50, "requests": "auto", "max_seconds": 3, "p50_ms": 500}),
    ("goodput", {"rate": 20, "ttft_ms": 500}),
    ("job", {"prompts": 40}),
    ("job", {"prompts": 40, "concurrency": 4, "runs": 3}),
    ("job", {"prompts": 30, "rate": 20, "max_makespan_s": 900}),
    ("reasoning", {"rate": 20}),
    ("sessions", {"rate": 2}),
    ("sessions", {"sessions": 3, "total_sessions": 5, "runs": 2}),
    ("sessions", {"rate": 2, "max_slowdown": 2}),
    ("sessions", {"job_p95_s": 900, "min_jobs_per_hour": 300, "maximum": 300}),
    ("sessions", {"job_p50_s": 20, "find": "jobs_per_hour", "maximum": 400}),
    ("sessions", {"job_p95_s": 20, "find": "jobs_per_hour", "duration_s": 5}),
    ("non_generative", {"rate": 20}),
    ("non_generative", {"concurrency": 4, "latency_p50_ms": 500}),
    ("non_generative", {"concurrency": 3, "runs": 2, "workload": "synthetic-uniform"}),
    ("non_generative", {"rate": 20, "workload": "profile:XRANK"}),
    ("throughput", {}),
    ("throughput", {"ttft_p99_ms": 100}),
    ("throughput", {"ttft_p99_ms": 100, "arrival": "gamma", "burstiness": 0.5}),
    ("throughput", {"load_model": "closed"}),
    ("throughput", {"min_concurrency": 4, "max_concurrency": 64, "concurrency_step": 8}),
    ("throughput", {"min_rate": 20, "max_rate": 60, "rate_step": 20}),
    ("throughput", {"min_rate": 20, "rate_step": 20}),
    ("tradeoff", {}),
    ("tradeoff", {"levels_percent": [25, 50, 75]}),
    ("tradeoff", {"capacity_rps": 30, "levels_percent": [10, 50, 100]}),
    ("itl", {}),
    ("itl", {"capacity_rps": 40, "levels_percent": [25, 75]}),
    ("capacity", {}),
    ("capacity", {"ttft_p99_ms": 100}),
    ("capacity", {"ttft_p99_ms": 2, "output_tokens": 16, "maximum": 32}),
    ("capacity", {"initial": 3, "output_tokens": 64}),
    ("fairness", {}),
    ("fairness", {"load_percent": 70}),
    ("fairness", {"capacity_rps": 30, "requests_per_class": 12}),
    ("prefix_cache", {}),
    ("prefix_cache", {"requests": 40, "rate": 20}),
    ("memory_pressure", {}),
    ("memory_pressure", {"capacity": 5, "levels_percent": [100, 150]}),
    ("long_context", {}),
    ("long_context", {"lengths": [512, 1024, 2048]}),
    ("long_context", {"lengths": [1024, 3000, 4096]}),
    ("guardrail", {}),
    ("guardrail", {"capacity_rps": 30, "levels_percent": [50], "without": "no single filters"}),
)
STANDARD: tuple[tuple[str, Given], ...] = (
    ("ttft", {"rate": 20}),
    ("ttft", {"concurrency": 3, "runs": 2}),
    ("job", {"prompts": 100, "ttft_p99_ms": 0.01}),
    ("job", {"prompts": 100, "concurrency": 8, "ttft_mean_ms": 1e5, "tpot_mean_ms": 9}),
    ("ttft", {"rate": 50, "requests": "auto", "max_requests": 300, "p50_ms": 500}),
    ("ttft", {"rate": 50, "requests": "auto", "max_seconds": 3, "p50_ms": 500}),
    ("itl", {}),
    ("itl", {"capacity_rps": 40, "levels_percent": [25, 75]}),
    ("prefix_cache", {}),
    ("prefix_cache", {"requests": 40, "rate": 20}),
)
"""At this scale too."""


@dataclass
class Session:
    """Tests on one system that share what they can. Its variants are one server, the worst case."""

    scale: Scale = "quick"
    engine: str = ENGINE
    runs: SharedRuns = field(default_factory=SharedRuns)
    engines: dict[tuple[str, bool], ReplayEngine] = field(default_factory=dict)
    """By variant, and whether requests generate tokens."""
    state: int = 0
    sent: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    """Prompt → test and variant that it was sent by; forgotten where the server's state is made anew."""
    again: list[str] = field(default_factory=list)
    seen: dict[str, list[Observation]] = field(default_factory=dict)
    """What each test saw."""
    sampler: Sampler = field(default_factory=Sampler)

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
        settings = Settings(endpoint="replay:fast", scale=self.scale, allow_overload=True)
        parameters, known = build(definition(test).parameters, given), foreseen(settings)
        warmup = warmup_for(self.scale)
        return parameters, setting_for(
            parameters, settings, warmup=warmup, facts=known.facts, variants=known.variants
        )

    def _send(self, plan: LoadPlan, test: str, who: str) -> Observation:
        if plan.fresh_state:
            self.sent.clear()
            self.state += 1
        generates = definition(test).parameters.generates
        engine = (plan.variant, generates)
        if engine not in self.engines:
            options = STANDARD_VARIANTS[plan.variant] if plan.variant else {}
            scenario = with_overrides(parse_scenario(self.engine), options)
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
    assert {test for test, _ in SUITE} == set(TESTS)


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


@pytest.mark.parametrize(("test", "given"), SUITE, ids=str)
def test_what_is_sent_lies_between_the_bounds(test: str, given: Given, session: Session) -> None:
    assert_between_bounds(session, test, given)


@pytest.mark.parametrize(("test", "given"), STANDARD, ids=str)
def test_what_is_sent_at_standard_scale_lies_between_the_bounds(test: str, given: Given) -> None:
    alone = Session("standard", SLOWER)
    alone.measure(test, given)
    assert_between_bounds(alone, test, given)


@pytest.fixture(autouse=True)
def _smaller_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of long loads, which searches might send, from a sixth of the requests: known to 3 % instead of
    1 %."""
    for name in ("SAMPLE_REQUESTS", "SAMPLE_TOKENS"):
        monkeypatch.setattr(planning, name, getattr(planning, name) // 6)


def assert_between_bounds(session: Session, test: str, given: Given) -> None:
    """Requests, input and output tokens of a run, against what the plan told of it."""
    seen = session.seen[named(test, given)]
    told = sum(map(session.sampler.amount, TESTS[test].bounds(*session.asked(test, given))), Amount())
    rps = _capacity(seen)
    for span, sent in (
        (told.requests, sum(len(one.records) for one in seen)),
        (told.input_tokens, sum(int(one.records.requested_input_tokens.sum()) for one in seen)),
        (
            told.output_tokens,
            sum(int(one.records.output_tokens[one.records.ok].clip(0).sum()) for one in seen),
        ),
    ):
        assert span.least <= sent <= span.most + rps * span.per_rps, (span, sent, rps)
        assert span.most <= span.worst


def _capacity(seen: Sequence[Observation]) -> float:
    """The highest rate that was completed in a timed closed loop, or offered at a level that held."""
    rates = [0.0]
    for one in seen:
        if one.plan.phase is not Phase.MEASURE or one.plan.duration_s is None:
            continue
        if isinstance(one.plan.load, OpenLoop):
            window = level_window(one)
            rates += [] if overload(one, window, queue_of(one, window)) else [one.plan.load.rate]
            continue
        ended_ns = one.ended_ns if one.load_ended_ns is None else one.load_ended_ns
        done = int((one.records.ok & (one.records.finished_ns <= ended_ns)).sum())
        rates.append(done / max((ended_ns - one.started_ns) / 1e9, 1e-9))
    return max(rates)
