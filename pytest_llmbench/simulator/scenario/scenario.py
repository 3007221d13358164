"""Scenarios such as ``fast?max_num_seqs=64&fault=reset&fault_rate=0.1``: options of engine, stream,
faults and power, and those of several engines, which are an extra.

The options of all parts share one string; each name belongs to one part only.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.registry import named, names
from pytest_llmbench.simulator.engine.config import (
    CheatOptions,
    EngineConfig,
    PowerOptions,
    impossible_figures,
)
from pytest_llmbench.simulator.engine.deployment import Deployment
from pytest_llmbench.simulator.engine.faults import FaultOptions, StreamOptions
from pytest_llmbench.simulator.scenario.presets import DEFAULT_PRESET, PRESETS


@dataclass(frozen=True, slots=True)
class Scenario:
    """The whole configuration of an embedded engine."""

    engine: EngineConfig
    stream: StreamOptions = field(default_factory=StreamOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    power: PowerOptions = field(default_factory=PowerOptions)
    cheats: CheatOptions = field(default_factory=CheatOptions)
    deployment: Deployment = field(default_factory=Deployment)


PARTS: Mapping[str, type] = {
    "engine": EngineConfig,
    "stream": StreamOptions,
    "faults": FaultOptions,
    "power": PowerOptions,
    "cheats": CheatOptions,
}
"""Name of a part of a scenario → its type, whose fields are its options."""
OPTIONS: tuple[str, ...] = tuple(
    each.name for part in PARTS.values() for each in fields(part) if each.name not in ("name", "provenance")
)
"""Names of all options: the figures of a preset that may be overridden, and those of the other parts.
Those of several engines are named by the extras that have them (``deployments``)."""
_NO_SEVERAL = "; several engines behind a router need an extra that is not installed"


@lru_cache(maxsize=64)
def parse_scenario(text: str) -> Scenario:
    """Parse a scenario: ``preset``, or ``preset?option=value&option=value``; no name means ``fast``.

    Raises SuiteError that lists every mistake of every part: unknown preset, unknown, repeated or unreadable
    options, values that cannot be.
    """
    name, _, listed = text.partition("?")
    preset = PRESETS.get(name or DEFAULT_PRESET)
    mistakes = [] if preset is not None else [f"unknown preset {name!r}{_meant(name, PRESETS)}"]
    found = _changed(
        Scenario(preset or PRESETS[DEFAULT_PRESET]), listed.split("&") if listed else (), mistakes
    )
    if mistakes:
        raise SuiteError.from_mistakes(
            mistakes,
            where=f"scenario {text!r}",
            remedy=f"presets: {', '.join(PRESETS)}; options, as in fast?max_num_seqs=32&fault=reset: "
            "python -m pytest_llmbench.simulator --help lists them",
        )
    return found


def overridden(scenario: Scenario, options: Mapping[str, str]) -> Scenario:
    """``scenario`` with some options set to other values. Raises SuiteError that lists every mistake."""
    mistakes: list[str] = []
    found = _changed(scenario, [f"{name}={value}" for name, value in options.items()], mistakes)
    if mistakes:
        where = f"options over those of a scenario of preset {scenario.engine.name}"
        raise SuiteError.from_mistakes(mistakes, where=where, remedy=f"options: {', '.join(_known())}")
    return found


def _known() -> tuple[str, ...]:
    return (*OPTIONS, *names("deployments"))


def _changed(scenario: Scenario, listed: Iterable[str], mistakes: list[str]) -> Scenario:
    """``scenario`` with these options, each ``option=value``; what is wrong with them is added to
    ``mistakes``, and left as it was."""
    given: dict[str, str] = {}
    known, deployment = _known(), scenario.deployment
    for part in listed:
        name, equals, value = part.partition("=")
        if not equals:
            mistakes.append(f"option {part!r} is not of the form option=value")
        elif name not in known:
            lacking = _NO_SEVERAL if known == OPTIONS else ""
            mistakes.append(f"unknown option {name!r}{_meant(name, known)}{lacking}")
        elif name in given:
            mistakes.append(f"option {name!r} is given twice")
        else:
            given[name] = value
            if name in OPTIONS or name in (each.name for each in fields(deployment)):
                continue
            if type(deployment) is not Deployment:
                mistakes.append(f"option {name!r} does not go with those of the {deployment.title}")
            else:
                deployment = named("deployments", name)()  # type: ignore[misc]  # it is one of them
    parts = {name: _part(getattr(scenario, name), given, mistakes) for name in PARTS}
    if parts["engine"].speculative_tokens and parts["stream"].tokens_per_chunk > 1:
        mistakes.append("tokens_per_chunk and speculative_tokens both set the size of chunks; choose one")
    return Scenario(**parts, deployment=_part(deployment, given, mistakes))


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _part(before: Any, given: Mapping[str, str], mistakes: list[str]) -> Any:
    hints = _kinds(type(before))  # type: ignore[arg-type]  # mypy takes no class for hashable
    values: dict[str, Any] = {}
    for name in filter(hints.__contains__, given):
        try:
            values[name] = _read(hints[name], given[name])
        except ValueError as error:
            mistakes.append(f"{name} is {given[name]!r}; it has to be {error}")
    if isinstance(before, EngineConfig):  # which does not exist with impossible figures
        found = impossible_figures(asdict(before) | values)
        mistakes += found
        return before if found else replace(before, **values)
    made = replace(before, **values)
    mistakes += made.mistakes()
    return made


@cache
def _kinds(part: type) -> dict[str, Any]:
    """The type of each option of a part: annotations are texts until they are evaluated, which takes long."""
    return get_type_hints(part)


_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def _read(kind: Any, text: str) -> Any:
    """Convert ``text`` to a value of type ``kind``; ValueError says what it has to be."""
    if type(None) in get_args(kind):
        return None if text == "none" else _read(get_args(kind)[0], text)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], part) for part in text.split(",") if part)
    if get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        raise ValueError(f"one of {', '.join(get_args(kind))}{_meant(text, get_args(kind))}")
    if kind is bool:
        if text in _SWITCH:
            return _SWITCH[text]
        raise ValueError("true or false, on or off")
    try:
        return kind(text)
    except ValueError:
        raise ValueError("a whole number" if kind is int else "a number") from None


def option_meanings(kind: type) -> dict[str, str]:
    """The meaning of each option of a part in one sentence: the first of its documentation in the source.

    Choices are listed where that sentence does not.
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings: dict[str, str] = {}
    for statement, following in pairwise([*body.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            meanings[statement.target.id] = _first_sentence(following)
    for name, hint in get_type_hints(kind).items():
        missing = [choice for choice in _choices(hint) if choice not in meanings[name]]
        if missing:
            meanings[name] = "; ".join(filter(None, [meanings[name], ", ".join(_choices(hint))]))
    return {name: meaning or name.replace("_", " ") for name, meaning in meanings.items()}


def _choices(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is tuple or type(None) in get_args(hint):
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) is Literal else ()


def _first_sentence(statement: ast.stmt) -> str:
    """The first sentence of a documenting string; empty for any other statement."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return ""
    words = " ".join(str(statement.value.value).replace("``", "").split())
    sentence, stop, _ = words.partition(". ")
    return (sentence if stop else words).rstrip(".")
