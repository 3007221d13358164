from __future__ import annotations

import pytest
from metric_rows import row

from pytest_llmbench.metrics.input_lengths import length_group, ms_per_1k_tokens, prefill_scaling
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records


def level(length: int, ttft: float, requests: int = 20, spread: float = 0.1) -> Records:
    latencies = [ttft * (1 + spread * (-1) ** index) for index in range(requests)]
    return Records.from_rows(
        [
            row(index, submitted=0.0, chunks=(latency, latency + 9), input_tokens=length)
            for index, latency in enumerate(latencies)
        ]
    )


DRAFT = [level(x, y) for x, y in ((1024, 89), (4096, 289), (16384, 1023), (65536, 4234), (131072, 9123))]


def test_the_drafts_example() -> None:
    found = prefill_scaling(DRAFT).metrics
    assert found["prefill_slope"].point == pytest.approx(69.2, abs=0.05)
    assert found["prefill_slope"].unit == "us/token"
    assert found["prefill_linear_fit"].point == pytest.approx(0.9986, abs=5e-5)
    exponent = found["prefill_exponent"]
    assert exponent.point == pytest.approx(0.954, abs=5e-4)
    assert exponent.lower is not None
    assert exponent.upper is not None
    assert 0.9 < exponent.lower < 0.954 < exponent.upper < 1.0
    assert exponent.n == 100
    assert found["prefill_intercept"].unit == "ms"


def test_per_thousand_tokens() -> None:
    points = [ms_per_1k_tokens(records, seed=1).point for records in DRAFT]
    assert points == pytest.approx([86.9, 70.6, 62.4, 64.6, 69.6], abs=0.05)


def test_only_successful_requests_of_known_length_count() -> None:
    rows = [
        row(0, submitted=0.0, chunks=(10.0, 20.0), input_tokens=1000),
        row(1, submitted=0.0, chunks=(30.0, 40.0), input_tokens=None, requested_input_tokens=1024),
        row(2, submitted=0.0, chunks=(50.0, 60.0), input_tokens=None),
        row(3, submitted=0.0, chunks=(70.0, 80.0), outcome=Outcome.TIMEOUT),
    ]
    lengths, latencies = length_group(Records.from_rows(rows))
    assert lengths.tolist() == [1000, 1024]
    assert latencies.tolist() == [10, 30]


def test_two_lengths_fit_nothing() -> None:
    found = prefill_scaling(DRAFT[:2])
    assert found.power is None
    assert found.line is None
    assert not any(value.defined for value in found.metrics.values())
    assert not ms_per_1k_tokens(Records.from_rows([]), seed=1).defined
