"""Every parameter of every marker × values that nobody means: a SuiteError that names the parameter."""

from __future__ import annotations

import decimal
import fractions
import math
from contextlib import suppress
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.compare.limits import margin_mistakes, metric_mistakes
from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import TestDefinition


class Spiteful:
    """Neither shown nor compared."""

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")


NEVER = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "negative": -1,
    "negative share": -0.5,
    "10**30": 10**30,
    "-10**30": -(10**30),
    "10**5000": 10**5000,
    "1e308": 1e308,
    "5e-324": 5e-324,
    "surrogate": "\ud800",
    "NUL": "a\0b",
    "long": "x" * 100_000,
    "NaN twice": [math.nan, math.nan],
    "mixed list": [1, "a"],
    "nested list": [[1]],
    "endless list": range(10**12),
    "mixed mapping": {1: 2, "a": "b"},
    "NaN in a mapping": {"0-256": {"p95_ms": math.nan}},
    "None in a mapping": {None: None},
    "object": object(),
    "class": int,
    "bytes": b"x",
    "complex": 1j,
    "set": {1},
    "path": Path("x"),
    "NumPy NaN": np.float64("nan"),
    "array": np.array([1.0, 2.0]),
    "decimal": decimal.Decimal("NaN"),
    "fraction": fractions.Fraction(1, 3),
    "spiteful": Spiteful(),
    "lambda": lambda: 1,
}
FINE = {
    # what a kind of parameter takes all the same
    "share": {"5e-324"},
    "share_or_file": {"5e-324"},
    "share_by_class": {"5e-324"},
    "name": {"long", "surrogate", "NUL"},
    "percents": {"array"},
}
PARAMETERS = [(test, field) for test in TESTS.values() for field in fields(test.parameters) if field.init]


@pytest.mark.parametrize(("test", "field"), PARAMETERS, ids=lambda each: each.name)
def test_a_parameter(test: TestDefinition, field: Field[Any]) -> None:
    kind = field.metadata["kind"]
    for name, value in NEVER.items():
        if name in FINE.get(kind, ()):
            with suppress(SuiteError):  # for what goodput lacks beside it
                build(test.parameters, {field.name: value})
            continue
        with pytest.raises(SuiteError) as raised:
            build(test.parameters, {field.name: value}, where="here")
        told = str(raised.value)
        assert field.name in told or kind == "workload", f"{name}: {told[:200]}"
        assert len(told) < 5000, f"{name}: {len(told)} characters"


@pytest.mark.parametrize("value", NEVER.values(), ids=list(NEVER))
def test_what_no_regression_and_compare_are_given(value: Any) -> None:
    assert metric_mistakes(value)
    small = isinstance(value, float) and 0 < value < 1
    assert small or margin_mistakes(value)
    assert len(shown(value)) < 300
