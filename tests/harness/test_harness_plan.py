"""``--llm-plan``: bounds that hold, what is counted once, what cannot run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.harness import plan as planning
from pytest_llmbench.harness.execution.drive import drive
from pytest_llmbench.harness.plan import Amount, Sampler, Span, foreseen, plan_lines
from pytest_llmbench.harness.setting import setting_for, warmup_for
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.amounts import plan_bounds
from pytest_llmbench.methodology.catalogue import TESTS, definition
from pytest_llmbench.methodology.measuring.levels import level_of
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Bounds, Scale, Setting, TestDefinition
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import Workload
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario.scenario import parse_scenario
from pytest_llmbench.simulator.scenario.variants import STANDARD_VARIANTS, with_overrides
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

SMALL = SyntheticWorkload("small", Fixed(8), Fixed(2))
ENGINE = "fast?step_base_us=4800&decode_us_per_sequence=24&prefill_us_per_token=40"
"""The embedded engine at a quarter of its speed: a search has a quarter of the requests in as many loads."""
TTFT = definition("ttft")


@pytest.fixture(autouse=True, scope="module")
def _each_sample_is_drawn_once() -> Iterator[None]:
    """The same lengths for the same workload, seed and number, whichever test asks for them."""
    drawn: dict[tuple[str, int, int], Any] = {}

    def once(workload: Workload, seed: int, count: int) -> Any:
        key = (str((workload.name, workload.specification())), seed, count)
        if key not in drawn:
            drawn[key] = draw(workload, seed, count)
        return drawn[key]

    draw = planning._sampled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_sampled", once)
        yield


def load_of(plan: LoadPlan) -> Bounds:
    return plan_bounds(plan)


def test_short_loads_are_exact() -> None:
    amount = Sampler().amount(load_of(LoadPlan("x", SYNTHETIC_UNIFORM, OpenLoop(20), 1_000, seed=42)))
    # METHODOLOGY §4.3: over 1000 requests the inputs sum to 315346 and the limits to 160203.
    assert amount.requests == Span(1_000, 1_000, worst=1_000)
    assert amount.input_tokens == Span(315_346, 315_346, worst=315_346)
    assert amount.output_tokens == Span(0, 160_203, worst=160_203)
    assert amount.seconds.least == amount.seconds.most == pytest.approx(50, rel=0.2)
    assert "requests 1,000, input tokens 315,346, output tokens [0, 160,203]" in amount.describe()


def test_long_loads_are_reckoned_quickly_and_between_bounds() -> None:
    amount = Sampler().amount(load_of(LoadPlan("x", SYNTHETIC_UNIFORM, OpenLoop(1_000), 50_000, seed=42)))
    true = sum(request.input_tokens for request in SYNTHETIC_UNIFORM.requests(50_000, 42))
    assert amount.input_tokens.least < true < amount.input_tokens.most
    assert amount.input_tokens.most < 1.05 * amount.input_tokens.least
    long = SyntheticWorkload("long", Fixed(1_000_000), Fixed(2))
    assert Sampler().amount(load_of(LoadPlan("x", long, OpenLoop(1), 50, seed=1))).input_tokens.most == 5e7


def test_time_is_the_duration_where_there_is_one() -> None:
    closed = load_of(LoadPlan("x", SMALL, ClosedLoop(8), 100, seed=1))
    assert Sampler().amount(closed).describe().endswith("duration set by the SUT (closed loop)")
    timed = load_of(LoadPlan("x", SMALL, OpenLoop(8), 100, seed=1, duration_s=300.0))
    both = Sampler().amount(timed) + Sampler().amount(closed)
    assert both.describe().endswith("300 s of measured load, and closed loops as long as the SUT needs")


def test_what_comes_with_the_rate_is_told_beside_the_number() -> None:
    span = Span(10, 20, 3.0) + Span(1, 2)
    assert span.text() == "[11, 22 + 3 per req/s]"
    assert Span(5, 5).text() == "5"
    assert Span(0, 5).times(2).text() == "[0, 10]"


def selected(test: TestDefinition = TTFT, **given: Any) -> tuple[TestDefinition, Any]:
    return test, build(test.parameters, given)


def lines_of(*tests: tuple[str, tuple[TestDefinition, Any]], **settings: Any) -> str:
    chosen = [(nodeid, *test) for nodeid, test in tests]
    return "\n".join(plan_lines(chosen, Settings(**settings)))


def test_equal_loads_are_counted_once() -> None:
    load = {"rate": 20.0, "requests": 500}
    shown = lines_of(("t::a", selected(**load)), ("t::b", selected(**load, p99_ms=500)))
    assert "1 of 1 loads shared with t::a" in shown
    assert "warm-up shared with t::a" in shown
    assert "total of 2 tests: requests [604, 611]" in shown
    anew = lines_of(("t::a", selected(**load)), ("t::b", selected(**load, fresh=True)))
    assert "total of 2 tests: requests [1,208, 1,222]" in anew
    assert "shared" not in anew


def test_a_fresh_state_is_shared_with_nobody_and_ends_what_warm_ups_are_shared() -> None:
    cache = selected(definition("prefix_cache"))
    shown = lines_of(("t::a", selected()), ("t::b", cache), ("t::c", selected(p99_ms=500)), endpoint="replay")
    first, second, third = shown.split("  t::")[1:]
    assert "warm-up shared" not in first + second
    assert "requests [0, 111]" in third
    assert "1 of 1 loads shared with t::a" in third


def test_what_cannot_run_says_what_it_misses() -> None:
    def needs(_: Any, setting: Setting) -> Sequence[str]:
        return [f"a variant {name}" for name in ("cache_enabled", "nowhere") if name not in setting.variants]

    test = replace(TTFT, needs=needs)
    real = lines_of(("t::a", selected(test)), endpoint="http://127.0.0.1:9/v1")
    assert "CANNOT RUN (as far as is known before the SUT is asked)" in real
    assert "- a variant cache_enabled" in real
    assert "- a variant nowhere" in real
    assert "total of 1 tests: requests 0," in real
    embedded = lines_of(("t::a", selected(test)), endpoint="replay")
    assert "CANNOT RUN\n    - a variant nowhere" in embedded


def test_variants_of_the_sut_file_are_foreseen(tmp_path: Path) -> None:
    file = tmp_path / "sut.toml"
    file.write_text(
        '[variants.cache_enabled]\nurl = "http://other/v1"\nsut = { prefix_caching = "enabled" }\n'
    )
    known: list[Setting] = []

    def needs(_: Any, setting: Setting) -> Sequence[str]:
        known.append(setting)
        return ()

    lines_of(("t::a", selected(replace(TTFT, needs=needs))), endpoint="http://127.0.0.1:9/v1", sut=file)
    variant = known[0].variants["cache_enabled"]
    assert variant.facts.value("sut.prefix_caching") == "enabled"
    assert not variant.can_be_fresh
    assert not known[0].variants[""].can_be_fresh


PLANNED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ttft", {"rate": 20}),
    ("ttft", {"concurrency": 3, "runs": 2}),
    ("ttft", {"rate": 50, "requests": "auto", "max_requests": 300, "p50_ms": 500}),
    ("ttft", {"rate": 50, "requests": "auto", "max_seconds": 3, "p50_ms": 500}),
    ("goodput", {"rate": 20, "ttft_ms": 500}),
    ("reasoning", {"rate": 20}),
    ("sessions", {"rate": 2}),
    ("sessions", {"sessions": 3, "total_sessions": 5, "runs": 2}),
    ("sessions", {"rate": 2, "max_slowdown": 2}),
    ("sessions", {"job_p95_s": 900, "min_jobs_per_hour": 900, "maximum": 900}),
    ("sessions", {"job_p95_s": 20, "find": "jobs_per_hour", "duration_s": 5}),
    ("non_generative", {"rate": 20}),
    ("non_generative", {"concurrency": 3, "runs": 2, "workload": "synthetic-uniform"}),
    ("throughput", {}),
    ("throughput", {"ttft_p99_ms": 100, "arrival": "gamma", "burstiness": 0.5}),
    ("throughput", {"load_model": "closed"}),
    ("throughput", {"min_concurrency": 4, "max_concurrency": 64, "concurrency_step": 8}),
    ("throughput", {"min_rate": 20, "max_rate": 60, "rate_step": 20}),
    ("throughput", {"min_rate": 20, "rate_step": 20}),
    ("tradeoff", {}),
    ("tradeoff", {"capacity_rps": 30, "levels_percent": [10, 50, 100]}),
    ("itl", {}),
    ("itl", {"capacity_rps": 40, "levels_percent": [25, 75]}),
    ("capacity", {"ttft_p99_ms": 100}),
    ("capacity", {"ttft_p99_ms": 2, "output_tokens": 16, "maximum": 32}),
    ("fairness", {}),
    ("fairness", {"capacity_rps": 30, "requests_per_class": 12}),
    ("prefix_cache", {}),
    ("prefix_cache", {"requests": 40, "rate": 20}),
    ("memory_pressure", {}),
    ("memory_pressure", {"capacity": 5, "levels_percent": [100, 150]}),
    ("long_context", {"lengths": [512, 1024, 2048]}),
    ("guardrail", {}),
    ("guardrail", {"capacity_rps": 30, "levels_percent": [50], "without": "no single filters"}),
)


def test_every_test_is_planned() -> None:
    assert {name for name, _ in PLANNED} == set(TESTS)


@pytest.mark.parametrize(
    ("name", "given", "scale"),
    [
        *((name, given, "quick") for name, given in PLANNED),
        *((name, given, "standard") for name, given in PLANNED if name in ("ttft", "itl", "prefix_cache")),
    ],
    ids=str,
)
def test_what_is_sent_lies_between_the_bounds(name: str, given: dict[str, Any], scale: Scale) -> None:
    """Requests, input and output tokens of a run, against what the plan told of it."""
    test = TESTS[name]
    parameters, known = build(test.parameters, given), foreseen(Settings(endpoint="replay"))
    warmup = warmup_for(scale)
    setting = setting_for(
        parameters, Settings(scale=scale), warmup=warmup, facts=known.facts, variants=known.variants
    )
    seen = _run(test, parameters, setting)
    sampler = Sampler()
    told = sum(map(sampler.amount, test.bounds(parameters, setting)), Amount())
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


def _run(test: TestDefinition, parameters: Any, setting: Setting) -> list[Observation]:
    seen: list[Observation] = []
    engines: dict[str, ReplayEngine] = {
        "": ReplayEngine(parse_scenario(ENGINE), generates=test.parameters.generates)
    }

    def run(plan: LoadPlan) -> Observation:
        if plan.variant not in engines:
            engines[plan.variant] = ReplayEngine(
                with_overrides(parse_scenario(ENGINE), STANDARD_VARIANTS[plan.variant])
            )
        seen.append(engines[plan.variant].run(plan))
        return seen[-1]

    drive(test.procedure(parameters, setting), run)
    return seen


def _capacity(seen: Sequence[Observation]) -> float:
    """The highest rate that was completed in a timed closed loop, or offered at a level that held."""
    rates = [0.0]
    for one in seen:
        if one.plan.phase is not Phase.MEASURE or one.plan.duration_s is None:
            continue
        if isinstance(one.plan.load, OpenLoop):
            rates += [] if level_of(one, seed=1).level.overloaded else [one.plan.load.rate]
            continue
        ended_ns = one.ended_ns if one.load_ended_ns is None else one.load_ended_ns
        done = int((one.records.ok & (one.records.finished_ns <= ended_ns)).sum())
        rates.append(done / max((ended_ns - one.started_ns) / 1e9, 1e-9))
    return max(rates)


def test_failed_and_short_replies_are_told_apart_from_the_bounds() -> None:
    shown = lines_of(("t::a", selected(rate=20.0, requests=500)), remeasure=2)
    assert "requests [604, 611]" in shown
    assert "of these, requests [104, 111] in warm-ups and probes" in shown
    # 2,000 requests of the warm-up and as many as go beyond it, its probes, and three times the load
    assert "at worst 3,511 requests" in shown
    assert "--llm-remeasure=2" in shown
    assert "void loads" not in lines_of(("t::a", selected(rate=20.0)), remeasure=0)


def test_where_a_search_decides_the_rate_the_bound_is_told_with_it() -> None:
    search = lines_of(("t::a", selected(definition("tradeoff"))), endpoint="replay")
    assert " per req/s]" in search
    assert "there is no other upper bound" in search
    declared = lines_of(("t::a", selected(definition("tradeoff"), capacity_rps=50)), endpoint="replay")
    assert "per req/s" not in declared


def test_arms_warm_up_once_for_all_their_runs() -> None:
    shown = lines_of(
        ("t::a", selected(rate=20.0, requests=500)),
        endpoint="replay",
        baseline_endpoint="replay:fast",
        runs=4,
    )
    assert f"requests [{2 * (4 * 500 + 104):,}, {2 * (4 * 500 + 111):,}]" in shown
    assert "2 times: 4 runs on each of 2 systems" in shown


def test_several_systems_warm_up_before_each_of_their_runs() -> None:
    shown = lines_of(
        ("t::a", selected(rate=20.0, requests=500)),
        endpoint="replay",
        endpoints=("a=replay", "b=replay:fast"),
        runs=4,
    )
    assert f"requests [{8 * 604:,}, {8 * 611:,}]" in shown
    assert "8 times: 4 runs on each of 2 systems" in shown


PRICED = """
[prices]
input_per_million = 1_000_000
output_per_million = 0
currency = "EUR"
"""


def test_the_cost_is_told_between_bounds_for_each_test_and_the_total(tmp_path: Path) -> None:
    """A unit of currency for each token of input."""
    file = tmp_path / "sut.toml"
    file.write_text(PRICED)
    one = ("t::a", selected(rate=20.0, requests=50))
    amounts = re.search(r"input tokens \[([\d,]+), ([\d,]+)\]", lines_of(one))
    assert amounts is not None
    known = lines_of(one, sut=file)
    least, most = amounts.groups()
    assert known.count(f"cost [{least}.00, {most}.00] EUR, at worst ") == 2
    assert known.endswith("at the declared prices")
    search = lines_of(("t::a", selected(definition("tradeoff"))), sut=file)
    assert re.search(r"cost \[0\.00|cost \[[\d,.]+, [\d,.]+ \+ [\d,.]+ per req/s\] EUR", search)


def test_long_contexts_are_not_what_they_are_warmed_up_with() -> None:
    """512 tokens a prompt, and three prompts of each of three lengths: not half a million tokens."""
    test = selected(definition("long_context"), lengths=[512, 1024, 2048])
    shown = lines_of(("t::a", test), scale="quick")
    # Ten requests and four probes, and the first length, which the server may refuse: 17 × 512.
    assert "requests [17, 23], input tokens [8,704, 17,920]" in shown
