"""Components of TTFT and the other reading of "first token" (sections 5.1.3.1 and 5.1.4.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from canned_levels import TINY, QueueServer, canned_setting
from canned_runs import answer

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.metrics.server_side import mean_parts_of_ttft
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import Table, TestResult


def run(execute: Callable[[LoadPlan], Observation], **asked: int) -> TestResult:
    parameters = ttft.Parameters(**({"requests": 20} | asked))
    return drive(ttft.TEST.procedure(parameters, canned_setting()), execute)


def table(result: TestResult, name: str) -> Table | None:
    return next((one for one in result.tables if one.id == name), None)


def test_queue_wait_and_prefill_where_the_server_states_them() -> None:
    # Eight in flight on four places of 100 ms: everyone waits for one reply, prefill takes 20 ms.
    result = run(QueueServer(), concurrency=8, requests=40)
    assert result.metrics["ttft_queue_wait.p50"].point == pytest.approx(100.0)
    assert result.metrics["ttft_prefill.p99"].point == pytest.approx(20.0)
    assert result.metrics["ttft.p50"].point == pytest.approx(120.0)
    found = table(result, "ttft_components")
    assert found is not None
    assert [row[0] for row in found.rows] == ["Queue wait", "Prefill", "Outside"]
    assert found.rows[0][1] == "100 ms"
    assert found.rows[1][-1] == "40"
    assert result.metrics["ttft_outside.p50"].point == 0.0  # nothing lies between this client and its server
    assert not any("not measurable" in note for note in map(str, result.notes))


def test_not_measurable_where_it_does_not() -> None:
    result = run(answer)
    assert "ttft_queue_wait.p50" not in result.metrics
    assert table(result, "ttft_components") is None
    assert any("not measurable" in note for note in map(str, result.notes))


def test_one_component_alone() -> None:
    server = QueueServer()

    def without_prefill(plan: LoadPlan) -> Observation:
        seen = server(plan)
        missing = np.full(len(seen.records), MISSING, dtype=np.int64)
        return replace(seen, records=replace(seen.records, prefill_ns=missing))

    result = run(without_prefill)
    found = table(result, "ttft_components")
    assert found is not None
    assert found.rows[1][1:5] == ("not measurable",) * 4


def test_means_from_the_metrics_page_where_the_replies_state_nothing() -> None:
    """Known: 0.9 s of waiting over 60 requests are 15 ms each. The page has no percentiles."""
    readings = EngineReadings(
        np.array([], dtype=np.int64),
        {},
        {"queue_wait_s": 1.0, "queue_wait_count": 10, "prefill_s": 4.0, "prefill_count": 10},
        {"queue_wait_s": 1.9, "queue_wait_count": 70, "prefill_s": 5.2, "prefill_count": 70},
    )

    def counted(plan: LoadPlan) -> Observation:
        return replace(answer(plan), engine=readings)

    result = run(counted)
    wait, prefill = (result.metrics[f"ttft_{part}.mean"] for part in ("queue_wait", "prefill"))
    assert (wait.point, wait.n) == (pytest.approx(15.0), 60)
    assert (prefill.point, prefill.unit) == (pytest.approx(20.0), "ms")
    assert "ttft_queue_wait.p50" not in result.metrics
    found = table(result, "ttft_components")
    assert found is not None
    assert found.rows[0] == ("Queue wait", *("not measurable",) * 3, "15.0 ms", "60")
    assert not any("reports neither" in note for note in map(str, result.notes))
    assert any("metrics page" in note for note in map(str, result.notes))


def test_what_the_replies_state_stands_before_the_page() -> None:
    server = QueueServer()
    page = EngineReadings(
        np.array([], dtype=np.int64), {}, {"prefill_s": 0, "prefill_count": 0},
        {"prefill_s": 9.0, "prefill_count": 10},
    )  # fmt: skip
    result = run(lambda plan: replace(server(plan), engine=page))
    assert result.metrics["ttft_prefill.mean"].point == pytest.approx(20.0)
    assert not any("metrics page" in note for note in map(str, result.notes))


def test_a_restarted_engine_has_no_means() -> None:
    fell = EngineReadings(
        np.array([], dtype=np.int64), {}, {"prefill_s": 9.0, "prefill_count": 90},
        {"prefill_s": 1.0, "prefill_count": 10},
    )  # fmt: skip
    assert mean_parts_of_ttft([fell]) == {}
    assert mean_parts_of_ttft([None]) == {}


def test_both_readings_where_other_output_comes_first() -> None:
    def whitespace_first(plan: LoadPlan) -> Observation:
        seen = answer(plan.with_(workload=TINY))
        early = seen.records.first_nonempty_ns - 30_000_000
        return replace(seen, plan=plan, records=replace(seen.records, first_nonempty_ns=early))

    result = run(whitespace_first, requests=50)
    found = table(result, "ttft_any_token")
    assert found is not None
    assert found.rows[0] == ("P50", "100 ms", "70 ms")
    assert any("non-content output" in note for note in map(str, result.notes))


def test_one_reading_where_content_comes_first() -> None:
    result = run(answer)
    assert table(result, "ttft_any_token") is None
