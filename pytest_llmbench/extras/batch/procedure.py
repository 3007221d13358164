"""The test of a batch: a job whose requests all leave at one instant.

The procedure and the figures of a job; in addition what only a common start makes a figure of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_llmbench.extras.batch.figures import (
    COMMON,
    FASTEST,
    SERVER_GENERATION,
    SERVER_PREFILL,
    SPREAD,
    rates_of,
    send_spread,
)
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.job_figures import figures
from pytest_llmbench.methodology.measuring.one_load import one_load_test
from pytest_llmbench.methodology.parameters import parameter
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.methodology.sections import job
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.numbers import cells, with_intervals
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Batch, Load
from pytest_llmbench.model.result import Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note

HEADING = Heading("batch", "", "Batch")
WHOLE = "whole_request"
"""Value of ``load.release`` where nothing is held back."""
MAIN_METRICS = (COMMON.name, "makespan", "ttft.p50")


@dataclass(frozen=True, kw_only=True)
class Parameters(job.Parameters):
    """A number of prompts that all leave at one instant.

    Every connection is open and every request on it but for its last byte; then the last bytes of all are
    sent.
    """

    prompts: int = parameter("count", 32, doc="requests in the batch.")
    max_send_spread_ms: float | None = parameter(
        "positive", doc="longest time between the first request sent and the last."
    )
    concurrency: None = field(default=None, init=False, repr=False)
    rate: None = field(default=None, init=False, repr=False)
    arrival: None = field(default=None, init=False, repr=False)
    burstiness: None = field(default=None, init=False, repr=False)

    @property
    def load(self) -> Load:
        return Batch(self.prompts)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        if self.max_send_spread_ms is None:
            return super().objectives
        return (Objective(SPREAD.name, "<=", self.max_send_spread_ms, "ms"), *super().objectives)


def result(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
) -> TestResult:
    """The result of the job, with what only a common start makes a figure of."""
    made = job.result(parameters, setting, warmup, seen)
    rates, by_run = figures(parameters, setting, seen, lambda runs: rates_of(runs, setting.seed))
    metrics = {SPREAD.name: send_spread(seen), **rates}
    shown = {row.name: row.title for row in (SPREAD, COMMON, FASTEST)}
    shown |= {f"{row.name}.p50": f"{row.title}, P50" for row in (SERVER_PREFILL, SERVER_GENERATION)}
    rows = zip(shown.values(), cells(metrics, shown), strict=True)
    table = Table(HEADING.test, HEADING.title, ("Metric", "Value", "Next run"), with_intervals(rows))
    whole = {run.selfcheck.transport for run in seen if run.facts.value(LoadFact.RELEASE) == WHOLE}
    notes = [Note.of("not_held_back", transport=each) for each in sorted(whole)]
    return job.extended(made, HEADING, table, metrics, by_run, notes)


TEST = one_load_test(HEADING, Parameters, result)
