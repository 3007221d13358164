"""The builder of a marker, which makes its mark and shows its keywords when somebody asks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import pytest

from pytest_llmbench.errors import SuiteError

MARK = "llmbench"
"""Name of the pytest mark of every test."""


class Shown(NamedTuple):
    """What a builder shows of its marker: signature and documentation."""

    signature: inspect.Signature
    """The keywords of the marker; annotations are texts."""
    documentation: str


class Builder:
    # Makes the pytest mark of one marker, ``llmbench.ttft(p99_ms=500)``. It takes any argument: what is wrong
    # is said at collection, with the test's name. What ``help`` and ``inspect.signature`` show is looked up
    # when they ask. (No docstring: ``__doc__`` is that of the marker.)

    def __init__(self, name: str, mark: str, shown: Callable[[], Shown], **always: str) -> None:
        """``always``: arguments that every mark of this builder gets; authors do not write them."""
        self.__name__ = name
        self.__qualname__ = f"llmbench.{name}"
        self.mark = mark
        self._shown = shown
        self._always = always

    def __call__(self, *args: Any, **kwargs: Any) -> pytest.MarkDecorator:
        # Without parentheses it is called with the test function, which would be lost silently.
        bare = args[0] if len(args) == 1 else None
        if isinstance(bare, FunctionType | type):
            code = getattr(bare, "__code__", None)
            raise SuiteError(
                f"@llmbench.{self.__name__} on {bare.__name__} lacks its parentheses",
                where=bare.__module__ if code is None else f"{code.co_filename}:{code.co_firstlineno}",
                remedy=f"write @llmbench.{self.__name__}()",
            )
        mark: pytest.MarkDecorator = getattr(pytest.mark, self.mark)
        return mark(*args, **self._always, **kwargs)

    def __repr__(self) -> str:
        return self.__qualname__

    @property
    def __signature__(self) -> inspect.Signature:
        return self._shown().signature

    @property
    def documentation(self) -> str:
        """What the marker does, and what its keywords mean."""
        return self._shown().documentation

    @property
    def declared(self) -> list[str]:
        """The keywords with their types and defaults, a line each, as a function declares them."""
        lines = []
        for each in self.__signature__.parameters.values():
            if each.kind is each.KEYWORD_ONLY and "*" not in lines:
                lines.append("*")
            default = "" if each.default is each.empty else f" = {each.default!r}"
            lines.append(f"{each.name}: {each.annotation}{default}".replace("'", '"'))
        return lines

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        keywords = "".join(f"    {line},\n" for line in self.declared)
        return f"{self.__qualname__}(\n{keywords})\n\n{self.documentation}"


def of_test(name: str) -> Builder:
    """The builder of a test of the catalogue, which shows the fields of its parameters."""

    def shown() -> Shown:
        # Importing a test takes longer than a session that measures nothing may wait.
        from pytest_llmbench.methodology.catalogue import TESTS
        from pytest_llmbench.methodology.keywords import documentation, signature

        return Shown(signature(TESTS[name].parameters), documentation(TESTS[name]))

    return Builder(name, MARK, shown, test=name)


COMPARE = "llmbench_compare"
"""Name of the pytest mark of ``compare``; one per test."""
NO_REGRESSION = "llmbench_no_regression"
"""Name of the pytest mark of ``no_regression``: several may be stacked on one test."""


def _of_comparison() -> Shown:
    from dataclasses import fields

    from pytest_llmbench.harness.comparison.systems import Wanted
    from pytest_llmbench.methodology.keywords import meanings, signature_of

    meant = {each.name: each.metadata["doc"] for each in fields(Wanted)}
    return Shown(signature_of(fields(Wanted)), f"{inspect.getdoc(Wanted)}\n\n{meanings(meant)}")


compare = Builder("compare", COMPARE, _of_comparison)


def _no_regression(metric: str, *, max_slowdown: float | Mapping[str, float] = 0.0) -> None:
    """Fail when a metric got worse than a baseline; stands on a test beside a marker that measures::

        @llmbench.ttft(rate=20, runs=3)
        @llmbench.no_regression("ttft.p99", max_slowdown=0.05)
        def test_no_slower_than_main(): ...

    The baseline is a saved one (``--llm-compare``), or another system in the same session
    (``--llm-baseline-endpoint``). Judged on the whole interval of the change between runs, at least three
    of each side.

    :param metric: full name, ``ttft.p99``, ``itl[90%].p99``, ``output_token_throughput``.
    :param max_slowdown: worsening that is allowed, as a share of the baseline: 0.05 is 5 % more of a
        latency, 5 % less of a throughput. By place: ``{"pre-merge": 0.10, "post-merge": 0.05}``.
    """


no_regression = Builder(
    "no_regression",
    NO_REGRESSION,
    lambda: Shown(inspect.signature(_no_regression), inspect.getdoc(_no_regression) or ""),
)
