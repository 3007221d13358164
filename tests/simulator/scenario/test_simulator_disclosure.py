"""What the engine states about itself."""

from __future__ import annotations

import json

from pytest_llmbench.model.facts import Origin
from pytest_llmbench.simulator.scenario import PRESETS, disclosure, parse_scenario
from pytest_llmbench.tokens import reference_tokenizer


def test_everything_is_stated_and_marked_as_simulated() -> None:
    facts = disclosure(PRESETS["fast"])
    assert {fact.origin for fact in facts.values()} == {Origin.SIMULATED}
    assert facts.value("sut.boundary") == "model_engine"
    assert facts.value("sut.model.name") == "sim-fast"
    assert facts.value("sut.hardware.accelerator_count") == 1
    assert facts.value("guardrails.systems") == []
    assert facts.value("sut.context_limit_tokens") == PRESETS["fast"].context_limit_tokens
    json.dumps({key: fact.value for key, fact in facts.items()})


def test_the_tokenizer_stated_is_the_one_that_counts() -> None:
    facts = disclosure(PRESETS["fast"])
    tokenizer = reference_tokenizer("cl100k_base")
    assert facts.value("tokenizer.name") == tokenizer.name
    assert facts.value("tokenizer.version") == tokenizer.version
    assert facts.value("tokenizer.vocab_size") == tokenizer.vocabulary_size


def test_other_figures_are_another_model_version() -> None:
    versions = {
        disclosure(parse_scenario(preset).engine).value("sut.model.version")
        for preset in ("fast", "fast?seed=1", "fast?max_num_seqs=63", "h100-8b")
    }
    assert len(versions) == 4


def test_the_facts_follow_the_figures() -> None:
    plain = disclosure(PRESETS["fast"])
    assert plain.value("sut.prefix_caching") == "disabled"
    assert plain.value("guardrails.input_filter") == "absent"

    facts = disclosure(
        parse_scenario(
            "h100-70b-tp4?prefix_caching=on&preemption=swap&scheduler=phase"
            "&input_filter=enabled&output_filter=disabled"
        ).engine
    )
    assert facts.value("sut.prefix_caching") == "enabled"
    assert facts.value("sut.hardware.accelerator_count") == 4
    assert facts.value("guardrails.input_filter") == "enabled"
    assert facts.value("guardrails.output_filter") == "disabled"
    assert facts.value("guardrails.systems") == ["simulated input filter", "simulated output filter"]
    assert facts.value("sut.boundary") == "application_gateway"
    assert {"phase-aware dual queue", "paged KV cache (preemption by swap)"} <= set(
        facts.value("sut.components")
    )
    off = disclosure(
        parse_scenario("fast?preemption=off&max_num_batched_tokens=140000&chunked_prefill=off").engine
    )
    assert {"whole-prompt prefill", "paged KV cache (no preemption)"} <= set(off.value("sut.components"))
