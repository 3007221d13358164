from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.definitions import METRICS, definition, is_metric, metric_unit, suggestions
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model import objective
from pytest_llmbench.model.objective import MetricFamily, MetricRef
from pytest_llmbench.registry import names


def references() -> list[MetricFamily | MetricRef]:
    return [thing for thing in vars(objective).values() if isinstance(thing, MetricFamily | MetricRef)]


def test_names_that_users_compare_are_in_the_catalogue() -> None:
    found = references()
    assert len(found) >= 7
    for reference in found:
        if reference.name not in METRICS and not names("machine"):
            continue  # of an extra that is left out
        row = METRICS[reference.name]
        assert row.unit == reference.unit
        assert row.is_family == isinstance(reference, MetricFamily)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("ttft.p99", "ms"),
        ("ttft.p99_9", "ms"),
        ("ttft[0-256].p99", "ms"),
        ("ttft[4096+].mean", "ms"),
        ("e2e_scheduled.max", "ms"),
        ("output_token_throughput", "tok/s"),
        ("request_throughput", "req/s"),
        ("completion_rate", "ratio"),
    ],
)
def test_full_names(name: str, unit: str) -> None:
    assert is_metric(name)
    assert metric_unit(name) == unit


@pytest.mark.parametrize(
    "name",
    [
        "ttft",
        "ttft.p98",
        "ttft.",
        ".p99",
        "",
        "ttft[0-256]",
        "ttft[0-255].p99",
        "ttft[].p99",
        "e2e[0-256].p99",
        "completion_rate.mean",
        "ttft.p99.p99",
        "itl.p99 ",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    assert not is_metric(name)
    with pytest.raises(SuiteError, match="no metric is called"):
        metric_unit(name)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("tttf.p99", "ttft.p99"),
        ("ttft.p999", "ttft.p99_9"),
        ("ttft[0-265].p99", "ttft[0-256].p99"),
        ("output_tokens_throughput", "output_token_throughput"),
        ("completion", "completion_rate"),
        ("tpot", "tpot.p50"),
    ],
)
def test_did_you_mean(wrong: str, meant: str) -> None:
    assert meant in suggestions(wrong)
    with pytest.raises(SuiteError) as caught:
        definition(wrong)
    assert caught.value.remedy is not None
    assert meant in caught.value.remedy


def test_nothing_near_gets_the_list() -> None:
    assert suggestions("zzzzzzzz") == ()
    with pytest.raises(SuiteError, match="metrics: ttft, "):
        definition("zzzzzzzz")


def test_what_is_computed_is_catalogued_with_its_unit() -> None:
    for family in latency.FAMILIES:
        computed = distribution(family, np.arange(1.0, 50.0))
        assert set(computed) <= set(METRICS[family].full_names())
        assert {estimate.unit for estimate in computed.values()} == {METRICS[family].unit}
    for name, estimate in rates([], seed=1).items():
        assert estimate.unit == METRICS[name].unit


@pytest.mark.parametrize(
    "name",
    ["itl[90%].p99", "starvation_rate[short]", "ttft[8192].mean", "e2e[full@50%].p99", "ttft[0-256].p50"],
)
def test_a_qualifier_names_a_part_of_a_test(name: str) -> None:
    assert is_metric(name)


@pytest.mark.parametrize(
    "name", ["ttft[0-300].p50", "itl[0-256].p50", "itl[].p99", "jain_index.p50", "itl.p42"]
)
def test_what_is_no_bucket_or_no_statistic_is_refused(name: str) -> None:
    assert not is_metric(name)


def test_every_row_is_complete() -> None:
    for name, row in METRICS.items():
        assert name == row.name
        assert row.title
        assert row.formula
        assert row.section
        assert row.better in ("lower", "higher")
        if row.unit in ("ms", "us/token", "s"):
            assert row.better == "lower"
