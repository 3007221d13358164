"""Sessions of pytest in this process look at the same distributions and the same plugins, each anew: a
quarter of one that measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import Distribution
from typing import Any

from _pytest.fixtures import FixtureFunctionDefinition, FixtureManager

_FIND = "_find_wrapped_fixture_def"
"""Of pytest 9.2: asked about everything that is in the module of a plugin."""


@cache
def look_once() -> None:
    """From now on the files of a distribution are listed once, and what wraps nothing is not unwrapped."""
    Distribution.files = property(_once(Distribution.files.fget))  # type: ignore[assignment,attr-defined]
    if hasattr(FixtureManager, _FIND):
        setattr(FixtureManager, _FIND, _of_wrappers(getattr(FixtureManager, _FIND)))


def _once(listed: Callable[[Any], object]) -> Callable[[Any], object]:
    known: dict[tuple[str, str], object] = {}

    def files(distribution: Any) -> object:
        key = str(distribution.locate_file("")), distribution.name
        if key not in known:
            known[key] = listed(distribution)
        return known[key]

    return files


def _of_wrappers(find: Callable[[object, object], object]) -> Callable[[object, object], object]:
    def found(manager: object, obj: object) -> object:
        try:
            wraps = type(obj) is FixtureFunctionDefinition or hasattr(obj, "__wrapped__")
        except Exception:  # noqa: BLE001 - whatever an object does when it is asked
            wraps = True
        return find(manager, obj) if wraps else None

    return found
