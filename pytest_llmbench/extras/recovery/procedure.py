"""The test of a recovery: a load that is disturbed, and the time until a limit holds again.

The disturbance is a spike of the load itself, or whatever happens to the system meanwhile: a restart, a
scale-out, a fail-over. Requests that fail in it are data. The other figures are those of a job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

from pytest_llmbench.errors import shown
from pytest_llmbench.extras.recovery.figures import TIME, Recovery, recovery, time_to_recovery
from pytest_llmbench.methodology.measuring.adaptive import GATE_REQUESTS
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.one_load import one_load_plans, one_load_procedure
from pytest_llmbench.methodology.parameters import parameter
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition, relayed
from pytest_llmbench.methodology.sections import job
from pytest_llmbench.metrics.latency import FAMILIES
from pytest_llmbench.metrics.throughput import load_end_ns
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.numbers import Amount, Figure, Row, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, Quantity, Stage
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import REQUESTS_OVER_TIME, TTFT_OVER_TIME, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.percentiles import PERCENTILES

HEADING = Heading("recovery", "", "Recovery")
MAIN_METRICS = (TIME.name, "completion_rate", "ttft.p99")
_USUAL_LIMIT = Objective("ttft.p95", "<=", 1000.0, "ms")
_OF_ONE_BEYOND = 2
"""A window has so many times the requests of which one may be beyond a percentile: one alone breaks none."""
_MARKED = ("rate_over_time", TTFT_OVER_TIME, REQUESTS_OVER_TIME)
_NOT_AGAIN = "did not hold again within the load"
_LONGEST_COMMAND = 10_000


def _command(value: object) -> list[str]:
    """What is wrong with a command: the system takes neither NUL nor half a surrogate pair."""
    text = value if isinstance(value, str) else ""
    good = text.strip() and "\0" not in text and text == text.encode(errors="ignore").decode()
    if good and len(text) <= _LONGEST_COMMAND:
        return []
    return [f"must be a command of at most {_LONGEST_COMMAND:,} characters, got {shown(value)}"]


@dataclass(frozen=True, kw_only=True)
class Parameters(job.Parameters):
    """A load that is disturbed, and the time until limits hold again.

    The disturbance is a stage of the load, ``arrival=spike(…)``, or what happens to the system while load of
    one ``rate`` is running.
    """

    may_be_capped: ClassVar[bool] = False

    holds: Sequence[Objective] = parameter(
        "slo",
        (),
        doc="limits that must hold again: ceilings on latency percentiles, ``[ttft.p95 <= 1000 * ms]`` "
        "(default).",
    )
    max_recovery_s: float | None = parameter("positive", doc="longest time until the limits hold again.")
    window_s: float = parameter(
        "positive", 10.0, doc="length of a time window; the limits are checked in each window."
    )
    after: str | None = parameter(
        "name",
        doc="stage whose start begins the recovery time (default: the last one); without stages it begins "
        "with the first request that breaks the limits.",
    )
    event: str | None = parameter(
        _command, doc="shell command that runs during the load: a restart, a fail-over."
    )
    event_at_s: float = parameter(
        "positive",
        10.0,
        doc="time from the start of the load to ``event``, which then begins the recovery time.",
    )
    prompts: int | None = parameter(  # type: ignore[assignment]  # wider than its base
        "count", doc="requests of a load that has no end of its own (default 1000)."
    )
    max_error_share: float = parameter(
        "share",
        1.0,
        doc="largest share of failed requests; the default allows any, because failures are part of the "
        "result.",
    )
    concurrency: None = field(default=None, init=False, repr=False)

    @property
    def count(self) -> int | None:
        return self.prompts if self.prompts is not None or self.whole is not None else GATE_REQUESTS

    @property
    def objectives(self) -> tuple[Objective, ...]:
        if self.max_recovery_s is None:
            return super().objectives
        return (Objective(TIME.name, "<=", self.max_recovery_s, "s"), *super().objectives)

    @property
    def conditions(self) -> Sequence[Objective]:
        """What holds again."""
        return self.holds or (_USUAL_LIMIT,)

    @property
    def limits_ms(self) -> tuple[tuple[Quantity, float], ...]:
        """The limits, in ms, that requests keep or break: where this machine moves none of these to the other
        side, it does not move the recovery."""
        return tuple((cast(Quantity, each.metric.partition(".")[0]), each.limit) for each in self.conditions)

    @property
    def begins(self) -> Stage | None:
        """The stage with whose begin the time begins; None: with the first break."""
        if self.event is not None:
            return None
        named = [stage for stage in self.stages if self.after in (None, stage.name)]
        return named[-1] if named and len(self.stages) > 1 else None

    def contradictions(self) -> list[str]:
        found = [
            f"holds has {each}: give a ceiling of a percentile of {', '.join(FAMILIES)}, of all requests"
            for each in self.conditions
            if each.op not in ("<=", "<")
            or each.metric.partition(".")[0] not in FAMILIES
            or each.metric.partition(".")[2] not in PERCENTILES
        ]
        if self.rate is None and self.arrival is None:
            found.append(
                "give rate or arrival: a closed loop sends less while it waits, and hides the disturbance"
            )
            return found
        found += super().contradictions()
        if self.after is not None and self.after not in [stage.name for stage in self.stages]:
            names = ", ".join(stage.name for stage in self.stages) or "none"
            found.append(f"after is {self.after!r}: the stages of arrival are {names}")
        if self.event is not None and self.after is not None:
            found.append("event and after both say when the time begins: give one")
        return found if found else self._too_short()

    def _too_short(self) -> list[str]:
        """Mistakes: windows with too few requests for a percentile, and those that are longer than what is
        left of the load."""
        share = min(1 - PERCENTILES[each.metric.partition(".")[2]] / 100 for each in self.conditions)
        begins, load = self.begins, self.load
        rate = load.request_rate or 0.0 if begins is None else min(begins.rate, begins.to_rate)
        here, needed = rate * self.window_s, _OF_ONE_BEYOND / share
        found = []
        if here < needed - 1e-9:
            found.append(
                f"window_s={trimmed(self.window_s)} has {trimmed(round(here, 1))} requests at "
                f"{trimmed(rate)} req/s, and holds needs {math.ceil(needed - 1e-9)} for its "
                "percentiles: give a longer window_s, or a lower percentile"
            )
        end_s = self.stages[-1].end_s if self.stages else None
        if begins is not None and end_s is not None and end_s - begins.at_s < 2 * self.window_s:
            found.append(
                f"stage {begins.name} and what follows last {trimmed(end_s - begins.at_s)} s: two "
                f"windows, {trimmed(2 * self.window_s)} s, are the least that shows a recovery"
            )
        return found


def result(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
) -> TestResult:
    """The result of the job, with the time until the limits hold again."""
    made = job.result(parameters, setting, warmup, seen)
    runs = [_recovery(parameters, run) for run in seen]
    time = time_to_recovery(runs, parameters.window_s)
    times = tuple(each.time_s if each.recovered else None for each in runs)
    by_run = {TIME.name: times} if len(runs) > 1 else {}
    rows: list[Row] = []
    for place, each in enumerate(runs, start=1):
        begun = "no break" if each.begun_s is None else Amount(each.begun_s, "s")
        took = "" if each.time_s is None else Amount(each.time_s, "s")
        rows.append((f"run {place}", begun, took, "" if each.recovered else _NOT_AGAIN))
    rows.append(("all", "", Figure(TIME.name, time), ""))
    columns = ("Run", "Begins at", "Time to recovery", "")
    table = Table(HEADING.test, HEADING.title, columns, tuple(rows))
    notes = _notes(parameters, runs, seen)
    first = runs[0] if runs else None
    known = first is not None and first.begun_s is not None and first.recovered
    marks = {"holds again": first.holds_from_s} if first is not None and known else {}
    plots = tuple(
        replace(plot, marks={**plot.marks, **marks}) if plot.id in _MARKED else plot for plot in made.plots
    )
    return replace(job.extended(made, HEADING, table, {TIME.name: time}, by_run, notes), plots=plots)


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The runs of the load, disturbed."""
    return tuple(_disturbed(parameters, plan) for plan in one_load_plans(parameters, setting))


