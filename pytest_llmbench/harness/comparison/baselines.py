"""``--llm-save`` and ``--llm-compare``: the statistics of runs are saved, and later runs are compared with
them.

A baseline never moves by itself: saving makes a new file, and what is compared with is named each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from pytest_llmbench.compare.equivalence import output_lengths
from pytest_llmbench.compare.identity import Waiver, matched, waivers_of_option
from pytest_llmbench.compare.limits import ByRun, RegressionLimit, limits_of_option, nothing_decides
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.identity import (
    identity_of,
    lengths_of,
    lengths_vector,
    made_by,
    refuse_few_runs,
    refuse_live_answers,
    refuse_mismatch,
    refused_metrics,
    waived,
)
from pytest_llmbench.harness.comparison.reference import Reference
from pytest_llmbench.harness.comparison.replication import HOW_TO_COMPARE, MeasurementRequest
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.judgement import ComparisonVerdict
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note, as_told
from pytest_llmbench.probes.repository import checked_out
from pytest_llmbench.registry import every
from pytest_llmbench.store.baselines import (
    Baseline,
    BaselineTest,
    Commit,
    check_name,
    find_baseline,
    read_baseline,
    read_earlier,
    save_baseline,
)
from pytest_llmbench.store.files import machine_id
from pytest_llmbench.store.schema import iso_utc

_COMMIT_DIGITS = 12


@dataclass(frozen=True)
class Comparing:
    """The baseline that a session compares with, and the waivers for mismatches."""

    path: Path
    baseline: Baseline
    waivers: tuple[Waiver, ...] = ()
    earlier: tuple[Baseline, ...] = ()
    """The sessions that were saved before under its name, if that is what was given; the oldest first."""
    problems: tuple[str, ...] = ()
    """Messages on those of them that cannot be read."""

    def reference(self, nodeid: str, identity: Mapping[str, Any]) -> Reference | None:
        """What the test is compared with; None where the baseline has no results of it."""
        tests = [test for session in (*self.earlier, self.baseline) for test in session.tests]
        if all(test.nodeid != nodeid for test in self.baseline.tests):
            return None
        return Reference.of([test for test in tests if test.nodeid == nodeid], identity, self.waivers)


class Compares(Protocol):
    """The content of a file that is no baseline of ours, beside which results are shown."""

    @property
    def path(self) -> Path: ...

    def refuse_early(
        self,
        parameters: TestParameters,
        identity: Mapping[str, Any],
        limits: Sequence[RegressionLimit],
        runs: int,
    ) -> None:
        """Raise SuiteError if something already known keeps the comparison from being made."""

    def compared(
        self,
        parameters: TestParameters,
        identity: Mapping[str, Any],
        limits: Sequence[RegressionLimit],
        result: TestResult,
    ) -> TestResult:
        """The result with its comparisons; with a note, where the file has nothing to compare it with."""
        ...


def comparing_by(settings: Settings, today: date) -> Comparing | Compares | None:
    """What the options name to compare with; None where they name nothing.

    Raises for every mistake in the options about baselines.
    """
    if settings.save is not None:
        check_name(settings.save)
    limits = limits_of_option(settings.compare_fail)
    waivers = waivers_of_option(settings.waive, today)
    if settings.compare is None:
        if limits and settings.baseline_endpoint is None and not settings.calibrate:
            raise SuiteError("--llm-compare-fail has nothing to compare with", remedy=HOW_TO_COMPARE)
        if waivers:
            raise SuiteError("--llm-waive waives a mismatch with a baseline, which --llm-compare names")
        return None
    if settings.baseline_endpoint is not None:
        raise SuiteError("--llm-compare and --llm-baseline-endpoint exclude each other: give one baseline")
    path = find_baseline(settings.storage, settings.compare)
    for reader in every("comparisons").values():
        found: Compares | None = reader(path, waivers)
        if found is not None:
            return found
    earlier, problems = read_earlier(path, settings.compare)
    return Comparing(path, read_baseline(path), waivers, tuple(earlier.values()), tuple(problems))


def identified(
    plain: MeasurementRequest,
    asked: Comparing | Compares | None,
    of_options: Sequence[RegressionLimit],
    settings: Settings,
    *,
    virtual: bool,
) -> MeasurementRequest:
    """The measurement with what it is of, which is saved or compared. ``of_options``: limits of the session.

    Raises SuiteError for what keeps a comparison from being made.
    """
    if asked is not None:
        refuse_live_answers(plain.setting.workload, f"--llm-compare {asked.path}")
    identity = identity_of(plain.definition, plain.parameters, plain.setting, virtual=virtual)
    if settings.baseline_endpoint is not None:
        return replace(plain, identity=identity)
    own = plain.replication
    if isinstance(asked, Comparing):
        refuse_early(asked, plain.nodeid, identity, plain.limits, own.runs)
    elif asked is not None:
        asked.refuse_early(own.parameters, identity, (*plain.limits, *of_options), own.runs)
    return replace(plain, parameters=own.parameters, setting=own.setting(plain.setting), identity=identity)


def refuse_early(
    asked: Comparing,
    nodeid: str,
    identity: Mapping[str, Any],
    limits: Sequence[RegressionLimit],
    runs: int,
) -> None:
    """Raise SuiteError if something already known keeps the comparison from being made."""
    where = f"--llm-compare {asked.path}"
    found = asked.reference(nodeid, identity)
    if found is None:
        if limits:
            there = ", ".join(test.nodeid for test in asked.baseline.tests) or "none"
            raise SuiteError(
                f"the baseline has no results of {nodeid}; it has {there}",
                where=where,
                remedy="save a baseline that includes this test",
            )
        return
    refuse_mismatch(matched(found.named.identity, identity, asked.waivers), where)
    if not found.sessions:
        how = f"give --llm-runs={FEWEST_RUNS} or more, when saving and when comparing"
        refuse_few_runs(found.named.runs, runs, where, how)


def compared_with(
    asked: Comparing | Compares,
    request: MeasurementRequest,
    limits: Sequence[RegressionLimit],
    result: TestResult,
) -> TestResult:
    """The result with its comparisons, the waivers that were needed, and what else differs; as it is, with a
    note, where the baseline has none of this test."""
    if not isinstance(asked, Comparing):
        return asked.compared(request.parameters, request.identity, limits, result)
    identity = {**request.identity, **made_by(result)}
    reference = asked.reference(request.nodeid, identity)
    if reference is None:
        why = Note.of("has_no_results", file=asked.path.name)
        return replace(
            result,
            findings=(*result.findings, *nothing_decides(limits, why=why)),
            notes=(*result.notes, Note.of("no_results_of_test", file=asked.path.name)),
        )
    found = reference.named
    match = matched(found.identity, identity, asked.waivers)
    lengths = output_lengths(
        lengths_vector(found.output_lengths), lengths_vector(lengths_of(result.observations))
    )
    name = f"{asked.path.name.removesuffix('.json')} of {asked.baseline.saved}"
    by_run: ByRun = result.by_run or {name: (metric.point,) for name, metric in result.metrics.items()}
    absent = [limit for limit in limits if not limit.everywhere and limit.metric not in by_run]
    names = asked.baseline.name, "this session"
    compared = reference.compared(by_run, limits, names)
    told = (
        *([lengths] if lengths else []),
        *waived(match),
        *refused_metrics(compared, found.identity, identity, asked.waivers),
        *nothing_decides(limits, compared),
    )
    return replace(
        result,
        comparisons=compared,
        findings=(*result.findings, *told),
        notes=(
            *result.notes,
            Note.of("compared_with_baseline", baseline=name, runs=found.runs),
            *reference.notes(asked.baseline.name),
            *map(as_told, asked.problems),
            *(Note.of("no_such_metric", limit=limit.origin, metric=limit.metric) for limit in absent),
            *(Note.of("beside_baseline", difference=text) for text in match.shown),
        ),
    )


def save(settings: Settings, entries: Sequence[Mapping[str, Any]], now_ns: int) -> list[str]:
    """Write the baseline of a session; returns messages about it. Void runs are left out, and nothing is
    written under the name that was compared with unless all that decides passed. StoreError if it cannot be
    written."""
    last = {entry["nodeid"]: entry for entry in entries}  # of several attempts the last
    kept = [entry for entry in last.values() if entry["identity"] and entry["validity"]["verdict"] == "valid"]
    if not kept:
        return [f"baseline {settings.save or 'autosave'!r} not saved: no test measured validly"]
    moves = settings.save is not None and settings.save == settings.compare
    if moves and (behind := [entry["nodeid"] for entry in last.values() if _fell_behind(entry)]):
        return [
            f"baseline {settings.save!r} not saved, since the one it was compared with would be replaced by "
            f"what did not pass: {', '.join(behind)}; to accept the new figures, save without --llm-compare"
        ]
    tests = [_test(entry) for entry in kept]
    found, saved = checked_out(Path()), iso_utc(now_ns)
    commit = None if found is None else Commit(id=found.commit, uncommitted=found.uncommitted)
    baseline = Baseline(
        name=settings.save or automatic_name(commit, saved),
        saved=saved,
        generator_version=version("pytest-llmbench"),
        machine=machine_id(),
        commit=commit,
        tests=tests,
    )
    path = save_baseline(settings.storage, baseline)
    said = [f"baseline saved: {path} ({len(tests)} {'test' if len(tests) == 1 else 'tests'})"]
    if left_out := len(last) - len(kept):
        said.append(f"  left out, since not measured validly: {left_out}")
    if few := [test for test in tests if test.runs < FEWEST_RUNS]:
        said.append(
            f"  {len(few)} of them with fewer than {FEWEST_RUNS} runs, which nothing can be compared with: "
            f"save with --llm-runs={FEWEST_RUNS} or more"
        )
    return said


def _fell_behind(entry: Mapping[str, Any]) -> bool:
    """Whether a comparison that decides did not pass, or nothing valid was measured to compare."""
    refused = (ComparisonVerdict.REGRESSED, ComparisonVerdict.INCONCLUSIVE)
    return entry["validity"]["verdict"] != "valid" or any(
        each["gated"] and each["verdict"] in refused for each in entry["comparisons"]
    )


def automatic_name(commit: Commit | None, saved: str) -> str:
    """The name of a baseline that was given none: ``3f2a1c9b04de`` or ``3f2a1c9b04de-uncommitted``, the
    commit; outside of a repository the time, ``20260120T093000Z``."""
    if commit is None:
        return re.sub(r"[-:]|\.\d+", "", saved)
    return commit.id[:_COMMIT_DIGITS] + ("-uncommitted" if commit.uncommitted else "")


def _test(entry: Mapping[str, Any]) -> BaselineTest:
    by_run = entry["by_run"] or {name: [metric["point"]] for name, metric in entry["metrics"].items()}
    return BaselineTest(
        nodeid=entry["nodeid"],
        test=entry["test"],
        identity=entry["identity"],
        runs=max(map(len, by_run.values())),
        by_run=by_run,
        metrics=entry["metrics"],
        output_lengths=entry["output_lengths"],
        gate=entry["gate"]["verdict"],
    )
