"""From what was measured to the entries of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pytest_llmbench.model.facts import Fact, Facts
from pytest_llmbench.model.judgement import (
    Compliance,
    ComplianceVerdict,
    Gate,
    GateVerdict,
    JudgedObjective,
    ValidityVerdict,
)
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation, SelfCheck
from pytest_llmbench.model.outcome import Outcome, Phase
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.records import PHASES
from pytest_llmbench.model.result import Plot, Table, TestResult
from pytest_llmbench.store import schema
from pytest_llmbench.store.instants import iso_utc
from pytest_llmbench.store.plain import plain, plain_object

Part = TypeVar("Part", Table, Plot)
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
    attempts: int = 1,
) -> schema.TestEntry:
    """The entry of a test that measured. Raises ValueError if two tables or two plots share an id."""
    measured = [run for run in result.observations if run.plan.phase is Phase.MEASURE]
    return schema.TestEntry(
        nodeid=nodeid,
        test=result.test,
        section=result.section,
        title=result.title,
        outcome=outcome,
        validity=schema.ValidityEntry.model_validate(result.validity),
        compliance=_compliance(result.compliance, schema.DRAFT),
        gate=_gate(result.gate, result.objectives, _why_void(result)),
        metrics={name: schema.Metric.model_validate(metric) for name, metric in result.metrics.items()},
        load=_load(measured),
        workload=_workload(measured, result.facts),
        warmup=schema.WarmupEntry.model_validate(plain(result.warmup)),
        selfcheck=_selfcheck([run.selfcheck for run in measured]),
        counts=_counts(measured),
        tables=_by_id(result.tables, _table),
        plots=_by_id(result.plots, _plot),
        records_file=records_file,
        configuration=[schema.ConfigurationItem(item=item, text=text) for item, text in result.configuration],
        stretches=[_stretch(run) for run in measured],
        facts=fact_entries(_all_facts(result)),
        notes=list(result.notes),
        error=error,
        shared=shared,
        duration_s=duration_s,
        attempts=attempts,
    )


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
    attempts: int = 1,
) -> schema.TestEntry:
    """The entry of a test that ended before it had a result: void, not compliant, nothing decided."""
    finding = schema.FindingEntry(
        check="measured", ok=False, voids=True, message=f"nothing was measured: {error}"
    )
    return schema.TestEntry(
        nodeid=nodeid,
        test=test,
        section=section,
        title=title,
        outcome=outcome,
        validity=schema.ValidityEntry(verdict=ValidityVerdict.INVALID, findings=[finding]),
        compliance=_compliance(None, schema.DRAFT),
        gate=_gate(Gate(), objectives, "nothing was measured"),
        metrics={},
        load=None,
        workload=None,
        warmup=None,
        selfcheck=None,
        counts=_counts(()),
        tables={},
        plots={},
        records_file=records_file,
        error=error,
        duration_s=duration_s,
        attempts=attempts,
    )


def fact_entries(facts: Mapping[str, Fact]) -> dict[str, schema.FactEntry]:
    """Facts in the shape of the report, sorted by key; used for ``sut.facts`` too."""
    return {
        key: schema.FactEntry(value=plain(fact.value), origin=fact.origin, source=fact.source)
        for key, fact in sorted(facts.items())
    }


def _why_void(result: TestResult) -> str | None:
    return "the run is invalid" if result.validity.verdict is ValidityVerdict.INVALID else None


def _all_facts(result: TestResult) -> Facts:
    facts = Facts()
    for run in result.observations:
        facts = facts | run.facts
    return facts | result.facts


def _compliance(compliance: Compliance | None, draft: str) -> schema.ComplianceEntry:
    """A run that nobody audited complies with nothing."""
    if compliance is None:
        unaudited = ComplianceVerdict.NOT_COMPLIANT
        return schema.ComplianceEntry(
            verdict=unaudited, verdict_literal=unaudited, draft=draft, requirements=[]
        )
    return schema.ComplianceEntry(
        verdict=compliance.verdict,
        verdict_literal=compliance.verdict_literal,
        draft=compliance.draft,
        requirements=[
            schema.RequirementEntry.model_validate(plain(requirement))
            for requirement in compliance.requirements
        ],
    )


def _gate(gate: Gate, objectives: Iterable[Objective], why_void: str | None) -> schema.GateEntry:
    """Objectives that were never judged are listed as inconclusive, and no void run passes its gate."""
    judged = {entry.objective for entry in gate.objectives}
    unjudged = tuple(
        JudgedObjective(objective, None, None, None, 0, GateVerdict.INCONCLUSIVE, _not_judged(why_void))
        for objective in objectives
        if objective not in judged
    )
    whole = replace(gate, objectives=(*gate.objectives, *unjudged))
    verdict = GateVerdict.INCONCLUSIVE if why_void is not None else whole.verdict
    return schema.GateEntry(verdict=verdict, objectives=[_objective(entry) for entry in whole.objectives])


def _not_judged(why: str | None) -> str:
    return f"not judged: {why}" if why else "not judged"


def _objective(judged: JudgedObjective) -> schema.ObjectiveEntry:
    verdict = plain_object(judged)
    del verdict["objective"]
    return schema.ObjectiveEntry.model_validate(plain_object(judged.objective) | verdict)


def _load(runs: Sequence[Observation]) -> schema.LoadEntry | None:
    if not runs:
        return None
    load = runs[0].plan.load
    parameters: dict[str, Any] = {}
    if isinstance(load, OpenLoop):
        parameters = {"rate_rps": load.rate, "arrival": load.arrival, "burstiness": load.burstiness}
    elif isinstance(load, ClosedLoop):
        parameters = {"concurrency": load.concurrency}
    return schema.LoadEntry(
        model="open" if isinstance(load, OpenLoop) else "closed",
        description="; ".join(dict.fromkeys(run.plan.load.describe() for run in runs)),
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
    parts, whole = runs[0].sequence_sha256, str(facts.value("workload.sequence_sha256", ""))
    digest = (whole or parts) if len(runs) > 1 else (parts or whole)
    return schema.WorkloadEntry(
        name=plan.workload.name,
        standard=plan.workload.standard,
        seed=plan.seed,
        n_requests=sum(run.plan.requests for run in runs),
        specification=plain_object(plan.workload.specification()),
        sequence_sha256=digest,
    )


def _counts(runs: Sequence[Observation]) -> dict[str, int]:
    total = Counter({"submitted": 0, **{str(outcome): 0 for outcome in Outcome}})
    for run in runs:
        measured = run.records.phase == PHASES.index(Phase.MEASURE)
        total.update(run.records.select(measured).counts())
    return dict(total)


_FIRST = ("clock", "stamp_source", "event_loop", "transport")
_SUMMED = (
    "reads",
    "content_chunks",
    "coalesced_chunks",
    "connections_prewarmed",
    "connections_opened",
    "stale_retries",
    "gc_collections",
)


def _selfcheck(checks: Sequence[SelfCheck]) -> schema.SelfCheckEntry | None:
    """Several stretches as one: the worst of each lag and share, the sum of each count."""
    if not checks:
        return None
    combined: dict[str, Any] = {}
    for name in schema.SelfCheckEntry.model_fields:
        seen = [value for check in checks if (value := getattr(check, name)) is not None]
        if not seen:
            combined[name] = None
        elif name in _FIRST:
            combined[name] = seen[0]
        else:
            combined[name] = sum(seen) if name in _SUMMED else max(seen)
    return schema.SelfCheckEntry.model_validate(combined)


def _stretch(run: Observation) -> schema.StretchEntry:
    return schema.StretchEntry(
        label=run.plan.label,
        load=run.plan.load.describe(),
        key=run.plan.key,
        seed=run.plan.seed,
        requests=run.plan.requests,
        started=iso_utc(run.anchor.wall(run.started_ns)),
        duration_s=run.duration_s,
        counts=_counts([run]),
        sequence_sha256=run.sequence_sha256,
        in_flight_at_start=run.in_flight_at_start,
        in_flight_at_end=run.in_flight_at_end,
        interrupted=run.interrupted,
        selfcheck=schema.SelfCheckEntry.model_validate(run.selfcheck),
    )


def _table(table: Table) -> schema.TableEntry:
    return schema.TableEntry(
        title=table.title, columns=list(table.columns), rows=[list(row) for row in table.rows]
    )


def _plot(plot: Plot) -> schema.PlotEntry:
    return schema.PlotEntry(
        title=plot.title,
        x_label=plot.x_label,
        y_label=plot.y_label,
        series={
            name: schema.SeriesEntry.model_validate({"x": plain(x), "y": plain(y)})
            for name, (x, y) in plot.series.items()
        },
        marks=dict(plot.marks),
        step=plot.step,
        x_log=plot.x_log,
    )


def _by_id(parts: Sequence[Part], convert: Callable[[Part], Entry]) -> dict[str, Entry]:
    entries = {part.id: convert(part) for part in parts}
    if len(entries) < len(parts):
        raise ValueError(f"two parts of a report share an id: {', '.join(part.id for part in parts)}")
    return entries


__all__ = ["entry_from_error", "entry_from_result", "fact_entries"]
