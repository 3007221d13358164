"""Scenarios with options changed, the standard variants, and what each states about itself."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import (
    STANDARD_VARIANTS,
    disclosure,
    parse_scenario,
    variant_facts,
    with_overrides,
)
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM


@pytest.mark.parametrize(
    ("scenario", "overrides", "text"),
    [
        ("fast", {"prefix_caching": "on"}, "fast?prefix_caching=on"),
        ("", {"seed": "3"}, "?seed=3"),
        ("h100-8b?seed=2&fault=reset", {"seed": "3"}, "h100-8b?seed=3&fault=reset"),
        ("fast?seed=2", {}, "fast?seed=2"),
        (
            "fast?seed=2",
            {"fault": "reset,stall", "usage": "finish"},
            "fast?seed=2&fault=reset,stall&usage=finish",
        ),
    ],
)
def test_options_are_set_whatever_was_there_before(
    scenario: str, overrides: dict[str, str], text: str
) -> None:
    assert with_overrides(scenario, overrides) == text
    assert with_overrides(parse_scenario(scenario), overrides) == parse_scenario(text)


def test_none_takes_an_option_back() -> None:
    base = parse_scenario("fast?eos_mean_tokens=30&max_waiting=4")
    changed = with_overrides(base, {"eos_mean_tokens": "none"})
    assert (changed.engine.eos_mean_tokens, changed.engine.max_waiting) == (None, 4)


@pytest.mark.parametrize("scenario", ["fast?seed=2", parse_scenario("fast?seed=2")])
def test_every_mistake_in_overrides_is_said(scenario: object) -> None:
    with pytest.raises(SuiteError) as caught:
        with_overrides(scenario, {"max_num_sq": "3", "kv_blocks": "7", "fault_rate": "2", "seed": "x"})  # type: ignore[type-var]
    for part in ("did you mean 'max_num_seqs'", "fault_rate is 2", "seed is 'x'", "holds 112 tokens"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "cache", "filters", "boundary"),
    [
        ("cache_disabled", "disabled", ("absent", "absent"), "model_engine"),
        ("cache_enabled", "enabled", ("absent", "absent"), "model_engine"),
        ("guardrails_baseline", "disabled", ("disabled", "disabled"), "application_gateway"),
        ("guardrails_input", "disabled", ("enabled", "disabled"), "application_gateway"),
        ("guardrails_output", "disabled", ("disabled", "enabled"), "application_gateway"),
        ("guardrails_full", "disabled", ("enabled", "enabled"), "application_gateway"),
    ],
)
def test_what_the_standard_variants_state(
    name: str, cache: str, filters: tuple[str, str], boundary: str
) -> None:
    facts = variant_facts(with_overrides("fast", STANDARD_VARIANTS[name]))
    assert facts.value("sut.prefix_caching") == cache
    assert (facts.value("guardrails.input_filter"), facts.value("guardrails.output_filter")) == filters
    assert facts.value("sut.boundary") == boundary


def test_those_are_all_and_a_gateway_stays_one() -> None:
    assert len(STANDARD_VARIANTS) == 7
    cached = with_overrides("fast?input_filter=enabled", STANDARD_VARIANTS["cache_enabled"])
    assert variant_facts(cached).value("sut.boundary") == "application_gateway"
    assert disclosure(parse_scenario("fast").engine).value("sut.boundary") == "model_engine"


def test_variants_of_a_replay_share_its_clock_and_never_an_id() -> None:
    base = ReplayEngine(parse_scenario("fast"))
    plan = LoadPlan("variants", SYNTHETIC_UNIFORM, ClosedLoop(2), 5, seed=1)
    runs = [
        engine.run(plan)
        for engine in (base, base.variant("cache_enabled"), base.variant("fast", {"seed": "4"}))
    ]
    for earlier, later in pairwise(runs):
        assert earlier.ended_ns < later.started_ns
    assert len({name for run in runs for name in run.records.request_id}) == 15
    assert runs[0].facts.value("sut.prefix_caching") is None
    assert runs[1].facts.value("sut.prefix_caching") == "enabled"
    with pytest.raises(SuiteError, match="did you mean 'cache_enabled'"):
        base.variant("cache_enable")
