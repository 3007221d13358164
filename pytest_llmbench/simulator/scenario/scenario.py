"""Scenarios such as ``fast?max_num_seqs=64&fault=reset&fault_rate=0.1``: options of engine, stream, faults
and router.

The options of the four parts share one string; each name belongs to one part only.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.simulator.engine.config import EngineConfig, impossible_figures
from pytest_llmbench.simulator.engine.faults import FaultOptions, StreamOptions
from pytest_llmbench.simulator.engine.router import RouterOptions
from pytest_llmbench.simulator.scenario.presets import OPTIONS as ENGINE_OPTIONS
from pytest_llmbench.simulator.scenario.presets import PRESETS, parse_preset, read_options

Part = TypeVar("Part", StreamOptions, FaultOptions, RouterOptions)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The whole configuration of an embedded engine."""

    engine: EngineConfig
    stream: StreamOptions = field(default_factory=StreamOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    router: RouterOptions = field(default_factory=RouterOptions)


STREAM_OPTIONS: tuple[str, ...] = tuple(each.name for each in fields(StreamOptions))
FAULT_OPTIONS: tuple[str, ...] = tuple(each.name for each in fields(FaultOptions))
ROUTER_OPTIONS: tuple[str, ...] = tuple(each.name for each in fields(RouterOptions))
OPTIONS: tuple[str, ...] = (*ENGINE_OPTIONS, *STREAM_OPTIONS, *FAULT_OPTIONS, *ROUTER_OPTIONS)


@lru_cache(maxsize=64)
def parse_scenario(text: str) -> Scenario:
    """Parse a scenario: ``preset``, or ``preset?option=value&option=value``.

    Raises SuiteError that lists every mistake of every part: unknown preset, unknown, repeated or unreadable
    options, values that cannot be.
    """
    preset, _, listed = text.partition("?")
    mistakes: list[str] = []
    given = _split(listed, mistakes)
    theirs = "&".join(f"{name}={value}" for name, value in given.items() if name in ENGINE_OPTIONS)
    engine = _engine(f"{preset}?{theirs}" if theirs else preset, mistakes)
    stream = _part(StreamOptions(), given, mistakes)
    faults = _part(FaultOptions(), given, mistakes)
    router = _part(RouterOptions(), given, mistakes)
    if engine is None or stream is None or faults is None or router is None or mistakes:
        raise SuiteError.from_mistakes(
            mistakes,
            where=f"scenario {text!r}",
            remedy=f"presets: {', '.join(PRESETS)}; options, as in fast?max_num_seqs=32&fault=reset: "
            f"{', '.join(OPTIONS)} (python -m pytest_llmbench.simulator --help explains them)",
        )
    return Scenario(engine, stream, faults, router)


def overridden(scenario: Scenario, options: Mapping[str, str]) -> Scenario:
    """``scenario`` with some options set to other values. Raises SuiteError that lists every mistake."""
    mistakes: list[str] = []
    given = _split("&".join(f"{name}={value}" for name, value in options.items()), mistakes)
    theirs = "&".join(f"{name}={value}" for name, value in given.items() if name in ENGINE_OPTIONS)
    figures = read_options(theirs, mistakes)
    mistakes += impossible_figures(asdict(scenario.engine) | figures)
    stream = _part(scenario.stream, given, mistakes)
    faults = _part(scenario.faults, given, mistakes)
    router = _part(scenario.router, given, mistakes)
    if stream is None or faults is None or router is None or mistakes:
        where = f"options over those of a scenario of preset {scenario.engine.name}"
        raise SuiteError.from_mistakes(mistakes, where=where, remedy=f"options: {', '.join(OPTIONS)}")
    return Scenario(replace(scenario.engine, **figures), stream, faults, router)


def _split(listed: str, mistakes: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in listed.split("&") if listed else ():
        name, equals, value = part.partition("=")
        if not equals:
            mistakes.append(f"option {part!r} is not of the form option=value")
        elif name not in OPTIONS:
            close = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            mistakes.append(f"unknown option {name!r}{hint}")
        elif name in given:
            mistakes.append(f"option {name!r} is given twice")
        else:
            given[name] = value
    return given


def _engine(text: str, mistakes: list[str]) -> EngineConfig | None:
    try:
        return parse_preset(text)
    except SuiteError as error:
        found = error.what.split("\n  - ")
        mistakes += found[1:] if len(found) > 1 else found
        return None


def _part(before: Part, given: dict[str, str], mistakes: list[str]) -> Part | None:
    hints = _kinds(type(before))  # type: ignore[arg-type]  # mypy takes no class for hashable
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name in hints:
            try:
                values[name] = _read(hints[name], text)
            except ValueError as error:
                mistakes.append(f"{name} is {text!r}; it has to be {error}")
    made = replace(before, **values)
    found = made.mistakes()
    mistakes += found
    return None if found else made


@cache
def _kinds(part: type) -> dict[str, Any]:
    """The type of each option of a part: annotations are texts until they are evaluated, which takes long."""
    return get_type_hints(part)


def _read(kind: Any, text: str) -> Any:
    """Convert ``text`` to a value of type ``kind``; ValueError says what it has to be."""
    if type(None) in get_args(kind):
        return None if text == "none" else _read(get_args(kind)[0], text)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], part) for part in text.split(",") if part)
    if get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        close = difflib.get_close_matches(text, get_args(kind), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"one of {', '.join(get_args(kind))}{hint}")
    if kind is bool:
        if text in ("true", "false"):
            return text == "true"
        raise ValueError("true or false")
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
