"""The keywords of a marker as users see them: its signature and its documentation.

Both are made of fields that ``methodology/parameters.py::parameter`` declares, where each keyword stands once
with type, default and meaning: those of a test's parameters, or of a marker that stands beside a test.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

from pytest_llmbench.methodology.parameters import BY_PLACE, TestParameters
from pytest_llmbench.methodology.procedure import TestDefinition

WIDTH = 102
"""Width of a line of documentation, in columns."""
_GIVEN = {"workload": "str | Workload | Mapping[str, Any]"}
"""Kind of keyword → its type, where that is not the type of the parameter: a mapping is made a workload."""


def signature(parameters: type[TestParameters]) -> inspect.Signature:
    """The keywords of a test: its own first, then those of its load, and last those of every test."""
    return signature_of(_ordered(parameters))


def signature_of(declared: Iterable[Field[Any]]) -> inspect.Signature:
    """The signature with each field as a keyword.

    Annotations are texts. A default that is no plain value is shown as None, which means "not given".
    """
    return inspect.Signature([_keyword(each) for each in declared])


def documentation(test: TestDefinition) -> str:
    """The docstring of a marker: what it measures and what its keywords mean."""
    where = f"section {test.section} of the draft" if test.section else "not part of the draft"
    told = inspect.cleandoc(test.parameters.__doc__ or "").split("\n\n")
    meant = {each.name: _meaning(test.parameters, each.name) for each in _ordered(test.parameters)}
    paragraphs = [textwrap.fill(each, WIDTH) for each in (f"{test.title} ({where}).", *told)]
    return "\n\n".join([*paragraphs, meanings(meant)])


def meanings(of: Mapping[str, str]) -> str:
    """The list of keywords for a docstring, without those that have no meaning written down."""
    return "\n".join(
        textwrap.fill(f":param {name}: {doc}", WIDTH, subsequent_indent="    ")
        for name, doc in of.items()
        if doc
    )


def _meaning(parameters: type[TestParameters], name: str) -> str:
    """The meaning of a keyword, from the test itself or else from what it inherits."""
    declared = [
        each for base in parameters.__mro__[:-1] for each in fields(base) if each.name == name and each.init
    ]
    return next((each.metadata["doc"] for each in declared if each.metadata["doc"]), "")


def _ordered(parameters: type[TestParameters]) -> list[Field[Any]]:
    """The fields in the order of the signature, without ``runs`` where the test does not repeat its load."""
    common = {each.name for each in fields(TestParameters)}
    inherited = {each.name for base in parameters.__mro__[1:-1] for each in fields(base)}
    taken = [each for each in fields(parameters) if each.init and (each.name != "runs" or parameters.repeats)]
    return sorted(taken, key=lambda each: (each.name in common, each.name in inherited))


def _keyword(each: Field[Any]) -> inspect.Parameter:
    default = _plain(each.default)
    annotation = _GIVEN.get(each.metadata["kind"], str(each.type))
    if each.metadata["kind"] in BY_PLACE:
        plain, number = annotation.removesuffix(" | None"), "int" if annotation.startswith("int") else "float"
        annotation = f"{plain} | Mapping[str, {number}]" + annotation[len(plain) :]
    if default is None and "None" not in annotation:
        annotation += " | None"
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _plain(value: Any) -> Any:
    """A default as an author would write it: whole numbers without ``.0``, None for an object."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, str | bool | int | float) else None
