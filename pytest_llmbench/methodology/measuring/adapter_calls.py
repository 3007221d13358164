"""Adapters that the engine unloads and loads while load is running: how long a call takes, and which calls
fail. A call that fails makes no load void; what requests feel of it is in their own figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.metrics.jobs import job_metrics
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.estimate import Estimate, by_run
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Row, cells
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Churn
from pytest_llmbench.model.result import Table, TestResult

_KINDS = ("unload", "load")
_STATISTICS = ("p50", "p95", "max")
_SHOWN = 3
_KEPT_UP = 0.9
"""The least share of the adapters due for a swap that has to be swapped."""


def with_adapter_calls(made: TestResult, churn: Churn, *, is_job: bool) -> TestResult:
    """The result with the durations of the calls, their table, and what went wrong with them.

    The metrics are those of :data:`~pytest_llmbench.methodology.given.OF_CHURN`, in ms; the durations are of
    calls that succeeded.
    """
    runs = made.observations
    metrics, own_runs = _metrics(runs), by_run([_metrics([run]) for run in runs] if len(runs) > 1 else ())
    if is_job:
        metrics = job_metrics(metrics, own_runs, {})
    return replace(
        made,
        metrics={**made.metrics, **metrics},
        by_run={**made.by_run, **own_runs},
        tables=(*made.tables, _table(metrics, runs)),
        findings=(*made.findings, *_findings(churn, runs)),
    )


def _metrics(runs: Sequence[Observation]) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for kind in _KINDS:
        took = [
            [each.took_ns / 1e6 for each in run.adapter_calls if each.kind == kind and not each.problem]
            for run in runs
        ]
        found |= distribution(f"adapter_{kind}", [np.array(own) for own in took if own])
    calls = [each for run in runs for each in run.adapter_calls]
    failed = float(sum(1 for each in calls if each.problem))
    found["adapter_call_failures"] = (
        Estimate.observed(failed, len(calls), "counted", "count", exact=True)
        if calls
        else Estimate.undefined(unit="count", method="no call was sent", n=0)
    )
    return found


def _table(metrics: dict[str, Estimate], runs: Sequence[Observation]) -> Table:
    rows: list[Row] = []
    for kind in _KINDS:
        calls = [each for run in runs for each in run.adapter_calls if each.kind == kind]
        figures = cells(metrics, [f"adapter_{kind}.{statistic}" for statistic in _STATISTICS])
        rows.append((kind, len(calls), sum(1 for each in calls if each.problem), *figures))
    columns = ("Call", "Sent", "Failed", "P50", "P95", "Longest")
    return Table("adapter_calls", "Adapters Unloaded and Loaded", columns, tuple(rows))


def _findings(churn: Churn, runs: Sequence[Observation]) -> Iterable[Finding]:
    calls = [each for run in runs for each in run.adapter_calls]
    failed = [each for each in calls if each.problem]
    if failed:
        told = dict.fromkeys(f"{each.kind} {each.adapter}: {each.problem}" for each in failed)
        # By the last call that went well; adapters of which none did are there as before.
        last = {each.adapter: each.kind for each in calls if not each.problem}
        absent = tuple(sorted(name for name, kind in last.items() if kind == "unload"))
        yield Finding.of(
            "adapter_calls_failed",
            value=float(len(failed)),
            limit=0.0,
            calls=len(calls),
            problems=tuple(told)[:_SHOWN],
            further=len(told) > _SHOWN,
            absent=absent,
        )
    due = sum(math.floor(run.duration_s * churn.rate) for run in runs)
    begun = sum(1 for each in calls if each.kind == "unload")
    if begun < math.floor(_KEPT_UP * due):
        yield Finding.of("adapter_calls_behind", value=float(begun), limit=float(due))
