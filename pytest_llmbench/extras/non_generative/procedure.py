"""Non-generative endpoints: embeddings, reranking, scores and log-probabilities of prompts.

No test of the draft, whose tests are all about tokens that are generated. The procedure is that of the TTFT
test: warm up, send one load, judge. A reply is one document, so there is one instant of it: that of its last
byte. There is no TTFT, no ITL and no count of output tokens, here or in the report. What a system of this
kind is asked for is how long a document takes, how many requests it answers in a second, and how many tokens
of input it reads in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pytest_llmbench.methodology.measuring.adaptive import AdaptiveParameters
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.job_figures import figures
from pytest_llmbench.methodology.measuring.one_load import (
    Told,
    one_load,
    one_load_plans,
    one_load_procedure,
)
from pytest_llmbench.methodology.parameters import limit, parameter
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.sections.ttft import cdf_plot
from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.metrics.latency import distribution_of, request_latency_ms
from pytest_llmbench.metrics.summary import STATISTICS
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import Cell, Row, cells
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.records import Records, split_by_class
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import Table, TestResult, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.adapted import without_outputs

HEADING = Heading("non_generative", "", "Non-generative Requests")

_TAILS = {"p50": "P50", "p95": "P95", "p99": "P99"}
_RATES = {
    "request_throughput": "Requests per second",
    "input_token_throughput": "Input tokens per second",
}


@dataclass(frozen=True, kw_only=True)
class Parameters(AdaptiveParameters):
    """How long a document takes, and how many there are: embeddings, reranking, scores, log-probabilities.

    It needs ``--llm-api=openai-embeddings``, ``rerank``, ``score`` or ``logprobs``. Nothing is generated, so
    there is no TTFT, no ITL and no output token. Limits are judged on the whole confidence interval.
    """

    of_the_draft = False
    repeats = True
    generates = False

    workload: str | Workload = parameter(
        "workload",
        "profile:EMBED",
        doc="name of a workload, a workload object, or weights by name; where a workload asks for "
        "outputs, only its inputs are sent.",
    )
    slo: Sequence[Objective] = parameter(
        "slo",
        (),
        doc='further objectives, ``[metric("latency_scheduled.p99", "ms") <= 300 * ms]``.',
    )
    latency_p50_ms: float | None = limit("latency.p50")
    latency_p95_ms: float | None = limit(
        "latency.p95",
        doc="limit on P95 of the time from the last byte of the request to the last byte of the reply.",
    )
    latency_p99_ms: float | None = limit("latency.p99")
    latency_mean_ms: float | None = limit("latency.mean")
    min_requests_per_s: float | None = limit("request_throughput", doc="least rate of successful requests.")
    min_input_tokens_per_s: float | None = limit(
        "input_token_throughput", doc="least rate of input tokens of successful requests."
    )

    def contradictions(self) -> list[str]:
        found = super().contradictions()
        found += [
            f"slo limits {each.metric}, which has no meaning where nothing is generated: there are "
            f"latency.*, latency_scheduled.*, {', '.join(_RATES)} and completion_rate"
            for each in self.slo
            if each.metric.partition("[")[0].partition(".")[0] not in _METRICS
        ]
        return found


MAIN_METRICS = ("latency.p99", "request_throughput", "input_token_throughput")
_METRICS = ("latency", "latency_scheduled", *_RATES, "completion_rate")


@one_load(HEADING)
def result(parameters: Parameters, setting: Setting, seen: Sequence[Observation]) -> Told:
    classes = split_by_class([run.records for run in seen])
    metrics, own_runs = figures(parameters, setting, seen, partial(_metrics, seed=setting.seed))
    samples = np.concatenate([request_latency_ms(run.records) for run in seen]) if seen else np.empty(0)
    cdf = (cdf_plot("latency", "latency", samples, parameters.objectives),) if len(samples) else ()
    unanswered = () if any(run.records.ok.any() for run in seen) else (Note.of("no_latency"),)
    notes = (*unanswered, Note.of("outside_draft", test=HEADING.test))
    return Told(metrics, own_runs, _tables(metrics, seen, classes), cdf, notes)


def _metrics(seen: Sequence[Observation], seed: int) -> dict[str, Estimate]:
    """The metrics of the test. There is no rate of output tokens, not even an undefined one, as nothing is
    generated."""
    records = [run.records for run in seen]
    parts = {"": records} | {f"[{label}]": runs for label, runs in split_by_class(records).items()}
    found: dict[str, Estimate] = {}
    for qualifier, runs in parts.items():
        for family in ("latency", "latency_scheduled"):
            found |= distribution_of(family, runs, name=f"{family}{qualifier}")
    return found | {name: each for name, each in rates(seen, seed=seed).items() if name in _METRICS}


def _tables(
    metrics: Mapping[str, Estimate], seen: Sequence[Observation], classes: Mapping[str, Sequence[Records]]
) -> Iterator[Table]:
    named = {f"Latency {name}": f"latency.{key}" for key, name in (*_TAILS.items(), ("mean", "mean"))}
    named |= {title: name for name, title in _RATES.items()} | {"Completion rate": "completion_rate"}
    rows: list[tuple[str, Cell]] = [
        ("Requests that ended well", sum(int(run.records.ok.sum()) for run in seen)),
        *zip(named, cells(metrics, named.values()), strict=True),
    ]
    yield metric_table("non_generative_results", f"{HEADING.title}: Results", rows)
    by_class: list[Row] = [
        (
            label,
            sum(map(len, runs)),
            *cells(metrics, (f"latency[{label}].{statistic}" for statistic in _TAILS)),
        )
        for label, runs in classes.items()
    ]
    if by_class:
        titles = ("Class", "Requests", *(f"Latency {name}" for name in _TAILS.values()))
        yield Table("non_generative_by_class", f"{HEADING.title} by Class", titles, tuple(by_class))


def _of_inputs(setting: Setting) -> Setting:
    """The setting for requests that generate nothing, so that no outputs are asked for."""
    return replace(
        setting,
        workload=without_outputs(setting.workload),
        warmup=replace(setting.warmup, output_tokens=0),
    )


_procedure = one_load_procedure(result, by_class=False)


def procedure(parameters: Parameters, setting: Setting) -> Procedure[TestResult]:
    return (yield from _procedure(parameters, _of_inputs(setting)))


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    return one_load_plans(parameters, _of_inputs(setting))


TEST = TestDefinition(*HEADING, Parameters, procedure, plans, result=result)

LATENCY = MetricDefinition(
    "latency", "Latency", "ms", "lower", "last byte of the reply - T_submit", "non_generative", STATISTICS
)
LATENCY_SCHEDULED = MetricDefinition(
    "latency_scheduled", "Latency from the schedule", "ms", "lower", "last byte of the reply - T_scheduled",
    "non_generative", STATISTICS,
)  # fmt: skip
