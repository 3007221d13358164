"""The means to break one thing in a complete run: each is a function from evidence to evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from complete_run import by_length_table, metrics_of, results_table

from pytest_llmbench.compliance.audit import load_catalogue, status_of
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import Compliance, ComplianceVerdict, RequirementStatus, Status
from pytest_llmbench.model.result import TestResult

Mutation = Callable[[Evidence], Evidence]


def status(entry: str, evidence: Evidence) -> RequirementStatus:
    """The status of an entry that is not derived."""
    return status_of(load_catalogue()[entry], evidence)


def is_met(entry: str, evidence: Evidence) -> bool:
    return status(entry, evidence).status is Status.MET


def unmet(compliance: Compliance) -> set[str]:
    return {entry.id for entry in compliance.requirements if entry.status is Status.UNMET}


def assert_unconditional(compliance: Compliance) -> None:
    unconditional = ComplianceVerdict.UNCONDITIONAL
    kept_from = {entry.id: entry.reason for entry in compliance.keeping_from(unconditional)}
    assert not kept_from, kept_from
    assert (compliance.verdict, compliance.verdict_literal) == (unconditional, unconditional)


def together(*mutations: Mutation) -> Mutation:
    def mutate(evidence: Evidence) -> Evidence:
        for mutation in mutations:
            evidence = mutation(evidence)
        return evidence

    return mutate


def with_result(**changes: Any) -> Mutation:
    return lambda evidence: dataclasses.replace(
        evidence, result=dataclasses.replace(evidence.result, **changes)
    )


def stating(facts: Mapping[str, Any]) -> Mutation:
    """Other facts; those about the SUT change for the siblings too, so that they remain siblings."""

    def mutate(evidence: Evidence) -> Evidence:
        sut = {key: value for key, value in facts.items() if key.startswith("sut.")}
        siblings = tuple(_stating(sibling, sut) for sibling in evidence.siblings)
        return dataclasses.replace(evidence, result=_stating(evidence.result, facts), siblings=siblings)

    return mutate


def _stating(result: TestResult, facts: Mapping[str, Any]) -> TestResult:
    kept = {key: fact for key, fact in result.facts.items() if key not in facts}
    return dataclasses.replace(result, facts=Facts(kept) | Facts.of(Origin.DECLARED, facts))


def without(*keys: str) -> Mutation:
    return stating(dict.fromkeys(keys))


def with_field(key: str, name: str, value: Any) -> Mutation:
    """One field of a fact that is a mapping; None takes it out."""

    def mutate(evidence: Evidence) -> Evidence:
        mapping = {**evidence.result.facts.value(key), name: value}
        return stating({key: {k: v for k, v in mapping.items() if v is not None}})(evidence)

    return mutate


def largest(evidence: Evidence) -> int:
    """The run with the most requests; of a test with one load its only one."""
    sizes = [len(run.records) for run in evidence.result.observations]
    return sizes.index(max(sizes))


def with_run(place: int | None = None, /, **changes: Any) -> Mutation:
    """Another largest run, or the one at ``place``."""

    def mutate(evidence: Evidence) -> Evidence:
        runs = list(evidence.result.observations)
        at = largest(evidence) if place is None else place
        runs[at] = dataclasses.replace(runs[at], **changes)
        return with_result(observations=tuple(runs))(evidence)

    return mutate


def with_plan(place: int | None = None, /, **changes: object) -> Mutation:
    def mutate(evidence: Evidence) -> Evidence:
        at = largest(evidence) if place is None else place
        return with_run(at, plan=evidence.result.observations[at].plan.with_(**changes))(evidence)

    return mutate


def with_columns(place: int | None = None, /, **changes: Callable[[npt.NDArray[Any]], Any]) -> Mutation:
    """New columns, each computed from a writable copy of the old one."""

    def mutate(evidence: Evidence) -> Evidence:
        at = largest(evidence) if place is None else place
        records = evidence.result.observations[at].records
        columns = {name: change(np.array(getattr(records, name))) for name, change in changes.items()}
        return with_run(at, records=dataclasses.replace(records, **columns))(evidence)

    return mutate


def restated(evidence: Evidence) -> Evidence:
    """Metrics and tables computed from the records as they now are."""
    metrics = metrics_of(evidence.records)
    return with_result(metrics=metrics, tables=(results_table(metrics), by_length_table(metrics)))(evidence)


def with_metric(name: str, **changes: Any) -> Mutation:
    def mutate(evidence: Evidence) -> Evidence:
        changed = dataclasses.replace(evidence.result.metrics[name], **changes)
        return with_result(metrics={**evidence.result.metrics, name: changed})(evidence)

    return mutate


def without_metrics(*prefixes: str) -> Mutation:
    def mutate(evidence: Evidence) -> Evidence:
        kept = {name: m for name, m in evidence.result.metrics.items() if not name.startswith(prefixes)}
        return with_result(metrics=kept)(evidence)

    return mutate


def without_table(table_id: str) -> Mutation:
    return lambda evidence: with_result(
        tables=tuple(table for table in evidence.result.tables if table.id != table_id)
    )(evidence)


def with_published(digests: Mapping[str, frozenset[str]]) -> Mutation:
    """With other digests of data sets that count as published."""
    return lambda evidence: dataclasses.replace(
        evidence, published_digests={**evidence.published_digests, **digests}
    )


def unable(*names: str) -> Mutation:
    """Without some capabilities."""
    return lambda evidence: dataclasses.replace(
        evidence,
        capabilities={name: value for name, value in evidence.capabilities.items() if name not in names},
    )


def able(capabilities: Mapping[str, Any]) -> Mutation:
    """With further capabilities, as if tests proved them."""
    return lambda evidence: dataclasses.replace(
        evidence, capabilities={**evidence.capabilities, **capabilities}
    )


def alone(evidence: Evidence) -> Evidence:
    return dataclasses.replace(evidence, siblings=())
