"""The builders by name: those of the tests, and those of markers that stand beside one.

Type checkers and editors read ``builders.pyi`` instead, which ``marks/stub.py`` makes of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn

from pytest_llmbench.errors import UnknownMarkerError
from pytest_llmbench.marks.builder import Builder, compare, no_regression, of_test


class LLMBench:
    """The markers by name: ``@llmbench.ttft(p99_ms=500)``. ``dir(llmbench)`` lists them, and
    ``help(llmbench.ttft)`` shows the keywords of one."""

    compare = compare
    no_regression = no_regression

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """UnknownMarkerError: a marker names its test."""
        raise UnknownMarkerError(
            "@llmbench alone names no test; write for example @llmbench.ttft(p99_ms=500); "
            "pytest --markers lists all tests"
        )

    def __getattr__(self, name: str) -> Builder:
        """The builder of a test. UnknownMarkerError, which says what there is, for any other name."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in _tests():
            raise UnknownMarkerError(f"llmbench has no test {name!r}; {_instead(name, dir(self))}")
        made = of_test(name)
        setattr(self, name, made)
        return made

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *_tests()}


def _instead(name: str, known: Iterable[str]) -> str:
    """What the author of an unknown marker may have meant."""
    from pytest_llmbench.metrics.definitions import METRICS
    from pytest_llmbench.model import objective

    if name in METRICS:
        metric = METRICS[name]
        limit = f"{name}.p50" if metric.is_family else name
        unit = f" * {metric.unit}" if metric.unit in ("s", "ms", "us") else ""
        named = limit if hasattr(objective, name) else f'metric("{limit}")'
        imported = (name if hasattr(objective, name) else "metric") + unit.replace(" *", ",")
        return (
            f"it is a metric: write @llmbench.ttft(slo=[{named} <= 20{unit}]), with "
            f"from pytest_llmbench import {imported}"
        )
    markers = [marker for marker in known if not marker.startswith("_")]
    close = difflib.get_close_matches(name, markers, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(markers)}"


def _tests() -> Iterable[str]:
    from pytest_llmbench.methodology.catalogue import TESTS

    return TESTS


llmbench = LLMBench()
