"""The figures of each part of a mixture: those of its requests alone, under the load of all."""

from __future__ import annotations

import numpy as np
from replayed_sut import ReplayedSUT

from pytest_llmbench.methodology.measuring.one_load import class_labels
from pytest_llmbench.methodology.sections import goodput, ttft
from pytest_llmbench.metrics.definitions import is_metric
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

SHORT = SyntheticWorkload("s", Fixed(64), Fixed(4))
LONG = SyntheticWorkload("l", Fixed(3000), Fixed(40))
MIX = {"short": (SHORT, 3), "long": (LONG, 1)}


def _of(result: TestResult, label: str) -> Records:
    (seen,) = result.observations
    return seen.records.select(np.array([each == label for each in seen.records.class_label]))


def test_each_class_has_the_figures_of_its_own_requests() -> None:
    result = ReplayedSUT().measure(ttft.TEST, rate=20, requests=200, workload=MIX)
    for label in ("short", "long"):
        own = _of(result, label)
        waits = (own.first_content_ns - own.submitted_ns) / 1e6
        found = result.metrics[f"ttft[{label}].p50"]
        assert (found.point, found.n) == (np.median(waits), len(own))
        totals = (own.last_content_ns - own.submitted_ns) / 1e6
        assert result.metrics[f"e2e[{label}].max"].point == totals.max()
        assert result.metrics[f"completion_rate[{label}]"].point == 1
    assert result.metrics["ttft[long].p50"].point > result.metrics["ttft[short].p50"].point
    parts = [result.metrics[f"output_token_throughput[{label}]"].point or 0 for label in ("short", "long")]
    assert np.isclose(sum(parts), result.metrics["output_token_throughput"].point or 0)
    assert all(is_metric(name) for name in result.metrics)
    table = next(table for table in result.tables if table.id == "by_class")
    counts = [len(_of(result, label)) for label in ("short", "long")]
    assert [row[:2] for row in table.rows] == [
        ("short", f"{counts[0]}"), ("long", f"{counts[1]}"), ("all", "200")
    ]  # fmt: skip


def test_goodput_and_runs_have_them_too() -> None:
    result = ReplayedSUT().measure(goodput.TEST, rate=20, requests=60, runs=2, workload=MIX, ttft_ms=900)
    assert len(result.by_run["ttft[long].p50"]) == 2
    assert len({len(row) for table in result.tables for row in table.rows if table.id == "by_class"}) == 1


def test_a_class_without_requests_has_no_figure() -> None:
    result = ReplayedSUT().measure(
        ttft.TEST, rate=20, requests=30, workload={"short": (SHORT, 1), "never": (LONG, 1e-9)}
    )
    assert result.metrics["ttft[never].p99"].point is None
    assert result.metrics["completion_rate[never]"].point is None
    table = next(table for table in result.tables if table.id == "by_class")
    assert table.rows[1][:3] == ("never", "0", "not measured: no requests")
    assert all(cell.startswith("not measured: no ") for cell in table.rows[1][3:])


def test_other_workloads_have_no_classes() -> None:
    assert class_labels(SHORT) == ()
    assert class_labels(workload(MIX)) == ("short", "long")
    result = ReplayedSUT().measure(ttft.TEST, rate=20, requests=20, workload=SHORT)
    assert not [table for table in result.tables if table.id == "by_class"]
    assert not [name for name in result.metrics if "[s" in name]
