"""The markers as pytest knows them: what ``--markers`` lists, and the names by which ``-m`` selects."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import pytest

from pytest_llmbench.marks import COMPARE, MARK, NO_REGRESSION, llmbench

_BESIDE = {"no_regression": NO_REGRESSION, "compare": COMPARE}
"""Builders of markers that measure nothing themselves, and the names of their marks."""


def register(config: pytest.Config) -> None:
    """Make the marks known, an entry for each builder with its keywords and their defaults."""
    for name in dir(type(llmbench)):
        if not name.startswith("_"):
            config.addinivalue_line("markers", _entry(name))


def _entry(name: str) -> str:
    build = getattr(llmbench, name)
    keywords = [
        each.name if each.default is each.empty else f"{each.name}={each.default!r}"
        for each in inspect.signature(build).parameters.values()
    ]
    mark = _BESIDE.get(name, MARK)
    signature = ", ".join(keywords if name in _BESIDE else [f"test={name!r}", *keywords])
    what = inspect.cleandoc(build.__doc__ or "").split("\n")[0].rstrip(".:")
    return f"{mark}({signature}): {what}. Written @llmbench.{name}(...), selected by -m {name}."


def let_select(config: pytest.Config, named: Mapping[pytest.Item, Sequence[str]]) -> None:
    """Let ``-m NAME`` select each item, by each of its names.

    The names are made known only now that every file has been imported: ``@pytest.mark.ttft(p99_ms=500)`` in
    one, which measures nothing, is an unknown mark there as before, under ``--strict-markers`` an error.
    """
    known = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    for name in dict.fromkeys(name for names in named.values() for name in names):
        if name not in known:
            config.addinivalue_line("markers", f"{name}: measured by @llmbench.{name}(...)")
    for item, names in named.items():
        for name in names:
            item.add_marker(name)
