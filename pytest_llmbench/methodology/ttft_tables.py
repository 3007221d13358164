"""The tables and the plot of the TTFT test (METHODOLOGY §11.1, tables 1 and 2, section 5.1.5.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pytest_llmbench.methodology.samples import RunSamples
from pytest_llmbench.metrics.buckets import Bucket
from pytest_llmbench.metrics.ecdf import ecdf
from pytest_llmbench.metrics.server_side import NOT_MEASURABLE
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.result import Plot, Table

_ROWS = (
    ("P50", "p50"),
    ("P90", "p90"),
    ("P95", "p95"),
    ("P99", "p99"),
    ("P99.9", "p99_9"),
    ("Mean", "mean"),
    ("Min", "min"),
    ("Max", "max"),
)
SAMPLES_REQUIRED = {"p99": 1_000, "p99_9": 10_000}
"""Below these the draft allows no such claim in a TTFT report (section 5.1.4.3, AMB-01)."""


def results_table(metrics: Mapping[str, Estimate], samples: RunSamples) -> Table:
    """Table 1, with the interval beside each value."""
    rows: list[tuple[str, str, str]] = [("Requests", f"{samples.ttft_count}", "")]
    rows += [
        (f"TTFT {name}", *value_and_interval(metrics[f"ttft.{key}"], SAMPLES_REQUIRED.get(key, 1)))
        for name, key in _ROWS
    ]
    return Table("ttft_results", "TTFT Results", ("Metric", "Value", "95 % interval"), tuple(rows))


def value_and_interval(estimate: Estimate, samples_required: int = 1) -> tuple[str, str]:
    """Two cells. What the sample does not support is said in words, never printed as a number."""
    if estimate.point is None:
        return "not measured", ""
    if estimate.n < samples_required:
        return f"n < {samples_required}, not reported", ""
    point = f"{_number(estimate.point)} {estimate.unit}"
    if estimate.method == "observed":
        return point, "as observed"
    if estimate.lower is None and estimate.upper is None:
        return point, "open"
    if estimate.upper is None:
        return point, f"> {_number(estimate.lower)}"
    if estimate.lower is None:
        return point, f"< {_number(estimate.upper)}"
    return point, f"{_number(estimate.lower)} … {_number(estimate.upper)}"


def _number(value: float | None) -> str:
    """Three or four significant digits without exponents."""
    if value is None:
        return "open"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    return f"{value:.{digits}f}"


def by_input_length_table(buckets: Sequence[Bucket]) -> Table:
    """Table 2: one row per non-empty bucket (AMB-04)."""
    rows = tuple(
        (
            bucket.label,
            f"{bucket.count}",
            *(_bucket_cell(bucket.metrics[f"ttft[{bucket.label}].{key}"]) for key in ("p50", "p95", "p99")),
        )
        for bucket in buckets
    )
    columns = ("Input Tokens", "Requests", "P50 (ms)", "P95 (ms)", "P99 (ms)")
    return Table("ttft_by_input_length", "TTFT by Input Length", columns, rows)


def _bucket_cell(estimate: Estimate) -> str:
    # The floor of 1000 binds the test's headline percentiles (AMB-47); in a bucket the open interval tells.
    if estimate.point is None:
        return "not measured"
    open_above = estimate.upper is None and estimate.method != "observed"
    return _number(estimate.point) + (" (indicative)" if open_above else "")


_PARTS = (("Queue wait", "ttft_queue_wait"), ("Prefill", "ttft_prefill"))


def parts_table(metrics: Mapping[str, Estimate]) -> Table:
    """The components of TTFT that the server states for each request, or only in sum (section 5.1.4.2)."""
    statistics = ("p50", "p95", "p99", "mean")
    rows = []
    for title, family in _PARTS:
        estimates = [metrics.get(f"{family}.{key}") for key in statistics]
        cells = [
            NOT_MEASURABLE if each is None or each.point is None else _number(each.point)
            for each in estimates
        ]
        count = next((f"{each.n}" for each in estimates if each is not None), "0")
        rows.append((title, *cells, count))
    columns = ("Component", "P50 (ms)", "P95 (ms)", "P99 (ms)", "Mean (ms)", "Requests")
    return Table("ttft_components", "Components of TTFT", columns, tuple(rows))


def any_token_table(metrics: Mapping[str, Estimate]) -> Table:
    """Both readings of "first token", where the system sends other output ahead of content (AMB-29)."""
    rows = tuple(
        (name, *(value_and_interval(metrics[f"{family}.{key}"], SAMPLES_REQUIRED.get(key, 1))[0]
                 for family in ("ttft", "ttft_any")))
        for name, key in _ROWS
    )  # fmt: skip
    columns = ("Metric", "To the first content token", "To the first token of any kind")
    return Table("ttft_any_token", "Time to Any Token", columns, rows)


def cdf_plot(samples: RunSamples, objectives: Sequence[Objective]) -> Plot:
    """Empirical distribution of TTFT over all runs, with the limits on it as marks."""
    x, y = ecdf(np.concatenate(samples.ttft))
    marks = {
        f"limit {objective.metric.removeprefix('ttft.').replace('p99_9', 'p99.9').upper()}": objective.limit
        for objective in objectives
        if objective.metric.startswith("ttft.")
    }
    return Plot(
        id="ttft_cdf",
        title="Distribution of TTFT",
        x_label="TTFT (ms)",
        y_label="share of requests",
        series={"TTFT": (tuple(x), tuple(y))},
        marks=marks,
        step=True,
        x_log=True,
    )


__all__ = [
    "SAMPLES_REQUIRED",
    "any_token_table",
    "by_input_length_table",
    "cdf_plot",
    "parts_table",
    "results_table",
    "value_and_interval",
]
