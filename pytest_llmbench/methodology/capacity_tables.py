"""The table and the plots of the capacity test (METHODOLOGY §11.5, table 7)."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.methodology.capacity_search import Capacity
from pytest_llmbench.methodology.cells import NOT_MEASURED, share, tail
from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.model.result import Plot, Table


def search_table(levels: Sequence[Seen]) -> Table:
    """Table 7: every tested concurrency in the order in which it ran."""
    columns = ("Concurrency", "Completion", "TTFT P99", "TPOT P99", "Errors", "Status", "Reason")
    return Table("capacity_search", "Capacity Search Results", columns, tuple(_row(seen) for seen in levels))


def _row(seen: Seen) -> tuple[str, ...]:
    level = seen.level
    return (
        f"{level.concurrency}",
        NOT_MEASURED if level.completion_ratio is None else share(level.completion_ratio),
        tail(level.metrics["ttft.p99"], "p99"),
        tail(level.metrics["tpot.p99"], "p99"),
        f"{level.n_failed}",
        "Pass" if level.passed else "Fail",
        "; ".join(level.fail_reasons),
    )


def capacity_plots(found: Capacity, threshold_ms: float | None) -> tuple[Plot, ...]:
    """TTFT P99 and completion over the concurrency."""
    marks = {} if found.concurrency is None else {"maximum": float(found.concurrency)}
    return tuple(
        plot
        for plot in (
            _plot(found, "ttft.p99", "capacity_ttft", "TTFT P99 over Concurrency", "TTFT P99 (ms)", marks,
                  threshold_ms),
            _plot(found, "completion_rate", "capacity_completion", "Completion over Concurrency",
                  "share of requests completed", marks, None),
        )
        if plot is not None
    )  # fmt: skip


def _plot(
    found: Capacity,
    metric: str,
    plot_id: str,
    title: str,
    y_label: str,
    marks: dict[str, float],
    threshold: float | None,
) -> Plot | None:
    rows = [
        (float(seen.level.concurrency or 0), estimate.point, estimate.lower, estimate.upper)
        for seen in sorted(found.levels, key=lambda seen: seen.level.concurrency or 0)
        if (estimate := seen.level.metrics[metric]).point is not None
    ]
    if not rows:
        return None
    x = tuple(row[0] for row in rows)
    name = y_label.partition(" (")[0]
    series = {name: (x, tuple(float(row[1] or 0.0) for row in rows))}
    if threshold is not None:
        series["threshold"] = ((x[0], x[-1]), (threshold, threshold))
    ends = [(at, low, high) for at, _, low, high in rows if low is not None and high is not None]
    columns = tuple(zip(*ends, strict=True)) if len(ends) > 1 else ()
    bands = {name: (columns[0], columns[1], columns[2])} if columns else {}
    return Plot(plot_id, title, "requests in flight", y_label, series, bands=bands, marks=marks, x_log=True)


__all__ = ["capacity_plots", "search_table"]
