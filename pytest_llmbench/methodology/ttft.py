"""Time to First Token, section 5.1 of the draft (METHODOLOGY §11.1).

Objective: the latency from submission to the first content token under a given load; what a user feels as
responsiveness. Procedure: warm up, start the load, store T_submit, T_first and the input length of every
request until the count is reached, compute the statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.methodology.adaptive import AdaptiveParameters, as_judged
from pytest_llmbench.methodology.by_run import ByRun, by_run
from pytest_llmbench.methodology.manifest import manifest
from pytest_llmbench.methodology.one_load import (
    intended,
    one_load_plans,
    one_load_procedure,
    request_count,
)
from pytest_llmbench.methodology.parameters import STATISTICS, parameter
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.methodology.samples import RunSamples, samples_of
from pytest_llmbench.methodology.summary import configuration
from pytest_llmbench.methodology.ttft_tables import (
    any_token_table,
    by_input_length_table,
    cdf_plot,
    parts_table,
    results_table,
)
from pytest_llmbench.metrics.buckets import Bucket, by_input_length
from pytest_llmbench.metrics.server_side import FROM_PAGE, NOT_MEASURABLE, PARTS_OF_TTFT, mean_parts_of_ttft
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.result import TestResult, WarmupReport

SECTION = "5.1"
TITLE = "Time to First Token"


@dataclass(frozen=True, kw_only=True)
class Parameters(AdaptiveParameters):
    """Keywords of ``@llmbench.ttft``. Limits are ceilings in milliseconds on the whole interval."""

    repeats = True

    mean_ms: float | None = parameter("positive")
    p50_ms: float | None = parameter("positive")
    p90_ms: float | None = parameter("positive")
    p95_ms: float | None = parameter("positive")
    p99_ms: float | None = parameter("positive")
    p99_9_ms: float | None = parameter("positive")
    bucket_limits: Mapping[str, Mapping[str, float]] | None = parameter("bucket_limits")
    """Limits per input-length bucket: ``{"0-256": {"p95_ms": 300}}``."""

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
    """Statistics, tables and plots from the observed runs."""
    samples = samples_of(seen)
    metrics = _metrics(samples, seen, setting.seed)
    buckets = _buckets(samples)
    for bucket in buckets:
        metrics |= bucket.metrics
    judged = as_judged(parameters, seen)
    facts = setting.facts | manifest(setting, intended(parameters, setting, seen), warmup, seen, judged.facts)
    return TestResult(
        test="ttft",
        section=SECTION,
        title=f"{TITLE} (cold start)" if setting.warmup.cold_start else TITLE,
        metrics=metrics | judged.metrics,
        tables=(
            results_table(metrics, samples),
            *((by_input_length_table(buckets),) if buckets else ()),
            *((parts_table(metrics),) if _parts(metrics) else ()),
            *((any_token_table(metrics),) if samples.noncontent_share > 0 else ()),
        ),
        plots=(cdf_plot(samples, parameters.objectives),) if samples.ttft_count else (),
        configuration=configuration(facts, seen),
        observations=tuple(seen),
        warmup=warmup,
        facts=facts,
        objectives=parameters.objectives,
        notes=(*judged.notes, *_notes(samples, metrics)),
        by_run=_by_run(seen, setting.seed),
    )


def _buckets(samples: RunSamples) -> Sequence[Bucket]:
    return by_input_length(samples.ttft, samples.ttft_input_tokens)


def _by_run(seen: Sequence[Observation], seed: int) -> ByRun:
    """Every metric of each run taken alone."""
    runs = []
    for run in seen if len(seen) > 1 else ():
        own = samples_of([run])
        metrics = _metrics(own, [run], seed)
        for bucket in _buckets(own):
            metrics |= bucket.metrics
        runs.append(metrics)
    return by_run(runs)


def _metrics(samples: RunSamples, seen: Sequence[Observation], seed: int) -> dict[str, Estimate]:
    metrics: dict[str, Estimate] = mean_parts_of_ttft([run.engine for run in seen])
    for family, runs in samples.families().items():
        metrics |= distribution(family, runs)
    for family, measure in PARTS_OF_TTFT.items():
        runs = [measure(run.records) for run in seen]
        if any(len(run) for run in runs):
            metrics |= distribution(family, runs)
    return metrics | rates(seen, seed=seed)


def _parts(metrics: Mapping[str, Estimate]) -> list[str]:
    """Components of TTFT that the server reports, with a reply or in sum (section 5.1.4.2)."""
    return [family for family in PARTS_OF_TTFT if f"{family}.mean" in metrics]


def _notes(samples: RunSamples, metrics: Mapping[str, Estimate]) -> tuple[str, ...]:
    notes = []
    if samples.noncontent_share > 0:
        notes.append(
            f"{samples.noncontent_share:.1%} of the requests sent non-content output before the first "
            "content token; TTFT runs to the first content token, ttft_any to the first output of any kind"
        )
    plain, scheduled = metrics["ttft.p99"].point, metrics["ttft_scheduled.p99"].point
    if plain is not None and scheduled is not None and scheduled > plain * 1.05 + 1.0:
        notes.append(
            f"from the scheduled arrival TTFT P99 is {scheduled:.1f} ms, {scheduled - plain:.1f} ms "
            "more than from submission: requests waited in the generator"
        )
    if not _parts(metrics):
        notes.append(f"queue wait and prefill latency: {NOT_MEASURABLE}, the server reports neither")
    if any(metrics[f"{family}.mean"].method == FROM_PAGE for family in _parts(metrics)):
        notes.append(
            "components of TTFT: the replies do not state them, so there are no percentiles; the means are "
            "from the engine's metrics page, which counts every request that it served meanwhile"
        )
    if samples.reasoning_share > 0:
        notes.append(
            f"{samples.reasoning_share:.1%} of the output tokens are reasoning, which is no content for TTFT"
        )
    if not np.isfinite(samples.duration_s) or samples.ttft_count == 0:
        notes.append("no request produced a content token: there is no TTFT to report")
    return tuple(notes)


plans = one_load_plans
procedure = one_load_procedure(result)
TEST = TestDefinition("ttft", SECTION, TITLE, Parameters, procedure, plans)

__all__ = ["TEST", "Parameters", "plans", "procedure", "request_count", "result"]
