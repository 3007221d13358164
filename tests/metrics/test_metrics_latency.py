from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_rows import row

from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.definitions import METRICS
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, Records


def records(*rows: object) -> Records:
    return Records.from_rows(rows)  # type: ignore[arg-type]


def test_every_instant_has_its_own_latency() -> None:
    seen = records(
        row(
            scheduled=-5.0,
            dispatched=-2.0,
            submitted=0.0,
            first_event=80.0,
            first_nonempty=90.0,
            first_reasoning=95.0,
            chunks=(100.0, 110.0, 130.0),
            finished=140.0,
        )
    )
    assert latency.ttft_ms(seen).tolist() == [100.0]
    assert latency.ttft_scheduled_ms(seen).tolist() == [105.0]
    assert latency.ttft_any_ms(seen).tolist() == [90.0]
    assert latency.ttft_first_event_ms(seen).tolist() == [80.0]
    assert latency.ttft_reasoning_ms(seen).tolist() == [95.0]
    assert latency.e2e_ms(seen).tolist() == [130.0]
    assert latency.e2e_scheduled_ms(seen).tolist() == [135.0]
    assert latency.request_latency_ms(seen).tolist() == [140.0]
    assert latency.request_latency_scheduled_ms(seen).tolist() == [145.0]


def test_nanoseconds_survive() -> None:
    seen = records(row(chunks=(0.000001, 0.000003)))
    assert latency.ttft_ms(seen).tolist() == [1e-6]
    assert latency.e2e_ms(seen).tolist() == [3e-6]


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_only_successful_requests_count(outcome: Outcome) -> None:
    seen = records(row(0), row(1, submitted=1.0, outcome=outcome))
    for measure in latency.FAMILIES.values():
        assert len(measure(seen)) == 1


@pytest.mark.parametrize(
    ("missing", "families"),
    [
        ("submitted", {"ttft", "ttft_any", "ttft_first_event", "e2e"}),
        ("scheduled", {"ttft_scheduled", "e2e_scheduled"}),
        ("first_content", {"ttft", "ttft_scheduled", "tpot"}),
        ("first_nonempty", {"ttft_any"}),
        ("first_event", {"ttft_first_event"}),
        ("last_content", {"e2e", "e2e_scheduled", "tpot"}),
    ],
)
def test_a_missing_instant_leaves_the_request_out(missing: str, families: set[str]) -> None:
    lacking = row(1)
    setattr(lacking, f"{missing}_ns", None)
    seen = records(row(0), lacking)
    shorter = {name for name, measure in latency.FAMILIES.items() if len(measure(seen)) == 1}
    assert shorter == families


def test_input_tokens_are_aligned_with_ttft() -> None:
    seen = records(
        row(0, submitted=0.0, input_tokens=10),
        row(1, submitted=1.0, input_tokens=20, outcome=Outcome.EMPTY),
        row(2, submitted=2.0, input_tokens=None),
        row(3, submitted=3.0, input_tokens=40),
    )
    assert latency.ttft_ms(seen).tolist() == [100.0, 98.0, 97.0]
    assert latency.ttft_input_tokens(seen).tolist() == [10, MISSING, 40]


def test_tpot_is_the_mean_gap() -> None:
    seen = records(row(chunks=(100.0, 110.0, 140.0)))
    assert latency.tpot_ms(seen).tolist() == [20.0]


@pytest.mark.parametrize("tokens", [0, 1, None])
def test_tpot_needs_two_tokens(tokens: int | None) -> None:
    lacking = row()
    lacking.output_tokens = tokens
    assert latency.tpot_ms(records(lacking)).tolist() == []


def test_tpot_of_streamed_reasoning_starts_at_its_first_token() -> None:
    chunks = tuple(100.0 + 10 * step for step in range(11))
    seen = records(row(chunks=chunks, first_reasoning=100.0, first_content=150.0, reasoning_tokens=5))
    assert latency.tpot_ms(seen).tolist() == [10.0]
    assert latency.ttft_ms(seen).tolist() == [150.0]


