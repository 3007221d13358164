"""``--llm-plan``: bounds that hold, what is counted once, what cannot run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.harness import plan as planning
from pytest_llmbench.harness.plan import Sampler, Span, plan_lines
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.amounts import plan_bounds
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Bounds, Setting, TestDefinition
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

SMALL = SyntheticWorkload("small", Fixed(8), Fixed(2))
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
    assert both.describe().endswith(
        "300 s of measured load, and loads of a number of requests as long as the SUT needs"
    )


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
