"""JUnit properties."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from outcome_samples import regressed

from pytest_llmbench.reports.ci_files import properties
from pytest_llmbench.store import schema

Entry = dict[str, Any]


def test_verdicts_then_each_limit(entry: Entry) -> None:
    assert properties(entry) == [
        ("llmbench.verdict", "inconclusive"),
        ("llmbench.validity", "valid"),
        ("llmbench.compliance", "not_compliant"),
        ("llmbench.ttft.p99.value", "468.265"),
        ("llmbench.ttft.p99.lower", "449.534"),
        ("llmbench.ttft.p99.upper", "491.678"),
        ("llmbench.ttft.p99.unit", "ms"),
        ("llmbench.ttft.p99.op", "<="),
        ("llmbench.ttft.p99.limit", "600"),
        ("llmbench.ttft.p99.n", "998"),
        ("llmbench.ttft.p99_9.value", "557.41"),
        ("llmbench.ttft.p99_9.lower", "535.114"),
        ("llmbench.ttft.p99_9.unit", "ms"),
        ("llmbench.ttft.p99_9.op", "<="),
        ("llmbench.ttft.p99_9.limit", "900"),
        ("llmbench.ttft.p99_9.n", "998"),
    ]


def test_undefined_is_left_out_and_never_zero(broken: schema.TestEntry) -> None:
    found = dict(properties(broken.plain()))
    assert found["llmbench.ttft.p99.limit"] == "500"
    assert not {f"llmbench.ttft.p99.{name}" for name in ("value", "lower", "upper")} & set(found)


def test_two_limits_on_one_metric_are_numbered(entry: Entry) -> None:
    floor = copy.deepcopy(entry["gate"]["objectives"][0]) | {"op": ">=", "limit": 10.0}
    entry["gate"]["objectives"] = [entry["gate"]["objectives"][0], floor]
    found = dict(properties(entry))
    assert [found[f"llmbench.ttft.p99.{name}"] for name in ("op", "limit", "op2", "limit2")] == [
        "<=", "600", ">=", "10",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.998, "0.998"), (0.0, "0"), (1_234_567.8, "1234568"), (468.27, "468.27"), (2.5e-9, "2.5e-09")],
)
def test_numbers_are_numbers(entry: Entry, value: float, text: str) -> None:
    entry["gate"]["objectives"][0] |= {"point": value, "unit": "ratio"}
    found = dict(properties(entry))
    assert found["llmbench.ttft.p99.value"] == text
    assert float(text) == pytest.approx(value, rel=1e-5)
    assert found["llmbench.ttft.p99.unit"] == "ratio"


def test_a_comparison_that_decides_has_its_change_as_a_share(entry: Entry) -> None:
    found = dict(properties(regressed(entry)))
    key = "llmbench.ttft.p99.regression"
    assert found[key] == "regressed"
    assert found[f"{key}.change"] == "0.200012"
    assert float(found[f"{key}.change.lower"]) > 0.05 == float(found[f"{key}.allowed"])
    assert float(found[f"{key}.detectable"]) > 0
    assert not any("tpot" in name for name in found)


def test_of_several_systems_each_has_its_own(entry: Entry) -> None:
    test = regressed(entry)
    test["comparisons"] += [one | {"candidate_name": "third"} for one in copy.deepcopy(test["comparisons"])]
    found = dict(properties(test))
    assert found["llmbench.ttft.p99.regression.now"] == "regressed"
    assert found["llmbench.ttft.p99.regression.third"] == "regressed"