def test_tpot_of_hidden_reasoning_counts_the_visible_tokens() -> None:
    chunks = (500.0, 510.0, 520.0)
    seen = records(row(chunks=chunks, tokens=103, reasoning_tokens=100))
    assert latency.tpot_ms(seen).tolist() == [10.0]
    all_hidden = records(row(chunks=chunks, tokens=100, reasoning_tokens=100))
    assert latency.tpot_ms(all_hidden).tolist() == []


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e4),
            st.lists(st.floats(0.01, 1e3), min_size=2, max_size=20),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_end_to_end_is_first_token_and_the_rest(requests: list[tuple[float, list[float]]]) -> None:
    """E2E = TTFT + (N - 1) TPOT."""
    rows = [
        row(index, submitted=submitted, chunks=tuple(submitted + np.cumsum(gaps)))
        for index, (submitted, gaps) in enumerate(requests)
    ]
    seen = records(*rows)
    whole = latency.ttft_ms(seen) + (seen.output_tokens - 1) * latency.tpot_ms(seen)
    assert latency.e2e_ms(seen) == pytest.approx(whole)


def test_nothing_measured_is_an_empty_vector() -> None:
    seen = records()
    for measure in (*latency.FAMILIES.values(), latency.ttft_input_tokens):
        assert measure(seen).tolist() == []


def test_families_are_in_the_catalogue() -> None:
    assert set(latency.FAMILIES) <= {name for name, metric in METRICS.items() if metric.is_family}


def of_slots(slots: int, per_second: float, requests: int = 1000) -> Records:
    """Services of 1 s on average, taken in the order sent; the reply comes as a whole."""
    random = np.random.default_rng(3)
    rows, at, free = [], 0.0, [0.0] * slots
    for index in range(requests):
        at += random.exponential(1000 / per_second)
        end = max(at, heapq.heappop(free)) + random.exponential(1000)
        heapq.heappush(free, end)
        rows.append(row(index, scheduled=at, submitted=at, chunks=(end,), finished=end))
    return records(*rows)


def test_intervals_of_latencies_know_what_requests_waited() -> None:
    """With 32 slots some wait, which the noise of service hides; with 1000 none does."""
    busy, calm = of_slots(32, 27.2), of_slots(1000, 27.2)
    queued = latency.distribution_of("ttft", [busy])
    plain = distribution("ttft", latency.ttft_ms(busy))
    for statistic in ("mean", "p50", "p95"):
        name = f"ttft.{statistic}"
        assert queued[name].upper > 1.01 * plain[name].upper  # type: ignore[operator]
        assert queued[name].lower <= plain[name].lower  # type: ignore[operator]
    alone, unhelped = latency.distribution_of("ttft", [calm]), distribution("ttft", latency.ttft_ms(calm))
    assert alone["ttft.mean"].upper < 1.01 * unhelped["ttft.mean"].upper  # type: ignore[operator]
    named = latency.distribution_of("latency", [busy], name="latency[chat]")
    assert named["latency[chat].mean"].upper == queued["ttft.mean"].upper
    # Of 30 a second it cannot be told whether they are too many.
    assert latency.distribution_of("ttft", [of_slots(32, 31)])["ttft.mean"].upper is None


def test_requests_of_a_class_waited_for_all_others() -> None:
    busy = of_slots(32, 28.8)
    half = busy.select(np.arange(len(busy)) % 2 == 0)
    among = latency.distribution_of("e2e", [half], among=[busy])["e2e.mean"]
    # Among themselves they seem to be served by fewer slots.
    queue = latency.backlog_among([busy], [half.submitted_ns])
    assert queue is not None
    assert among.upper == distribution("x", latency.e2e_ms(half), backlog=queue)["x.mean"].upper


