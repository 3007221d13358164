"""Whether the latencies of the requests that ended well stand for a run: not where many failed, nor where a
percentile lies among those that the load generator gave up on
([0056](../../docs/decisions/0056-who-was-given-up-on-is-not-fast.md))."""

from __future__ import annotations

import re

from pytest_llmbench.compliance.evidence_view import EvidenceView
from pytest_llmbench.model.estimate import GIVEN_UP
from pytest_llmbench.model.record import MOST_FAILED_SHARE

LATENCIES = frozenset(
    {
        "M-5.1.4.1-percentiles",
        "P-5.2.4.3-latency-at-max",
        "P-5.3.4-per-level",
        "P-5.4.4.1-aggregate",
        "P-5.5.5-table",
        "P-5.6.4-per-class-latency",
        "P-5.7.4-ttft-both",
        "P-5.8.5-table",
        "P-5.9.4-per-length",
        "P-5.10.4-per-config",
    }
)
"""The entry of each test that has its latencies reported."""
_PERCENTILE = re.compile(r"\.p\d")


def latencies_cut_off(view: EvidenceView) -> str | None:
    """Why they do not stand for the runs that the error budget applies to; None where they do."""
    result = view.result
    runs = result.observations
    if result.budgeted is not None:
        runs = tuple(runs[index] for index in result.budgeted)
    judged, failed = (
        sum(int(mask.sum()) for mask in masks)
        for masks in ([run.records.judged for run in runs], [run.records.failed for run in runs])
    )
    view.note("failed_requests", failed)
    if failed > MOST_FAILED_SHARE * judged:
        share = f"{failed} of {judged} requests failed ({failed / judged:.1%})"
        return f"{share}: latencies of the others stand for a run with at most {MOST_FAILED_SHARE:.0%}"
    for name, metric in result.metrics.items():
        if metric.upper is None and GIVEN_UP in metric.method and _PERCENTILE.search(name):
            return f"{name} has no upper end: requests {GIVEN_UP} may be above it; extend the deadlines"
    return None
