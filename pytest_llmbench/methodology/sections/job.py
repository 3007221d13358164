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
from typing import ClassVar, Literal

from pytest_llmbench.methodology.measuring.adaptive import GATE_REQUESTS, STEADY_WAVES, AdaptiveParameters
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.job_figures import figures, held_back, steady_middle
from pytest_llmbench.methodology.measuring.one_load import Told, one_load, one_load_test
from pytest_llmbench.methodology.parameters import AUTO, limit, parameter
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics.itl import choose_option, itl_distribution, itl_samples
from pytest_llmbench.metrics.latency import FAMILIES, distributions
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import Cell, cells, with_intervals
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load
from pytest_llmbench.model.result import Table, TestResult
from pytest_llmbench.model.sentences import Note

HEADING = Heading("job", "", "Job")

_FAMILIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "End-to-end latency"}
_STATISTICS = {"mean": "mean", "p50": "P50", "p99": "P99"}
_TOTALS = {
    "makespan": "Makespan",
    "request_throughput": "Request throughput",
    "output_token_throughput": "Output throughput",
    "total_token_throughput": "Total token throughput",
}
_OF_STEADY = ("request_throughput", "output_token_throughput")
"""The rates of the steady middle of the job, where it has one."""


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
    ttft_mean_ms: float | None = limit("ttft.mean")
    ttft_p50_ms: float | None = limit("ttft.p50")
    ttft_p99_ms: float | None = limit("ttft.p99")
    tpot_mean_ms: float | None = limit("tpot.mean")
    tpot_p50_ms: float | None = limit("tpot.p50")
    tpot_p99_ms: float | None = limit("tpot.p99")
    itl_mean_ms: float | None = limit("itl.mean")
    itl_p50_ms: float | None = limit("itl.p50")
    itl_p99_ms: float | None = limit("itl.p99")
    e2e_mean_ms: float | None = limit("e2e.mean")
    e2e_p50_ms: float | None = limit("e2e.p50")
    e2e_p99_ms: float | None = limit("e2e.p99")
    max_makespan_s: float | None = limit(
        "makespan", doc="longest time from the start of the job to the end of its last reply."
    )
    min_requests_per_s: float | None = limit("request_throughput")
    min_output_tok_s: float | None = limit("output_token_throughput")
    min_total_tok_s: float | None = limit(
        "total_token_throughput", doc="least input and output tokens per second."
    )
    # A job is what it is: these do not exist here. Its figures are exact, of the replies that it got, so a
    # failed request has no place in them: max_error_share and completion_rate limit those.
    failures: Literal["left_out"] = field(default="left_out", init=False, repr=False)
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

    def contradictions(self) -> list[str]:
        return [*self._of_load(), *self._uncounted()]


@one_load(HEADING)
def result(parameters: Parameters, setting: Setting, seen: Sequence[Observation]) -> Told:
    """The result: totals and latencies of the job, with the interval of the next run of it."""
    metrics, own_runs = figures(
        parameters, setting, seen, lambda runs: _metrics(parameters, runs, setting.seed)
    )
    return Told(
        metrics,
        own_runs,
        tables=(_table(metrics, seen),),
        notes=(Note.of("outside_draft", test="job"), *held_back(seen)),
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
        title=made.title.replace(HEADING.title, heading.title),
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
    slots = parameters.load.in_flight
    if slots is not None and all(len(run.records) >= STEADY_WAVES * slots for run in seen):
        middle = rates([steady_middle(run, slots) for run in seen], seed=seed)
        found |= {f"{name}[steady]": middle[name] for name in _OF_STEADY}
    return found


def _exact(point: float | None, unit: str, metrics: Mapping[str, Estimate]) -> Estimate:
    n = metrics["request_throughput"].n
    return Estimate(point, None, None, 0.95, n, "exact in its run", unit)


def _table(metrics: Mapping[str, Estimate], seen: Sequence[Observation]) -> Table:
    ended = sum(int(run.records.ok.sum()) for run in seen)
    rows: list[tuple[str, Cell]] = [("Runs", len(seen)), ("Requests that ended well", ended)]
    shown = dict(_TOTALS)
    for name in _OF_STEADY:
        if f"{name}[steady]" in metrics:
            shown[f"{name}[steady]"] = f"{shown[name]}, steady middle"
    shown |= {
        f"{family}.{statistic}": f"{title} {called}"
        for family, title in _FAMILIES.items()
        for statistic, called in _STATISTICS.items()
    }
    rows += zip(shown.values(), cells(metrics, shown), strict=True)
    return Table("job_results", "Job Results", ("Metric", "Value", "Next run"), with_intervals(rows))


TEST = one_load_test(HEADING, Parameters, result)
