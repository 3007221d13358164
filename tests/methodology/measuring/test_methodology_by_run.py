"""The metrics of each run, as comparisons take them."""

from __future__ import annotations

import numpy as np
from replayed_sut import ReplayedSUT

from pytest_llmbench.methodology.sections import throughput, ttft
from pytest_llmbench.model.estimate import Estimate, by_run
from pytest_llmbench.model.numbers import Figure


def number(value: float) -> Estimate:
    return Estimate(value, None, None, 0.95, 1, "test", "ms")


def test_values_stand_in_the_order_of_the_runs_and_gaps_stay_gaps() -> None:
    undefined = Estimate.undefined(unit="ms", method="test")
    runs = [{"a": number(1), "b": undefined}, {"a": number(2), "c": number(5)}]
    assert by_run(runs) == {"a": (1, 2), "b": (None, None), "c": (None, 5)}
    assert by_run(runs[:1]) == by_run([]) == {}


def test_runs_of_ttft_are_their_loads() -> None:
    result = ReplayedSUT().measure(ttft.TEST, rate=20, requests=40, runs=3)
    assert set(result.by_run) <= set(result.metrics)
    for number_, seen in enumerate(result.observations):
        records = seen.records
        own = (records.first_content_ns - records.submitted_ns) / 1e6
        assert result.by_run["ttft.mean"][number_] == np.mean(own)
        assert result.by_run["ttft.p50"][number_] == np.median(own)
    assert len(set(result.by_run["ttft.p50"])) == 3


def test_a_single_run_has_none() -> None:
    assert ReplayedSUT().measure(ttft.TEST, rate=20, requests=20).by_run == {}


def test_a_comparison_has_its_runs_at_quick_scale_too() -> None:
    result = ReplayedSUT().measure(ttft.TEST, "quick", rate=20, keep={"least_runs": 3})
    assert len(result.by_run["ttft.p99"]) == 3


def test_runs_of_throughput_are_the_levels_that_were_held() -> None:
    result = ReplayedSUT().measure(
        throughput.TEST,
        min_concurrency=1,
        max_concurrency=3,
        concurrency_step=1,
        probe_s=2,
        duration_s=4,
        runs=3,
    )
    values = result.by_run["max_output_token_throughput"]
    assert len(values) == len(set(values)) == 3
    assert result.metrics["max_output_token_throughput"].point is not None
    assert min(v for v in values if v is not None) <= result.metrics["max_output_token_throughput"].point
    # One search: it says nothing of the noise between runs.
    assert "sustainable_concurrency" not in result.by_run


def test_a_busy_load_has_the_same_ends_in_tables_as_in_metrics() -> None:
    """Its ends are wider than those of its samples, and overload has none."""
    for rate in (20, 90):
        result = ReplayedSUT("h100-8b").measure(ttft.TEST, "standard", rate=rate, requests=600)
        shown = [cell for row in result.tables[0].cells for cell in row if isinstance(cell, Figure)]
        assert {cell.name for cell in shown} >= {"ttft.p50", "ttft.p99", "ttft.mean"}
        assert [cell.estimate for cell in shown] == [result.metrics[cell.name] for cell in shown]
