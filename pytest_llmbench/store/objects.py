"""Our own values as JSON from which they can be made again: ``{"$type": "Fixed", …}``.

For what a marker was given beside numbers and texts: objectives, request classes, workloads. Nothing but the
dataclasses and enumerations that are listed here is ever made from a file.

Values of any other origin become plain JSON values, so that they cross processes and survive a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from pydantic import JsonValue

from pytest_llmbench.errors import StoreError, shown
from pytest_llmbench.model.facts import Fact, Facts, Origin

_AS_IT_IS = frozenset({str, int, bool, type(None)})


def plain(value: object) -> JsonValue:
    """``value`` made of dicts, lists, str, int, float, bool and None only.

    NumPy scalars and arrays become numbers and lists, sets become sorted lists, dataclasses dicts. A number
    that is not finite becomes None, which stands for undefined everywhere; JSON has no NaN. Anything else
    (a path, a date) becomes its text: evidence must not be lost at the end of a run for want of a type.
    """
    kind = type(value)
    if kind in _AS_IT_IS:
        return value  # type: ignore[return-value]
    if kind is float:
        return value if math.isfinite(value) else None  # type: ignore[arg-type,return-value]
    if kind is tuple or kind is list:  # spared the questions below, as most are
        return [plain(entry) for entry in value]  # type: ignore[attr-defined]
    if (names := _names(kind)) is not None:  # type: ignore[arg-type]  # mypy takes no class for hashable
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, (str, int, float)):
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return int(value)
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key if type(key) is str else str(plain(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, Set):
        return [plain(entry) for entry in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if callable(as_python := getattr(value, "tolist", None)):  # NumPy arrays and scalars
        return plain(as_python())
    return str(value)


@cache
def _names(kind: type[Any]) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for another type, and for one that is a mapping, a list or a scalar as
    well."""
    if not is_dataclass(kind) or issubclass(kind, (Enum, str, int, float, Mapping, Set, list, tuple)):
        return None
    return tuple(field.name for field in fields(kind))


def plain_object(value: object) -> dict[str, JsonValue]:
    """A mapping or dataclass as :func:`plain` makes it, typed as a dict."""
    converted = plain(value)
    if not isinstance(converted, dict):
        raise TypeError(f"{type(value).__name__} cannot become a JSON object")
    return converted


def plain_number(value: float | None) -> float | None:
    """A finite number, or None; None also for a whole number that is too large for a float."""
    try:
        return None if value is None or not math.isfinite(value) else float(value)
    except OverflowError:
        return None


_PACKAGE = "pytest_llmbench."
_TYPE, _VALUE, _TUPLE, _MAPPING, _OPAQUE = "$type", "$value", "$tuple", "$mapping", "$opaque"
_FACTS, _ARRAY = "$facts", "$array"
_KINDS = {
    "methodology.procedure": ("VariantInfo", "WarmupPolicy"),
    "model.estimate": ("SavedSpread",),
    "model.facts": ("Fact", "Origin"),
    "model.objective": ("Objective",),
    "model.observation": ("AdapterCall", "ClockAnchor", "EngineReadings", "HostLimits", "SelfCheck"),
    "model.record": ("Outcome", "Phase", "TokenSource"),
    "model.telemetry": ("DeviceSeries", "Lost", "Telemetry"),
    "model.plan": (
        "Batch",
        "Churn",
        "ClosedLoop",
        "Deadlines",
        "Looks",
        "OpenLoop",
        "SessionSlots",
        "SessionStarts",
        "Stage",
        "Watched",
    ),
    "workloads.adapted": (
        "Cuts",
        "Prefixes",
        "Salted",
        "SameLengths",
        "SharedPrefix",
        "WithCuts",
        "WithFixedOutput",
        "WithoutOutput",
    ),
    "workloads.dataset": (
        "CodeCompletionWorkload",
        "CodeFunction",
        "Conversation",
        "ConversationWorkload",
        "DatasetIdentity",
        "DatasetWorkload",
        "Prompt",
    ),
    "workloads.lengths": ("Choice", "Empirical", "Fixed", "LogNormal", "Normal", "Uniform"),
    "workloads.long_context": ("LongContextWorkload",),
    "workloads.mixture": ("ClassMix", "Mixture", "Part", "RequestClass", "SessionMix"),
    "workloads.profiles": ("Heads", "Profile", "ProfileWorkload"),
    "workloads.sessions": ("SessionWorkload",),
    "workloads.synthetic": ("ArithmeticWorkload", "SyntheticWorkload"),
    "workloads.trace": ("TraceEntry", "TraceWorkload"),
    "workloads.trace_sessions": ("TraceSessionWorkload", "TracedSession", "TracedTurn"),
}
"""Module → classes whose values may be in a file. There they have the name of their class alone, so that
modules may move and old files stay readable; a former class is a function of its name. Until 0.1 the module
was written before the name; it is ignored."""
_MODULES = {name: module for module, names in _KINDS.items() for name in names}
_MOST_TOLD = 200
_LARGEST = 65_536
"""Most characters of a value in a file."""


