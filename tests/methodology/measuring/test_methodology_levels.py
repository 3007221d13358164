"""From an observation to its level: window, samples, rates, counts (AMB-16)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from canned_levels import QueueServer, canned_setting

from pytest_llmbench.methodology.measuring.levels import level_of, numbered, qualified, run_metrics
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.metrics.throughput import submitted_inside, window_of
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import OpenLoop


def seen(rate: float = 20.0, duration_s: float = 10.0, server: QueueServer | None = None) -> Observation:
    setting = canned_setting()
    plan = RequestSlice(setting.workload).open_loop(setting, "level", OpenLoop(rate, "uniform"), duration_s)
    return (server or QueueServer())(plan)


def closed(concurrency: int, duration_s: float, server: QueueServer | None = None) -> Observation:
    setting = canned_setting()
    plan = RequestSlice(setting.workload).closed_loop(
        setting, "level", concurrency, duration_s=duration_s, at_least=concurrency
    )
    return (server or QueueServer())(plan)


def test_the_window_is_the_nominal_duration_without_its_first_tenth() -> None:
    run = seen()
    window = window_of(run)
    assert window.start_ns == run.started_ns + 1_000_000_000
    assert window.end_ns == run.started_ns + 10_000_000_000
    assert window.duration_s == 9.0


def test_the_window_of_a_load_that_was_ended_early_ends_with_its_last_submission() -> None:
    run = replace(seen(), stopped="canned", load_ended_ns=None)
    assert window_of(run).end_ns == int(run.records.submitted_ns.max())


def test_the_window_of_a_closed_loop_ends_with_its_load_not_with_the_drain() -> None:
    run = closed(4, 2.0)
    assert window_of(run).end_ns == run.load_ended_ns
    assert run.ended_ns > window_of(run).end_ns


def test_latency_samples_were_submitted_inside_the_window() -> None:
    run = seen()
    inside = submitted_inside(window_of(run))
    # 20 req/s evenly over ten seconds: the first tenth and what comes on its end are left out
    assert len(inside) == 180
    assert level_of(run, seed=1).level.metrics["ttft.p50"].n == 180


def test_known_answers() -> None:
    level = level_of(seen(), seed=1, percent_of_capacity=50.0, role="probe").level
    assert (level.n_submitted, level.n_ok, level.n_failed, level.completion_ratio) == (200, 200, 0, 1.0)
    assert level.metrics["output_token_throughput"].point == pytest.approx(200.0, rel=0.01)
    assert level.metrics["input_token_throughput"].point == pytest.approx(320.0, rel=0.01)
    assert level.metrics["request_throughput"].point == pytest.approx(20.0, rel=0.01)
    assert level.metrics["ttft.p99"].point == pytest.approx(20.0, abs=0.01)
    assert level.metrics["e2e.p50"].point == pytest.approx(100.0, abs=0.01)
    assert (level.offered_rps, level.concurrency, level.load_model) == (20.0, None, "open")
    assert (level.percent_of_capacity, level.role) == (50.0, "probe")
    assert (level.duration_s, level.window_s) == (10.0, 9.0)
    assert level.in_flight_means == pytest.approx((2.0,) * 5, abs=0.1)
    assert level.queue_growing is False
    assert level.saturated is False
    assert len(level.throughput_slices) == 10
    assert level.steady is True


def test_failures_are_counted_by_outcome_and_over_the_whole_level() -> None:
    level = level_of(closed(8, 2.0, QueueServer(fails_above=4)), seed=1).level
    assert level.n_failed > 0
    assert level.errors == {"http_error": level.n_failed}
    assert level.completion_ratio == pytest.approx(level.n_ok / level.n_submitted)


def test_several_runs_are_pooled() -> None:
    windows = [window_of(seen()), window_of(seen())]
    pooled = run_metrics(windows, seed=1)
    assert pooled["ttft.p50"].n == 360
    assert pooled["request_throughput"].point == pytest.approx(20.0, rel=0.01)


def test_qualified_names() -> None:
    metrics = level_of(seen(duration_s=1.0), seed=1).level.metrics
    names = set(qualified(metrics, "80%"))
    assert {"ttft[80%].p99", "output_token_throughput[80%]", "completion_rate[80%]"} <= names


def test_levels_know_their_observation() -> None:
    one = level_of(seen(duration_s=1.0), seed=1)
    assert [level.observation for level in numbered([one, one])] == [0, 1]
