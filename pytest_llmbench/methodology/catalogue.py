"""The tests by name: the ten of the draft, those beyond it, and those of extras. A new test is a file in
``sections/`` and a name below, or a part of an extra."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.registry import named, names

if TYPE_CHECKING:
    from pytest_llmbench.methodology.procedure import TestDefinition

_NAMES: Final = (
    "job",
    "ttft",
    "throughput",
    "tradeoff",
    "itl",
    "capacity",
    "fairness",
    "prefix_cache",
    "memory_pressure",
    "long_context",
    "guardrail",
    "goodput",
    "reasoning",
    "sessions",
)
OF_THE_DRAFT: Final = frozenset(_NAMES) - {"job", "goodput", "reasoning", "sessions"}
"""Names of the tests of the draft. Those beyond it have no compliance class."""

SENDS_AGAIN: Final = frozenset({"prefix_cache", "guardrail"})
"""Names of the tests that send the same requests to several states of a system; they check themselves what
its cache holds."""


class _Tests(Mapping[str, "TestDefinition"]):
    """The tests by name. The module of a test is imported when the test is asked for."""

    def __getitem__(self, name: str) -> TestDefinition:
        if name in _NAMES:
            module = import_module(f"pytest_llmbench.methodology.sections.{name}")
            test: TestDefinition | None = module.TEST
        else:
            test = named("tests", name)
        if test is None:
            raise KeyError(name)
        return test

    def __contains__(self, name: object) -> bool:
        return name in _NAMES or name in names("tests")

    def __iter__(self) -> Iterator[str]:
        return iter((*_NAMES, *names("tests")))

    def __len__(self) -> int:
        return len(_NAMES) + len(names("tests"))


TESTS: Final[Mapping[str, TestDefinition]] = _Tests()


def definition(name: object, *, where: str | None = None) -> TestDefinition:
    """The definition of the test ``name``; SuiteError, with the known names, for any other."""
    if not isinstance(name, str):
        raise SuiteError(f"test must be the name of a test, got {shown(name)}", where=where)
    if name in TESTS:
        return TESTS[name]
    close = difflib.get_close_matches(name, TESTS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(TESTS)}"
    raise SuiteError(f"unknown test {shown(name)}; {hint}", where=where)
