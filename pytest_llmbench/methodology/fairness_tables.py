"""The tables and the plot of the fairness test (METHODOLOGY §11.6, tables 8 and 9)."""

from __future__ import annotations

from pytest_llmbench.methodology.cells import (
    NOT_MEASURED,
    interval,
    number,
    share_interval,
    share_value,
    tail,
    value,
)
from pytest_llmbench.methodology.class_results import ClassResult, FairnessResults
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.ecdf import ecdf
from pytest_llmbench.model.result import Plot, Table


def tables(results: FairnessResults) -> tuple[Table, ...]:
    """Per class, the fairness figures, and the baselines that they stand on."""
    return classes_table(results), metrics_table(results), baselines_table(results)


def classes_table(results: FairnessResults) -> Table:
    columns = (
        "Class", "Count", "TTFT P50", "TTFT P95", "TTFT P99", "TPOT P50", "TPOT P99",
        "TTFT Inflation P50", "P95", "P99", "Completion",
    )  # fmt: skip
    rows = tuple(
        (
            each.title,
            f"{len(each.mixed)}",
            *(tail(each.metrics[f"ttft.{q}"], q) for q in ("p50", "p95", "p99")),
            *(tail(each.metrics[f"tpot.{q}"], q) for q in ("p50", "p99")),
            *(_factor(each, q) for q in ("p50", "p95", "p99")),
            share_value(each.metrics["completion_rate"]),
        )
        for each in results.classes
    )
    return Table("fairness_classes", "Per-Class Results", columns, rows)


def _factor(each: ClassResult, statistic: str) -> str:
    text = value(each.metrics[f"ttft_inflation.{statistic}"], digits=2, unit="")
    return text if text == NOT_MEASURED else f"× {text}"


def metrics_table(results: FairnessResults) -> Table:
    """Table 9; the rows of the draft first."""
    jain, by_class = results.metrics["jain_index"], results.metrics["class_jain_index"]
    rows = [("Jain's Fairness Index", value(jain, digits=3, unit=""), interval(jain, digits=3))]
    rows += [
        (f"{each.title} Class Starvation", share_value(rate), share_interval(rate))
        for each in results.classes
        for rate in [each.metrics["starvation_rate"]]
    ]
    rows.append(
        ("Class-Level Fairness Index", value(by_class, digits=3, unit=""), interval(by_class, digits=3))
    )
    rows += [
        (f"{each.title} Class TTFT Inflation P50", _factor(each, "p50"), interval(factor, digits=2))
        for each in results.classes
        for factor in [each.metrics["ttft_inflation.p50"]]
    ]
    rows += [
        (f"{each.title} Class Median Wait", f"{number(each.median_wait_ms)} ms", results.wait_source)
        for each in results.classes
        if each.median_wait_ms is not None
    ]
    return Table("fairness_metrics", "Fairness Metrics", ("Metric", "Value", "95 % interval"), tuple(rows))


def baselines_table(results: FairnessResults) -> Table:
    columns = ("Class Alone", "Rate", "Count", "TTFT P50", "TTFT P95", "TTFT P99", "TPOT P50", "TPOT P99")
    rows = tuple(
        (
            each.title,
            f"{each.alone.level.offered_rps or 0:g} req/s",
            f"{len(each.alone_records)}",
            *(tail(each.alone_metrics[f"ttft.{q}"], q) for q in ("p50", "p95", "p99")),
            *(tail(each.alone_metrics[f"tpot.{q}"], q) for q in ("p50", "p99")),
        )
        for each in results.classes
    )
    return Table("fairness_baselines", "Isolated Baselines", columns, rows)


def plots(results: FairnessResults) -> tuple[Plot, ...]:
    """Distribution of TTFT of each class, in the mix and alone."""
    series = {}
    for each in results.classes:
        for label, records in (
            (f"{each.name}, mix", each.mixed),
            (f"{each.name}, alone", each.alone_records),
        ):
            samples = latency.ttft_ms(records)
            if len(samples):
                series[label] = ecdf(samples)
    if not series:
        return ()
    plot = Plot(
        id="fairness_ttft_cdf",
        title="TTFT by class, in the mix and alone",
        x_label="TTFT (ms)",
        y_label="share of requests",
        series=series,
        step=True,
        x_log=True,
    )
    return (plot,)


__all__ = ["baselines_table", "classes_table", "metrics_table", "plots", "tables"]
