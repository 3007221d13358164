"""Marker parameters: every mistake at once, in words."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.arrivals import schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.measuring.one_load import request_count
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.methodology.sections import tradeoff, ttft
from pytest_llmbench.model.objective import MetricRef, ms, percent
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Uniform, law_of
from pytest_llmbench.workloads.synthetic import SyntheticWorkload
from pytest_llmbench.workloads.trace import TraceEntry, TraceWorkload


@pytest.mark.parametrize(
    ("test", "given", "meant"),
    [
        ("ttft", "users", "concurrency"),
        ("sessions", "concurrency", "sessions"),
        ("sessions", "num_prompts", "total_sessions"),
        ("sessions", "qps", "rate"),
        ("itl", "concurrency", "levels_percent"),
        ("itl", "rate", "levels_percent"),
    ],
)
def test_what_another_test_takes_is_answered_with_what_this_one_has(
    test: str, given: str, meant: str
) -> None:
    with pytest.raises(SuiteError) as caught:
        build(definition(test).parameters, {given: 4})
    assert f"unknown parameter {given!r}; did you mean {meant}?" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"p99ms": 5}, "unknown parameter 'p99ms'; did you mean p99_ms?"),
        ({"zebra": 1}, "unknown parameter 'zebra'; it takes"),
        ({"p_ms": 5}, "did you mean p99_ms or p95_ms or p90_ms?"),
        ({"request_rate": 5}, "unknown parameter 'request_rate'; did you mean rate?"),
        ({"num_prompts": 5}, "did you mean requests?"),
        ({"isl": 512}, "workload=SyntheticWorkload('name', Fixed(512), Fixed(128))"),
        ({"model": "m"}, "give it on the command line: --llm-model"),
        ({"rate": 5, "concurrency": 4}, "rate (open loop) and concurrency (closed loop) exclude each other"),
        ({"p99_ms": 0}, "p99_ms must be greater than zero, got 0"),
        ({"p99_ms": -1.5}, "p99_ms must be greater than zero"),
        ({"p99_ms": float("nan")}, "p99_ms must be greater than zero"),
        ({"p99_ms": True}, "p99_ms must be a number, got True"),
        ({"p99_ms": "500"}, "p99_ms must be a number, got '500'"),
        ({"requests": 0}, "requests must be at least 1"),
        ({"requests": 10.5}, "requests must be a whole number"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"arrival": "poison", "rate": 1}, "arrival must be one of poisson, uniform, gamma, trace, got"),
        ({"arrival": "poisson"}, "arrival needs rate"),
        ({"rate": 1, "burstiness": 0.5}, "burstiness needs arrival='gamma'"),
        ({"rate": 1, "arrival": "gamma"}, "arrival='gamma' needs burstiness"),
        ({"workload": "synthetic-unifrom"}, "synthetic-uniform"),
        ({"compliance": "full"}, "compliance must be one of conditional, unconditional"),
        ({"max_error_share": 2}, "max_error_share must lie between 0 and 1"),
        ({"slo": [True]}, "slo holds True, which is not an objective"),
        ({"slo": [MetricRef("ttft.p98", "ms") <= 5 * ms]}, "limits 'ttft.p98', which is not a metric"),
        ({"slo": MetricRef("ttft.p99", "ms") <= 5 * ms}, "slo must be a list of objectives"),
        ({"slo": [MetricRef("ttft.p99", "ratio") <= 5]}, "<= 5 in ratio: ttft.p99 is in ms"),
        ({"slo": [MetricRef("ttft.p99", "ms") <= math.inf * ms]}, "a limit is a finite number"),
        ({"slo": [MetricRef("ttft.p99", "ms") <= math.nan * ms]}, "a limit is a finite number"),
        ({"slo": [MetricRef("ttft[0-256].p99", "ms") >= 0 * ms]}, "always holds"),
        ({"slo": [MetricRef("completion_rate", "ratio") >= 0]}, "always holds"),
        ({"slo": [MetricRef("completion_rate", "ratio") <= 100 * percent]}, "always holds"),
        ({"slo": [MetricRef("job_time.p50", "ms") <= 5 * ms]}, "job_time.p50 is in s"),
        ({"bucket_limits": {"0-255": {"p95_ms": 1}}}, "has no bucket '0-255'"),
        ({"bucket_limits": {"0-256": {"p95": 1}}}, "did you mean p95_ms?"),
        ({"bucket_limits": {"0-256": {"p95_ms": 0}}}, "p95_ms must be greater than zero"),
        ({"bucket_limits": [1]}, "bucket_limits must map buckets to limits"),
    ],
)
def test_one_mistake(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SuiteError) as caught:
        build(ttft.Parameters, given, where="test_x.py:3")
    assert words in str(caught.value)
    assert str(caught.value).startswith("test_x.py:3: ")


def test_all_mistakes_at_once() -> None:
    with pytest.raises(SuiteError) as caught:
        build(ttft.Parameters, {"p99ms": 1, "p50_ms": -1, "requests": 0, "arrival": "x"})
    for name in ("p99ms", "p50_ms", "requests", "arrival"):
        assert name in str(caught.value)
    assert "4 mistakes" in str(caught.value)


def test_good_parameters_come_through() -> None:
    built = build(ttft.Parameters, {"p99_ms": 500, "rate": 20, "arrival": None})
    assert built == ttft.Parameters(p99_ms=500, rate=20)


def test_numbers_of_numpy_are_numbers() -> None:
    laws = {"input": law_of(np.int64(64), "input"), "output": Uniform(np.int32(8), np.int64(16))}
    given = {
        "rate": np.int32(20),
        "requests": np.int64(50),
        "p99_ms": np.float32(0.5),
        "bucket_limits": {"0-256": {"p50_ms": np.float32(2)}},
        "slo": [
            MetricRef("ttft.p90", "ms") <= np.float32(4) * ms,
            MetricRef("completion_rate", "ratio") >= np.float32(0.5),
        ],
        "workload": SyntheticWorkload("ours", laws["input"], laws["output"]),
    }
    built = build(ttft.Parameters, given, where="t")
    plain = {"rate": 20, "requests": 50, "p99_ms": 0.5, "bucket_limits": {"0-256": {"p50_ms": 2.0}}}
    assert json.dumps({name: getattr(built, name) for name in plain}) == json.dumps(plain)
    assert [str(each) for each in built.objectives[-2:]] == ["ttft.p90 <= 4 ms", "completion_rate >= 0.5"]
    assert json.dumps([law.params for law in laws.values()]) == json.dumps(
        [{"tokens": 64}, {"min": 8, "max": 16, "mean": 12.0}]
    )
    with pytest.raises(SuiteError, match="requests must be a whole number"):
        build(ttft.Parameters, {"requests": np.float32(1.5)}, where="t")
    assert build(
        tradeoff.Parameters, {"levels_percent": np.array([10, 20, 30, 40, 50, 60, 70, 80, 90])}, where="t"
    )


def test_a_trace_brings_its_own_instants() -> None:
    entries = tuple(TraceEntry(100.0 * number, 32, 8) for number in range(1, 21))
    identity = DatasetIdentity("trace", "1", "all")
    trace = TraceWorkload("recorded", entries, identity)
    parameters = build(ttft.Parameters, {"workload": trace, "arrival": "trace"})
    load = parameters.load
    assert isinstance(load, OpenLoop)
    assert load.arrival == "trace"
    assert load.offsets_ns[:2] == (100_000_000, 200_000_000)
    assert load.rate == pytest.approx(10.0)
    setting = Setting(trace, 42)
    assert request_count(parameters, setting) == 20
    assert schedule_ns(load, 20, 1).tolist() == list(load.offsets_ns)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"arrival": "trace"}, "has none"),
        ({"arrival": "trace", "rate": 5}, "leave out rate"),
        ({"arrival": "trace", "concurrency": 5}, "exclude each other"),
    ],
)
def test_a_trace_needs_one(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        build(ttft.Parameters, given)
