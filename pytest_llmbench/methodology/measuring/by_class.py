"""The figures of each part of a mixture, beside those of all requests together.

``ttft[chat].p99`` is of the requests of part ``chat`` alone, under the load of the whole mixture. Limits may
name it, as any other metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.methodology.measuring.by_run import by_run
from pytest_llmbench.methodology.measuring.cells import cell, tail
from pytest_llmbench.metrics.buckets import LABELS
from pytest_llmbench.metrics.latency import distribution_of
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import Table, TestResult

_FAMILIES = ("ttft", "tpot", "e2e")
_COLUMNS = (
    ("TTFT P50", "ttft", "p50"),
    ("TTFT P99", "ttft", "p99"),
    ("TPOT P50", "tpot", "p50"),
    ("E2E P99", "e2e", "p99"),
)


def with_classes(result: TestResult, workload: Workload, seed: int) -> TestResult:
    """The result with the metrics and the table of the parts of ``workload``; as it is without parts."""
    labels = class_labels(workload)
    seen = result.observations
    if not labels or not seen:
        return result
    metrics = _metrics(seen, labels, seed)
    runs = [_metrics([run], labels, seed) for run in seen] if result.by_run else []
    return replace(
        result,
        metrics={**result.metrics, **metrics},
        tables=(*result.tables, _table(metrics, result.metrics, labels, seen)),
        by_run={**result.by_run, **by_run(runs)},
    )


def class_labels(workload: Workload) -> tuple[str, ...]:
    """The labels of the parts that the workload states, whether a request had them or not; without those
    that are the name of a range of lengths, whose figures have these names already."""
    stated = workload.specification()
    parts = stated.get("parts") or stated.get("classes") or ()
    names = (str(part["name"]) for part in parts if isinstance(part, Mapping) and "name" in part)
    return tuple(name for name in names if name not in LABELS)


def _metrics(seen: Sequence[Observation], labels: Sequence[str], seed: int) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for label in labels:
        own = [_of(run, label) for run in seen]
        for family in _FAMILIES:
            records = [run.records for run in own]
            every = [run.records for run in seen]
            found |= distribution_of(family, records, among=every, name=f"{family}[{label}]")
        # Those that have a qualifier (the reasons of schema violations) are given of all requests alone.
        own_rates = {name: value for name, value in rates(own, seed=seed).items() if "[" not in name}
        found |= {f"{name}[{label}]": value for name, value in own_rates.items()}
    return found


def _of(run: Observation, label: str) -> Observation:
    mask = np.fromiter(
        (each == label for each in run.records.class_label), dtype=bool, count=len(run.records)
    )
    return replace(run, records=run.records.select(mask))


def _table(
    metrics: Mapping[str, Estimate],
    together: Mapping[str, Estimate],
    labels: Sequence[str],
    seen: Sequence[Observation],
) -> Table:
    rows = [(label, *_cells(metrics, f"[{label}]")) for label in labels]
    rows.append(("all", *_cells(together, "")))
    counts = [sum(len(_of(run, label).records) for run in seen) for label in labels]
    counts.append(sum(len(run.records) for run in seen))
    titles = ("Class", "Requests", "Completed", *(title for title, _, _ in _COLUMNS), "Output")
    return Table(
        "by_class",
        "By Class",
        titles,
        tuple((row[0], f"{count}", *row[1:]) for row, count in zip(rows, counts, strict=True)),
    )


def _cells(metrics: Mapping[str, Estimate], qualifier: str) -> tuple[str, ...]:
    percentiles = [
        tail(metrics.get(f"{family}{qualifier}.{statistic}"), statistic) for _, family, statistic in _COLUMNS
    ]
    completed, output = (
        metrics.get(f"{name}{qualifier}") for name in ("completion_rate", "output_token_throughput")
    )
    return (cell(completed), *percentiles, cell(output))
