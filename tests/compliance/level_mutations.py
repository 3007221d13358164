"""The means to break one thing at one level, table or listed fact of a complete run with several levels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from mutations import Mutation, stating, with_columns, with_plan, with_result, with_run

from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.result import Level, TestResult

Column = Callable[[npt.NDArray[Any]], Any]


def find(result: TestResult, role: str, place: int = 0) -> int:
    """Where the level is that is the ``place``-th of its role."""
    found = [at for at, level in enumerate(result.levels) if level.role == role]
    return found[place]


def with_level(role: str, place: int = 0, /, **changes: Any) -> Mutation:
    def mutate(evidence: Evidence) -> Evidence:
        levels = list(evidence.result.levels)
        at = find(evidence.result, role, place)
        levels[at] = dataclasses.replace(levels[at], **changes)
        return with_result(levels=tuple(levels))(evidence)

    return mutate


def with_levels(role: str, **changes: Any) -> Mutation:
    """All levels of a role."""

    def mutate(evidence: Evidence) -> Evidence:
        levels = [
            dataclasses.replace(level, **changes) if level.role == role else level
            for level in evidence.result.levels
        ]
        return with_result(levels=tuple(levels))(evidence)

    return mutate


def without_levels(*roles: str) -> Mutation:
    return only_levels(lambda level: level.role not in roles)


def only_levels(kept: Callable[[Level], bool]) -> Mutation:
    return lambda evidence: with_result(
        levels=tuple(level for level in evidence.result.levels if kept(level))
    )(evidence)


def with_level_metric(role: str, place: int, metric: str, **changes: Any) -> Mutation:
    def mutate(evidence: Evidence) -> Evidence:
        level = evidence.result.levels[find(evidence.result, role, place)]
        changed = dataclasses.replace(level.metrics[metric], **changes)
        return with_level(role, place, metrics={**level.metrics, metric: changed})(evidence)

    return mutate


def long_tail(role: str) -> Mutation:
    """A level that is called stable, with a TTFT P99 of eleven times the P50 of the lowest one."""

    def mutate(evidence: Evidence) -> Evidence:
        levels = [level for level in evidence.result.levels if level.role == role]
        lowest = min(levels, key=lambda level: level.offered_rps or level.concurrency or 0)
        p50 = lowest.metrics["ttft.p50"].point
        assert p50 is not None
        stable = [level for level in levels if level is not lowest and not level.saturated]
        place = levels.index(stable[0])
        return with_level_metric(role, place, "ttft.p99", point=11 * p50)(evidence)

    return mutate


def _at_run(role: str, place: int, mutation: Callable[[int], Mutation]) -> Mutation:
    def mutate(evidence: Evidence) -> Evidence:
        at = evidence.result.levels[find(evidence.result, role, place)].observation
        assert at is not None
        return mutation(at)(evidence)

    return mutate


def run_of(role: str, place: int = 0, /, **changes: Any) -> Mutation:
    return _at_run(role, place, lambda at: with_run(at, **changes))


def plan_of(role: str, place: int = 0, /, **changes: Any) -> Mutation:
    return _at_run(role, place, lambda at: with_plan(at, **changes))


def columns_of(role: str, place: int = 0, /, **changes: Column) -> Mutation:
    return _at_run(role, place, lambda at: with_columns(at, **changes))


def records_of(role: str, place: int = 0, /, *, count: int) -> Mutation:
    """Only the first requests of the run."""

    def shortened(at: int) -> Mutation:
        def mutate(evidence: Evidence) -> Evidence:
            records = evidence.result.observations[at].records
            return with_run(at, records=records.select(np.arange(len(records)) < count))(evidence)

        return mutate

    return _at_run(role, place, shortened)


def metric_times(name: str, factor: float) -> Mutation:
    """A metric that is off by a factor."""

    def mutate(evidence: Evidence) -> Evidence:
        metrics = dict(evidence.result.metrics)
        assert metrics[name].point is not None
        metrics[name] = dataclasses.replace(
            metrics[name], point=metrics[name].point * factor, lower=None, upper=None
        )
        return with_result(metrics=metrics)(evidence)

    return mutate


def with_listed(key: str, place: int, /, **changes: Any) -> Mutation:
    """Other fields in one entry of a fact that is a list of mappings."""

    def mutate(evidence: Evidence) -> Evidence:
        entries = [dict(entry) for entry in evidence.result.facts.value(key)]
        entries[place] |= changes
        return stating({key: entries})(evidence)

    return mutate