def procedure(parameters: Parameters, setting: Setting) -> Procedure[TestResult]:
    """The procedure of one load, disturbed in each run of it."""
    steps = one_load_procedure(result)(parameters, setting)
    return (yield from relayed(steps, lambda plan: _disturbed(parameters, plan)))


def _disturbed(parameters: Parameters, plan: LoadPlan) -> LoadPlan:
    if plan.phase is not Phase.MEASURE:
        return plan
    plan = plan.with_(watched=False)  # engines take minutes to load a model, and nobody answers meanwhile
    if parameters.event is None:
        return plan
    return plan.with_(event=parameters.event, event_at_s=parameters.event_at_s)


def _recovery(parameters: Parameters, run: Observation) -> Recovery:
    begins, stages = parameters.begins, parameters.stages
    if parameters.event is not None and run.facts.value(LoadFact.EVENT_AT_S) is None:
        return Recovery(None, 0.0, recovered=True)  # in virtual time nothing happened
    end_s = stages[-1].end_s if stages else None
    if end_s is None or len(run.records) < run.plan.requests or run.plan.requests < (parameters.whole or 0):
        end_s = (load_end_ns(run) - run.started_ns) / 1e9
    return recovery(
        run.records,
        run.started_ns,
        parameters.conditions,
        window_s=parameters.window_s,
        from_s=run.facts.value(LoadFact.EVENT_AT_S) if begins is None else begins.at_s,
        end_s=end_s,
    )


def _notes(parameters: Parameters, runs: Sequence[Recovery], seen: Sequence[Observation]) -> list[Note]:
    limit = ", ".join(map(str, parameters.conditions))
    notes = []
    for place, (each, run) in enumerate(zip(runs, seen, strict=True), start=1):
        happened = run.facts.value(LoadFact.EVENT_AT_S) is not None
        if parameters.event is not None and not happened:
            notes.append(Note.of("no_event", run=place))
        elif each.time_s is None:
            notes.append(Note.of("never_broken", run=place))
        elif not each.recovered:
            notes.append(Note.of("not_recovered", run=place, limit=limit, seconds=each.time_s))
    return notes


TEST = TestDefinition(*HEADING, Parameters, procedure, plans, result=result)
