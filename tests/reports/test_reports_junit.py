"""JUnit properties."""

from __future__ import annotations

import copy
from typing import Any

from pytest_llmbench.reports.junit import properties
from pytest_llmbench.store import schema

Entry = dict[str, Any]


def test_verdicts_then_each_limit(entry: Entry) -> None:
    assert properties(entry) == [
        ("llmbench.verdict", "inconclusive"),
        ("llmbench.validity", "valid"),
        ("llmbench.compliance", "not_compliant"),
        ("llmbench.ttft.p99.value", "468.3 ms"),
        ("llmbench.ttft.p99.limit", "<= 600 ms"),
        ("llmbench.ttft.p99.interval", "[449.5, 491.7]"),
        ("llmbench.ttft.p99.n", "998"),
        ("llmbench.ttft.p99_9.value", "557.4 ms"),
        ("llmbench.ttft.p99_9.limit", "<= 900 ms"),
        ("llmbench.ttft.p99_9.interval", "> 535.1 ms"),
        ("llmbench.ttft.p99_9.n", "998"),
    ]


def test_undefined_is_never_zero(broken: schema.TestEntry) -> None:
    found = dict(properties(broken.plain()))
    assert found["llmbench.ttft.p99.value"] == "not measured"
    assert found["llmbench.ttft.p99.interval"] == "open"


def test_two_limits_on_one_metric_share_a_key(entry: Entry) -> None:
    floor = copy.deepcopy(entry["gate"]["objectives"][0]) | {"op": ">=", "limit": 10.0}
    entry["gate"]["objectives"] = [entry["gate"]["objectives"][0], floor]
    found = properties(entry)
    assert dict(found)["llmbench.ttft.p99.limit"] == "<= 600 ms and >= 10 ms"
    assert len(found) == 7
