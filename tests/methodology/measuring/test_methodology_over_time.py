"""A load over its time, from records made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from replayed_sut import ReplayedSUT

from pytest_llmbench.methodology.measuring.over_time import MOST_BINS, over_time_plots
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.model.observation import ClockAnchor, EngineReadings, Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.workloads.catalogue import workload

SECOND = 1_000_000_000
START = 7 * SECOND


def request(index: int, sent_s: float, ttft_ms: float | None, took_s: float) -> RequestRecord:
    sent = START + round(sent_s * SECOND)
    return RequestRecord(
        index=index, request_id=str(index), phase=Phase.MEASURE, submitted_ns=sent,
        first_content_ns=None if ttft_ms is None else sent + round(ttft_ms * 1e6),
        finished_ns=sent + round(took_s * SECOND),
        outcome=Outcome.OK if ttft_ms is not None else Outcome.TIMEOUT,
    )  # fmt: skip


def observation(rows: list[RequestRecord], seconds: float) -> Observation:
    plan = LoadPlan(
        "x", workload("synthetic-uniform"), OpenLoop(1.0), max(len(rows), 1), seed=1, phase=Phase.MEASURE
    )
    end = START + round(seconds * SECOND)
    return Observation(plan, Records.from_rows(rows), START, end, ClockAnchor(START, 0))


@pytest.fixture
def seen() -> Observation:
    """Ten seconds in five parts: quick, quick, a stall, a failure, nothing."""
    rows = [
        request(0, 0.5, 10, 1.0), request(1, 1.0, 30, 4.0), request(2, 1.5, 20, 0.2),
        request(3, 2.5, 15, 0.3), request(4, 4.1, 900, 1.0), request(5, 6.5, None, 0.5),
    ]  # fmt: skip
    return observation(rows, 10)


def test_ttft_by_the_time_of_submission(seen: Observation) -> None:
    plot = over_time_plots(seen)[0]
    assert (plot.id, plot.title) == ("ttft_over_time", "TTFT over time")
    assert plot.series["P50"] == ((1.0, 3.0, 5.0), (20.0, 15.0, 900.0))
    assert plot.series["greatest"] == ((1.0, 3.0, 5.0), (30.0, 15.0, 900.0))


def test_requests_under_way_and_failed(seen: Observation) -> None:
    plot = over_time_plots(seen, "20 req/s")[1]
    assert plot.title == "Requests over time (20 req/s)"
    assert plot.series["under way"] == ((2.0, 4.0, 6.0, 8.0, 10.0), (1.0, 1.0, 0.0, 0.0, 0.0))
    assert plot.series["failed meanwhile"][1] == (0.0, 0.0, 0.0, 1.0, 0.0)
    assert "waiting in the engine" not in plot.series


def test_the_queue_of_the_engine_where_it_says(seen: Observation) -> None:
    at = START + np.array([1, 3, 9], dtype=np.int64) * SECOND
    told = replace(seen, engine=EngineReadings(at, {"waiting": np.array([2.0, 7.0, 1.0])}))
    assert over_time_plots(told)[1].series["waiting in the engine"][1] == (2.0, 7.0, 7.0, 7.0, 1.0)


def test_the_end_of_the_load_is_marked_where_answers_came_later(seen: Observation) -> None:
    assert over_time_plots(seen)[0].marks == {}
    drained = replace(seen, load_ended_ns=START + 8 * SECOND)
    assert over_time_plots(drained)[0].marks == {"load ended": 8.0}


def test_nothing_came_back_or_nothing_was_sent() -> None:
    failed = observation([request(0, 1, None, 1)], 5)
    assert [plot.id for plot in over_time_plots(failed)] == ["requests_over_time"]
    assert over_time_plots(observation([], 5)) == ()
    assert over_time_plots(observation([request(0, 0, 10, 0)], 0)) == ()


def test_a_long_load_has_no_more_parts_than_can_be_seen() -> None:
    rows = [request(i, i * 0.01, 10 + i % 7, 0.5) for i in range(3000)]
    plots = over_time_plots(observation(rows, 31))
    assert len(plots[1].series["under way"][0]) == MOST_BINS
    assert max(plots[1].series["under way"][1]) == 50


def test_results_have_them() -> None:
    result = ReplayedSUT().measure(ttft.TEST, rate=20, requests=40, runs=2)
    titles = [plot.title for plot in result.plots if "time" in plot.id]
    assert titles == ["TTFT over time (run 1 of 2)", "Requests over time (run 1 of 2)"]


def test_the_slowest_requests_in_rows(seen: Observation) -> None:
    rows = [
        replace(request(0, 1.0, 30, 0.2), last_content_ns=START + SECOND + 130_000_000),
        replace(request(1, 2.0, 90, 0.2), last_content_ns=START + 2 * SECOND + 190_000_000,
                queue_wait_ns=40_000_000),
        replace(request(2, 3.0, 60, 0.2), last_content_ns=START + 3 * SECOND + 60_000_000),
        request(3, 4.0, None, 0.2),
    ]  # fmt: skip
    plot = over_time_plots(observation(rows, 5), "64 in flight")[-1]
    assert plot.title == "The 3 requests with the greatest TTFT (64 in flight)"
    assert plot.rows == ("#1 at 2 s", "#2 at 3 s", "#0 at 1 s")
    assert plot.series == {
        "queue of the server": ((0.0, 40.0), (0.0, 0.0)),
        "to the first token": ((40.0, 90.0, 0.0, 60.0, 0.0, 30.0), (0.0, 0.0, 1.0, 1.0, 2.0, 2.0)),
        "output": ((90.0, 190.0, 30.0, 130.0), (0.0, 0.0, 2.0, 2.0)),
    }
