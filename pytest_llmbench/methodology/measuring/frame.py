"""The frame of every test with several levels: warm-up, keeping the observations, the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pytest_llmbench.methodology.measuring.levels import Seen, numbered
from pytest_llmbench.methodology.measuring.manifest import bare_result, configuration
from pytest_llmbench.methodology.measuring.offered import gave_up, is_offered
from pytest_llmbench.methodology.measuring.over_time import over_time_of_levels
from pytest_llmbench.methodology.measuring.replies import as_believed
from pytest_llmbench.methodology.measuring.warmup import warm_up
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.patience import with_raised_deadlines
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.remeasured import void_load
from pytest_llmbench.methodology.uncertainty import with_uncertainty
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note


class Heading(NamedTuple):
    """The test that a result belongs to."""

    test: str
    section: str
    """The section of the draft; empty: there is none."""
    title: str


@dataclass(frozen=True)
class Report:
    """The findings of a test, beside what follows from its observations."""

    levels: Sequence[Seen]
    """The levels in the order in which they ran."""
    metrics: Mapping[str, Estimate]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    notes: Sequence[Note] = ()
    load: Mapping[str, Any] = field(default_factory=dict)
    """Facts ``load.*`` of the test as a whole, such as ``load.rate_range``."""
    facts: Facts = field(default_factory=Facts)
    """Facts that override those of the SUT, such as those of the variant that the result is about."""
    budgeted: Sequence[Seen] | None = None
    """The levels to which the error budget applies; None for all. Levels beyond capacity are not among
    them."""
    findings: Sequence[Finding] = ()


Measure = Callable[[Any, Setting, WarmupReport], Procedure[TestResult]]


def framed(heading: Heading, measure: Measure, *, warm: bool = True) -> Callable[..., Procedure[TestResult]]:
    """The test's procedure: the warm-up (unless ``warm`` is false: then the test does it itself), then
    ``measure``.

    A load that was cut short (Ctrl-C) ends the test there; its result holds all that was seen until then and
    is invalid.
    """

    def procedure(parameters: TestParameters, setting: Setting) -> Procedure[TestResult]:
        warmup = (yield from warm_up(setting)) if warm else WarmupReport()
        seen: list[Observation] = []
        steps = measure(parameters, setting, warmup)
        plan = next(steps)
        while True:
            observation = yield plan
            if plan.phase is Phase.MEASURE:
                seen.append(observation)
            # A schedule that was given up may be taken up again; if not, it voids the test where it counts.
            if observation.interrupted is not None and not gave_up(observation):
                steps.close()
                plans = map(_as_sent, seen) if seen else None
                made = bare_result(heading, parameters, setting, warmup, seen, plans)
                return replace(made, notes=(Note.of("cut_short"),))
            try:
                plan = steps.send(observation)
            except StopIteration as stop:
                result: TestResult = stop.value
                return with_uncertainty(result)

    return with_raised_deadlines(as_believed(procedure))


def result_of(
    heading: Heading, parameters: TestParameters, setting: Setting, warmup: WarmupReport, report: Report
) -> TestResult:
    """The result: manifest and configuration summary from the observations of the levels, the rest from the
    report."""
    observations = tuple(seen.observation for seen in report.levels)
    told = replace(setting, facts=setting.facts | report.facts)
    made = bare_result(
        heading, parameters, told, warmup, observations, map(_as_sent, observations), report.load
    )
    facts = made.facts | report.facts
    shared = [run.shared_from for run in observations if run.shared_from is not None]
    tests, levels = tuple(dict.fromkeys(shared)), len(observations)
    notes = (Note.of("shared_levels", count=len(shared), levels=levels, tests=tests),) if shared else ()
    budgeted = None
    if report.budgeted is not None:
        kept = {id(seen.observation) for seen in report.budgeted}
        budgeted = tuple(index for index, run in enumerate(observations) if id(run) in kept)
    return replace(
        made,
        metrics=report.metrics,
        tables=tuple(report.tables),
        plots=(*report.plots, *over_time_of_levels(report.levels)),
        configuration=configuration(facts, observations),
        facts=facts,
        notes=(*notes, *report.notes),
        levels=numbered(report.levels),
        findings=tuple(report.findings),
        budgeted=budgeted,
        void_loads=tuple(
            void_load(seen.observation, seen.level.label)
            for seen in report.levels
            if not is_offered(seen.level)
        ),
    )


def _as_sent(run: Observation) -> LoadPlan:
    """The plan with the number of requests that were really sent, as a level is defined by its duration."""
    last = int(run.records.index.max()) + 1 - run.plan.first if len(run.records) else 0
    return run.plan.with_(requests=max(len(run.records), last))
