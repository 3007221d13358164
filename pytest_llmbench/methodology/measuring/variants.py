"""SUT variants as tests use them: which ones are missing, what a result about one of them states, and whether
they are one system but for what was switched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics.differences import Unexplained
from pytest_llmbench.model.facts import Facts, Origin, WarmupFact
from pytest_llmbench.model.judgement import Finding


def missing_variants(setting: Setting, wanted: Mapping[str, str]) -> list[str]:
    """A sentence for each variant that is not declared. ``wanted``: variant name → what it has to be like."""
    known = ", ".join(name for name in setting.variants if name) or "none"
    return [
        f"SUT variant {name!r} (the SUT with {state}) is not declared; declare [variants.{name}] in the file "
        f"of --llm-sut, or name another one in the marker (known: {known})"
        for name, state in wanted.items()
        if name not in setting.variants
    ]


def variant_facts(setting: Setting, name: str, *, prefixes_populated: bool | None = None) -> Facts:
    """The facts that the variant declares, which override those of the SUT, and what the test did to it."""
    own: dict[str, Any] = {WarmupFact.PREFIXES_POPULATED: prefixes_populated}
    return setting.variants[name].facts | Facts.of(Origin.MEASURED, own)


def same_system(found: Iterable[Unexplained | None]) -> tuple[Finding, ...]:
    """A finding on the largest difference between two variants that the switch does not explain; none where
    nothing could be compared."""
    known = [each for each in found if each is not None]
    if not known:
        return ()
    worst = max(known, key=lambda each: (not each.ok, each.size))
    what, size, limit = worst.what, worst.size, worst.limit
    return (Finding.of("same_system", worst.ok, size, limit, voids=worst.voids, difference=what),)
