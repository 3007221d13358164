"""The share of replies that break the schema they were asked to keep to."""

from __future__ import annotations

import pytest

from pytest_llmbench.metrics.definitions import definition
from pytest_llmbench.metrics.throughput import schema_violations
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records


def records(*checks: str | None) -> Records:
    return Records.from_rows(
        RequestRecord(at, str(at), Phase.MEASURE, outcome=Outcome.OK, schema_check=check)
        for at, check in enumerate(checks)
    )


def test_shares_are_of_the_replies_that_were_checked_and_add_up() -> None:
    runs = [records("valid", None, "not_json", "valid"), records("missing_key", "not_json", None)]
    found = schema_violations(runs)
    assert {name: (each.point, each.n) for name, each in found.items()} == {
        "schema_violation_rate": (0.6, 5),
        "schema_violation_rate[not_json]": (0.4, 5),
        "schema_violation_rate[missing_key]": (0.2, 5),
    }
    assert all(definition(name).unit == "ratio" for name in found)


def test_no_violation_is_not_certain_and_nothing_checked_is_nothing() -> None:
    rate = schema_violations([records(*["valid"] * 20)])["schema_violation_rate"]
    assert (rate.point, rate.lower) == (0.0, 0.0)
    assert rate.upper == pytest.approx(1 - 0.025 ** (1 / 20))  # Clopper-Pearson of 0 in 20
    assert schema_violations([records(None, None), records()]) == {}
