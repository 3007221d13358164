"""A finite job: so many prompts, all at once, with so many in flight, or by a rate. How long does it take,
how many tokens a second, what P50 and P99 *of these*?

The load that engine repositories gate (vLLM's, SGLang's and TensorRT-LLM's benchmarks, MLCommons' offline
scenario). It is not part of the draft. The job is measured exactly, so its figures have no sampling error;
their intervals say where they would lie if the job were run again (:mod:`~pytest_llmbench.metrics.jobs`).
Every figure is of the whole job, its first wave and its drain included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from pytest_llmbench.methodology.measuring.adaptive import GATE_REQUESTS, STEADY_WAVES, AdaptiveParameters
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.job_figures import figures, held_back, steady_middle
from pytest_llmbench.methodology.measuring.manifest import configuration, manifest
from pytest_llmbench.methodology.measuring.one_load import (
    intended,
    one_load_plans,
    one_load_procedure,
)
from pytest_llmbench.methodology.measuring.over_time import over_time_of_runs
from pytest_llmbench.methodology.parameters import AUTO, parameter
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.metrics.itl import choose_option, itl_distribution, itl_samples
from pytest_llmbench.metrics.latency import FAMILIES, distributions
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import Cell, cells, with_intervals
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load
from pytest_llmbench.model.result import Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note

NAME = "job"
SECTION = ""
"""The section of the draft: there is none."""
TITLE = "Job"

_FAMILIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "End-to-end latency"}
_STATISTICS = {"mean": "mean", "p50": "P50", "p99": "P99"}
_TOTALS = {
    "makespan": ("max_makespan_s", "s", "Makespan"),
    "request_throughput": ("min_requests_per_s", "req/s", "Request throughput"),
    "output_token_throughput": ("min_output_tok_s", "tok/s", "Output throughput"),
    "total_token_throughput": ("min_total_tok_s", "tok/s", "Total token throughput"),
}
"""Metric → the keyword of its limit, unit and title."""


@dataclass(frozen=True, kw_only=True)
class Parameters(AdaptiveParameters):
    """A number of prompts, all at once unless ``concurrency`` or ``rate`` says otherwise.

    Limits are on these prompts. One run decides a limit that is far enough away; where it does not, the job
    is run four more times (``runs="auto"``, the default).
    """

    of_the_draft = False
    repeats = True
    fixed_count: ClassVar[bool] = True
    may_be_capped: ClassVar[bool] = True
    count_name: ClassVar[str] = "prompts"

    prompts: int = parameter("count", GATE_REQUESTS, doc="requests in the job.")
    concurrency: int | None = parameter(
        "count", doc="most requests in flight, also with ``rate``; default: all."
    )
    max_makespan_s: float | None = parameter(
        "positive", doc="longest time from the start of the job to the end of its last reply."
    )
    min_requests_per_s: float | None = parameter("positive")
    min_output_tok_s: float | None = parameter("positive")
    min_total_tok_s: float | None = parameter("positive", doc="least input and output tokens per second.")
    ttft_mean_ms: float | None = parameter("positive")
    ttft_p50_ms: float | None = parameter("positive")
    ttft_p99_ms: float | None = parameter("positive")
    tpot_mean_ms: float | None = parameter("positive")
    tpot_p50_ms: float | None = parameter("positive")
    tpot_p99_ms: float | None = parameter("positive")
    itl_mean_ms: float | None = parameter("positive")
    itl_p50_ms: float | None = parameter("positive")
    itl_p99_ms: float | None = parameter("positive")
    e2e_mean_ms: float | None = parameter("positive")
    e2e_p50_ms: float | None = parameter("positive")
    e2e_p99_ms: float | None = parameter("positive")
    # A job is what it is: these do not exist here.
    requests: None = field(default=None, init=False, repr=False)
    max_requests: None = field(default=None, init=False, repr=False)
    max_seconds: None = field(default=None, init=False, repr=False)
    steady: bool = field(default=False, init=False, repr=False)

    @property
    def count(self) -> int | None:
        return self.prompts

    @property
    def is_job(self) -> bool:
        return True

    @property
    def runs_as_needed(self) -> bool:
        return self.runs in (None, AUTO)

    @property
    def load(self) -> Load:
        if self.rate is None and self.arrival is None:
            return ClosedLoop(min(self.concurrency or self.prompts, self.prompts))
        return super().load

    @property
    def objectives(self) -> tuple[Objective, ...]:
        given = [
            (f"{family}.{statistic}", getattr(self, f"{family}_{statistic}_ms"))
            for family in _FAMILIES
            for statistic in _STATISTICS
        ]
        own = [Objective(name, "<=", limit, "ms") for name, limit in given if limit is not None]
        for name, (keyword, unit, _) in _TOTALS.items():
            limit = getattr(self, keyword)
            if limit is not None:
                own.append(Objective(name, "<=" if name == "makespan" else ">=", limit, unit))
        return (*own, *self.slo)

    def contradictions(self) -> list[str]:
        return [*self._of_load(), *self._uncounted()]


def result(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
) -> TestResult:
    """The result: totals and latencies of the job, with the interval of the next run of it."""
    metrics, own_runs = figures(
        parameters, setting, seen, lambda runs: _metrics(parameters, runs, setting.seed)
    )
    facts = setting.facts | manifest(setting, intended(parameters, setting, seen), warmup, seen)
    return TestResult(
        test=NAME,
        section=SECTION,
        title=f"{TITLE} (cold start)" if setting.warmup.cold_start else TITLE,
        metrics=metrics,
        tables=(_table(metrics, seen),),
        plots=over_time_of_runs(seen),
        configuration=configuration(facts, seen),
        observations=tuple(seen),
        warmup=warmup,
        facts=facts,
        objectives=parameters.objectives,
        notes=(Note.of("outside_draft", test="job"), *held_back(seen)),
        by_run=own_runs,
    )


def extended(
    made: TestResult,
    heading: Heading,
    table: Table,
    metrics: Mapping[str, Estimate],
    by_run: Mapping[str, tuple[float | None, ...]] = MappingProxyType({}),
    notes: Iterable[Note] = (),
) -> TestResult:
    """The result of a job as that of another test outside the draft: its name, its table first, and its
    metrics and notes besides."""
    return replace(
        made,
        test=heading.test,
        title=made.title.replace(TITLE, heading.title),
        metrics={**made.metrics, **metrics},
        tables=(table, *made.tables),
        by_run={**made.by_run, **by_run},
        notes=(Note.of("outside_draft", test=heading.test), *notes),
    )


def _metrics(parameters: Parameters, seen: Sequence[Observation], seed: int) -> dict[str, Estimate]:
    records = [run.records for run in seen]
    found = distributions(FAMILIES, records)
    found |= itl_distribution([itl_samples(run, choose_option(run)) for run in records])
    found |= rates(seen, seed=seed)
    found["makespan"] = _exact(sum(run.duration_s for run in seen) / max(1, len(seen)), "s", found)
    tokens = [found[f"{kind}_token_throughput"].point for kind in ("input", "output")]
    total = None if None in tokens else sum(each for each in tokens if each is not None)
    found["total_token_throughput"] = _exact(total, "tok/s", found)
    if parameters.load.in_flight is not None:
        found |= _steady(seen, parameters.load.in_flight, seed)
    return found


def _exact(point: float | None, unit: str, metrics: Mapping[str, Estimate]) -> Estimate:
    n = metrics["request_throughput"].n
    return Estimate(point, None, None, 0.95, n, "exact in its run", unit)


def _steady(seen: Sequence[Observation], concurrency: int, seed: int) -> dict[str, Estimate]:
    """The rates of the steady middle of the job, where it has one."""
    if any(len(run.records) < STEADY_WAVES * concurrency for run in seen):
        return {}
    middle = rates([steady_middle(run, concurrency) for run in seen], seed=seed)
    return {f"{name}[steady]": middle[name] for name in ("request_throughput", "output_token_throughput")}


def _table(metrics: Mapping[str, Estimate], seen: Sequence[Observation]) -> Table:
    ended = sum(int(run.records.ok.sum()) for run in seen)
    rows: list[tuple[str, Cell]] = [("Runs", len(seen)), ("Requests that ended well", ended)]
    shown = {name: title for name, (_, _, title) in _TOTALS.items()}
    for name in ("request_throughput", "output_token_throughput"):
        if f"{name}[steady]" in metrics:
            shown[f"{name}[steady]"] = f"{shown[name]}, steady middle"
    shown |= {
        f"{family}.{statistic}": f"{title} {called}"
        for family, title in _FAMILIES.items()
        for statistic, called in _STATISTICS.items()
    }
    rows += zip(shown.values(), cells(metrics, shown), strict=True)
    return Table("job_results", "Job Results", ("Metric", "Value", "Next run"), with_intervals(rows))


plans = one_load_plans
procedure = one_load_procedure(result)
TEST = TestDefinition(NAME, SECTION, TITLE, Parameters, procedure, plans, result=result)
