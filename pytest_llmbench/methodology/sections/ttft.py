"""Time to First Token, section 5.1 of the draft.

Objective: the latency from submission to the first content token under a given load; what a user feels as
responsiveness. Procedure: warm up, start the load, store T_submit, T_first and the input length of every
request until the count is reached, compute the statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.methodology.measuring.adaptive import AdaptiveParameters
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.job_figures import figures
from pytest_llmbench.methodology.measuring.one_load import Told, one_load, one_load_test
from pytest_llmbench.methodology.parameters import limit, parameter
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.chunking import noncontent_first_share, reasoning_share
from pytest_llmbench.metrics.input_lengths import Bucket, by_input_length, given_up_by_length
from pytest_llmbench.metrics.latency import FAMILIES, distributions
from pytest_llmbench.metrics.server_side import PARTS_OF_TTFT, mean_parts_of_ttft
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import Amount, Cell, Figure, Row, cells
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import Plot, Table, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.counted import ecdf
from pytest_llmbench.stats.runs import FloatArray

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

_PARTS = (("Queue wait", "ttft_queue_wait"), ("Prefill", "ttft_prefill"), ("Outside", "ttft_outside"))

HEADING = Heading("ttft", "5.1", "Time to First Token")


@dataclass(frozen=True, kw_only=True)
class Parameters(AdaptiveParameters):
    """Limits (``*_ms``) are ceilings in milliseconds, judged on the whole confidence interval."""

    repeats = True

    mean_ms: float | None = limit("ttft.mean")
    p50_ms: float | None = limit("ttft.p50")
    p90_ms: float | None = limit("ttft.p90")
    p95_ms: float | None = limit("ttft.p95")
    p99_ms: float | None = limit("ttft.p99")
    p99_9_ms: float | None = limit("ttft.p99_9")
    bucket_limits: Mapping[str, Mapping[str, float]] | None = parameter(
        "bucket_limits", doc='limits per input-length bucket, ``{"0-256": {"p95_ms": 300}}``.'
    )

    @property
    def own_objectives(self) -> tuple[Objective, ...]:
        bucketed = [
            Objective(f"ttft[{label}].{name.removesuffix('_ms')}", "<=", limit, "ms")
            for label, limits in (self.bucket_limits or {}).items()
            for name, limit in limits.items()
        ]
        return (*super().own_objectives, *bucketed)


@one_load(HEADING)
def result(parameters: Parameters, setting: Setting, seen: Sequence[Observation]) -> Told:
    """The result: statistics, tables and plots from the observed runs."""
    runs = [run.records for run in seen]
    metrics, own_runs = figures(parameters, setting, seen, lambda those: _metrics(those, setting.seed))
    buckets = _buckets(runs)
    ahead = noncontent_first_share(runs) or 0.0
    samples = np.concatenate([latency.ttft_ms(run) for run in runs]) if runs else np.empty(0)
    return Told(
        metrics,
        own_runs,
        tables=(
            results_table(metrics, len(samples)),
            *((by_input_length_table(buckets, metrics),) if buckets else ()),
            *((parts_table(metrics),) if _parts(metrics) else ()),
            *((any_token_table(metrics),) if ahead > 0 else ()),
        ),
        plots=(cdf_plot("ttft", "TTFT", samples, parameters.objectives),) if len(samples) else (),
        notes=_notes(metrics, ahead, reasoning_share(runs) or 0.0, len(samples)),
    )


def _buckets(runs: Sequence[Records]) -> Sequence[Bucket]:
    waits = [latency.ttft_ms(run) for run in runs]
    lengths = [latency.ttft_input_tokens(run) for run in runs]
    return by_input_length(waits, lengths, given_up=given_up_by_length(runs))


def _metrics(seen: Sequence[Observation], seed: int) -> dict[str, Estimate]:
    metrics: dict[str, Estimate] = mean_parts_of_ttft([run.engine for run in seen])
    metrics |= distributions(FAMILIES, [run.records for run in seen])
    for family, measure in PARTS_OF_TTFT.items():
        runs = [measure(run.records) for run in seen]
        if any(len(run) for run in runs):
            metrics |= distribution(family, runs)
    for bucket in _buckets([run.records for run in seen]):
        metrics |= bucket.metrics
    return metrics | rates(seen, seed=seed)


def _parts(metrics: Mapping[str, Estimate]) -> list[str]:
    """The components of TTFT that the server reports, with a reply or in sum (section 5.1.4.2)."""
    return [family for family in PARTS_OF_TTFT if f"{family}.mean" in metrics]


def _notes(metrics: Mapping[str, Estimate], ahead: float, reasoning: float, count: int) -> tuple[Note, ...]:
    """``ahead``: the share of replies whose first token is no content. ``reasoning``: that of reasoning among
    all tokens. ``count``: number of samples of TTFT."""
    notes = []
    if ahead > 0:
        notes.append(Note.of("noncontent_first", share=Amount(ahead, "ratio")))
    plain, scheduled = metrics["ttft.p99"].point, metrics["ttft_scheduled.p99"].point
    if plain is not None and scheduled is not None and scheduled > plain * 1.05 + 1.0:
        more = Amount(scheduled - plain, "ms")
        notes.append(Note.of("waited_in_generator", scheduled=Amount(scheduled, "ms"), more=more))
    if not _parts(metrics):
        notes.append(Note.of("no_components"))
    if any(f"{family}.p50" not in metrics for family in _parts(metrics)):
        notes.append(Note.of("components_of_page"))
    if reasoning > 0:
        notes.append(Note.of("reasoning_tokens", share=Amount(reasoning, "ratio")))
    if not count:
        notes.append(Note.of("no_content_token"))
    return tuple(notes)


def results_table(metrics: Mapping[str, Estimate], count: int) -> Table:
    """Table 1, with the interval beside each value."""
    rows: list[tuple[str, Cell]] = [("Requests", count)]
    rows += [(f"TTFT {name}", _reported(metrics, "ttft", key)) for name, key in _ROWS]
    return metric_table("ttft_results", "TTFT Results", rows)


def _reported(metrics: Mapping[str, Estimate], family: str, statistic: str) -> Figure:
    name = f"{family}.{statistic}"
    return Figure(name, metrics[name], reported_from=SAMPLES_REQUIRED.get(statistic, 1))


def by_input_length_table(buckets: Sequence[Bucket], metrics: Mapping[str, Estimate]) -> Table:
    """Table 2: a row for each non-empty bucket (AMB-04)."""
    rows: tuple[Row, ...] = tuple(
        (
            bucket.label,
            bucket.count,
            *cells(metrics, (f"ttft[{bucket.label}].{key}" for key in ("p50", "p95", "p99"))),
        )
        for bucket in buckets
    )
    columns = ("Input Tokens", "Requests", "P50 (ms)", "P95 (ms)", "P99 (ms)")
    return Table("ttft_by_input_length", "TTFT by Input Length", columns, rows)


def parts_table(metrics: Mapping[str, Estimate]) -> Table:
    """A table of the components of TTFT that the server reports for each request, or only in sum (section
    5.1.4.2)."""
    rows: list[Row] = []
    for title, family in _PARTS:
        found = cells(metrics, (f"{family}.{key}" for key in ("p50", "p95", "p99", "mean")))
        count = next((each.estimate.n for each in found if each.estimate is not None), 0)
        rows.append((title, *("not measurable" if each.estimate is None else each for each in found), count))
    columns = ("Component", "P50", "P95", "P99", "Mean", "Requests")
    return Table("ttft_components", "Components of TTFT", columns, tuple(rows))


def any_token_table(metrics: Mapping[str, Estimate]) -> Table:
    """A table of both readings of "first token", where the system sends other output ahead of content
    (AMB-29)."""
    families = ("ttft", "ttft_any")
    rows: tuple[Row, ...] = tuple(
        (name, *(_reported(metrics, family, key) for family in families)) for name, key in _ROWS
    )
    columns = ("Metric", "To the first content token", "To the first token of any kind")
    return Table("ttft_any_token", "Time to Any Token", columns, rows)


def cdf_plot(family: str, label: str, samples: FloatArray, objectives: Sequence[Objective]) -> Plot:
    """A plot of the empirical distribution of a latency in ms over all runs, with the limits on it as
    marks."""
    x, y = ecdf(samples)
    stem = f"{family}."
    marks = {
        f"limit {each.metric.removeprefix(stem).replace('p99_9', 'p99.9').upper()}": each.limit
        for each in objectives
        if each.metric.startswith(stem)
    }
    return Plot(
        id=f"{family}_cdf",
        title=f"Distribution of {label}",
        x_label=f"{label} (ms)",
        y_label="share of requests",
        series={label: (tuple(x), tuple(y))},
        marks=marks,
        step=True,
        x_log=True,
    )


TEST = one_load_test(HEADING, Parameters, result)