def test_a_long_run_tells_of_its_queue_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = of_slots(32, 28.8)
    monkeypatch.setattr(latency, "BLOCK", 999)
    assert latency.backlog_among([busy], [busy.submitted_ns]) is None
    assert latency.distribution_of("ttft", [busy]) == distribution("ttft", latency.ttft_ms(busy))


def test_families_together_are_what_each_is_alone() -> None:
    """Also where a family has other requests: of one that ended without content there is no TTFT."""
    busy = of_slots(32, 28.8)
    half = busy.select(np.arange(len(busy)) % 2 == 0)
    first_content_ns = np.where(np.arange(len(half)) % 5 == 0, MISSING, half.first_content_ns)
    half = replace(half, first_content_ns=first_content_ns)
    families = ("ttft", "tpot", "e2e", "e2e_scheduled")
    alone = [latency.distribution_of(family, [half], among=[busy]) for family in families]
    assert latency.distributions(families, [half], among=[busy]) == {
        k: v for own in alone for k, v in own.items()
    }
    assert alone[0]["ttft.mean"].n < alone[2]["e2e.mean"].n
    assert latency.distributions(families, []) == {
        k: v for family in families for k, v in latency.distribution_of(family, []).items()
    }


def network(amount_ms: float, *, rtt_ms: float | None = None, applied: bool = True) -> Facts:
    stated: dict[str, object] = {
        "network.ttft_adjustment": {"applied": applied, "amount_ms": amount_ms, "method": "median RTT"}
    }
    if rtt_ms is not None:
        stated["network.rtt_ms"] = {"p50": rtt_ms, "n": 10}
    return Facts.of(Origin.DECLARED, stated, "sut.toml")


MEASURED = {
    "ttft.p50": Estimate(30.0, 25.0, 40.0, 0.95, 100, "order statistics", "ms"),
    "ttft[0-256].p99": Estimate(80.0, 60.0, None, 0.95, 50, "order statistics", "ms"),
    "ttft_any.p50": Estimate(20.0, 15.0, 25.0, 0.95, 100, "order statistics", "ms"),
    "tpot.p50": Estimate(10.0, 9.0, 11.0, 0.95, 100, "order statistics", "ms"),
}


def test_network_time_is_taken_off_point_and_interval() -> None:
    found = latency.adjusted_ttft(MEASURED, network(2.0, rtt_ms=1.9))
    assert {name: (one.point, one.lower, one.upper) for name, one in found.items()} == {
        "ttft_adjusted.p50": (28.0, 23.0, 38.0),
        "ttft_adjusted[0-256].p99": (78.0, 58.0, None),
    }
    assert latency.adjusted_ttft(MEASURED, network(2.0, applied=False)) == {}
    assert latency.adjusted_ttft(MEASURED, Facts.of(Origin.DECLARED, {}, "sut.toml")) == {}


def test_network_time_that_was_measured_has_an_interval_of_its_own() -> None:
    stated = network(2.0, rtt_ms=2.0)
    stated.value("network.ttft_adjustment").update({"lower_ms": 1.5, "upper_ms": 4.0})
    found = latency.adjusted_ttft(MEASURED, stated)
    assert {name: (one.point, one.lower, one.upper) for name, one in found.items()} == {
        "ttft_adjusted.p50": (28.0, 21.0, 38.5),
        "ttft_adjusted[0-256].p99": (78.0, 56.0, None),
    }


@pytest.mark.parametrize("stated", [network(20.0, rtt_ms=2.0), network(30.0)], ids=["round trip", "ttft"])
def test_more_than_the_network_takes_is_no_adjustment(stated: Facts) -> None:
    found = latency.adjusted_ttft(MEASURED, stated)
    assert set(found) == {"ttft_adjusted.p50", "ttft_adjusted[0-256].p99"}
    assert all(one.point is None and one.upper is None for one in found.values())
