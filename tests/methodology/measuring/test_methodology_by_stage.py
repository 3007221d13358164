"""The figures of each stage of a load, and limits on them."""

from __future__ import annotations

import numpy as np
import pytest
from replayed_sut import ReplayedSUT

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.measuring.over_time import over_time_plots
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import job, ttft
from pytest_llmbench.metrics.definitions import is_metric
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import spike
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

SPIKE = spike(5, 40, before_s=4, for_s=2, after_s=4)
EACH = Objective("ttft[*].p99", "<=", 900.0, "ms")
SHORT = SyntheticWorkload("short", Fixed(64), Fixed(16))


@pytest.mark.parametrize("workload", [SHORT, {"a": (SHORT, 1), "b": (SHORT, 1)}])
def test_each_stage_has_the_figures_of_what_was_due_in_it(workload: object) -> None:
    result = ReplayedSUT().measure(ttft.TEST, arrival=SPIKE, workload=workload, runs=2, slo=[EACH])
    assert [each.metric for each in result.objectives] == [
        f"ttft[{name}].p99" for name in ("before", "spike", "after")
    ]
    assert len(result.observations) == 2
    assert len({run.plan.seed for run in result.observations}) == 2  # no prompt is sent twice
    for run in result.observations:
        due_s = (run.records.scheduled_ns - run.started_ns) / 1e9
        assert len(due_s) == 120
        assert due_s.max() < 10
    first = result.observations[0]
    due_s = (first.records.scheduled_ns - first.started_ns) / 1e9
    own = first.records.select((due_s >= 4) & (due_s < 6))
    waits = (own.first_content_ns - own.submitted_ns) / 1e6
    assert result.by_run["ttft[spike].p50"][0] == pytest.approx(np.median(waits))
    ended_s = (first.records.finished_ns - first.started_ns) / 1e9
    assert result.by_run["request_throughput[spike]"][0] == pytest.approx(
        ((ended_s > 4) & (ended_s <= 6)).sum() / 2
    )
    assert result.metrics["completion_rate[after]"].point == 1
    assert all(is_metric(name) for name in result.metrics)
    table = next(table for table in result.tables if table.id == "by_stage")
    assert [row[0] for row in table.rows] == ["before", "spike", "after", "all"]
    assert sum(int(row[1]) for row in table.rows[:3]) == 240
    assert not [finding for finding in result.findings if finding.id == "overload"]


def test_a_load_of_stages_is_what_it_is_and_not_a_sample() -> None:
    parameters = build(ttft.Parameters, {"arrival": SPIKE, "p99_ms": 500})
    assert parameters.is_job
    assert parameters.most_requests == 120
    assert parameters.load.rate == pytest.approx(12)
    assert build(job.Parameters, {"arrival": [(0, 5), (60, 50)], "prompts": 700}).most_requests == 700


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"arrival": SPIKE, "rate": 5}, "leave out rate"),
        ({"arrival": SPIKE, "concurrency": 5}, "leave out concurrency"),
        ({"arrival": SPIKE, "requests": 100}, "leave out their end, or requests"),
        ({"arrival": SPIKE, "requests": "auto", "p99_ms": 5}, "stages are one pass"),
        ({"arrival": [(0, -5)]}, "arrival entry 1 is"),
        ({"arrival": "spike", "rate": 5}, "must be one of poisson"),
        ({"rate": 5, "slo": [EACH]}, "the load has no stages: give stages in arrival"),
        (
            {"arrival": SPIKE, "slo": [Objective("ttft[peak].p99", "<=", 9.0, "ms")]},
            "ttft[peak].p99 names no stage of the load; the stages are before, spike, after",
        ),
    ],
)
def test_what_does_not_go_with_stages_is_told(keywords: dict, told: str) -> None:
    with pytest.raises(SuiteError) as error:
        build(ttft.Parameters, keywords)
    assert told in str(error.value)


def test_the_picture_has_the_rate_that_was_offered_and_where_stages_begin() -> None:
    (seen,) = ReplayedSUT().measure(ttft.TEST, arrival=SPIKE, workload=SHORT).observations
    rate, waits = over_time_plots(seen)[:2]
    assert (rate.id, rate.marks) == ("rate_over_time", {"before": 0, "spike": 4, "after": 6})
    assert rate.series["offered"] == ((0, 4, 4, 6, 6, 10), (5, 5, 40, 40, 5, 5))
    assert set(rate.series) == {"offered", "sent", "ended well"}
    at, sent = rate.series["sent"]
    step = at[1] - at[0]
    assert sum(sent) * step == pytest.approx(120)
    assert waits.id == "ttft_over_time"
    assert waits.marks["spike"] == 4
