"""A/B in one session (``--llm-baseline-endpoint``): a test on candidate and baseline, in pairs of runs.

What is reported is the candidate's result, with the comparisons of both arms. The lengths of the answers are
compared before anything else, since arms that answer otherwise do other work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_llmbench.compare.equivalence import cache_apart, output_lengths
from pytest_llmbench.compare.limits import RegressionLimit, comparisons
from pytest_llmbench.compare.overlay import overlaid
from pytest_llmbench.harness.comparison.arms import (
    Answered,
    Arm,
    ArmRuns,
    apart,
    cached_share,
    measure_arms,
    measured_records,
)
from pytest_llmbench.methodology.measuring.by_run import ByRun
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import TestDefinition
from pytest_llmbench.model.judgement import Finding, Validity
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.stats.runs import FloatArray

CANDIDATE, BASELINE = "candidate", "baseline"
VARIANT = "variant:"
"""How ``--llm-baseline-endpoint`` names a variant of the SUT."""

Valid = Callable[[TestResult], Validity]


@dataclass(frozen=True)
class Asked:
    """What an A/B is asked to do."""

    runs: int
    """The runs of each arm."""
    limits: Sequence[RegressionLimit] = ()
    """The metrics whose comparison decides."""
    described: str = BASELINE
    """The baseline, for people."""


def against_baseline(
    definition: TestDefinition,
    parameters: TestParameters,
    arms: tuple[Arm, Arm],
    asked: Asked,
    *,
    answered: Answered,
    header: Mapping[str, Any],
    valid: Valid,
) -> TestResult:
    """The candidate's result with its comparisons; ``arms`` are candidate and baseline.

    KeyboardInterrupt when Ctrl-C came before the candidate had anything to keep.
    """
    prepared, said = apart(arms, definition)
    measured = measure_arms(definition, parameters, prepared, asked.runs, answered=answered, header=header)
    if CANDIDATE not in measured:
        raise KeyboardInterrupt
    candidate, baseline = measured[CANDIDATE], measured.get(BASELINE)
    notes = _notes(asked, arms[1], said)
    findings = invalid_runs(candidate, valid)
    if baseline is None:
        return _with(candidate.result, notes, findings)
    wrong = [reason for result in baseline.every for reason in valid(result).reasons]
    if wrong:
        return _with(candidate.result, notes, [*findings, _invalid_baseline(wrong, bool(asked.limits))])
    result = _with(candidate.result, notes, [*_alike(definition, candidate, baseline), *findings])
    pairs = paired_runs(baseline.by_run, candidate.by_run)
    return replace(
        result,
        plots=overlaid({CANDIDATE: result.plots, BASELINE: baseline.result.plots}),
        comparisons=comparisons(*pairs, asked.limits, paired=True),
    )


def paired_runs(baseline: ByRun, candidate: ByRun) -> tuple[ByRun, ByRun]:
    """Both arms by run, without the runs that only one arm has because Ctrl-C ended the other, or its
    search."""
    count = min((len(values) for arm in (baseline, candidate) for values in arm.values()), default=0)
    first, second = ({name: values[:count] for name, values in arm.items()} for arm in (baseline, candidate))
    return first, second


def _with(result: TestResult, notes: Sequence[str], findings: Sequence[Finding]) -> TestResult:
    return replace(result, notes=(*notes, *result.notes), findings=(*result.findings, *findings))


def _notes(asked: Asked, baseline: Arm, said: str | None) -> list[str]:
    records = f"; its records are in {baseline.path.name}" if baseline.path is not None else ""
    note = f"A/B: {asked.runs} runs of each arm in randomised pairs, baseline {asked.described}{records}"
    return [note] if said is None else [note, said]


def invalid_runs(candidate: ArmRuns, valid: Valid) -> list[Finding]:
    """The reported result is judged as every result is; of whole runs the others are looked at here."""
    return [
        Finding("further_runs", ok=False, voids=True, message=f"run {number}: {reason}")
        for number, result in enumerate(candidate.every[1:], start=2)
        for reason in valid(result).reasons
    ]


def _invalid_baseline(reasons: Sequence[str], voids: bool) -> Finding:
    listed = "; ".join(dict.fromkeys(reasons))
    return Finding(
        "baseline_valid",
        ok=False,
        voids=voids,
        message=f"the baseline was not measured validly, so nothing is compared with it: {listed}",
    )


def _alike(definition: TestDefinition, candidate: ArmRuns, baseline: ArmRuns) -> list[Finding]:
    theirs, ours = (measured_records(runs) for runs in (baseline, candidate))
    found = [output_lengths(_lengths(theirs), _lengths(ours))]
    if definition.name != "prefix_cache":
        found.append(cache_apart(cached_share(baseline), cached_share(candidate)))
    return [finding for finding in found if finding is not None]


def _lengths(records: Records) -> FloatArray:
    known = records.ok & (records.output_tokens != MISSING)
    lengths: FloatArray = records.output_tokens[known].astype(np.float64)
    return lengths
