"""Values of ours as JSON and back: equal, and nothing but ours is ever made."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.errors import StoreError
from pytest_llmbench.model.engine_readings import EngineReadings
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.store.objects import described, encoded, rebuilt
from pytest_llmbench.workloads.catalogue import WORKLOADS
from pytest_llmbench.workloads.classes import LONG, SHORT, ClassMix


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
        "generator.ray.crew.Path",
        "harness.approach.Target",  # what a module of ours has imported
    ],
)
def test_nothing_but_our_values_is_made(path: str) -> None:
    with pytest.raises(StoreError):
        rebuilt({"$type": path, "command": "true"})


@pytest.mark.parametrize("kind", ["U1000000000", "object", "V8", "M8[ns]", "no type", ""])
def test_an_array_is_of_numbers(kind: str) -> None:
    """One entry of the first would take 4 GB."""
    with pytest.raises(StoreError, match="no type of numbers"):
        rebuilt({"$array": [1], "dtype": kind})
