"""The tables and the plot of the throughput test (METHODOLOGY §11.2, tables 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_llmbench.methodology.cells import INDICATIVE_BELOW, NOT_MEASURED, interval, number, share
from pytest_llmbench.methodology.held import Held
from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.methodology.probing import value_of
from pytest_llmbench.methodology.throughput_metrics import Found
from pytest_llmbench.metrics.server_side import NOT_MEASURABLE
from pytest_llmbench.model.estimate import LOWER_BOUND, Estimate
from pytest_llmbench.model.result import Plot, Table

_LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("End-to-End", "e2e"))


def summary_table(metrics: Mapping[str, Estimate], found: Found) -> Table:
    """Table 3: the draft's five rows, then what the objectives and the engine's gauges add."""
    rows = [
        _rate("Max Output Throughput", metrics["max_output_token_throughput"], "tok/s"),
        _rate("Max Request Throughput", metrics["max_request_throughput"], "req/s"),
        _rate("Max Input Throughput", metrics["max_input_token_throughput"], "tok/s"),
        ("Sustainable Load", *_load(metrics)),
        _rate("Tokens per GPU-second", metrics["output_tokens_per_gpu_second"], "tok/s/GPU"),
        _batch(metrics["batch_utilisation"]),
    ]
    if found.constrained is None or found.tenfold is None:
        rows.append(("Latency Constraint", "none: the rows above are unconstrained", ""))
    else:
        under = metrics["constrained_output_token_throughput"]
        rows.append(("Latency Constraint", ", ".join(_constraint(found.limits)), ""))
        rows.append(_rate("Output Throughput under it", under, "tok/s", "no tested level meets it"))
        rows.append(("Load under it", _at(found.constrained) or "none", ""))
        tenfold = metrics["tenfold_output_token_throughput"]
        rows.append(
            _rate("Output Throughput by the Ten-fold Rule", tenfold, "tok/s", "no tested level keeps it")
        )
        rows.append(("Load by the Ten-fold Rule", _at(found.tenfold) or "none", ""))
    return Table(
        "throughput_summary", "Throughput Summary", ("Metric", "Value", "95 % interval"), tuple(rows)
    )


def _rate(title: str, estimate: Estimate, unit: str, undefined: str = "") -> tuple[str, str, str]:
    if estimate.point is None:
        return title, undefined or why_not(estimate), ""
    least = "at least " if LOWER_BOUND in estimate.method else ""
    return title, f"{least}{number(estimate.point)} {unit}", interval(estimate)


def _batch(estimate: Estimate) -> tuple[str, str, str]:
    text = why_not(estimate) if estimate.point is None else share(estimate.point)
    ends = (estimate.lower, estimate.upper)
    return "Batch Utilisation", text, " … ".join(share(end) for end in ends if end is not None)


def why_not(estimate: Estimate) -> str:
    """``not measurable: …`` where the estimate says so."""
    return estimate.method if estimate.method.startswith(NOT_MEASURABLE) else NOT_MEASURED


def _load(metrics: Mapping[str, Estimate]) -> tuple[str, str]:
    """The offered load, not the completed one; its bracket in place of an interval."""
    rate = metrics.get("sustainable_rate")
    found = rate or metrics["sustainable_concurrency"]
    if found.point is None:
        return "not reached: no tested load held", ""
    text = f"{found.point:g} req/s (offered)" if rate else f"{found.point:g} requests in flight"
    text = f"at least {text}" if LOWER_BOUND in found.method else text
    end = "not reached" if found.upper is None else f"{found.upper:g}"
    return text, f"{found.point:g} … {end} (bracket of the search)"


def _at(run: Held) -> str:
    return run.runs[0].level.label.partition(": ")[2] if run.runs else ""


def _constraint(limits: Mapping[str, float]) -> list[str]:
    named = {"ttft.p99": "TTFT P99", "tpot.p99": "TPOT P99"}
    return [f"{named[metric]} <= {limit:g} ms" for metric, limit in limits.items()]


def latency_at_max_table(metrics: Mapping[str, Estimate]) -> Table:
    """Table 4: latencies at the sustainable maximum, with the samples they rest on."""
    rows = tuple(
        (
            title,
            *(latency_cell(metrics[f"{family}.{key}"], tail=key == "p99") for key in ("p50", "p95", "p99")),
            f"{metrics[f'{family}.p99'].n}",
        )
        for title, family in _LATENCIES
    )
    columns = ("Metric", "P50", "P95", "P99", "Samples")
    return Table("latency_at_max", "Latency at Maximum Throughput", columns, rows)


def latency_cell(estimate: Estimate | None, *, tail: bool = False, long_s: float = 10.0) -> str:
    """``312 ms``, ``18.7 s`` from ``long_s`` on; a tail of few samples is marked (AMB-47)."""
    if estimate is None or estimate.point is None:
        return NOT_MEASURED
    value = estimate.point
    text = f"{value / 1000:.1f} s" if value >= 1000 * long_s else f"{number(value)} ms"
    return text + (" (indicative)" if tail and estimate.n < INDICATIVE_BELOW["p99"] else "")


def throughput_plot(levels: Sequence[Seen], reported: Held) -> Plot:
    """Output tokens per second over the load, with the intervals as a band."""
    found = [
        (value_of(seen), estimate.point, estimate.lower, estimate.upper)
        for seen in sorted(levels, key=value_of)
        if (estimate := seen.level.metrics["output_token_throughput"]).point is not None
    ]
    open_loop = not levels or levels[0].level.load_model == "open"
    closed_ends = [(x, low, high) for x, _, low, high in found if low is not None and high is not None]
    x, y = tuple(row[0] for row in found), tuple(float(row[1] or 0.0) for row in found)
    band = {"Output tokens/s": _columns(closed_ends)} if len(closed_ends) > 1 else {}
    return Plot(
        id="throughput_load",
        title="Throughput over Load",
        x_label="offered load (req/s)" if open_loop else "requests in flight",
        y_label="output tokens/s",
        series={"Output tokens/s": (x, y)},
        bands=band,
        marks={} if reported.value is None else {"sustainable": reported.value},
    )


def _columns(
    rows: Sequence[tuple[float, float, float]],
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    return (
        tuple(row[0] for row in rows),
        tuple(row[1] for row in rows),
        tuple(row[2] for row in rows),
    )


__all__ = ["latency_at_max_table", "latency_cell", "summary_table", "throughput_plot", "why_not"]
