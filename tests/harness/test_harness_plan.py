"""``--llm-plan``: what is counted once, what is only reckoned, what cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.harness.budget import Amount, Sampler
from pytest_llmbench.harness.drive import drive
from pytest_llmbench.harness.foreseen import foreseen
from pytest_llmbench.harness.plan import plan_lines
from pytest_llmbench.harness.setting import setting_for, warmup_for
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import TESTS, definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.simulator.replay import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.variants import STANDARD_VARIANTS, with_overrides
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

SMALL = SyntheticWorkload("small", Fixed(8), Fixed(2))
TTFT = definition("ttft")


def test_short_loads_are_exact() -> None:
    amount = Sampler().amount(LoadPlan("x", SYNTHETIC_UNIFORM, OpenLoop(20), 1_000, seed=42))
    # METHODOLOGY §4.3: over 1000 requests the inputs sum to 315346 and the limits to 160203.
    assert amount == Amount(1_000, 315_346, 160_203, seconds=50.0)
    second = Sampler().amount(LoadPlan("x", SYNTHETIC_UNIFORM, OpenLoop(20), 990, seed=42, first=10))
    first = Sampler().amount(LoadPlan("x", SYNTHETIC_UNIFORM, OpenLoop(20), 10, seed=42))
    assert first.input_tokens + second.input_tokens == 315_346


def test_long_loads_are_reckoned_quickly() -> None:
    amount = Sampler().amount(LoadPlan("x", SYNTHETIC_UNIFORM, OpenLoop(1_000), 300_000, seed=42))
    assert amount.about
    assert abs(amount.input_tokens / 300_000 - 320) < 10
    assert "300,000 requests, about 9" in amount.describe()
    long = SyntheticWorkload("long", Fixed(1_000_000), Fixed(2))
    assert Sampler().amount(LoadPlan("x", long, OpenLoop(1), 50, seed=1)).input_tokens == 50_000_000


def test_time_is_the_duration_where_there_is_one() -> None:
    closed = LoadPlan("x", SMALL, ClosedLoop(8), 100, seed=1)
    assert Sampler().amount(closed).open_ended
    timed = closed.with_(duration_s=300.0, max_requests=5_000)
    amount = Sampler().amount(timed)
    assert (amount.requests, amount.seconds, amount.at_least) == (100, 300.0, True)
    assert (
        (amount + Sampler().amount(closed))
        .describe()
        .endswith("about 300 s of measured load, and closed loops as long as the SUT needs")
    )


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
    assert "total of 2 tests: 600 requests" in shown
    assert "about 25 s of measured load" in shown
    anew = lines_of(("t::a", selected(**load)), ("t::b", selected(**load, fresh=True)))
    assert "total of 2 tests: 1,200 requests" in anew
    assert "shared" not in anew


def test_a_test_does_not_share_with_itself() -> None:
    plan = LoadPlan("x", SMALL, OpenLoop(10), 100, seed=1)

    def twice(_: Any, __: Setting) -> Sequence[LoadPlan]:
        return (plan, plan.with_(label="again"), plan.with_(fresh_state=True))

    shown = lines_of(("t::a", selected(replace(TTFT, plans=twice))))
    assert "total of 1 tests: 400 requests" in shown


def test_what_cannot_run_says_what_it_misses() -> None:
    def needs(_: Any, setting: Setting) -> Sequence[str]:
        return [f"a variant {name}" for name in ("cache_enabled", "nowhere") if name not in setting.variants]

    test = replace(TTFT, needs=needs)
    real = lines_of(("t::a", selected(test)), endpoint="http://127.0.0.1:9/v1")
    assert "CANNOT RUN (as far as is known before the SUT is asked)" in real
    assert "- a variant cache_enabled" in real
    assert "- a variant nowhere" in real
    assert "total of 1 tests: 0 requests" in real
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


SEARCHING = {"throughput", "tradeoff", "itl", "capacity", "fairness", "memory_pressure", "guardrail"}


@pytest.mark.parametrize("test", TESTS.values(), ids=lambda test: test.name)
def test_what_is_told_beforehand_holds(test: TestDefinition) -> None:
    """The first load and a bound from below where a search decides, the measured load exactly elsewhere; the
    warm-up with the workload that it really has."""
    engine = ReplayEngine(parse_scenario("fast"))
    parameters = build(test.parameters, {"ttft_ms": 500} if test.name == "goodput" else {})
    known = foreseen(Settings(endpoint="replay", scale="quick"), lambda _: {})
    setting = setting_for(
        parameters,
        Settings(scale="quick"),
        warmup=warmup_for("quick"),
        facts=known.facts,
        variants=known.variants,
    )
    seen: list[Observation] = []
    engines: dict[str, ReplayEngine] = {"": engine}

    def run(plan: LoadPlan) -> Observation:
        if plan.variant not in engines:
            engines[plan.variant] = ReplayEngine(
                with_overrides(parse_scenario("fast"), STANDARD_VARIANTS[plan.variant])
            )
        seen.append(engines[plan.variant].run(plan))
        return seen[-1]

    drive(test.procedure(parameters, setting), run)
    measured = [one for one in seen if one.plan.phase is Phase.MEASURE]
    sent = sum(len(one.records) for one in measured)
    inputs = sum(int(one.records.requested_input_tokens.sum()) for one in measured)
    plans, sampler = test.plans(parameters, setting), Sampler()
    if test.name in SEARCHING:
        first = sampler.amount(plans[0])
        assert first.requests <= sent
        assert first.input_tokens <= inputs
    else:
        told = sum(map(sampler.amount, plans), Amount())
        assert (told.requests, told.input_tokens) == (sent, inputs)
    shown = lines_of(("t::a", (test, parameters)), endpoint="replay", scale="quick", allow_overload=True)
    assert ("not known beforehand" in shown) is (test.name in SEARCHING)
    assert ("at least" in shown) is (test.name in SEARCHING)
    warm = [one for one in seen if one.plan.label == "warm-up"]
    told_warm = sum((sampler.warmup(setting, each) for each in test.warmups(parameters, setting)), Amount())
    real = sum(int(one.records.requested_input_tokens.sum()) for one in warm)
    if test.name != "guardrail":
        assert told_warm.requests == sum(len(one.records) for one in warm)
        # Ten requests of a mix of short and long ones are far from its mean.
        assert real / 3 < told_warm.input_tokens < real * 3


PRICED = """
[prices]
input_per_million = 1_000_000
output_per_million = 0
currency = "EUR"
"""


def test_the_cost_is_a_ceiling_only_where_every_load_is_known(tmp_path: Path) -> None:
    file = tmp_path / "sut.toml"
    file.write_text(PRICED)
    load = {"rate": 20.0, "requests": 50}
    known = lines_of(("t::a", selected(**load)), sut=file)
    assert "cost at the declared prices: at most" in known
    search = lines_of(("t::a", selected(definition("capacity"))), sut=file)
    assert "for the loads known beforehand, and more for the others" in search


def test_long_contexts_are_not_what_they_are_warmed_up_with() -> None:
    """512 tokens a prompt, and three prompts of each of three lengths: not half a million tokens."""
    test = selected(definition("long_context"), lengths=[512, 1024, 2048])
    shown = lines_of(("t::a", test), scale="quick")
    assert "19 requests with the warm-up, about 15,872 input" in shown
