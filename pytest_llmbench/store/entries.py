"""Makes the entries of a report from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isfinite
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Fact, Facts, WorkloadFact
from pytest_llmbench.model.judgement import (
    Comparison,
    Compliance,
    ComplianceVerdict,
    Finding,
    Gate,
    GateVerdict,
    JudgedObjective,
    Overload,
    ValidityVerdict,
)
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import EngineReadings, Observation, SelfCheck
from pytest_llmbench.model.plan import OpenLoop, describe_loads
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.records import PHASES
from pytest_llmbench.model.result import Plot, Table, TestResult, VoidLoad, WarmupReport
from pytest_llmbench.model.sentences import Note, plain_parameters
from pytest_llmbench.redaction import without_credentials
from pytest_llmbench.store import schema
from pytest_llmbench.store.objects import plain, plain_number, plain_object
from pytest_llmbench.store.schema import (
    DRAFT,
    EngineEntry,
    FactEntry,
    GaugeEntry,
    LevelEntry,
    StretchEntry,
    iso_utc,
)


def measured_runs(result: TestResult) -> list[Observation]:
    return [run for run in result.observations if run.plan.phase is Phase.MEASURE]


def outcome_counts(runs: Sequence[Observation]) -> dict[str, int]:
    """``submitted`` and the number of each outcome, zero included, in the measured phase."""
    total = Counter({"submitted": 0, **{str(outcome): 0 for outcome in Outcome}})
    for run in runs:
        measured = run.records.phase == PHASES.index(Phase.MEASURE)
        total.update(run.records.select(measured).counts())
    return dict(total)


def stretch_entry(run: Observation) -> StretchEntry:
    return StretchEntry(
        label=run.plan.label,
        load=run.plan.load.describe(),
        key=run.plan.key,
        seed=run.plan.seed,
        requests=run.plan.requests,
        started=iso_utc(run.anchor.wall(run.started_ns)),
        duration_s=run.duration_s,
        counts=outcome_counts([run]),
        sequence_sha256=run.sequence_sha256,
        in_flight_at_start=run.in_flight_at_start,
        in_flight_at_end=run.in_flight_at_end,
        interrupted=run.interrupted,
        selfcheck=stored(SelfCheck, run.selfcheck),
        variant=run.plan.variant,
        load_duration_s=run.plan.duration_s,
        shared_from=run.shared_from,
        stopped=run.stopped,
        engine=None if run.engine is None else _engine(run.engine, run),
    )


def _engine(readings: EngineReadings, run: Observation) -> EngineEntry:
    """The engine's metrics: gauges while load was sent, without the drain; counters over all that was
    read."""
    end_ns = run.ended_ns if run.load_ended_ns is None else run.load_ended_ns
    counters = dict.fromkeys([*readings.totals_before, *readings.totals_after])
    return EngineEntry(
        source=without_credentials(readings.source),
        gauges={name: _gauge(readings, name, run.started_ns, end_ns) for name in readings.gauges},
        growth={name: readings.grown(name) for name in counters},
        max_num_seqs=readings.max_num_seqs,
        gap=readings.gap,
    )


def _gauge(readings: EngineReadings, name: str, start_ns: int, end_ns: int) -> GaugeEntry:
    seen = readings.gauge(name, start_ns, end_ns)
    if seen is None or not len(seen[1]):
        return GaugeEntry(mean=None, max=None, n=0)
    values = seen[1]
    with np.errstate(over="ignore"):  # of what an engine may claim, the sum may be no number
        mean = plain_number(values.mean())
    return GaugeEntry(mean=mean, max=float(values.max()), n=len(values))


def level_entries(result: TestResult) -> list[LevelEntry]:
    """The levels, each with the index of its stretch among those that the report keeps."""
    kept = [i for i, run in enumerate(result.observations) if run.plan.phase is Phase.MEASURE]
    places = {index: place for place, index in enumerate(kept)}
    found = []
    for level in result.levels:
        stretch = None if level.observation is None else places.get(level.observation)
        values = plain_object(level) | {"stretch": stretch}
        del values["observation"]
        found.append(LevelEntry.model_validate(values))
    return found


Part = TypeVar("Part", Table, Plot)
Noun = TypeVar("Noun")
Entry = TypeVar("Entry")


def entry_from_result(
    result: TestResult,
    *,
    nodeid: str,
    outcome: schema.TestOutcome,
    records_file: str | None = None,
    error: str | None = None,
    duration_s: float | None = None,
    shared: bool = False,
    more: Mapping[str, Any] | None = None,
) -> schema.TestEntry:
    """The entry of a test with a result. ``more``: further keys of the entry, which are not in the result.

    Raises ValueError if two tables share id and title.
    """
    facts = Facts()
    for run in result.observations:
        facts = facts | run.facts
    return schema.TestEntry(
        nodeid=nodeid,
        test=result.test,
        section=result.section,
        title=result.title,
        outcome=outcome,
        validity=schema.ValidityEntry(
            verdict=result.validity.verdict, findings=list(map(_finding, result.validity.findings))
        ),
        compliance=_compliance(result.compliance, DRAFT),
        gate=_gate(
            result.gate,
            result.objectives,
            "the run is invalid" if result.validity.verdict is ValidityVerdict.INVALID else None,
        ),
        metrics={name: stored(Estimate, metric) for name, metric in result.metrics.items()},
        warmup=stored(WarmupReport, result.warmup),
        tables=_by_id(
            result.tables,
            lambda each: schema.TableEntry(
                title=each.title, columns=list(each.columns), rows=list(map(list, each.rows))
            ),
        ),
        plots=_by_id(result.plots, _plot),
        records_file=records_file,
        configuration=[schema.ConfigurationItem(item=item, text=text) for item, text in result.configuration],
        facts=fact_entries(facts | result.facts),
        notes=list(map(str, result.notes)),
        note_data=list(map(_note, result.notes)),
        error=error,
        shared=shared,
        duration_s=duration_s,
        **_of_the_runs(result),
        **(more or {}),
    )


def _of_the_runs(result: TestResult) -> dict[str, Any]:
    """The parts of the entry that come from the measured observations and their levels."""
    measured = measured_runs(result)
    checks = [run.selfcheck for run in measured]
    return {
        "load": _load(measured),
        "workload": _workload(measured, result.facts),
        "selfcheck": stored(SelfCheck, SelfCheck.together(checks)) if checks else None,
        "counts": outcome_counts(measured),
        "stretches": [stretch_entry(run) for run in measured],
        "levels": level_entries(result),
        "by_run": {name: [plain_number(value) for value in runs] for name, runs in result.by_run.items()},
        "void_loads": [stored(VoidLoad, void) for void in result.void_loads],
        "comparisons": [stored(Comparison, found) for found in result.comparisons],
        "overload": None if result.overload is None else stored(Overload, result.overload),
    }


def entry_from_error(
    *,
    nodeid: str,
    test: str,
    section: str,
    error: str,
    outcome: schema.TestOutcome = "error",
    title: str = "",
    objectives: Sequence[Objective] = (),
    records_file: str | None = None,
    duration_s: float | None = None,
) -> schema.TestEntry:
    """The entry of a test that ended before it had a result: void, not compliant, nothing decided."""
    finding = _finding(Finding.of("measured.error", error=error))
    return schema.TestEntry(
        nodeid=nodeid,
        test=test,
        section=section,
        title=title,
        outcome=outcome,
        validity=schema.ValidityEntry(verdict=ValidityVerdict.INVALID, findings=[finding]),
        compliance=_compliance(None, DRAFT),
        gate=_gate(Gate(), objectives, "nothing was measured"),
        metrics={},
        load=None,
        workload=None,
        warmup=None,
        selfcheck=None,
        counts=outcome_counts(()),
        tables={},
        plots={},
        records_file=records_file,
        error=error,
        duration_s=duration_s,
    )


def fact_entries(facts: Mapping[str, Fact]) -> dict[str, FactEntry]:
    """Facts in the shape of the report, sorted by key; used for ``sut.facts`` too."""
    return {
        key: FactEntry(value=plain(fact.value), origin=fact.origin, source=fact.source)
        for key, fact in sorted(facts.items())
    }


def stored(kind: type[Noun], noun: Noun) -> Noun:
    """A dataclass as it would be read back from a file: checked, and made of plain values.

    Raises ValidationError for a number that is not finite, where one has to be.
    """
    adapter = _adapter(kind)  # type: ignore[arg-type]  # mypy takes no class of a TypeVar for hashable
    made: Noun = adapter.validate_python(plain_object(noun))
    return made


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _finding(finding: Finding) -> schema.FindingEntry:
    """The finding without numbers that are not finite: a check must not cost the report because of what it
    found."""
    return schema.FindingEntry(
        check=finding.check,
        ok=finding.ok,
        voids=finding.voids,
        message=finding.message,
        note=_note(finding.note),
        value=plain_number(finding.value),
        limit=plain_number(finding.limit),
        unit=finding.unit,
    )


def _note(note: Note) -> schema.NoteEntry:
    return schema.NoteEntry(id=note.id, parameters=plain_object(plain_parameters(note.parameters)))


def _compliance(compliance: Compliance | None, draft: str) -> schema.ComplianceEntry:
    """The entry of compliance. A run that nobody audited complies with nothing."""
    if compliance is None:
        unaudited = ComplianceVerdict.NOT_COMPLIANT
        return schema.ComplianceEntry(
            verdict=unaudited, verdict_literal=unaudited, draft=draft, requirements=[]
        )
    order = list(ComplianceVerdict)
    better = dict(zip(order[1:], order, strict=False)).get(compliance.verdict)
    missing = [] if better is None else [each.id for each in compliance.keeping_from(better)]
    return schema.ComplianceEntry(
        verdict=compliance.verdict,
        verdict_literal=compliance.verdict_literal,
        draft=compliance.draft,
        requirements=[
            schema.RequirementEntry.model_validate(plain(requirement))
            for requirement in compliance.requirements
        ],
        next_class=None
        if better is None
        else schema.NextClassEntry.model_validate({"class": better, "clauses": missing}),
        simulated=compliance.simulated,
    )


def _gate(gate: Gate, objectives: Iterable[Objective], why_void: str | None) -> schema.GateEntry:
    """The entry of the gate. Objectives that were never judged are listed as inconclusive, and no void run
    passes its gate."""
    judged = {entry.objective for entry in gate.objectives}
    why = f"not judged: {why_void}" if why_void else "not judged"
    unjudged = tuple(
        JudgedObjective(objective, None, None, None, 0, GateVerdict.INCONCLUSIVE, why)
        for objective in objectives
        if objective not in judged
    )
    whole = replace(gate, objectives=(*gate.objectives, *unjudged))
    verdict = GateVerdict.INCONCLUSIVE if why_void is not None else whole.verdict
    return schema.GateEntry(
        verdict=verdict,
        objectives=list(map(_objective, whole.objectives)),
        advisory=[] if why_void else list(map(_objective, gate.advisory)),
    )


def _objective(judged: JudgedObjective) -> schema.ObjectiveEntry:
    verdict = plain_object(replace(judged, advice=None))
    del verdict["objective"]
    advice = judged.advice
    if advice is not None:
        verdict["advice"] = advice.setting
        verdict["requests_needed"] = advice.further if advice.unit == "requests" else None
    return schema.ObjectiveEntry.model_validate(plain_object(judged.objective) | verdict)


def _load(runs: Sequence[Observation]) -> schema.LoadEntry | None:
    if not runs:
        return None
    load = runs[0].plan.load
    parameters: dict[str, Any] = {}
    if isinstance(load, OpenLoop):
        rate = "session_rate" if load.of_sessions else "rate_rps"
        parameters = {rate: load.rate, "arrival": load.arrival, "burstiness": load.burstiness}
        if load.most_in_flight is not None:
            parameters["concurrency"] = load.most_in_flight
    else:
        parameters = {"sessions" if load.of_sessions else "concurrency": load.concurrency}
    return schema.LoadEntry(
        model=load.model,
        description=describe_loads([run.plan.load for run in runs]),
        requests=sum(run.plan.requests for run in runs),
        duration_s=sum(run.duration_s for run in runs),
        ignore_eos=runs[0].plan.ignore_eos,
        **parameters,
    )


def _workload(runs: Sequence[Observation], facts: Facts) -> schema.WorkloadEntry | None:
    if not runs:
        return None
    plan = runs[0].plan
    # Each run knows the digest of its own part; that of the whole sequence is a fact about the test.
    parts, whole = runs[0].sequence_sha256, str(facts.value(WorkloadFact.SEQUENCE_SHA256, ""))
    digest = (whole or parts) if len(runs) > 1 else (parts or whole)
    return schema.WorkloadEntry(
        name=plan.workload.name,
        standard=plan.workload.standard,
        seed=int(facts.value(WorkloadFact.SEED, plan.seed)),
        parts=tuple(
            schema.PartEntry(name=name, seed=seed, first=first, requests=count)
            for (name, seed), (first, count) in zip(
                facts.value(WorkloadFact.PARTS) or (), facts.value(WorkloadFact.SLICES) or (), strict=True
            )
        ),
        n_requests=sum(run.plan.requests for run in runs),
        specification=plain_object(plan.workload.specification()),
        sequence_sha256=digest,
    )


def _plot(plot: Plot) -> schema.PlotEntry:
    return schema.PlotEntry(
        title=plot.title,
        x_label=plot.x_label,
        y_label=plot.y_label,
        series={
            name: schema.SeriesEntry.model_validate(_columns(("x", "y"), columns))
            for name, columns in plot.series.items()
        },
        marks={name: x for name, at in plot.marks.items() if (x := plain_number(at)) is not None},
        step=plot.step,
        x_log=plot.x_log,
        y_log=plot.y_log,
        bands={
            name: schema.BandEntry.model_validate(_columns(("x", "lower", "upper"), columns))
            for name, columns in plot.bands.items()
        },
        rows=list(plot.rows),
    )


def _columns(names: Sequence[str], columns: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Columns of equal length by name, without points that have a part that is no number: these cannot be
    drawn."""
    points = [point for point in zip(*columns, strict=True) if all(map(isfinite, point))]
    return {name: [float(point[i]) for point in points] for i, name in enumerate(names)}


def _by_id(parts: Sequence[Part], convert: Callable[[Part], Entry]) -> dict[str, Entry]:
    """The parts by id.

    The draft has some tables once per load level: the second is ``itl_results.2`` and so on.
    """
    entries: dict[str, Entry] = {}
    seen: Counter[str] = Counter()
    if len({(part.id, part.title) for part in parts}) < len(parts):
        told = ", ".join(part.id for part in parts)
        raise ValueError(f"two parts of a report share an id and a title: {told}")
    for part in parts:
        seen[part.id] += 1
        entries[part.id if seen[part.id] == 1 else f"{part.id}.{seen[part.id]}"] = convert(part)
    return entries
