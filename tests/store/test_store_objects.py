"""Values of ours as JSON and back: equal, and nothing but ours is ever made."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from pytest_llmbench.errors import StoreError
from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import ClockAnchor, EngineReadings, Observation
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.telemetry import Telemetry
from pytest_llmbench.store.objects import _MODULES, _PACKAGE, described, encoded, plain, rebuilt
from pytest_llmbench.workloads.adapted import SharedPrefix
from pytest_llmbench.workloads.catalogue import WORKLOADS
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
from pytest_llmbench.workloads.lengths import Choice, Empirical, Fixed, LogNormal, Normal, Uniform
from pytest_llmbench.workloads.mixture import LONG, SHORT, ClassMix
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload


def there_and_back(value: Any) -> Any:
    return rebuilt(json.loads(json.dumps(encoded(value), allow_nan=False)))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1 + 0.2, "text", [1, "a"], (1, (2, 3)), {"a": 1}, {8192: 1500.0},
        (SHORT, LONG), ClassMix(), OpenLoop(2.5, "gamma", 0.5), ClockAnchor(1, 2**62),
        Objective("ttft.p99", "<=", 500.0, "ms"), Origin.DETECTED, WORKLOADS["synthetic-uniform"],
        Facts.of(Origin.DECLARED, {"sut.model.name": "m", "load.rate_range": [1, 2.5, 3]}, "file"),
    ],
    ids=repr,
)  # fmt: skip
def test_values_come_back_equal(value: Any) -> None:
    back = there_and_back(value)
    assert type(back) is type(value)
    assert back == value


def test_readings_keep_their_arrays_and_what_is_missing() -> None:
    readings = EngineReadings(
        np.array([1, 2**60], dtype=np.int64), {"waiting": np.array([0.1, np.nan])}, {"preemptions": 3.0}
    )
    back = there_and_back(readings)
    assert back.at_ns.dtype == np.int64
    assert back.at_ns.tolist() == [1, 2**60]
    assert back.gauges["waiting"][0] == 0.1
    assert math.isnan(back.gauges["waiting"][1])
    assert back.totals_before == {"preemptions": 3.0}


def test_sessions_of_a_trace_come_back_with_all_their_turns() -> None:
    turns = (TracedTurn(40, 5, hash_ids=(2**63, 1)), TracedTurn(60, 6, (1,), 0.1 + 0.2, reset=True))
    traced = TraceSessionWorkload(
        "recorded",
        (TracedSession(turns[:1]), TracedSession(turns, 1e9 / 3)),
        DatasetIdentity("made up", "1", "all", ("by hand",)),
        timed=False,
    )
    back = there_and_back(traced)
    assert back == traced
    assert back.sessions == traced.sessions  # which equality goes by the digest of
    assert described(traced, 100) == {"$opaque": "TraceSessionWorkload 'recorded'"}


def test_what_is_made_of_texts_of_users_is_only_named() -> None:
    made = DatasetWorkload(
        "mine", (Prompt("a secret", 8, 2),), DatasetIdentity("made up", "1", "all", ("by hand",))
    )
    assert described(made) == {"$opaque": "DatasetWorkload 'mine'"}
    assert "secret" not in json.dumps(encoded(SharedPrefix("begun alike", made, Fixed(8), 0.5)))


class Foreign:
    name = "theirs"


def test_what_is_not_ours_or_too_large_is_only_named() -> None:
    assert described(Foreign()) == {"$opaque": "Foreign 'theirs'"}
    assert described(list(range(100_000))) == {"$opaque": "list"}
    with pytest.raises(StoreError, match="Foreign 'theirs' is an object of the suite"):
        there_and_back([Foreign()])


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "errors.StoreError",
        "model.plan.nothing",
        "store.objects.json",
        "",
        "extras.ray.pool.Path",
        "harness.sut.access.Target",  # what a module of ours has imported
    ],
)
def test_nothing_but_our_values_is_made(path: str) -> None:
    with pytest.raises(StoreError):
        rebuilt({"$type": path, "command": "true"})


def test_names_of_before_are_understood() -> None:
    """Reports of 0.1 name modules, some of which are elsewhere now."""
    assert rebuilt({"$type": "workloads.lengths.Fixed", "tokens": 3}) == Fixed(3)
    assert rebuilt({"$type": "long.since.moved.Origin", "$value": "detected"}) is Origin.DETECTED
    assert rebuilt({"$type": "SessionSlots", "sessions": 4}) == ClosedLoop(4, of_sessions=True)
    starts = {"rate": 2.0, "arrival": "gamma", "burstiness": 0.5, "offsets_ns": {"$tuple": []}}
    assert rebuilt({"$type": "SessionStarts", **starts}) == OpenLoop(2.0, "gamma", 0.5, of_sessions=True)
    assert rebuilt({"$type": "ClosedLoop", "concurrency": 4}) == ClosedLoop(4)


def _within(hint: object, found: set[type]) -> set[type]:
    """The dataclasses and enumerations of ours that a type hint speaks of, theirs included."""
    kind = get_origin(hint) or hint
    own = isinstance(kind, type) and kind.__module__.startswith("pytest_llmbench.")
    if own and kind not in found and (is_dataclass(kind) or issubclass(kind, Enum)):
        found.add(kind)
        for inner in get_type_hints(kind).values() if is_dataclass(kind) else ():
            _within(inner, found)
    for inner in get_args(hint):
        _within(inner, found)
    return found


def test_everything_that_a_session_may_store_has_a_name() -> None:
    stored = [definition.parameters for definition in TESTS.values()]
    kinds = set[type]()
    for kind in (*stored, Setting, Observation, *map(type, WORKLOADS.values())):
        for name, hint in get_type_hints(kind, localns={"Telemetry": Telemetry}).items():
            if name not in ("plan", "records"):  # of an observation: stored otherwise
                _within(hint, kinds)
    implementations = {Fixed, Uniform, LogNormal, Normal, Empirical, Choice}  # of a protocol
    for kind in kinds | implementations:
        assert getattr(import_module(_PACKAGE + _MODULES[kind.__qualname__]), kind.__qualname__) is kind


def test_every_name_is_a_value() -> None:
    for name, module in _MODULES.items():
        kind = getattr(import_module(_PACKAGE + module), name)
        assert kind.__module__ == _PACKAGE + module
        if not isinstance(kind, type):  # a function with the name that a class had: it makes one of ours
            kind = get_type_hints(kind)["return"]
            assert kind.__qualname__ in _MODULES
        assert is_dataclass(kind) or issubclass(kind, Enum)


@pytest.mark.parametrize(
    "kind",
    ["U1000000000", "object", "V8", "M8[ns]", "no type", "", "9" * 5000, "f8, f8", "(2,)i4", "int64\0"],
)
def test_an_array_is_of_numbers(kind: str) -> None:
    """One entry of the first would take 4 GB."""
    with pytest.raises(StoreError, match="not a type of numbers") as raised:
        rebuilt({"$array": [1], "dtype": kind})
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "value",
    [
        {"$array": ["x"], "dtype": "int64"},
        {"$array": [10**400], "dtype": "float64"},
        {"$array": [1]},
        {"$mapping": [[1]]},
        {"$facts": {"a": 1}},
        {"$facts": {"a": {"$type": "Fact", "value": 1, "origin": "declared", "source": ""}}},
        {"$facts": 5},
        {"$type": "Fixed", "lengths": 1},
        {"$type": "Outcome", "$value": "no outcome"},
        {"$tuple": 5},
    ],
)
def test_what_describes_no_value_is_told(value: Any) -> None:
    with pytest.raises(StoreError):
        rebuilt(value)


@dataclass(frozen=True)
class Nothing:
    """A dataclass without fields."""


@dataclass(frozen=True)
class Counts(dict[Any, Any]):
    """A dataclass that is a mapping too."""

    name: str = "not told"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Nothing(), {}),
        (Counts(), {}),
        (Fixed(3), {"tokens": 3}),
        (Fixed, str(Fixed)),
        ({Origin.DETECTED: 1.0, 2: math.inf, None: (True,)}, {"detected": 1.0, "2": None, "None": [True]}),
        ({"b", "a"}, ["a", "b"]),
        (np.array([1.5, math.nan]), [1.5, None]),
        (np.float64(2.0), 2.0),
    ],
    ids=lambda given: type(given).__name__,
)
def test_anything_becomes_plain(value: Any, expected: Any) -> None:
    made = plain(value)
    assert made == expected
    assert type(made) is type(expected)
