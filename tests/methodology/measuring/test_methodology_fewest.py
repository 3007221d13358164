"""Limits that no requests of their number could keep are refused at collection."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.measuring.adaptive import fewest_requests
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import goodput, ttft
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.objective import Objective, completion_rate, goodput_share, itl, ms, percent
from pytest_llmbench.model.objective import ttft as first
from pytest_llmbench.stats.ratios import exact_share_interval


@pytest.mark.parametrize(
    ("limit", "fewest"),
    [
        (first.p50 <= 300 * ms, 6),
        (first.p90 <= 300 * ms, 36),
        (first["0-256"].p95 <= 300 * ms, 40),
        (first.p99 <= 300 * ms, 91),
        (first.p99_9 <= 300 * ms, 921),
        (first.mean <= 300 * ms, 30),
        (first.p99 >= 300 * ms, 0),
        (first.max <= 300 * ms, 0),
        (itl.p99 <= 300 * ms, 0),
        (completion_rate >= 99 * percent, 368),
        (goodput_share >= 95 * percent, 72),
        (goodput_share >= 1.0, math.inf),
        (goodput_share <= 1.0, 0),
        (Objective("schema_violation_rate", "<=", 0.01, "ratio"), 368),
        (Objective("schema_violation_rate", "<=", 0.0, "ratio"), math.inf),
    ],
)
def test_fewest_requests(limit: Objective, fewest: float) -> None:
    assert fewest_requests(limit) == fewest


@pytest.mark.parametrize("statistic", ["mean", "p50", "p90", "p95", "p99", "p99_9"])
def test_no_fewer_requests_have_an_upper_end(statistic: str) -> None:
    """The best that there could be: requests that are all alike."""
    fewest = fewest_requests(Objective(f"ttft.{statistic}", "<=", 1.0, "ms"))
    for count in range(1, int(fewest)):
        assert distribution("ttft", np.full(count, 5.0))[f"ttft.{statistic}"].upper is None


def test_no_fewer_good_requests_show_a_share() -> None:
    for share in (0.5, 0.9, 0.95, 0.99, 0.999):
        fewest = int(fewest_requests(goodput_share >= share))
        ends = [exact_share_interval(count, count, tail=0.025)[0] for count in (fewest - 1, fewest)]
        assert ends[0] < share <= ends[1]


@pytest.mark.parametrize(
    ("given", "mistakes"),
    [
        ({"requests": 30, "p90_ms": 300}, [
            "ttft.p90 <= 300 ms needs at least 36 requests to be decided, requests=30: ask for 36 or more, "
            "or for ttft.p50",
        ]),
        ({"requests": 12, "runs": 2, "p90_ms": 300, "p50_ms": 200}, [
            "ttft.p90 <= 300 ms needs at least 36 requests to be decided, requests=12, runs=2: ask for 36 or "
            "more, or for ttft.p50",
        ]),
        ({"requests": "auto", "max_requests": 50, "p99_ms": 300}, [
            "ttft.p99 <= 300 ms needs at least 91 requests to be decided, max_requests=50: ask for 91 or "
            "more, or for ttft.p95",
        ]),
        ({"requests": 5, "p50_ms": 300, "slo": [completion_rate >= 1.0]}, [
            "ttft.p50 <= 300 ms needs at least 6 requests to be decided, requests=5: ask for 6 or more",
            "completion_rate >= 1 cannot be decided by any number of requests: limit a share below it",
        ]),
    ],
)  # fmt: skip
def test_what_the_number_of_requests_cannot_decide_is_a_mistake(
    given: dict[str, Any], mistakes: list[str]
) -> None:
    with pytest.raises(SuiteError) as refused:
        build(ttft.Parameters, {"rate": 20, **given}, counted=True)
    for mistake in mistakes:
        assert mistake in str(refused.value)
    build(ttft.Parameters, {"rate": 20, **given})


@pytest.mark.parametrize("given", [
    {"concurrency": 8, "requests": 30, "p99_ms": 300},
    {"rate": 20, "p99_9_ms": 300},
    {"rate": 20, "requests": 36, "p90_ms": 300},
    {"rate": 20, "requests": 18, "runs": 2, "p90_ms": 300},
    {"rate": 20, "requests": 30},
])  # fmt: skip
def test_what_may_be_decided_is_none(given: dict[str, Any]) -> None:
    build(ttft.Parameters, given, counted=True)


def test_a_share_of_good_requests_takes_as_many() -> None:
    with pytest.raises(SuiteError, match=r"goodput_share >= 0.99 needs at least 368 requests"):
        build(goodput.Parameters, {"rate": 20, "requests": 100, "ttft_ms": 300}, counted=True)
