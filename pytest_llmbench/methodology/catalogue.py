"""The tests by name: the ten of the draft, and those beyond it. A new one is a file here and a row below."""

from __future__ import annotations

import difflib

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.methodology.procedure import TestDefinition
from pytest_llmbench.methodology.sections import (
    capacity,
    fairness,
    goodput,
    guardrail,
    itl,
    long_context,
    memory_pressure,
    prefix_cache,
    throughput,
    tradeoff,
    ttft,
)

TESTS: dict[str, TestDefinition] = {
    test.name: test
    for test in (
        ttft.TEST,
        throughput.TEST,
        tradeoff.TEST,
        itl.TEST,
        capacity.TEST,
        fairness.TEST,
        prefix_cache.TEST,
        memory_pressure.TEST,
        long_context.TEST,
        guardrail.TEST,
        goodput.TEST,
    )
}
BEYOND_THE_DRAFT = frozenset({goodput.TEST.name})
"""The tests that have no compliance class."""

SENDS_AGAIN = frozenset({prefix_cache.TEST.name, guardrail.TEST.name})
"""The tests that send the same requests to several states of a system, and look after what its cache
holds."""


def definition(name: object, *, where: str | None = None) -> TestDefinition:
    """The row of ``name``; SuiteError with the known names otherwise."""
    if not isinstance(name, str):
        raise SuiteError(f"test must be the name of a test, got {shown(name)}", where=where)
    if name in TESTS:
        return TESTS[name]
    close = difflib.get_close_matches(name, TESTS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(TESTS)}"
    raise SuiteError(f"unknown test {shown(name)}; {hint}", where=where)
