from __future__ import annotations

import numpy as np
import pytest
from metric_rows import row

from pytest_llmbench.metrics.fairness import (
    by_class,
    class_jain_index,
    inflation,
    jain_index,
    normalised_latency_ms,
    starvation_rate,
    waits,
)
from pytest_llmbench.metrics.latency import ttft_ms
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records


def request(index: int, label: str, ttft: float, e2e: float, tokens: int = 10, **changes: object):  # type: ignore[no-untyped-def]
    at = 10_000.0 * index
    return row(index, submitted=at, chunks=(at + ttft, at + e2e), tokens=tokens, class_label=label, **changes)


SEEN = Records.from_rows(
    [
        request(0, "short", 10, 100),
        request(1, "long", 40, 800, tokens=100),
        request(2, "short", 20, 300),
        request(3, "short", 90, 900, outcome=Outcome.TIMEOUT),
    ]
)


def test_latencies_by_class() -> None:
    found = by_class([SEEN, SEEN], ttft_ms)
    assert list(found) == ["short", "long"]
    assert [run.tolist() for run in found["short"]] == [[10, 20], [10, 20]]
    assert [run.tolist() for run in found["long"]] == [[40], [40]]
    assert by_class([], ttft_ms) == {}


def test_normalised_latency_is_per_output_token() -> None:
    assert normalised_latency_ms(SEEN).tolist() == [10, 8, 30]
    uncounted = request(0, "short", 10, 100)
    uncounted.output_tokens = None
    assert len(normalised_latency_ms(Records.from_rows([uncounted]))) == 0


def test_jain_over_requests() -> None:
    found = jain_index([SEEN])
    assert found.point == pytest.approx(48**2 / (3 * (100 + 64 + 900)))
    assert (found.n, found.lower, found.upper) == (3, None, None)
    assert found.n_required == 30
    assert not jain_index([]).defined


def test_jain_with_an_interval() -> None:
    latencies = np.random.default_rng(1).lognormal(5, 0.5, size=600)
    rows = [request(index, "short", 1, latency) for index, latency in enumerate(latencies)]
    found = jain_index([Records.from_rows(rows)])
    assert found.lower is not None
    assert found.upper is not None
    assert found.point is not None
    assert found.lower < np.exp(-0.25) < found.upper
    assert found.upper - found.lower < 0.15


def test_waits_are_the_servers_if_it_has_all() -> None:
    rows = [
        request(0, "a", 10, 100, queue_wait_ns=3_000_000),
        request(1, "b", 20, 100, queue_wait_ns=0),
        request(2, "b", 20, 100, outcome=Outcome.TIMEOUT),
    ]
    found = waits([Records.from_rows(rows)])
    assert found.source == "server queue wait"
    assert {name: own[0].tolist() for name, own in found.by_class.items()} == {"a": [3.0], "b": [0.0]}
    lacking = waits([Records.from_rows([*rows, request(3, "a", 30, 100)])])
    assert lacking.source == "TTFT"
    assert lacking.by_class["a"][0].tolist() == [10, 30]
    assert waits([SEEN]).source == "TTFT"
    assert waits([]).by_class == {}


def test_starvation_of_a_class() -> None:
    found = starvation_rate([np.array([1.0] * 500 + [5.5] * 2)])
    assert found.point == pytest.approx(2 / 502)
    assert found.n == 502
    assert found.closed
    assert not starvation_rate([]).defined


def test_inflation_is_mix_over_alone() -> None:
    alone = np.random.default_rng(1).lognormal(4, 0.4, size=3000)
    found = inflation(3 * np.random.default_rng(2).lognormal(4, 0.4, size=3000), alone)
    assert list(found) == ["ttft_inflation.p50", "ttft_inflation.p95", "ttft_inflation.p99"]
    for value in found.values():
        assert value.lower is not None
        assert value.upper is not None
        assert value.lower < 3 < value.upper
    same = inflation(alone, alone)
    assert same["ttft_inflation.p50"].point == 1.0


def arms(short: float, long: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    random = np.random.default_rng(3)
    alone = {name: random.gamma(4, 10, size=800) for name in ("short", "long")}
    mixed = {"short": random.gamma(4, 10 * short, size=800), "long": random.gamma(4, 10 * long, size=800)}
    return mixed, alone


def test_jain_over_classes() -> None:
    mixed, alone = arms(2.0, 6.0)
    found = class_jain_index(mixed, alone, seed=1)
    slowdowns = [mixed[name].mean() / alone[name].mean() for name in mixed]
    assert found.point == pytest.approx(sum(slowdowns) ** 2 / (2 * sum(x**2 for x in slowdowns)))
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < 0.8 < found.upper < 0.9
    assert class_jain_index(*arms(2.0, 2.0), seed=1).upper == 1.0


def test_three_classes() -> None:
    """With two the index of the slowdowns is that of the speed-ups; with three it is not."""
    mixed, alone = arms(2.0, 6.0)
    random = np.random.default_rng(4)
    mixed["medium"], alone["medium"] = random.gamma(4, 20, size=800), random.gamma(4, 10, size=800)
    found = class_jain_index(mixed, alone, seed=1)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < 100 / (3 * 44) < found.upper < 0.8


def test_a_class_that_did_not_run_alone() -> None:
    mixed, alone = arms(2.0, 6.0)
    del alone["long"]
    found = class_jain_index(mixed, alone, seed=1)
    assert not found.defined
    assert "long" in found.method
    assert "short" not in found.method
    assert not class_jain_index({}, {}, seed=1).defined


def test_small_classes_have_no_interval() -> None:
    mixed, alone = arms(2.0, 6.0)
    found = class_jain_index({name: x[:20] for name, x in mixed.items()}, alone, seed=1)
    assert found.defined
    assert (found.lower, found.upper) == (None, None)
