"""The builders by name: those of the tests, and those of markers that stand beside one.

Type checkers and editors read ``builders.pyi`` instead, which ``marks/stub.py`` makes of these.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmbench.errors import UnknownMarkerError
from pytest_llmbench.marks.builder import Builder, compare, no_regression, of_test


class LLMBench:
    """The markers by name: ``@llmbench.ttft(p99_ms=500)``. ``dir(llmbench)`` lists them, and
    ``help(llmbench.ttft)`` shows the keywords of one."""

    compare = compare
    no_regression = no_regression

    def __getattr__(self, name: str) -> Builder:
        """The builder of a test. UnknownMarkerError, which says what there is, for any other name."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in _tests():
            known = [marker for marker in dir(self) if not marker.startswith("_")]
            raise UnknownMarkerError(f"llmbench has no test {name!r}; there are: {', '.join(known)}")
        made = of_test(name)
        setattr(self, name, made)
        return made

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *_tests()}


def _tests() -> Iterable[str]:
    from pytest_llmbench.methodology.catalogue import TESTS

    return TESTS


llmbench = LLMBench()
