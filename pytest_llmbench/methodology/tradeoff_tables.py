"""The tables and the plot of the tradeoff test (METHODOLOGY §11.3, table 5 and its two lines)."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.methodology.cells import NOT_MEASURED, interval, number, share
from pytest_llmbench.methodology.curve import NO_SLO, NONE_MEETS, NOT_REACHED, Curve, knee
from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.methodology.probing import value_of
from pytest_llmbench.methodology.saturation_rate import SaturationRate
from pytest_llmbench.model.estimate import LOWER_BOUND, Estimate
from pytest_llmbench.model.result import Plot, Table

_FAMILIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
_PERCENTILES = (("P50", "p50"), ("P95", "p95"), ("P99", "p99"))
_CURVES = (
    ("TTFT P50", "ttft.p50"),
    ("TTFT P99", "ttft.p99"),
    ("TPOT P99", "tpot.p99"),
    ("E2E P99", "e2e.p99"),
)
_X = "output_token_throughput"
_DROP = "first level with less throughput than the one before, beyond their intervals"


def levels_table(levels: Sequence[Seen]) -> Table:
    """Table 5; latencies in milliseconds."""
    latencies = tuple(f"{family} {name}" for family, _ in _FAMILIES for name, _ in _PERCENTILES)
    columns = (
        "Level", "Offered (r/s)", "Achieved (tok/s)", "95 % interval", *latencies, "Success", "Queue",
        "Samples",
    )  # fmt: skip
    return Table(
        "tradeoff_levels",
        "Throughput-Latency Table (latencies in ms)",
        columns,
        tuple(_row(seen) for seen in levels),
    )


def _row(seen: Seen) -> tuple[str, ...]:
    metrics, level = seen.level.metrics, seen.level
    latencies = (_cell(metrics[f"{family}.{key}"]) for _, family in _FAMILIES for _, key in _PERCENTILES)
    success = level.completion_ratio
    return (
        level.label,
        f"{value_of(seen):g}",
        _cell(metrics[_X]),
        interval(metrics[_X]),
        *latencies,
        NOT_MEASURED if success is None else share(success),
        _queue(seen),
        f"{metrics['ttft.p99'].n}",
    )


def _cell(estimate: Estimate) -> str:
    return NOT_MEASURED if estimate.point is None else number(estimate.point)


def _queue(seen: Seen) -> str:
    growing = seen.level.queue_growing
    text = NOT_MEASURED if growing is None else "growing" if growing else "stable"
    return f"{text}, saturated" if seen.level.saturated else text


def points_table(curve: Curve, capacity: SaturationRate) -> Table:
    """The draft's two lines below the table, and the operating point."""
    rows = (
        ("Knee point", _knee(curve, "ttft.p99"), "TTFT P99 above twice its minimum"),
        (
            "Saturation point",
            _saturation(curve),
            _DROP,
        ),
        ("Optimal operating point", _operating(curve), "highest throughput that meets the SLO"),
        ("Knee of TPOT", _knee(curve, "tpot.p99"), "TPOT P99 above twice its minimum"),
        ("Knee of end-to-end latency", _knee(curve, "e2e.p99"), "E2E P99 above twice its minimum"),
        (
            "Estimated capacity",
            _capacity(capacity),
            capacity.source,
        ),
    )
    return Table("tradeoff_points", "Points of the Curve", ("Point", "Value", "What it is"), rows)


def _capacity(capacity: SaturationRate) -> str:
    if capacity.rps is None:
        return "none"
    return f"{'at least ' if LOWER_BOUND in capacity.source else ''}{capacity.rps:g} req/s"


def _knee(curve: Curve, metric: str) -> str:
    found = knee(curve.levels, metric)
    return NOT_REACHED if found is None else _at(found)


def _saturation(curve: Curve) -> str:
    if curve.saturation is not None:
        return _at(curve.saturation)
    highest = "" if curve.highest is None else f"; highest throughput at {_at(curve.highest)}"
    flagged = curve.first_flagged
    rules = "no level flagged" if flagged is None else f"first flagged: {_at(flagged)}"
    return f"{NOT_REACHED}{highest}; {rules}"


def _operating(curve: Curve) -> str:
    if curve.operating is None:
        return NONE_MEETS if curve.wanted else NO_SLO
    point = curve.operating.point(_X)
    return _at(curve.operating) + ("" if point is None else f", {number(point)} tok/s")


def _at(seen: Seen) -> str:
    return f"{value_of(seen):g} req/s ({seen.level.label})"


def curve_plot(curve: Curve) -> Plot:
    """Latency over achieved throughput, level by level, with the intervals of the latencies as bands."""
    series, bands = {}, {}
    for name, metric in _CURVES:
        rows = [
            (x, seen.level.metrics[metric])
            for seen in curve.levels
            if (x := seen.point(_X)) is not None and seen.point(metric) is not None
        ]
        if not rows:
            continue
        series[name] = (tuple(x for x, _ in rows), tuple(float(e.point or 0.0) for _, e in rows))
        ends = [(x, e.lower, e.upper) for x, e in rows if e.lower is not None and e.upper is not None]
        if len(ends) > 1:
            columns = tuple(zip(*ends, strict=True))
            bands[name] = (columns[0], columns[1], columns[2])
    points = {"knee": curve.knee, "saturation": curve.saturation, "operating point": curve.operating}
    return Plot(
        id="throughput_latency",
        title="Latency over Throughput",
        x_label="achieved output tokens/s",
        y_label="latency (ms)",
        series=series,
        bands=bands,
        marks={
            name: x for name, seen in points.items() if seen is not None and (x := seen.point(_X)) is not None
        },
        y_log=True,
    )


__all__ = ["curve_plot", "levels_table", "points_table"]
