"""The tables of the guardrail test (METHODOLOGY §11.10, tables 13 and 14)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_llmbench.methodology.effect_cells import cell
from pytest_llmbench.methodology.guardrail_throughput import (
    AT_EQUAL_LOAD,
    MAXIMUM,
    REDUCTION,
    THROUGHPUT,
)
from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.result import Table

NAMES = {
    "baseline": "Baseline",
    "input_filter": "Input Filter",
    "output_filter": "Output Filter",
    "full": "Full Filter",
}


def latency_table(percent: float, by_configuration: Mapping[str, Seen]) -> Table:
    """Table 13, once per load level."""
    columns = (
        "Configuration", "TTFT P50", "TTFT P95", "TTFT P99", "E2E P50", "E2E P95", "E2E P99", "Refused"
    )  # fmt: skip
    rows = tuple(
        (
            NAMES[name],
            *(cell(seen.level.metrics[f"ttft.{q}"], interval=q == "p50") for q in ("p50", "p95", "p99")),
            *(cell(seen.level.metrics[f"e2e.{q}"], interval=q == "p50") for q in ("p50", "p95", "p99")),
            f"{seen.level.errors.get('refused', 0)}",
        )
        for name, seen in by_configuration.items()
    )
    rate = next((seen.level.offered_rps for seen in by_configuration.values()), None)
    at = "" if rate is None else f" ({rate:g} req/s)"
    return Table("guardrail_latency", f"Guardrail Overhead at {percent:g} % of Capacity{at}", columns, rows)


def throughput_table(
    configurations: Iterable[str], levels: Mapping[tuple[str, float], Seen], metrics: Mapping[str, Estimate]
) -> Table:
    """Table 14: highest sustainable throughput, and the throughput at the highest load that all were offered;
    Reduction is signed, negative for a loss (AMB-20)."""
    percent = max(percent for _, percent in levels)
    rows = tuple(
        (
            NAMES[name],
            cell(metrics[f"{MAXIMUM}[{name}]"], interval=True),
            _signed(metrics.get(f"{REDUCTION}[{name}]")),
            cell(metrics.get(f"{THROUGHPUT}[{name}@{percent:g}%]")),
            _signed(metrics.get(f"{AT_EQUAL_LOAD}[{name}@{percent:g}%]")),
        )
        for name in configurations
    )
    at = f"at {percent:g} %"
    columns = ("Configuration", "Max Throughput", "Reduction", f"Throughput {at}", f"Reduction {at}")
    return Table("guardrail_throughput", "Throughput Impact", columns, rows)


def _signed(reduction: Estimate | None) -> str:
    if reduction is None:
        return "-"
    if reduction.point is None:
        return cell(reduction)
    ends = ["open" if end is None else f"{-100 * end:+.1f}%" for end in (reduction.upper, reduction.lower)]
    return f"{-100 * reduction.point:+.1f}% [{ends[0]}, {ends[1]}]"


__all__ = ["NAMES", "latency_table", "throughput_table"]
