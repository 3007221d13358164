"""The table and the plot of the memory pressure test (METHODOLOGY §11.8, table 11)."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.methodology.effect_cells import cell
from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.result import Plot, Table

_COLUMNS = (
    "Oversub Level", "Concurrency", "Complete", "Preempt", "Recovered", "Lost per preemption", "Fail Rate",
    "TTFT P99", "Recovery",
)  # fmt: skip


def pressure_table(levels: Mapping[float, Seen], metrics: Mapping[str, Estimate]) -> Table:
    """Table 11: the draft's columns, and what the server tells about preemptions."""
    rows = tuple(_row(percent, seen, metrics) for percent, seen in levels.items())
    return Table("memory_pressure", "Memory Pressure Degradation", _COLUMNS, rows)


def _row(percent: float, seen: Seen, metrics: Mapping[str, Estimate]) -> tuple[str, ...]:
    at = f"{percent:g}%"
    names = ("completion_rate", "preemption_rate", "preemption_recovery_rate", "preemption_loss", "fail_rate")
    return (
        f"{at} (base)" if percent == 100 else at,
        f"{seen.level.concurrency}",
        *(cell(metrics.get(f"{name}[{at}]")) for name in names),
        cell(metrics.get(f"ttft[{at}].p99")),
        cell(metrics.get(f"recovery_time[{at}]")),
    )


def completion_plot(levels: Mapping[float, Seen]) -> Plot:
    """Completion and throughput against the level of oversubscription."""
    points = [
        (percent, seen.level.completion_ratio)
        for percent, seen in levels.items()
        if seen.level.completion_ratio is not None
    ]
    x = tuple(percent for percent, _ in points)
    y = tuple(100 * completion for _, completion in points)
    return Plot(
        id="memory_pressure",
        title="Completion under oversubscription",
        x_label="requests in flight, % of capacity",
        y_label="completed (%)",
        series={"completed": (x, y)},
    )


__all__ = ["completion_plot", "pressure_table"]