def described(value: Any, largest: int = _LARGEST) -> JsonValue:
    """A value as JSON. One that is not ours, is made of users' texts, or takes more than ``largest``
    characters, is only named, ``{"$opaque": "…"}``, and cannot be made again."""
    found = encoded(value)
    if isinstance(found, dict | list) and len(json.dumps(found)) > largest:
        return {_OPAQUE: _name_of(value)}
    return found


def rebuilt(value: JsonValue) -> Any:
    """The value that JSON describes. StoreError for one that is only named, and for what describes none."""
    try:
        return _rebuilt(value)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {str(error)[:_MOST_TOLD]}"
        raise StoreError(f"a value has the wrong type: {why}") from error


def _rebuilt(value: JsonValue) -> Any:
    if isinstance(value, list):
        return [_rebuilt(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if _OPAQUE in value:
        raise StoreError(
            f"{value[_OPAQUE]} is an object of the suite, and a report does not contain those",
            remedy="run the test again with the suite itself",
        )
    if _TUPLE in value:
        return tuple(_rebuilt(entry) for entry in _entries(value[_TUPLE]))
    if _MAPPING in value:
        return {_rebuilt(pair[0]): _rebuilt(pair[1]) for pair in _entries(value[_MAPPING])}
    if _FACTS in value:
        return _facts({key: _rebuilt(fact) for key, fact in dict(value[_FACTS]).items()})  # type: ignore[arg-type]
    if _ARRAY in value:
        numbers = [math.nan if entry is None else entry for entry in _entries(value[_ARRAY])]
        return np.array(numbers, dtype=_number_type(str(value["dtype"])))
    if _TYPE in value:
        made = _class_of(str(value[_TYPE]))
        if _VALUE in value:
            return made(value[_VALUE])
        return made(**{name: _rebuilt(entry) for name, entry in value.items() if name != _TYPE})
    return {name: _rebuilt(entry) for name, entry in value.items()}


def encoded(value: Any) -> JsonValue:
    """A value as JSON, of any size."""
    if type(value) in _AS_IT_IS:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str | int | float) and not isinstance(value, Enum):
        return plain(value)
    if isinstance(value, list):
        return [encoded(entry) for entry in value]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {_TUPLE: [encoded(entry) for entry in value]}
    if isinstance(value, Facts):
        return {_FACTS: {key: encoded(fact) for key, fact in value.items()}}
    if isinstance(value, Mapping):
        return {_MAPPING: [[encoded(key), encoded(entry)] for key, entry in value.items()]}
    if isinstance(value, np.ndarray):
        return {_ARRAY: plain(value), "dtype": value.dtype.name}
    kind = type(value)
    if kind.__module__ != _PACKAGE + _MODULES.get(kind.__qualname__, ""):
        return {_OPAQUE: _name_of(value)}
    if isinstance(value, Enum):
        return {_TYPE: kind.__qualname__, _VALUE: plain(value.value)}
    made_of = [each for each in fields(value) if each.init]
    kept = [each for each in made_of if each.metadata.get("stored", True)]
    if any(each.default is MISSING for each in made_of if each not in kept):
        return {_OPAQUE: _name_of(value)}  # it is made of texts of users
    content = {each.name: encoded(getattr(value, each.name)) for each in kept}
    return {_TYPE: kind.__qualname__, **content}


def _name_of(value: Any) -> str:
    named = getattr(value, "name", None)
    return f"{type(value).__name__} {named!r}" if isinstance(named, str) else type(value).__name__


def _facts(found: Mapping[str, Any]) -> Facts:
    for key, fact in found.items():
        if not (isinstance(fact, Fact) and isinstance(fact.origin, Origin) and isinstance(fact.source, str)):
            raise StoreError(f"{shown(key)} is not a fact: {shown(fact)}")
    return Facts(found)


def _class_of(path: str) -> Any:
    name = path.rpartition(".")[2]
    if name not in _MODULES:
        raise StoreError(f"{shown(path)} is unknown to this version of pytest-llmbench")
    return getattr(import_module(_PACKAGE + _MODULES[name]), name)


_NUMBER_TYPES = frozenset(np.dtype(code).name for code in ("?" + np.typecodes["AllInteger"] + "efd"))


def _number_type(name: str) -> np.dtype[Any]:
    """The NumPy type of a name. NumPy itself is not asked: it reads names as Python, and has types of texts,
    of which one entry can be made as long as the name says."""
    if name not in _NUMBER_TYPES:
        raise StoreError(f"{shown(name)} is not a type of numbers")
    return np.dtype(name)


def _entries(value: JsonValue) -> list[Any]:
    if not isinstance(value, list):
        raise StoreError(f"expected a list, got {shown(value)}")
    return value
