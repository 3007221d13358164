"""The tables of the prefix cache test (METHODOLOGY §11.7, table 10)."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.methodology.effect_cells import cell
from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.result import Table

_NAMES = {"disabled": "Cache Disabled", "cold": "Cache (Cold)", "warm": "Cache (Warm)"}


def cache_table(by_state: Mapping[str, Seen]) -> Table:
    """Table 10, one row per configuration that was run."""
    columns = ("Configuration", "Requests", "TTFT P50", "TTFT P95", "TTFT P99", "Throughput")
    rows = tuple(
        (
            _NAMES[state],
            f"{seen.level.n_ok}",
            *(cell(seen.level.metrics[f"ttft.{q}"], interval=True) for q in ("p50", "p95", "p99")),
            cell(seen.level.metrics["output_token_throughput"]),
        )
        for state, seen in by_state.items()
    )
    return Table("prefix_cache", "Cache Effectiveness", columns, rows)


def effect_table(metrics: Mapping[str, Estimate], cold: bool) -> Table:
    """What the cache brought: reductions, hit rates, throughput, with their intervals."""
    rows = [
        (title, cell(metrics[name], interval=True), *((_cold_cell(metrics, name),) if cold else ()))
        for title, name in (
            ("TTFT reduction P50", "ttft_reduction.p50"),
            ("TTFT reduction P95", "ttft_reduction.p95"),
            ("TTFT reduction P99", "ttft_reduction.p99"),
            ("Cache hit rate (shared prefixes)", "cache_hit_rate"),
            ("Cached share of all input tokens", "cached_input_share"),
            ("Throughput improvement", "throughput_improvement"),
        )
    ]
    columns = ("Metric", "Warm", *(("Cold",) if cold else ()))
    return Table("prefix_cache_effect", "Effect of the Cache", columns, tuple(rows))


def _cold_cell(metrics: Mapping[str, Estimate], name: str) -> str:
    family, dot, statistic = name.partition(".")
    return cell(metrics.get(f"{family}[cold]{dot}{statistic}"), interval=True)


__all__ = ["cache_table", "effect_table"]
