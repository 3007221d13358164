"""The tables of the guardrail test (METHODOLOGY §11.10, tables 13 and 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_llmbench.methodology.effect_cells import cell
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


def throughput_table(configurations: Sequence[str], metrics: Mapping[str, Estimate]) -> Table:
    """Table 14: highest sustainable throughput; Reduction is signed, negative for a loss (AMB-20)."""
    rows = tuple(
        (
            NAMES[name],
            cell(metrics[f"max_output_token_throughput[{name}]"], interval=True),
            _signed(metrics.get(f"throughput_reduction[{name}]")),
        )
        for name in configurations
    )
    return Table(
        "guardrail_throughput", "Throughput Impact", ("Configuration", "Max Throughput", "Reduction"), rows
    )


def _signed(reduction: Estimate | None) -> str:
    if reduction is None:
        return "-"
    if reduction.point is None:
        return cell(reduction)
    ends = ["open" if end is None else f"{-100 * end:+.1f}%" for end in (reduction.upper, reduction.lower)]
    return f"{-100 * reduction.point:+.1f}% [{ends[0]}, {ends[1]}]"


__all__ = ["NAMES", "latency_table", "throughput_table"]
