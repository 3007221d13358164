"""Each test gives the metrics that a limit may name in it, and a limit on any other is refused."""

from __future__ import annotations

from typing import Any

import pytest
from replayed_sut import QUARTER, ReplayedSUT
from test_methodology_advice import MARKERS

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.methodology.given import GIVES, MEASURED_IF_LIMITED, OF_CHURN, not_given
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import TestDefinition
from pytest_llmbench.metrics.definitions import METRICS
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.objective import Objective, itl, ms, ttft
from pytest_llmbench.registry import names

ONE_LOAD = ("job", "ttft", "goodput", "reasoning")
OF_SOME_SYSTEMS = {
    "schema_violation_rate", "cut_share", "cut_begun_share", "ttft_queue_wait", "ttft_prefill",
    "ttft_adjusted", "ttft_outside", "accuracy", "accuracy_of_set",
}  # fmt: skip
"""Metrics of what a workload asks for, a server tells, or a SUT file states."""


def _limit(family: str) -> Objective:
    row = METRICS[family]
    name = f"{family}.p50" if row.is_family else family
    return Objective(name, "<=" if row.better == "lower" else ">=", 1.0, row.unit)


def test_every_test_has_a_row_of_known_metrics() -> None:
    assert set(GIVES) == set(TESTS) - set(names("tests"))
    assert all(family in METRICS for row in GIVES.values() for family in row)


@pytest.mark.parametrize("name", ONE_LOAD)
def test_what_a_test_of_one_load_gives_is_defined(name: str) -> None:
    families = sorted(GIVES[name] - OF_SOME_SYSTEMS - OF_CHURN)
    asked: dict[str, Any] = {**MARKERS.get(name, {}), "slo": [_limit(family) for family in families]}
    assert not not_given(name, asked["slo"])
    result = ReplayedSUT("h100-8b").measure(TESTS[name], "quick", **asked)
    for limit in asked["slo"]:
        found = result.metrics[limit.metric]
        assert found.point is not None or found.reason is Reason.NOT_MEASURABLE or found.n == 0, limit.metric
    for family in MEASURED_IF_LIMITED:
        assert result.metrics[f"{family}.p50"].point is not None


@pytest.mark.parametrize("test", [TESTS[name] for name in GIVES], ids=lambda test: test.name)
def test_every_metric_of_a_result_may_be_limited(test: TestDefinition) -> None:
    given = {"overload_allowed": True} if test.name == "memory_pressure" else {}
    result = ReplayedSUT(QUARTER).measure(test, "quick", keep=given, **MARKERS.get(test.name, {}))
    families = {name.partition("[")[0].partition(".")[0] for name in result.metrics}
    # Named by no limit of theirs: what reports show besides.
    assert families <= GIVES[test.name] | {"e2e_scheduled"}


@pytest.mark.parametrize(
    ("name", "limit", "said"),
    [
        ("throughput", itl.p50 <= 20 * ms, "throughput does not measure: use @llmbench.job or ttft"),
        ("tradeoff", ttft.p99 <= 20 * ms, 'only by level: write ttft["50%"].p99'),
        ("ttft", itl["chat"].p99 <= 20 * ms, "measures itl only over all requests together"),
    ],
)
def test_a_limit_on_what_a_test_does_not_measure_is_a_mistake(name: str, limit: Objective, said: str) -> None:
    given = {**MARKERS.get(name, {}), "slo": [limit]}
    with pytest.raises(SuiteError) as refused:
        build(TESTS[name].parameters, given, test=name)
    assert said in str(refused.value)
