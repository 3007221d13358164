"""What is known about the SUT before it is asked anything, for ``--llm-plan``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_llmbench.harness.embedded import overridden
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut import SUT
from pytest_llmbench.harness.variants import Variant, declared_variants
from pytest_llmbench.methodology.procedure import VariantInfo
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.probes.disclosure import read_sut_file
from pytest_llmbench.simulator.disclosure import disclosure
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.variants import variant_facts


@dataclass(frozen=True)
class Foreseen:
    facts: Facts = field(default_factory=Facts)
    variants: Mapping[str, VariantInfo] = field(default_factory=dict)
    complete: bool = False
    """True: nothing else is found out by asking (the embedded engine)."""


def foreseen(settings: Settings, offered: Callable[[str], Mapping[str, Any]] = lambda _: {}) -> Foreseen:
    """From the options, the SUT file and the hooks. Raises SuiteError for mistakes in them."""
    file = read_sut_file(settings.sut) if settings.sut is not None else None
    sut = SUT(settings.endpoint or "")
    engine = sut.is_embedded or sut.is_replay
    facts = disclosure(parse_scenario(sut.preset).engine) if engine else Facts()
    if file is not None:
        facts = facts | file.facts
    variants = declared_variants(sut, file, offered(sut.endpoint))
    fresh = engine or (file is not None and file.endpoint.reset.path is not None)
    infos = {"": VariantInfo("", Facts(), fresh)}
    for name, variant in variants.items():
        infos[name] = VariantInfo(name, _facts(variant, sut), _can_be_fresh(variant, fresh))
    return Foreseen(facts, infos, engine)


def _facts(variant: Variant, sut: SUT) -> Facts:
    if variant.table.preset is None:
        return variant.facts
    return variant_facts(overridden(sut.preset, variant.table.preset)) | variant.facts


def _can_be_fresh(variant: Variant, base: bool) -> bool:
    if variant.table.way in ("command", "preset") or variant.table.reset.path is not None:
        return True
    return base and variant.table.way in ("control", "request")


__all__ = ["Foreseen", "foreseen"]
