"""``--llm-plan``: a dry run counts what a session sends, what is shared once, and says what cannot run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.harness import plan as planning
from pytest_llmbench.harness.plan import Amount, exceeding, plan_lines
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.model.plan import churn

TTFT = definition("ttft")
REAL = "http://127.0.0.1:9/v1"


def selected(test: TestDefinition = TTFT, **given: Any) -> tuple[TestDefinition, Any]:
    return test, build(test.parameters, given)


def lines_of(*tests: tuple[str, tuple[TestDefinition, Any]], **settings: Any) -> str:
    chosen = [(nodeid, *test) for nodeid, test in tests]
    return "\n".join(plan_lines(chosen, Settings(**{"endpoint": "replay", **settings})))


def test_a_load_of_a_number_of_requests_is_counted_exactly() -> None:
    shown = lines_of(("t::a", selected(rate=20.0, requests=500)))
    assert "Time to First Token: open loop, poisson arrivals at 20 req/s, workload synthetic-uniform" in shown
    assert "\n    604 requests (104 in warm-ups and probes), 200,763 input and " in shown
    assert "total of 1 test: 604 requests" in shown


def test_a_long_load_is_run_in_part_and_scaled() -> None:
    shown = lines_of(("t::a", selected(rate=100.0, requests=60_000)))
    assert "60,104 requests" in shown
    tokens = re.search(r"([\d,]+) input and", shown)
    assert tokens is not None
    # Inputs are uniform between 128 and 512 tokens; 5,000 of them are within 1 % of their mean.
    assert int(tokens.group(1).replace(",", "")) == pytest.approx(60_104 * 320, rel=0.02)
    assert re.search(r" tokens, 10 min", shown)


def test_an_unknown_system_is_planned_for_as_a_slow_and_a_quick_one() -> None:
    fixed = lines_of(("t::a", selected(rate=20.0, requests=40)), endpoint=REAL, scale="quick")
    assert "estimates by dry runs on a slow and a quick engine (h100-70b-tp4, h100-8b" in fixed
    assert re.search(r"\n    \d+ requests \(1\d in warm-ups and probes\)", fixed)
    search = lines_of(
        ("t::a", selected(definition("capacity"), ttft_p99_ms=400)), endpoint=REAL, scale="quick"
    )
    assert re.search(r"\n    [\d,]+ to [\d,]+ requests .* input and .* output tokens, .* to ", search)


def test_equal_loads_are_counted_once() -> None:
    load = {"rate": 20.0, "requests": 500}
    shown = lines_of(("t::a", selected(**load)), ("t::b", selected(**load, p99_ms=500)))
    assert "1 of 1 loads shared with t::a" in shown
    assert "warm-up shared with t::a" in shown
    assert "total of 2 tests: 604 requests" in shown
    anew = lines_of(("t::a", selected(**load)), ("t::b", selected(**load, fresh=True)))
    assert "total of 2 tests: 1,208 requests" in anew
    assert "shared" not in anew


def test_other_systems_share_nothing() -> None:
    load = selected(rate=20.0, requests=500)
    lines = plan_lines(
        [("t::a", *load), ("t::b", *load)], Settings(endpoint="replay"), systems={"t::a": 1, "t::b": 2}
    )
    assert "total of 2 tests: 1,208 requests" in "\n".join(lines)


def test_what_cannot_run_says_what_it_misses() -> None:
    def needs(_: Any, setting: Setting) -> Sequence[str]:
        return [f"a variant {name}" for name in ("cache_enabled", "nowhere") if name not in setting.variants]

    test = replace(TTFT, needs=needs)
    real = lines_of(("t::a", selected(test)), endpoint=REAL)
    assert "CANNOT RUN (without asking the SUT)" in real
    assert "- a variant cache_enabled" in real
    assert "- a variant nowhere" in real
    assert "total of 0 tests: no requests" in real
    embedded = lines_of(("t::a", selected(test)))
    assert "CANNOT RUN\n    - a variant nowhere" in embedded


def test_a_workload_that_raises_is_told_and_the_others_are_counted() -> None:
    def procedure(*_: Any) -> Any:
        raise RuntimeError("the file moved")
        yield

    shown = lines_of(
        ("t::a", selected(replace(TTFT, procedure=procedure))), ("t::b", selected()), scale="quick"
    )
    assert "CANNOT RUN: RuntimeError: the file moved" in shown
    assert "total of 1 test: 64 requests" in shown


def test_what_one_assumed_engine_cannot_do_says_nothing_of_the_system() -> None:
    asked = 0

    def procedure(parameters: Any, setting: Setting) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("too slow for this")
        return (yield from TTFT.procedure(parameters, setting))

    shown = lines_of(("t::a", selected(replace(TTFT, procedure=procedure))), endpoint=REAL, scale="quick")
    assert asked == 2
    assert "CANNOT RUN" not in shown
    assert "total of 1 test: 6" in shown


CACHES = """
[variants.cache_disabled]
url = "http://other/v1"
sut = { prefix_caching = "disabled" }
[variants.cache_enabled]
url = "http://another/v1"
sut = { prefix_caching = "enabled" }
reset.path = "/reset"
"""


def test_variants_of_the_sut_file_are_stood_for_by_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "sut.toml"
    file.write_text(CACHES)
    known: list[Setting] = []

    def needs(_: Any, setting: Setting) -> Sequence[str]:
        known.append(setting)
        return ()

    test = replace(definition("prefix_cache"), needs=needs)
    shown = lines_of(("t::a", selected(test, requests=40)), endpoint=REAL, sut=file, scale="quick")
    variants = known[0].variants
    assert variants["cache_enabled"].facts.value("sut.prefix_caching") == "enabled"
    assert variants["cache_enabled"].can_be_fresh
    assert not variants["cache_disabled"].can_be_fresh
    assert not variants[""].can_be_fresh
    assert re.search(r"\n    \d+ requests \(\d+ in warm-ups and probes\)", shown)


def test_adapters_of_a_server_need_no_engine_that_has_them() -> None:
    asked = {"adapters": ["sql", "chat"], "beside": churn({"chat": "/adapters/chat"}, rate=5)}
    shown = lines_of(("t::a", selected(rate=20.0, requests=40, **asked)), endpoint=REAL, scale="quick")
    assert "CANNOT RUN" not in shown
    assert re.search(r"\n    \d+ requests \(\d+ in warm-ups and probes\)", shown)
    absent = lines_of(("t::a", selected(rate=20.0, **asked)), endpoint="replay:fast", scale="quick")
    assert "CANNOT RUN" in absent


def test_a_dry_run_that_takes_too_long_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_S", 0.0)
    shown = lines_of(("t::a", selected()), ("t::b", selected()), scale="quick")
    assert shown.count("at least 0 requests") == 3
    assert shown.count("its dry run stopped after 0 s of computing") == 2


def test_what_comes_on_top_is_told() -> None:
    assert "(--llm-remeasure=2)" in lines_of(("t::a", selected()), remeasure=2, scale="quick")
    assert "measured again" not in lines_of(("t::a", selected()), remeasure=0, scale="quick")


def test_arms_warm_up_once_for_all_their_runs() -> None:
    shown = lines_of(("t::a", selected(rate=20.0, requests=500)), baseline_endpoint="replay:fast", runs=4)
    assert f"{2 * (4 * 500 + 104):,} requests" in shown
    assert "2 times: 4 runs on each of 2 systems" in shown


def test_several_systems_warm_up_before_each_of_their_runs() -> None:
    systems = ("a=replay", "b=replay:fast")
    shown = lines_of(("t::a", selected(rate=20.0, requests=500)), endpoints=systems, runs=4)
    assert f"{8 * 604:,} requests" in shown
    assert "8 times: 4 runs on each of 2 systems" in shown


def test_the_cost_is_told_for_each_test_and_the_total(tmp_path: Path) -> None:
    """A unit of currency for each token of input."""
    file = tmp_path / "sut.toml"
    file.write_text('[prices]\ninput_per_million = 1_000_000\noutput_per_million = 0\ncurrency = "EUR"\n')
    shown = lines_of(("t::a", selected(rate=20.0, requests=50)), sut=file, scale="quick")
    tokens = re.search(r"([\d,]+) input and", shown)
    assert tokens is not None
    assert shown.count(f", {tokens.group(1).replace(',', '')} EUR") == 2


def test_budgets_that_do_not_suffice_are_told() -> None:
    told = lines_of(("t::a", selected(rate=20.0, requests=500)), max_requests=600)
    assert "EXCEEDED: 604 requests are more than --llm-caps=requests=600 allows" in told
    assert "budgets: 600 requests, 2,000,000,000 tokens, 86400 s, 10000 req/s, 10,000 in flight" in told
    assert "EXCEEDED" not in lines_of(("t::a", selected(rate=20.0, requests=500)), max_requests=604)


def test_a_budget_between_what_two_engines_need_may_be_exceeded() -> None:
    least, most = (np.array([requests, 0.0, 0.0, 0.0, 0.0]) for requests in (10.0, 20.0))
    told = list(planning._remarks(Amount(least, most), Settings(endpoint=REAL, max_requests=15)))
    assert any(line.startswith("may be exceeded: 20 requests are more than --llm-caps=") for line in told)
    enough = planning._remarks(Amount(least, most), Settings(endpoint=REAL, max_requests=20))
    assert not any("exceeded" in line for line in enough)


def test_only_what_is_certain_is_refused_beforehand() -> None:
    search = ("t::b", *selected(definition("capacity")))
    settings = Settings(endpoint=REAL, max_requests=30)
    (line,) = exceeding([("t::a", *selected(rate=20.0, requests=40)), search], settings)
    assert line.startswith("the tests send at least 40 requests (t::a 40), more than --llm-caps=requests=30")
    assert not exceeding([search], settings)
    assert not exceeding([("t::a", *selected(rate=20.0, requests="auto", p50_ms=9))], settings)


def test_the_tokens_of_prompts_are_certain() -> None:
    asked = [("t::a", *selected(rate=20.0, requests=40))]
    (line,) = exceeding(asked, Settings(endpoint=REAL, max_tokens=9_000, prompts="seed"))
    told = re.match(r"the tests send at least ([\d,]+) tokens", line)
    assert told is not None
    assert int(told.group(1).replace(",", "")) == pytest.approx(40 * 320, rel=0.2)
    settings = Settings(endpoint=REAL, max_requests=10**9, max_tokens=10**10)
    tokens, seconds = exceeding([("t::a", *selected(rate=100.0, requests=10**8))], settings)
    assert re.match(r"the tests send at least 2[89],\d{3},\d{3},\d{3} tokens", tokens)
    assert seconds.startswith("the tests send at least 900,000 seconds")


def test_a_load_that_is_shared_is_refused_for_once() -> None:
    load = selected(rate=20.0, requests=40)
    tests = [("t::a", *load), ("t::b", *load)]
    assert not exceeding(tests, Settings(endpoint=REAL, max_requests=60))
    assert exceeding(tests, Settings(endpoint=REAL, max_requests=60), systems={"t::a": 1, "t::b": 2})


def test_a_span_whose_ends_read_alike_is_one_number() -> None:
    engines = [np.array([each, 1750.0, 2000.0, 900.0, 60.0]) for each in (5801.0, 8360.0)]
    engines[1][1] = 1752.0
    amount = Amount(engines[0], engines[1])
    assert amount.describe(None).startswith(
        "5,800 to 8,360 requests (1,750 in warm-ups and probes), 2,000 input"
    )
