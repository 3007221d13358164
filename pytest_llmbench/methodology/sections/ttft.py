"""Time to First Token, section 5.1 of the draft.

Objective: the latency from submission to the first content token under a given load; what a user feels as
responsiveness. Procedure: warm up, start the load, store T_submit, T_first and the input length of every
request until the count is reached, compute the statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_llmbench.methodology.measuring.adaptive import AdaptiveParameters, as_judged
from pytest_llmbench.methodology.measuring.job_figures import figures
from pytest_llmbench.methodology.measuring.manifest import configuration, manifest
from pytest_llmbench.methodology.measuring.one_load import (
    intended,
    one_load_plans,
    one_load_procedure,
)
from pytest_llmbench.methodology.measuring.over_time import over_time_of_runs
from pytest_llmbench.methodology.parameters import STATISTICS, parameter
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.metrics import chunking, latency
from pytest_llmbench.metrics.input_lengths import Bucket, by_input_length, given_up_by_length
from pytest_llmbench.metrics.latency import FAMILIES, FloatArray, distributions
from pytest_llmbench.metrics.server_side import PARTS_OF_TTFT, mean_parts_of_ttft
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import Amount, Cell, Figure, Row, cells, with_intervals
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.counted import ecdf

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunSamples:
    """The samples of a test: one vector per run (ms, successful requests in order of submission)."""

    runs: tuple[Records, ...]
    ttft_count: int
    noncontent_share: float
    reasoning_share: float
    duration_s: float

    @property
    def ttft(self) -> list[Floats]:
        return [latency.ttft_ms(run) for run in self.runs]

    @property
    def ttft_input_tokens(self) -> list[npt.NDArray[np.int64]]:
        return [latency.ttft_input_tokens(run) for run in self.runs]


def samples_of(seen: Sequence[Observation]) -> RunSamples:
    runs = tuple(run.records for run in seen)
    return RunSamples(
        runs=runs,
        ttft_count=sum(len(latency.ttft_ms(run)) for run in runs),
        noncontent_share=chunking.noncontent_first_share(runs) or 0.0,
        reasoning_share=chunking.reasoning_share(runs) or 0.0,
        duration_s=sum(run.duration_s for run in seen),
    )


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

SECTION = "5.1"

TITLE = "Time to First Token"


@dataclass(frozen=True, kw_only=True)
class Parameters(AdaptiveParameters):
    """Limits (``*_ms``) are ceilings in milliseconds, judged on the whole confidence interval."""

    repeats = True

    mean_ms: float | None = parameter("positive")
    p50_ms: float | None = parameter("positive")
    p90_ms: float | None = parameter("positive")
    p95_ms: float | None = parameter("positive")
    p99_ms: float | None = parameter("positive")
    p99_9_ms: float | None = parameter("positive")
    bucket_limits: Mapping[str, Mapping[str, float]] | None = parameter(
        "bucket_limits", doc='limits per input-length bucket, ``{"0-256": {"p95_ms": 300}}``.'
    )

    @property
    def objectives(self) -> tuple[Objective, ...]:
        own = [
            Objective(f"ttft.{statistic}", "<=", limit, "ms")
            for statistic in STATISTICS
            if (limit := getattr(self, f"{statistic}_ms")) is not None
        ]
        bucketed = [
            Objective(f"ttft[{label}].{name.removesuffix('_ms')}", "<=", limit, "ms")
            for label, limits in (self.bucket_limits or {}).items()
            for name, limit in limits.items()
        ]
        return (*own, *bucketed, *self.slo)


def result(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
) -> TestResult:
    """The result: statistics, tables and plots from the observed runs."""
    samples = samples_of(seen)
    metrics, own_runs = figures(parameters, setting, seen, lambda runs: _metrics(runs, setting.seed))
    buckets = _buckets(samples)
    judged = as_judged(parameters, seen)
    facts = setting.facts | manifest(setting, intended(parameters, setting, seen), warmup, seen, judged.facts)
    return TestResult(
        test="ttft",
        section=SECTION,
        title=f"{TITLE} (cold start)" if setting.warmup.cold_start else TITLE,
        metrics=metrics | judged.metrics,
        tables=(
            results_table(metrics, samples),
            *((by_input_length_table(buckets, metrics),) if buckets else ()),
            *((parts_table(metrics),) if _parts(metrics) else ()),
            *((any_token_table(metrics),) if samples.noncontent_share > 0 else ()),
        ),
        plots=(
            *_cdf(samples, parameters.objectives),
            *over_time_of_runs(seen),
        ),
        configuration=configuration(facts, seen),
        observations=tuple(seen),
        warmup=warmup,
        facts=facts,
        objectives=parameters.objectives,
        notes=(*judged.notes, *_notes(samples, metrics)),
        by_run=own_runs,
    )


def _buckets(samples: RunSamples) -> Sequence[Bucket]:
    gone = given_up_by_length(samples.runs)
    return by_input_length(samples.ttft, samples.ttft_input_tokens, given_up=gone)


def _metrics(seen: Sequence[Observation], seed: int) -> dict[str, Estimate]:
    samples = samples_of(seen)
    metrics: dict[str, Estimate] = mean_parts_of_ttft([run.engine for run in seen])
    metrics |= distributions(FAMILIES, samples.runs)
    for family, measure in PARTS_OF_TTFT.items():
        runs = [measure(run.records) for run in seen]
        if any(len(run) for run in runs):
            metrics |= distribution(family, runs)
    for bucket in _buckets(samples):
        metrics |= bucket.metrics
    return metrics | rates(seen, seed=seed)


def _parts(metrics: Mapping[str, Estimate]) -> list[str]:
    """The components of TTFT that the server reports, with a reply or in sum (section 5.1.4.2)."""
    return [family for family in PARTS_OF_TTFT if f"{family}.mean" in metrics]


def _notes(samples: RunSamples, metrics: Mapping[str, Estimate]) -> tuple[Note, ...]:
    notes = []
    if samples.noncontent_share > 0:
        notes.append(Note.of("noncontent_first", share=Amount(samples.noncontent_share, "ratio")))
    plain, scheduled = metrics["ttft.p99"].point, metrics["ttft_scheduled.p99"].point
    if plain is not None and scheduled is not None and scheduled > plain * 1.05 + 1.0:
        more = Amount(scheduled - plain, "ms")
        notes.append(Note.of("waited_in_generator", scheduled=Amount(scheduled, "ms"), more=more))
    if not _parts(metrics):
        notes.append(Note.of("no_components"))
    if any(f"{family}.p50" not in metrics for family in _parts(metrics)):
        notes.append(Note.of("components_of_page"))
    if samples.reasoning_share > 0:
        notes.append(Note.of("reasoning_tokens", share=Amount(samples.reasoning_share, "ratio")))
    if not np.isfinite(samples.duration_s) or samples.ttft_count == 0:
        notes.append(Note.of("no_content_token"))
    return tuple(notes)


def results_table(metrics: Mapping[str, Estimate], samples: RunSamples) -> Table:
    """Table 1, with the interval beside each value."""
    rows: list[tuple[str, Cell]] = [("Requests", samples.ttft_count)]
    rows += [(f"TTFT {name}", _reported(metrics, "ttft", key)) for name, key in _ROWS]
    columns = ("Metric", "Value", "95 % interval")
    return Table("ttft_results", "TTFT Results", columns, with_intervals(rows))


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


def _cdf(samples: RunSamples, objectives: Sequence[Objective]) -> tuple[Plot, ...]:
    if not samples.ttft_count:
        return ()
    return (cdf_plot("ttft", "TTFT", np.concatenate(samples.ttft), objectives),)


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


plans = one_load_plans

procedure = one_load_procedure(result)

TEST = TestDefinition("ttft", SECTION, TITLE, Parameters, procedure, plans, result=result)
