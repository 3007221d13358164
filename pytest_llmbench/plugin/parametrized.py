"""Parametrized names that are keywords of a marker: their values go into the marker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest


def fed(item: pytest.Item, keywords: Collection[str]) -> dict[str, Any]:
    """The parameters of an item that are keywords of its marker.

    Direct, indirect and fixture parameters are treated alike: each as it was written, which is what is known
    before anything runs.
    """
    params = getattr(getattr(item, "callspec", None), "params", {})
    return {name: value for name, value in params.items() if name in keywords}


def given_twice(item: pytest.Item, mark: pytest.Mark, parameters: Mapping[str, Any]) -> list[str]:
    """The keywords to which the mark of a ``pytest.param`` and the parameters give two different values."""
    if all(mark is not own for own in getattr(getattr(item, "callspec", None), "marks", ())):
        return []
    return [
        f"{name} is {value!r} by parametrize and {mark.kwargs[name]!r} by the mark of a pytest.param: "
        "give it once"
        for name, value in parameters.items()
        if name in mark.kwargs and mark.kwargs[name] != value
    ]


def not_as_measured(parameters: Mapping[str, Any], seen_by_test: Callable[[str], Any]) -> list[str]:
    """The parameters for which a fixture gives the test another value than the marker got.

    A fixture that makes None of a parameter gives the test no value.
    """
    found = []
    for name, value in parameters.items():
        made = seen_by_test(name)
        if made is not None and made is not value and made != value:
            found.append(
                f"the fixture {name!r} makes {made!r} of the parameter {value!r}, and the marker gets the "
                "parameter: return it as it is, or give the fixture a name that is no keyword"
            )
    return found
