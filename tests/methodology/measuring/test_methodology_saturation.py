"""The saturation rules of section 5.2.3.1, settled by AMB-14, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from canned_levels import QueueServer, canned_setting

from pytest_llmbench.methodology.measuring.levels import Reference, Seen, gain_is_spent, level_of
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.metrics.balance import IN_FLIGHT, WAITING, Balance, completion_balance, queue_of
from pytest_llmbench.metrics.throughput import Window, window_of
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import Level


def run(rate: float, server: QueueServer | None = None, duration_s: float = 5.0) -> Observation:
    setting = canned_setting()
    plan = RequestSlice(setting.workload).open_loop(setting, "level", OpenLoop(rate, "uniform"), duration_s)
    return (server or QueueServer())(plan)


def closed(concurrency: int, server: QueueServer) -> Observation:
    setting = canned_setting()
    plan = RequestSlice(setting.workload).closed_loop(
        setting, "level", concurrency, duration_s=2.0, at_least=concurrency
    )
    return server(plan)


def level(concurrency: int, tok_s: float | None, p50: float = 20.0, p99: float = 20.0) -> Level:
    def estimate(value: float | None, unit: str) -> Estimate:
        return Estimate(value, None, None, 0.95, 100, "canned", unit)

    metrics = {
        "output_token_throughput": estimate(tok_s, "tok/s"),
        "ttft.p50": estimate(p50, "ms"),
        "ttft.p99": estimate(p99, "ms"),
    }
    return Level("canned", "closed", 10, 9, 100, 100, 0, 1.0, metrics=metrics, concurrency=concurrency)


def why(seen: Seen) -> str:
    return "; ".join(seen.level.saturation_reasons)


def test_below_capacity_no_rule_speaks() -> None:
    assert level_of(run(36.0), seed=1).level.saturation_reasons == ()


def test_a_growing_queue() -> None:
    # 44 req/s on 40: four more are left over every second
    seen = level_of(run(44.0), seed=1)
    assert seen.level.queue_growing is True
    assert seen.level.queue_source == IN_FLIGHT
    assert "the queue grows: requests in flight" in why(seen)


def test_completions_below_nine_tenths_of_the_arrivals() -> None:
    observed = run(60.0)
    found = completion_balance(observed.records, window_of(observed))
    assert found is not None
    assert found.share == pytest.approx(40 / 60, abs=0.02)
    assert "completions at" in why(level_of(run(60.0), seed=1))
    # failed requests complete nothing
    half = run(30.0, QueueServer(fails_above=2))
    assert "completions at" in why(level_of(half, seed=1))


def test_a_latency_longer_than_the_ramp_up_is_no_shortfall() -> None:
    # Replies of two seconds, ramp-up of half a second: in the first quarter of the window nothing can end.
    slow = run(20.0, QueueServer(slots=100, service_s=2.0))
    found = completion_balance(slow.records, window_of(slow))
    assert found is not None
    assert found.share == pytest.approx(1.0, abs=0.03)
    assert level_of(slow, seed=1).level.saturation_reasons == ()


@pytest.mark.parametrize(
    ("balance", "short"),
    [
        (Balance(100, 89, 4.0), True),
        (Balance(100, 90, 4.0), False),
        (Balance(100, 89, 100.0), False),
        (Balance(3, 1, 0.1), False),
        (Balance(4, 1, 0.1), True),
    ],
)
def test_a_shortfall_is_more_than_chance(balance: Balance, short: bool) -> None:
    assert balance.short is short


def test_tails_beyond_ten_times_the_lowest_p50() -> None:
    slow = run(20.0, QueueServer(first_ms=90.0))
    low, high = Reference(8.0, True, ""), Reference(9.5, True, "")
    assert "TTFT P99 is 11.2 times" in why(level_of(slow, seed=1, reference=low))
    assert level_of(slow, seed=1, reference=high).level.saturated is False


def test_the_ten_fold_rule_is_off_where_the_lowest_level_breaks_it() -> None:
    off = Reference.of(level(1, 10, p50=10, p99=101))
    assert not off.applies
    assert "already 10.1 times" in str(off.note)
    slow = run(20.0, QueueServer(first_ms=90.0))
    assert level_of(slow, seed=1, reference=replace(off, ttft_p50_ms=1.0)).level.saturated is False
    assert Reference.of(level(1, 10, p50=10, p99=100)).applies


def test_the_waiting_gauge_stands_before_the_requests_in_flight() -> None:
    observed = run(44.0, QueueServer(gauges=True))
    queue = queue_of(observed, window_of(observed))
    assert queue is not None
    assert queue.source == WAITING
    assert queue.growth.growing
    # of 44 req/s only the waiting ones are in it, not the four that are served
    assert queue.growth.means[0] < 6


def test_a_closed_loop_has_a_queue_only_with_a_gauge() -> None:
    observed = closed(8, QueueServer())
    assert queue_of(observed, window_of(observed)) is None
    assert level_of(observed, seed=1).level.queue_growing is None
    gauged = closed(8, QueueServer(gauges=True))
    queue = queue_of(gauged, window_of(gauged))
    assert queue is not None
    assert np.mean(queue.growth.means) == pytest.approx(4.0, abs=0.3)


def test_in_a_closed_loop_completions_say_nothing() -> None:
    assert "completions" not in why(level_of(closed(64, QueueServer()), seed=1))


def test_a_long_tail_alone_is_saturation_and_no_overload() -> None:
    slow = run(10.0, QueueServer(first_ms=60.0))
    told = level_of(slow, seed=1, reference=Reference(5.0, applies=True, note="")).level
    assert (told.saturated, told.overloaded) == (True, False)
    queueing = level_of(run(44.0), seed=1).level
    assert (queueing.saturated, queueing.overloaded) == (True, True)


def test_nothing_completed_is_saturated() -> None:
    assert "no request was completed" in why(level_of(run(10.0, QueueServer(fails_above=0)), seed=1))


@pytest.mark.parametrize(
    ("lower", "higher", "spent"),
    [
        (level(10, 100.0), level(11, 100.9), True),
        (level(10, 100.0), level(11, 101.1), False),
        (level(10, 100.0), level(20, 90.0), True),
        (level(20, 100.0), level(21, 100.0), False),
        (level(10, None), level(20, 100.0), False),
        (level(10, 0.0), level(20, 0.0), False),
    ],
)
def test_a_gain_below_one_percent_over_a_step_of_ten(lower: Level, higher: Level, spent: bool) -> None:
    assert (gain_is_spent(lower, higher) is not None) is spent


def test_long_replies_among_short_ones_are_no_shortfall() -> None:
    # One in four takes two seconds, the others a fifth: no single latency is that of all.
    rows = []
    for number in range(60):
        submitted = 10**12 + number * 80_000_000
        tokens = 200 if number % 4 == 0 else 20
        rows.append(
            RequestRecord(
                index=number,
                request_id=str(number),
                phase=Phase.MEASURE,
                submitted_ns=submitted,
                first_content_ns=submitted + 10_000_000,
                finished_ns=submitted + 10_000_000 * tokens,
                output_tokens=tokens,
                requested_max_tokens=tokens,
                outcome=Outcome.OK,
            )
        )
    records = Records.from_rows(rows)
    window = Window(records, 10**12 + 480_000_000, 10**12 + 4_800_000_000)
    found = completion_balance(records, window)
    assert found is not None
    assert found.share == 1.0
    # under way: 12.5 requests a second that take 0.65 s on the average
    assert found.under_way == pytest.approx(12.5 * 0.65, rel=0.05)
