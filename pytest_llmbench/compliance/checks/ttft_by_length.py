"""TTFT by input length (sections 5.1.4.2 and 5.1.5.3)."""

from __future__ import annotations

import re

import numpy as np

from pytest_llmbench.compliance.checks.registry import Checks
from pytest_llmbench.compliance.look import Answer, Look, NoEvidenceError
from pytest_llmbench.compliance.stored import has, has_first_token
from pytest_llmbench.model.looks import JUDGED

check = Checks()

EDGES = (0, 256, 512, 1024, 2048, 4096)
"""Half-open buckets, the last one open-ended; empty ones are omitted (AMB-04)."""
_METRIC = re.compile(r"ttft\[(?P<label>[^\]]+)\]\.(?P<statistic>\w+)")
_LOWER_EDGE = re.compile(r"\D*(\d+)")
_COLUMNS = ("Input Tokens", "P50", "P95", "P99")


def _buckets(look: Look) -> dict[str, set[str]]:
    """Label of each bucket → the statistics that are defined for it."""
    found: dict[str, set[str]] = {}
    for name, estimate in look.result.metrics.items():
        match = _METRIC.fullmatch(name)
        if match and JUDGED not in match["label"] and estimate.point is not None:
            found.setdefault(match["label"], set()).add(match["statistic"])
    if not found:
        raise NoEvidenceError("TTFT per input-length bucket")
    look.note("buckets", sorted(found, key=_lower_edge))
    return found


def _lower_edge(label: str) -> int:
    match = _LOWER_EDGE.match(label)
    return int(match[1]) if match else -1


@check("P-5.1.4.2-by-input-length")
def by_input_length(look: Look) -> Answer:
    buckets = _buckets(look)
    poor = [label for label, statistics in buckets.items() if not {"p50", "p95", "p99"} <= statistics]
    if poor:
        return look.unmet(f"P50, P95 or P99 missing for {', '.join(poor)}")
    counted = sum(look.result.metrics[f"ttft[{label}].p50"].n for label in buckets)
    samples = int((has_first_token(look.records) & has(look.records.input_tokens)).sum())
    look.note("samples_in_buckets", counted)
    return look.answer(
        counted == samples,
        f"{len(buckets)} buckets",
        f"the buckets hold {counted} samples, the records {samples}: a bucket is missing",
    )


@check("S-5.1.4.2-buckets")
def advised_buckets(look: Look) -> Answer:
    records = look.records
    lengths = records.input_tokens[has_first_token(records) & has(records.input_tokens)]
    advised = {EDGES[i] for i in np.searchsorted(EDGES, lengths, side="right") - 1}
    used = {_lower_edge(label) for label in _buckets(look)}
    return look.answer(
        used == advised,
        "the advised buckets",
        f"buckets start at {sorted(used)}, the advised ones that are not empty at {sorted(advised)}",
    )


@check("M-5.1.5.3-input-length-table")
def input_length_table(look: Look) -> Answer:
    table = look.table("ttft_by_input_length")
    missing = [name for name in _COLUMNS if not any(column.startswith(name) for column in table.columns)]
    return look.answer(
        not missing and bool(table.rows),
        f"{len(table.rows)} rows",
        f"the table lacks {', '.join(missing) or 'rows'}",
    )


__all__ = ["EDGES", "check"]
