"""The markers as pytest knows them: what ``--markers`` lists, and the names by which ``-m`` selects."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import pytest

from pytest_llmbench.marks import COMPARE, MARK, NO_REGRESSION, llmbench
from pytest_llmbench.marks.builder import Builder


def register(config: pytest.Config) -> None:
    """Register the marks with pytest; for ``--markers`` an entry for each builder with its keywords and
    defaults.

    Those are made of the parameters of all tests, which a session that measures nothing does not import.
    """
    if config.option.markers:
        names = [name for name in dir(llmbench) if not name.startswith("_")]
        entries = [_entry(name, getattr(llmbench, name)) for name in names]
    else:
        entries = [f"{mark}(...): see --markers" for mark in (MARK, COMPARE, NO_REGRESSION)]
    for entry in entries:
        config.addinivalue_line("markers", entry)


def _entry(name: str, build: Builder) -> str:
    keywords = [
        each.name if each.default is each.empty else f"{each.name}={each.default!r}"
        for each in inspect.signature(build).parameters.values()
    ]
    signature = ", ".join([f"test={name!r}", *keywords] if build.mark == MARK else keywords)
    what = build.documentation.split("\n")[0].rstrip(".:")
    return f"{build.mark}({signature}): {what}. Written @llmbench.{name}(...), selected by -m {name}."


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
