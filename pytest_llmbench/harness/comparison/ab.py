"""A/B in one session (``--llm-baseline-endpoint``): a test on candidate and baseline, in pairs of runs.

What is reported is the candidate's result, with the comparisons of both arms. The lengths of the answers are
compared before anything else, since arms that answer otherwise do other work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pytest_llmbench.compare.equivalence import cache_apart, output_lengths
from pytest_llmbench.compare.identity import made_otherwise
from pytest_llmbench.compare.limits import ByRun, RegressionLimit, comparisons, nothing_decides
from pytest_llmbench.compare.overlay import overlaid
from pytest_llmbench.compare.regression import as_promised
from pytest_llmbench.harness.comparison.arms import BASELINE, CANDIDATE, Arm, cached_share, measured_records
from pytest_llmbench.harness.comparison.identity import made_by, refused_metrics
from pytest_llmbench.harness.comparison.replication import ArmRuns
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity_of
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.runs import FloatArray


def against_baseline(
    measured: Mapping[str, ArmRuns], limits: Sequence[RegressionLimit], notes: Sequence[Note], budget: Budget
) -> TestResult:
    """The candidate's result with its comparisons, of which those in ``limits`` decide. ``notes`` are put
    before its own."""
    candidate, baseline = measured[CANDIDATE], measured.get(BASELINE)
    findings = candidate.invalid(budget)
    if baseline is None:
        return _with(candidate.result, notes, findings)
    wrong = [reason for result in baseline.every for reason in validity_of(result, budget).reasons]
    if wrong:
        void = Finding.of("baseline_valid", voids=bool(limits), causes=tuple(dict.fromkeys(wrong)))
        return _with(candidate.result, notes, [*findings, void])
    result = _with(candidate.result, notes, [*_alike(candidate, baseline), *findings])
    pairs = paired_runs(baseline.by_run, candidate.by_run)
    how = made_by(baseline.result), made_by(candidate.result)
    unlike = partial(made_otherwise, baseline=how[0], candidate=how[1])
    compared = tuple(
        as_promised(each, candidate.promised[each.metric]) if each.metric in candidate.promised else each
        for each in comparisons(*pairs, limits, paired=True, level=candidate.level, unlike=unlike)
    )
    return replace(
        result,
        plots=overlaid({CANDIDATE: result.plots, BASELINE: baseline.result.plots}),
        comparisons=compared,
        findings=(
            *result.findings,
            *refused_metrics(compared, *how),
            *nothing_decides(limits, compared),
        ),
    )


def ab_note(runs: int, baseline: Arm, described: str) -> Note:
    """The note on how the A/B was made; ``described``: the baseline in words."""
    records = None if baseline.path is None else baseline.path.name
    return Note.of("a_and_b", runs=runs, baseline=described, records=records)


def paired_runs(baseline: ByRun, candidate: ByRun) -> tuple[ByRun, ByRun]:
    """The values by run of both arms, cut to the runs that both have: Ctrl-C, or the end of a search, may
    leave one arm with more."""
    count = min((len(values) for arm in (baseline, candidate) for values in arm.values()), default=0)
    first, second = ({name: values[:count] for name, values in arm.items()} for arm in (baseline, candidate))
    return first, second


def _with(result: TestResult, notes: Sequence[Note], findings: Sequence[Finding]) -> TestResult:
    return replace(result, notes=(*notes, *result.notes), findings=(*result.findings, *findings))


def _alike(candidate: ArmRuns, baseline: ArmRuns) -> list[Finding]:
    theirs, ours = (measured_records(runs) for runs in (baseline, candidate))
    found = [output_lengths(_lengths(theirs), _lengths(ours))]
    if candidate.result.test != "prefix_cache":
        found.append(cache_apart(cached_share(baseline), cached_share(candidate)))
    return [finding for finding in found if finding is not None]


def _lengths(records: Records) -> FloatArray:
    known = records.ok & (records.output_tokens != MISSING)
    lengths: FloatArray = records.output_tokens[known].astype(np.float64)
    return lengths
