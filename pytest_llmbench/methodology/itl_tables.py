"""The tables and the plot of the ITL test (METHODOLOGY §11.4, table 6)."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.methodology.cells import NOT_MEASURED, interval, number, share, tail, value
from pytest_llmbench.methodology.itl_levels import LevelItl, modality_word
from pytest_llmbench.methodology.itl_method import HANDLING, Method
from pytest_llmbench.metrics.chunking import tokens_per_chunk
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import Plot, Table
from pytest_llmbench.stats.shape import Modality

_PERCENTILES = (("P50", "p50"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99"), ("P99.9", "p99_9"))
_MOMENTS = (("Mean", "mean"), ("Std Dev", "std"))
_PER_REQUEST = (("Jitter", "jitter"), ("Longest Pause", "longest_pause"))
_TAIL_WORDS = {"heavy": "heavy-tailed", "exponential": "exponential", "light": "light"}


def tables(levels: Sequence[LevelItl], method: Method, runs: Sequence[Records]) -> tuple[Table, ...]:
    """Table 6 once per level, the levels side by side, and the chunk sizes where a chunk is not one token."""
    found = [results_table(level) for level in levels]
    if len(levels) > 1:
        found.append(by_level_table(levels))
    chunks = chunk_sizes_table(method, runs)
    return (*found, *((chunks,) if chunks is not None else ()))


def results_table(level: LevelItl) -> Table:
    label, metrics = level.samples.label, level.metrics
    rows = [(f"{label} Samples", f"{level.samples.gaps}", "")]
    rows += [
        (f"{label} {name}", tail(metrics[f"itl.{key}"], key), interval(metrics[f"itl.{key}"]))
        for name, key in _PERCENTILES
    ]
    rows += [
        (f"{label} {name}", value(metrics[f"itl.{key}"]), interval(metrics[f"itl.{key}"]))
        for name, key in _MOMENTS
    ]
    ratio = metrics["itl_tail_ratio"]
    rows.append(("P99/P50 Ratio", value(ratio, digits=2, unit=""), interval(ratio, digits=2)))
    rows += [
        (f"{title} {name}", tail(estimate, key), interval(estimate))
        for title, family in _PER_REQUEST
        for name, key in (("P50", "p50"), ("P95", "p95"), ("P99", "p99"))
        for estimate in [metrics[f"{family}.{key}"]]
    ]
    rows += [("Modality", _modality(level.modality), ""), ("Tail", _tail(level), "")]
    rows += [
        ("Requests", f"{level.samples.eligible}", ""),
        ("Left Out (under 50 tokens)", _left_out(level), ""),
    ]
    rate = level.seen.level.offered_rps
    at = f"{level.label} of saturation" + ("" if rate is None else f", {rate:g} req/s")
    return Table("itl_results", f"{label} Results at {at}", ("Metric", "Value", "95 % interval"), tuple(rows))


def by_level_table(levels: Sequence[LevelItl]) -> Table:
    label = levels[0].samples.label
    rows = tuple(
        (
            level.label,
            f"{level.seen.level.offered_rps or 0:g} req/s",
            *(tail(level.metrics[f"itl.{key}"], key) for key in ("p50", "p95", "p99", "p99_9")),
            value(level.metrics["itl_tail_ratio"], digits=2, unit=""),
            tail(level.metrics["jitter.p99"], "p99"),
            tail(level.metrics["longest_pause.p99"], "p99"),
        )
        for level in levels
    )
    names = ("P50", "P95", "P99", "P99.9")
    columns = (
        "Load",
        "Rate",
        *(f"{label} {name}" for name in names),
        "P99/P50",
        "Jitter P99",
        "Longest Pause P99",
    )
    return Table("itl_by_level", f"{label} by Load Level", columns, rows)


def chunk_sizes_table(method: Method, runs: Sequence[Records]) -> Table | None:
    """The chunk-size distribution, which option A owes (section 4.6.3); None where all are one token."""
    sizes = tokens_per_chunk(runs)
    if sizes is None:
        if method.option != "A":
            return None
        rows: tuple[tuple[str, str], ...] = (
            ("Tokens per chunk", f"{NOT_MEASURED}: the server does not say"),
        )
    elif sizes.max == 1:
        return None
    else:
        rows = (
            ("Chunks", f"{sizes.chunks}"),
            ("Tokens per chunk, mean", number(sizes.mean)),
            ("Tokens per chunk, P50", f"{sizes.p50:g}"),
            ("Tokens per chunk, P99", f"{sizes.p99:g}"),
            ("Tokens per chunk, max", f"{sizes.max}"),
        )
    return Table(
        "chunk_sizes", "Chunk Sizes", ("Metric", "Value"), (*rows, ("Timing", HANDLING[method.option]))
    )


def plots(levels: Sequence[LevelItl], objectives: Sequence[Objective]) -> tuple[Plot, ...]:
    """Empirical distribution of the gaps of every level, with the limits on it as marks."""
    series = {level.label: level.cdf for level in levels if level.samples.gaps}
    if not series:
        return ()
    marks: dict[str, float] = {}
    for objective in objectives:
        family, _, statistic = objective.metric.partition(".")
        if family.partition("[")[0] == "itl":
            marks[f"limit {statistic.replace('p99_9', 'p99.9').upper()}"] = objective.limit
    label = levels[0].samples.label
    plot = Plot(
        id="itl_cdf",
        title=f"Distribution of {label} by load level",
        x_label=f"{label} (ms)",
        y_label="share of gaps",
        series=series,
        marks=marks,
        step=True,
        x_log=all(x[0] > 0 for x, _ in series.values()),
    )
    return (plot,)


def _modality(shape: Modality) -> str:
    word = modality_word(shape)
    if word is None:
        return NOT_MEASURED
    return f"{word}: {', '.join(number(mode) for mode in shape.modes)} ms"


def _tail(level: LevelItl) -> str:
    variation = level.metrics["itl_tail_variation"].point
    if level.tail is None or variation is None:
        return "not measurable: too few samples beyond P90"
    return f"{_TAIL_WORDS[level.tail]} (coefficient of variation beyond P90: {variation:.2f})"


def _left_out(level: LevelItl) -> str:
    samples = level.samples
    of = samples.excluded_share
    return f"{samples.excluded}" if of is None else f"{samples.excluded} ({share(of)})"


__all__ = [
    "by_level_table",
    "chunk_sizes_table",
    "plots",
    "results_table",
    "tables",
]
