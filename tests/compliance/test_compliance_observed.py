"""What was observed stands over what is declared, and names of models have to agree."""

from __future__ import annotations

from typing import Any

import pytest
from mutations import is_met, stating
from replayed_runs import complete
from situations import SITUATIONS

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.checks.levels import is_narrow
from pytest_llmbench.model.facts import Facts, ManifestFact, Origin, declared_beside
from pytest_llmbench.model.judgement import Status


def seen(**values: Any) -> Facts:
    named = {key.replace("__", "."): value for key, value in values.items()}
    return Facts.of(Origin.DETECTED, named, "the endpoint")


def said(values: dict[str, Any]) -> Facts:
    return Facts.of(Origin.DECLARED, values, "a hook")


@pytest.mark.parametrize(
    ("key", "observed", "declared"),
    [
        ("endpoint.models", ["llama-3.2-1b"], ["llama-3.1-405b"]),
        ("endpoint.server", "uvicorn", "nginx"),
        ("network.rtt_ms", {"p50": 12.0, "n": 20}, {"p50": 0.1, "n": 20}),
        ("sut.software.version", "0.9.1", "0.11.0"),
        ("wire.http_version", "2", "1.1"),
    ],
)
def test_what_was_observed_is_not_declared_away(key: str, observed: Any, declared: Any) -> None:
    facts = declared_beside(Facts.of(Origin.DETECTED, {key: observed}), said({key: declared}))
    assert facts.value(key) == observed
    assert facts.value(ManifestFact.CONTRADICTED) == {key: {"declared": declared, "observed": observed}}


@pytest.mark.parametrize(
    ("key", "observed", "declared"),
    [
        ("sut.model.name", "prod-chat", "Llama-3.1-8B"),
        ("clock.topology", "single_machine", "distributed"),
        ("sut.software.engine", "vLLM", "vLLM with patches"),
        ("sut.boundary", None, "model_engine"),
    ],
)
def test_what_a_tester_knows_better_is(key: str, observed: Any, declared: Any) -> None:
    facts = declared_beside(Facts.of(Origin.DETECTED, {key: observed}), said({key: declared}))
    assert facts.value(key) == declared
    assert facts.value(ManifestFact.CONTRADICTED) is None


def test_nobody_else_speaks_for_the_endpoint() -> None:
    facts = declared_beside(seen(endpoint__url="http://h/v1"), said({"endpoint.models": ["any"]}))
    assert facts.value("endpoint.models") is None
    assert facts.value(ManifestFact.CONTRADICTED) == {
        "endpoint.models": {"declared": ["any"], "observed": None}
    }


@pytest.mark.parametrize(("declared", "kept"), [(2_048, 2_048), (200_000, 131_584)])
def test_a_context_limit_may_be_smaller_and_is_told(declared: int, kept: int) -> None:
    key = "sut.context_limit_tokens"
    engine = Facts.of(Origin.SIMULATED, {key: 131_584})
    facts = declared_beside(engine, said({key: declared}))
    assert facts.value(key) == kept
    assert facts.value(ManifestFact.CONTRADICTED)[key] == {"declared": declared, "observed": 131_584}


def test_short_lengths_are_no_long_context_of_an_engine_that_has_more() -> None:
    short = complete("long_context", lengths=(250, 512, 1_100))
    limit = {"sut.context_limit_tokens": 2_048}
    assert is_met("P-5.9.2-length-sequence", stating(limit)(short))
    contradicted = {
        ManifestFact.CONTRADICTED: {"sut.context_limit_tokens": {"declared": 2_048, "observed": 131_584}}
    }
    assert not is_met("P-5.9.2-length-sequence", stating(limit | contradicted)(short))


@pytest.mark.parametrize(
    ("declared", "served", "same"),
    [
        ("Llama-3.1-405B", "llama-3.2-1b", False),
        ("llama-405b", "llama-3.2-1b", False),
        ("Mixtral-8x7B", "mixtral-8x22b", False),
        ("gpt-4o", "gpt-4o-mini", False),
        ("mistral-large-2407", "mistral-small-2407", False),
        ("Qwen3-235B-A22B", "qwen3-30b-a3b", False),
        ("Llama-3.1-8B", "llama-3.3-8b", False),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", True),
        ("Llama 3 8B", "llama-3.1-8b-instruct", True),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct-q4_k_m.gguf", True),
        ("Llama-3.1-70B-Instruct-FP8", "meta-llama-3.1-70b-instruct-fp8", True),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b", True),
    ],
)
def test_spellings_of_one_model_agree_and_a_shared_word_is_not_enough(
    declared: str, served: str, same: bool
) -> None:
    evidence = stating({"sut.model.name": declared, "endpoint.models": [served]})(SITUATIONS["gateway"]())
    assert is_met("M-5.1.2.3-model-identifier", evidence) is same


@pytest.mark.parametrize(("served_as", "met"), [("prod-chat", True), ("llama-3.2-1b", False)])
def test_an_alias_is_believed_unless_it_says_otherwise(served_as: str, met: bool) -> None:
    facts = {
        "sut.model.name": "Llama-3.1-405B",
        "sut.model.served_as": served_as,
        "endpoint.models": [served_as],
    }
    assert is_met("M-5.1.2.3-model-identifier", stating(facts)(SITUATIONS["gateway"]())) is met


@pytest.mark.parametrize(
    ("holds", "fails", "load_model", "narrow"),
    [(2, 2000, "open", False), (20, 22, "open", True), (2, 3, "open", False), (2, 3, "closed", True),
     (64, 80, "closed", False), (68, 70, "closed", True)],
)  # fmt: skip
def test_a_giant_step_finds_no_maximum(holds: float, fails: float, load_model: str, narrow: bool) -> None:
    assert is_narrow(holds, fails, load_model) is narrow


@pytest.mark.parametrize(
    ("key", "value", "entry"),
    [
        ("workload.seed", "7", "M-4.3.3-deterministic-seed"),
        ("workload.seed", True, "M-4.3.3-seed-reported"),
        ("network.rtt_ms", 12.0, "S-4.7.3-rtt-reported"),
        ("sut.hardware.accelerator_count", "8", "M-5.1.2.3-hardware"),
        ("sut.prefix_caching", ["enabled"], "M-5.1.2.3-prefix-caching"),
        ("tokenizer.vocab_size", 1e5, "M-4.4.1-vocab-size"),
        ("guardrails.systems", 3, None),
        ("tokenizer.tokens_per_reference", "two", None),
        ("load.slo", ["ttft_p99_ms"], None),
    ],
)
def test_a_value_of_another_type_is_no_evidence(key: str, value: Any, entry: str | None) -> None:
    """Also where a condition asks for it: the whole is audited."""
    found = audit(stating({key: value})(SITUATIONS["gateway"]()))
    told = {each.id: each for each in found.requirements}.get(entry or "")
    assert told is None or (told.status is Status.UNMET and repr(value) in told.reason)
