"""Independent runs of one test on one SUT, for a baseline: the run is the unit of replication (DESIGN §6).

A test of one load that its author chose repeats that load. Of every other test the whole procedure is
repeated, each time from another seed and with its own warm-up: what a search finds differs between sessions
too, and runs of one load that it found would be more alike than those of two sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from pytest_llmbench.methodology.measuring.by_run import by_run
from pytest_llmbench.methodology.measuring.seeds import derived_seed
from pytest_llmbench.methodology.parameters import LoadParameters, TestParameters
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.model.judgement import Finding, Validity
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.result import TestResult, VoidLoad

Valid = Callable[[TestResult], Validity]


class Replication(NamedTuple):
    """How a test comes to its runs."""

    parameters: TestParameters
    setting: Setting
    whole: int
    """How often the whole procedure is run."""


def replication(parameters: TestParameters, setting: Setting, runs: int | None) -> Replication:
    """``--llm-runs``, or more where the marker says so."""
    wanted = max(runs or 1, parameters.runs or 1)
    if repeats_its_load(parameters):
        return Replication(replace(parameters, runs=wanted), replace(setting, least_runs=wanted), 1)
    return Replication(replace(parameters, runs=None), setting, wanted)


def repeats_its_load(parameters: TestParameters) -> bool:
    """Whether the runs of its one load are its runs. A trace is one pass, and a search is no load."""
    return isinstance(parameters, LoadParameters) and parameters.repeats and parameters.arrival != "trace"


def repeated(
    definition: TestDefinition, parameters: TestParameters, setting: Setting, times: int, valid: Valid
) -> Procedure[TestResult]:
    """The first run's result, with the metrics of all of them by run.

    A later run that is void voids the result; one that Ctrl-C cut short ends it there.
    """
    first = yield from definition.procedure(parameters, setting)
    if times == 1 or _cut(first):
        return first
    every = [first.metrics]
    findings: list[Finding] = []
    void = list(first.void_loads)
    for number in range(2, times + 1):
        seeded = replace(setting, seed=derived_seed(setting.seed, f"run {number}"))
        later = yield from definition.procedure(parameters, seeded)
        every.append(later.metrics)
        void += _of_run(number, later)
        if cut := _cut(later):
            first = replace(first, observations=(*first.observations, *cut))
            break
        findings += [
            Finding("further_runs", ok=False, voids=True, message=f"run {number} of {times}: {reason}")
            for reason in valid(later).reasons
        ]
    note = (
        f"metrics, tables and limits are those of the first of {times} runs; comparisons rest on all of them"
    )
    return replace(
        first,
        by_run=by_run(every),
        findings=(*first.findings, *findings),
        notes=(*first.notes, note),
        void_loads=tuple(void),
    )


def _of_run(number: int, result: TestResult) -> list[VoidLoad]:
    return [replace(void, label=f"run {number}: {void.label}") for void in result.void_loads]


def _cut(result: TestResult) -> tuple[Observation, ...]:
    return tuple(run for run in result.observations if run.interrupted is not None)
