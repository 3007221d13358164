"""A cell of a grid: a job of prompts and replies of one length, at one concurrency.

The grid that engines publish (InferenceX, exo's bench, GuideLLM's sweeps): what a user gets against what the
machine gives, over the load. The marker names lists; each combination becomes a test item of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.extras.grid.front import NAME, PER_ACCELERATOR, PER_USER
from pytest_llmbench.harness.workloads.exact_lengths import ExactLengths
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.one_load import one_load_test
from pytest_llmbench.methodology.parameters import parameter
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.methodology.sections import job
from pytest_llmbench.methodology.sections.throughput import per_accelerator
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import cells as table_cells
from pytest_llmbench.model.numbers import with_intervals
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import Table, TestResult, WarmupReport
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

HEADING = Heading(NAME, "", "Grid Cell")
MAIN_METRICS = (PER_USER, "output_token_throughput", "ttft.p50")

SPREAD = {"input_tokens": "in", "output_tokens": "out", "concurrency": "c"}
"""Keyword that may be a list → its letters in the id of a cell."""
_PER_SLOT, _LEAST = 10, 32
_OF_THE_CELL = "grid"
"""Stands for the workload of the cell's own lengths."""


@dataclass(frozen=True, kw_only=True)
class Parameters(job.Parameters):
    """Jobs of each combination of ``input_tokens``, ``output_tokens`` and ``concurrency``, a test item each.

    Limits hold in every cell.
    """

    takes_adapters = False

    input_tokens: int | Sequence[int] = parameter(
        "count", 512, doc="length of every prompt in tokens, or a list of lengths."
    )
    output_tokens: int | Sequence[int] = parameter(
        "count", 128, doc="length of every reply in tokens, or a list of lengths."
    )
    concurrency: int | Sequence[int] = parameter(  # type: ignore[assignment]  # a list before it is spread
        "count", 8, doc="requests in flight, or a list of such numbers."
    )
    prompts: int | None = parameter(  # type: ignore[assignment]  # wider than its base
        "count", doc="requests in each cell (default: 10 per request in flight, at least 32)."
    )
    exact: bool = parameter(
        "flag",
        False,
        doc="prompts have exactly this length by the server's own count, chat template included.",
    )
    min_tok_s_per_user: float | None = parameter("positive", doc="least 1000 / mean TPOT in ms.")
    min_tok_s_per_gpu: float | None = parameter(
        "positive", doc="least output tokens per second / number of accelerators in the SUT file."
    )
    workload: str | Workload = parameter(
        "workload", _OF_THE_CELL, doc="leave it out: the lengths define the workload."
    )
    rate: None = field(default=None, init=False, repr=False)
    arrival: None = field(default=None, init=False, repr=False)
    burstiness: None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.workload != _OF_THE_CELL:
            return  # of a report that is computed again
        name = f"{self.input_tokens} in, {self.output_tokens} out"
        made: Workload = SyntheticWorkload(name, Fixed(self.input_tokens), Fixed(self.output_tokens))  # type: ignore[arg-type]
        object.__setattr__(self, "workload", ExactLengths(made) if self.exact else made)

    @property
    def count(self) -> int:
        return self.prompts or max(_LEAST, _PER_SLOT * int(self.concurrency))  # type: ignore[arg-type]

    @property
    def load(self) -> Load:
        return ClosedLoop(min(int(self.concurrency), self.count))  # type: ignore[arg-type]

    @property
    def objectives(self) -> tuple[Objective, ...]:
        floors = ((PER_USER, self.min_tok_s_per_user), (PER_ACCELERATOR, self.min_tok_s_per_gpu))
        own = [Objective(name, ">=", limit, "tok/s") for name, limit in floors if limit is not None]
        return (*own, *super().objectives)


def cells(given: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The id and the keywords of each cell, in the order of the lists. Raises SuiteError for an empty list,
    and for one that has an entry twice."""
    usual = {each.name: each.default for each in fields(Parameters)}
    asked = {name: given.get(name, usual[name]) for name in SPREAD}
    lists = {
        name: list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [value]
        for name, value in asked.items()
    }
    mistakes = [f"{name} is an empty list" for name, values in lists.items() if not values]
    mistakes += [
        f"{name} has {shown(value)} twice"
        for name, values in lists.items()
        for value in dict.fromkeys(each for each in values if values.count(each) > 1)
    ]
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where="llmbench.grid")
    found = []
    for values in product(*lists.values()):
        cell = dict(zip(lists, values, strict=True))
        label = "-".join(f"{SPREAD[name]}{value}" for name, value in cell.items())
        found.append((label, {**given, **cell}))
    return found


def result(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
) -> TestResult:
    """The result of the job, with what it gives to a user and by accelerator."""
    made = job.result(parameters, setting, warmup, seen)
    metrics = {
        PER_USER: _per_user(made.metrics.get("tpot.mean")),
        PER_ACCELERATOR: per_accelerator(made.metrics["output_token_throughput"], made.facts),
    }
    rows = {"Tokens per second of a user": PER_USER, "Tokens per second and GPU": PER_ACCELERATOR}
    cell = zip(rows, table_cells(metrics, rows.values()), strict=True)
    table = Table("grid_cell", "Cell of the Grid", ("Metric", "Value", "Next run"), with_intervals(cell))
    tpot = made.by_run.get("tpot.mean")
    by_run = {} if tpot is None else {PER_USER: tuple(each and 1000.0 / each for each in tpot)}
    return job.extended(made, HEADING, table, metrics, by_run)


def _per_user(tpot: Estimate | None) -> Estimate:
    """1000 / mean TPOT in ms, tok/s; the ends of the interval change places."""
    if tpot is None or not tpot.point:
        return Estimate.undefined(unit="tok/s", method="there is no TPOT")
    ends = (tpot.point, tpot.upper, tpot.lower)
    point, lower, upper = (1000.0 / end if end else None for end in ends)
    return replace(
        tpot,
        point=point,
        lower=lower,
        upper=upper,
        unit="tok/s",
        method=f"1000 / mean TPOT; {tpot.method}",
        too_high_by=0.0,
        too_low_by=0.0,
    )


TEST = one_load_test(HEADING, Parameters, result)
