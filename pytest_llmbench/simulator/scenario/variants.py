"""The embedded engine's facts about itself for the manifest (sections 4.1, 4.4 and 4.8), and its standard SUT
variants: a scenario with some options changed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from types import MappingProxyType
from typing import TypeVar

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.facts import (
    Facts,
    GuardrailFact,
    IsolationFact,
    Origin,
    SUTFact,
    TokenizerFact,
    WarmupFact,
)
from pytest_llmbench.simulator.engine.config import EngineConfig, PreemptionMode, Scheduler
from pytest_llmbench.simulator.engine.deployment import Deployment
from pytest_llmbench.simulator.scenario.scenario import Scenario, overridden, parse_scenario

DISTRIBUTION = "pytest-llmbench"
ENGINE = "pytest-llmbench embedded engine"


def software_version() -> str:
    """Version of this distribution."""
    return _version(DISTRIBUTION)


@cache
def _version(distribution: str) -> str:
    """Version of a distribution; cached, as each variant of an engine states it."""
    return metadata.version(distribution)


def disclosure(config: EngineConfig, deployment: Deployment | None = None) -> Facts:
    """The facts that a tester would have to declare for a real engine; their origin says that it is
    simulated.

    The model's version carries a digest of the figures, and the router before several replicas, so that
    engines with different figures never pass for the same SUT. Load balancing lies outside the boundary of a
    model engine (section 4.1): with a router it is a gateway.
    """
    deployment = deployment or Deployment()
    engines, behind = deployment.engines, deployment.components()
    gateway = _systems(config) or engines > 1
    return Facts.of(
        Origin.SIMULATED,
        {
            SUTFact.BOUNDARY: "application_gateway" if gateway else "model_engine",
            SUTFact.COMPONENTS: _components(config) + behind,
            SUTFact.MODEL_NAME: config.model,
            SUTFact.MODEL_VERSION: ", ".join([f"figures {config.figures_sha256[:12]}", *behind]),
            SUTFact.MODEL_QUANTIZATION: "none",
            SUTFact.ACCELERATOR_TYPE: "simulated",
            SUTFact.ACCELERATOR_COUNT: config.accelerator_count * engines,
            SUTFact.ACCELERATOR_MEMORY_GIB: config.accelerator_memory_gib,
            SUTFact.SOFTWARE_ENGINE: ENGINE,
            SUTFact.SOFTWARE_VERSION: software_version(),
            SUTFact.REPLICAS: engines,
            SUTFact.ROUTER: deployment.policies(),
            SUTFact.PREFIX_CACHING: "enabled" if config.prefix_caching else "disabled",
            SUTFact.CONTEXT_LIMIT_TOKENS: config.context_limit_tokens,
            GuardrailFact.INPUT_FILTER: config.input_filter,
            GuardrailFact.OUTPUT_FILTER: config.output_filter,
            GuardrailFact.SYSTEMS: _systems(config),
            **_tokenizer(),
            WarmupFact.MODEL_LOADED: True,
            IsolationFact.ISOLATED_SYSTEM: True,
            IsolationFact.RECOVERY_PLAN: f"the engine starts again by itself in {config.recovery_ms:g} ms",
        },
        source=f"embedded engine, preset {config.name}",
    )


def _tokenizer() -> dict[str, str | int]:
    return {
        TokenizerFact.NAME: "cl100k_base",
        TokenizerFact.VERSION: f"tiktoken {_version('tiktoken')}",
        TokenizerFact.VOCAB_SIZE: 100277,
        TokenizerFact.SOURCE: "tiktoken:cl100k_base",
        TokenizerFact.COUNTING_OPTION: "A",
        TokenizerFact.SPECIAL_BOS_EOS: "excluded",
        TokenizerFact.SPECIAL_SYSTEM_PROMPT: "none",
        TokenizerFact.SPECIAL_TOOL_FORMAT: "not_used",
    }


def _components(config: EngineConfig) -> list[str]:
    prefill = "chunked prefill" if config.chunked_prefill else "whole-prompt prefill"
    shortage = _SHORTAGE[config.preemption]
    components = ["step-time model", "continuous batching", prefill, f"paged KV cache ({shortage})"]
    components.append(_QUEUES[config.scheduler])
    if config.speculative_tokens:
        components.append(f"speculative decoding of {config.speculative_tokens} tokens")
    return components + _systems(config)


def _systems(config: EngineConfig) -> list[str]:
    """The guardrails before or after the engine, whether on or off, in words: they make it a gateway."""
    filters = {"input filter": config.input_filter, "output filter": config.output_filter}
    return [f"simulated {name}" for name, state in filters.items() if state != "absent"]


_SHORTAGE: Mapping[PreemptionMode, str] = {
    "recompute": "preemption by recompute",
    "swap": "preemption by swap",
    "off": "no preemption",
}
_QUEUES: Mapping[Scheduler, str] = {
    "fcfs": "FCFS queue",
    "priority": "priority queue",
    "shortest": "shortest-prompt-first queue",
    "phase": "phase-aware dual queue",
}


Described = TypeVar("Described", str, Scenario)

STANDARD_VARIANTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cache_disabled": {"prefix_caching": "off"},
        "cache_enabled": {"prefix_caching": "on"},
        "guardrails_baseline": {"input_filter": "disabled", "output_filter": "disabled"},
        "guardrails_input": {"input_filter": "enabled", "output_filter": "disabled"},
        "guardrails_output": {"input_filter": "disabled", "output_filter": "enabled"},
        "guardrails_full": {"input_filter": "enabled", "output_filter": "enabled"},
        "speculation_disabled": {"speculative_tokens": "0"},
    }
)
"""Standard variants: options over those of the base scenario, by the variant's name. A filter that is
``disabled`` is there and switched off, so all ``guardrails_*`` are application gateways; a base without any
filter is a model engine."""

_VARIANT_FACTS = (
    SUTFact.BOUNDARY,
    SUTFact.COMPONENTS,
    SUTFact.MODEL_VERSION,
    SUTFact.ACCELERATOR_COUNT,
    SUTFact.REPLICAS,
    SUTFact.ROUTER,
    SUTFact.PREFIX_CACHING,
    GuardrailFact.INPUT_FILTER,
    GuardrailFact.OUTPUT_FILTER,
    GuardrailFact.SYSTEMS,
)


def standard_overrides(name: str) -> Mapping[str, str]:
    """Options of a standard variant. Raises SuiteError for an unknown name."""
    found = STANDARD_VARIANTS.get(name)
    if found is None:
        close = difflib.get_close_matches(name, STANDARD_VARIANTS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SuiteError(
            f"the embedded engine has no variant {name!r}{hint}",
            where="SUT variants",
            remedy=f"standard variants: {', '.join(STANDARD_VARIANTS)}; declare others in the SUT file",
        )
    return found


def with_overrides(scenario: Described, overrides: Mapping[str, str]) -> Described:
    """``scenario`` with options set, whatever they were before; given a text, a text is returned.

    Raises SuiteError with every mistake: unknown options, unreadable values, impossible figures.
    """
    if isinstance(scenario, Scenario):
        return overridden(scenario, overrides)
    preset, _, listed = scenario.partition("?")
    options = dict(part.partition("=")[::2] for part in listed.split("&") if part) | dict(overrides)
    text = preset + ("?" if options else "") + "&".join(f"{name}={value}" for name, value in options.items())
    parse_scenario(scenario)  # an option that the text gives twice would be gone from the new one
    parse_scenario(text)
    return text


def variant_facts(scenario: str | Scenario) -> Facts:
    """The facts that a variant adds to those of its base: boundary, cache, filters, figures."""
    parsed = scenario if isinstance(scenario, Scenario) else parse_scenario(scenario)
    stated = disclosure(parsed.engine, parsed.deployment)
    return Facts({name: stated[name] for name in _VARIANT_FACTS})
