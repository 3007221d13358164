"""A scenario with some options changed, and the SUT variants that the embedded engine offers by itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.simulator.scenario.disclosure import disclosure
from pytest_llmbench.simulator.scenario.scenario import Scenario, overridden, parse_scenario

Described = TypeVar("Described", str, Scenario)

STANDARD_VARIANTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cache_disabled": {"prefix_caching": "off"},
        "cache_enabled": {"prefix_caching": "on"},
        "guardrails_baseline": {"input_filter": "disabled", "output_filter": "disabled"},
        "guardrails_input": {"input_filter": "enabled", "output_filter": "disabled"},
        "guardrails_output": {"input_filter": "disabled", "output_filter": "enabled"},
        "guardrails_full": {"input_filter": "enabled", "output_filter": "enabled"},
    }
)
"""Name → options over those of the base scenario. A filter that is ``disabled`` is there and switched off, so
all ``guardrails_*`` are application gateways; a base without any filter is a model engine."""

_VARIANT_FACTS = (
    "sut.boundary",
    "sut.components",
    "sut.model.version",
    "sut.hardware.accelerator_count",
    "sut.replicas",
    "sut.router",
    "sut.prefix_caching",
    "guardrails.input_filter",
    "guardrails.output_filter",
    "guardrails.systems",
)


def standard_overrides(name: str) -> Mapping[str, str]:
    """Options of a standard variant. Raises SuiteError for another name."""
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
    """``scenario`` with options set, whatever it said of them before; a text from a text.

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
    """What a variant states about itself over the facts of its base: boundary, cache, filters, figures."""
    parsed = scenario if isinstance(scenario, Scenario) else parse_scenario(scenario)
    stated = disclosure(parsed.engine, parsed.router)
    return Facts({name: stated[name] for name in _VARIANT_FACTS})
