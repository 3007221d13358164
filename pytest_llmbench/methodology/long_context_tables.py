"""The tables, the best-fit line and the plot of the long-context test (METHODOLOGY §11.9, table 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_llmbench.methodology.cells import interval, number, value
from pytest_llmbench.methodology.context_lengths import Measured
from pytest_llmbench.metrics.scaling import PrefillScaling
from pytest_llmbench.model.result import Plot, Table

_CURVE_POINTS = 40


def tables(
    measured: Sequence[Measured], scaling: PrefillScaling, concurrency: int, best: str | None
) -> tuple[Table, ...]:
    """Table 12, with the median that the text asks for, and the two fits."""
    return (_lengths_table(measured, concurrency), _fit_table(scaling, measured, best))


def _lengths_table(measured: Sequence[Measured], concurrency: int) -> Table:
    at = f"at {concurrency} in flight"
    columns = (
        "Context (tokens)", "TTFT Mean", "TTFT P50", "TTFT P95", "ms/1K tokens", "Requests",
        f"Output tok/s {at}", f"Input tok/s {at}",
    )  # fmt: skip
    rows = tuple(
        (
            f"{level.length}",
            *(_with_interval(level, f"ttft.{statistic}") for statistic in ("mean", "p50", "p95")),
            value(level.ms_per_1k, unit=""),
            f"{level.seen.level.n_ok}",
            value(level.metrics["output_token_throughput"], unit=""),
            value(level.metrics["input_token_throughput"], unit=""),
        )
        for level in measured
    )
    return Table("long_context", "Long Context Scaling", columns, rows)


def _with_interval(level: Measured, name: str) -> str:
    estimate = level.metrics[name]
    ends = interval(estimate)
    return value(estimate) + (f" ({ends})" if ends not in ("", "open") else "")


def _fit_table(scaling: PrefillScaling, measured: Sequence[Measured], best: str | None) -> Table:
    exponent, slope = scaling.metrics["prefill_exponent"], scaling.metrics["prefill_slope"]
    crossing = scaling.metrics["prefill_intercept"]
    logarithmic, straight = r_squared(scaling, measured)
    rows = (
        ("Power law exponent k", value(exponent, digits=3, unit=""), interval(exponent, digits=3)),
        ("R² (logarithms)", _plain(scaling.metrics["prefill_exponent_fit"].point), ""),
        ("R² (original scale)", _plain(logarithmic), ""),
        ("Straight line, slope", value(slope, unit="µs per token"), interval(slope)),
        ("Straight line, intercept", value(crossing), interval(crossing)),
        ("R² (straight line)", _plain(straight), ""),
        ("Best fit", best or "not measured: fewer than three lengths", ""),
    )
    return Table(
        "long_context_fit", "Scaling of TTFT with Length", ("Metric", "Value", "95 % interval"), rows
    )


def best_fit(scaling: PrefillScaling, measured: Sequence[Measured]) -> str | None:
    """The line of the report: the fit with the better R² on the original scale (AMB-21)."""
    exponent, slope = scaling.metrics["prefill_exponent"].point, scaling.metrics["prefill_slope"].point
    logarithmic, straight = r_squared(scaling, measured)
    if exponent is None or slope is None or logarithmic is None or straight is None:
        return None
    if straight >= logarithmic:
        return f"Linear (R² = {_plain(straight)}), about {number(slope)} µs per input token"
    return f"Power law (R² = {_plain(logarithmic)}), TTFT grows with length to the power {exponent:.3f}"


def r_squared(scaling: PrefillScaling, measured: Sequence[Measured]) -> tuple[float | None, float | None]:
    """R² of the power law and of the straight line, both about the mean TTFTs themselves."""
    if scaling.power is None or scaling.line is None:
        return None, scaling.line.r_squared if scaling.line is not None else None
    lengths, means = _points(measured)
    about = float(np.sum(np.square(means - means.mean())))
    if about == 0:
        return None, scaling.line.r_squared
    power = math.exp(scaling.power.intercept) * lengths**scaling.power.slope
    return 1 - float(np.sum(np.square(means - power))) / about, scaling.line.r_squared


def fit_facts(scaling: PrefillScaling, measured: Sequence[Measured]) -> dict[str, Any] | None:
    """Both fits, as the audit reads them."""
    if scaling.power is None or scaling.line is None:
        return None
    exponent = scaling.metrics["prefill_exponent"]
    logarithmic, straight = r_squared(scaling, measured)
    return {
        "power": {
            "k": exponent.point,
            "k_interval": [exponent.lower, exponent.upper],
            "r2": scaling.power.r_squared,
            "r2_original_scale": logarithmic,
        },
        "linear": {
            "slope_us_per_token": scaling.metrics["prefill_slope"].point,
            "intercept_ms": scaling.line.intercept,
            "r2": straight,
        },
    }


def plots(measured: Sequence[Measured], scaling: PrefillScaling) -> tuple[Plot, ...]:
    """Mean TTFT over length on logarithmic axes, with the power law and the straight line."""
    lengths, means = _points(measured)
    if not len(lengths):
        return ()
    series = {"mean TTFT": (tuple(lengths.tolist()), tuple(means.tolist()))}
    if scaling.power is not None and scaling.line is not None:
        x = np.geomspace(lengths.min(), lengths.max(), _CURVE_POINTS)
        power = math.exp(scaling.power.intercept) * x**scaling.power.slope
        straight = scaling.line.intercept + scaling.line.slope * x
        series[f"power law, k = {scaling.power.slope:.3f}"] = (tuple(x.tolist()), tuple(power.tolist()))
        above = straight > 0
        series["straight line"] = (tuple(x[above].tolist()), tuple(straight[above].tolist()))
    plot = Plot(
        id="long_context_scaling",
        title="TTFT by context length",
        x_label="input tokens",
        y_label="mean TTFT (ms)",
        series=series,
        bands=_bands(measured),
        x_log=True,
        y_log=True,
    )
    return (plot,)


def _bands(
    measured: Sequence[Measured],
) -> dict[str, tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]]:
    """Intervals of the means, where every length has one."""
    found = [(level.mean_input_tokens, level.metrics["ttft.mean"]) for level in measured]
    ends = [(x, e.lower, e.upper) for x, e in found if x and e.lower is not None and e.upper is not None]
    if not ends or len(ends) < len(measured):
        return {}
    x, lower, upper = zip(*ends, strict=True)
    return {"mean TTFT": (x, lower, upper)}


def _points(measured: Sequence[Measured]) -> tuple[np.ndarray, np.ndarray]:
    """Mean input tokens and mean TTFT of each length that has them."""
    found = [(level.mean_input_tokens, level.metrics["ttft.mean"].point) for level in measured]
    known = [(x, y) for x, y in found if x is not None and y is not None]
    points = np.array(known, dtype=np.float64).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def _plain(share: float | None) -> str:
    return "not measured" if share is None else f"{share:.4f}"


__all__ = ["best_fit", "fit_facts", "plots", "r_squared", "tables"]
