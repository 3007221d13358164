"""Mark builders, made from declared signatures."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec

import pytest

from pytest_llmbench.errors import SuiteError

P = ParamSpec("P")

MARK = "llmbench"
POSITIONAL = "__positional__"
"""Keyword under which stray positional arguments travel to collection, where they are refused."""


def builder(declared: Callable[P, None]) -> Callable[P, pytest.MarkDecorator]:
    """A mark builder with the signature and docstring of ``declared``, whose body is never run."""
    test = declared.__name__

    def build(*args: P.args, **kwargs: P.kwargs) -> pytest.MarkDecorator:
        _refuse_bare(test, args)
        given: dict[str, Any] = dict(kwargs)
        if args:
            given[POSITIONAL] = args
        mark: pytest.MarkDecorator = getattr(pytest.mark, MARK)
        return mark(test=test, **given)

    return _like(declared, build)


def builder_of(name: str) -> Callable[[Callable[P, None]], Callable[P, pytest.MarkDecorator]]:
    """The same for a mark of another name, which is given the arguments as they are."""

    def of(declared: Callable[P, None]) -> Callable[P, pytest.MarkDecorator]:
        def build(*args: P.args, **kwargs: P.kwargs) -> pytest.MarkDecorator:
            _refuse_bare(declared.__name__, args)
            mark: pytest.MarkDecorator = getattr(pytest.mark, name)
            return mark(*args, **kwargs)

        return _like(declared, build)

    return of


def _refuse_bare(name: str, arguments: tuple[object, ...]) -> None:
    """``@llmbench.ttft`` without its parentheses is given the test, which would be lost without a word."""
    bare = arguments[0] if len(arguments) == 1 else None
    if not isinstance(bare, FunctionType | type):
        return
    code = getattr(bare, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else bare.__module__
    raise SuiteError(
        f"@llmbench.{name} on {bare.__name__} lacks its parentheses",
        where=where,
        remedy=f"write @llmbench.{name}()",
    )


def _like(
    declared: Callable[P, None], build: Callable[P, pytest.MarkDecorator]
) -> Callable[P, pytest.MarkDecorator]:
    build.__name__ = declared.__name__
    build.__qualname__ = f"llmbench.{declared.__name__}"
    build.__doc__ = declared.__doc__
    build.__wrapped__ = declared  # type: ignore[attr-defined]  # help() and inspect.signature show the parameters
    return build
