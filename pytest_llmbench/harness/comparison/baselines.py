"""``--llm-save`` and ``--llm-compare``: run statistics kept, and later runs held against them.

A baseline never moves by itself: saving makes a new file, and what is compared with is named each time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_llmbench.compare.equivalence import output_lengths
from pytest_llmbench.compare.identity import Waiver, matched, waivers_of_option
from pytest_llmbench.compare.limits import RegressionLimit, comparisons, limits_of_option
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.identity import (
    identity_of,
    refuse_few_runs,
    refuse_live_answers,
    refuse_mismatch,
    waived,
)
from pytest_llmbench.harness.comparison.replication import Replication, replication
from pytest_llmbench.harness.execution.loads import stated
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.model.judgement import FEWEST_RUNS
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.probes.repository import checked_out
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.store.baselines import (
    Baseline,
    BaselineTest,
    Commit,
    check_name,
    find_baseline,
    machine_id,
    read_baseline,
    save_baseline,
)
from pytest_llmbench.store.schema import OutputLengths, iso_utc

if TYPE_CHECKING:
    from pytest_llmbench.harness.comparison.foreign import ForeignComparing

HOW_TO_COMPARE = (
    "compare with a saved baseline (--llm-compare NAME, saved before by --llm-save NAME), or with another "
    "system in this session (--llm-baseline-endpoint URL)"
)
_COMMIT_DIGITS = 12


@dataclass(frozen=True)
class Comparing:
    """The baseline of a session, and who answers for mismatches with it."""

    path: Path
    baseline: Baseline
    waivers: tuple[Waiver, ...] = ()

    def test(self, nodeid: str) -> BaselineTest | None:
        return next((test for test in self.baseline.tests if test.nodeid == nodeid), None)


@dataclass(frozen=True)
class MeasurementRequest:
    """How a test is to be measured so that it can be compared, and what it is of."""

    nodeid: str
    definition: TestDefinition
    parameters: TestParameters
    setting: Setting
    """That of the SUT itself; further arms have their own."""
    replication: Replication
    limits: Sequence[RegressionLimit] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Empty where nothing is saved or compared."""

    def more(self, result: TestResult, files: Mapping[str, str]) -> dict[str, Any]:
        """Keys of the test's report entry; ``files``: names of those that were written."""
        found = {
            "identity": dict(self.identity),
            "parameters": stated(self.parameters),
            "loads_file": files.get("loads_file"),
        }
        return found | ({"output_lengths": lengths_of(result.observations)} if self.identity else {})


class Baselines:
    """What a session does with baselines. Nothing is read before it is needed."""

    def __init__(self, settings: Settings, today: date | None = None) -> None:
        self._settings = settings
        self._today = today or datetime.now(UTC).date()

    @cached_property
    def limits(self) -> tuple[RegressionLimit, ...]:
        """The limits of ``--llm-compare-fail``."""
        return limits_of_option(self._settings.compare_fail)

    @cached_property
    def comparing(self) -> Comparing | ForeignComparing | None:
        """The baseline, or result of another tool, to compare with; None without ``--llm-compare``.

        Raises for every mistake in the options about baselines.
        """
        settings = self._settings
        if settings.save is not None:
            check_name(settings.save)
        limits, waivers = self.limits, waivers_of_option(settings.waive, self._today)
        if settings.compare is None:
            if limits and settings.baseline_endpoint is None and not settings.calibrate:
                raise SuiteError("--llm-compare-fail has nothing to compare with", remedy=HOW_TO_COMPARE)
            if waivers:
                raise SuiteError("--llm-waive waives a mismatch with a baseline, which --llm-compare names")
            return None
        if settings.baseline_endpoint is not None:
            raise SuiteError(
                "--llm-compare and --llm-baseline-endpoint exclude each other: give one baseline"
            )
        path = find_baseline(settings.storage, settings.compare)
        return _foreign(path, waivers) or Comparing(path, read_baseline(path), waivers)

    def request(
        self,
        nodeid: str,
        definition: TestDefinition,
        parameters: TestParameters,
        setting: Setting,
        limits: Sequence[RegressionLimit],
        virtual: bool,
    ) -> MeasurementRequest:
        """The measurement to make of a test, with the runs that a comparison needs.

        Raises SuiteError, before any load is sent, for what keeps a comparison from being made.
        """
        asked, settings = self.comparing, self._settings
        own = replication(parameters, settings)
        plain = MeasurementRequest(nodeid, definition, parameters, setting, own, limits)
        if asked is None and settings.save is None:
            if limits and settings.baseline_endpoint is None and not settings.calibrate:
                guarded = ", ".join(limit.metric for limit in limits)
                raise SuiteError(
                    f"no_regression({guarded}) has nothing to compare with", remedy=HOW_TO_COMPARE
                )
            if not settings.saves:
                return plain
        if asked is not None:
            refuse_live_answers(setting.workload, f"--llm-compare {asked.path}")
        identity = identity_of(definition, parameters, setting, virtual=virtual)
        if settings.baseline_endpoint is not None:
            return replace(plain, identity=identity)
        if isinstance(asked, Comparing):
            refuse_early(asked, nodeid, identity, limits, own.runs)
        elif asked is not None:
            asked.refuse_early(own.parameters, identity, (*limits, *self.limits), own.runs)
        return replace(plain, parameters=own.parameters, setting=own.setting(setting), identity=identity)

    def compared(self, request: MeasurementRequest, result: TestResult) -> TestResult:
        """The result with its comparisons, the waivers that were needed, and what else differs."""
        asked, settings = self.comparing, self._settings
        limits = (*request.limits, *self.limits)
        if isinstance(asked, Comparing):
            return compared_with(asked, request, limits, result)
        if asked is not None:
            return asked.compared(request.parameters, request.identity, limits, result)
        if request.limits and settings.baseline_endpoint is None and not settings.calibrate:
            return _noted(result, "nothing to compare with yet: this session saves the baseline")
        return result


def _foreign(path: Path, waivers: tuple[Waiver, ...]) -> ForeignComparing | None:
    """The result of another tool in a file, if that is what it is. Who names no file imports no reader of
    them."""
    from pytest_llmbench.harness.comparison.foreign import ForeignComparing
    from pytest_llmbench.store.foreign.reading import read_foreign

    results = read_foreign(path)
    return None if results is None else ForeignComparing(path, results, waivers)


def refuse_early(
    asked: Comparing,
    nodeid: str,
    identity: Mapping[str, Any],
    limits: Sequence[RegressionLimit],
    runs: int,
) -> None:
    """What keeps a comparison from being made. SuiteError."""
    where = f"--llm-compare {asked.path}"
    found = asked.test(nodeid)
    if found is None:
        if limits:
            there = ", ".join(test.nodeid for test in asked.baseline.tests) or "none"
            raise SuiteError(
                f"the baseline has no results of {nodeid}; it has {there}",
                where=where,
                remedy="save a baseline that includes this test",
            )
        return
    refuse_mismatch(matched(found.identity, identity, asked.waivers), where)
    how = f"give --llm-runs={FEWEST_RUNS} or more, when saving and when comparing"
    refuse_few_runs(found.runs, runs, where, how)


def compared_with(
    asked: Comparing, request: MeasurementRequest, limits: Sequence[RegressionLimit], result: TestResult
) -> TestResult:
    """The result as it is, with a note, where the baseline has none of this test."""
    found = asked.test(request.nodeid)
    if found is None:
        return _noted(result, f"{asked.path.name} has no results of this test: nothing is compared")
    match = matched(found.identity, request.identity, asked.waivers)
    lengths = output_lengths(
        lengths_vector(found.output_lengths), lengths_vector(lengths_of(result.observations))
    )
    name = f"{asked.path.name.removesuffix('.json')} of {asked.baseline.saved}"
    absent = [limit for limit in limits if not limit.everywhere and limit.metric not in result.by_run]
    return replace(
        result,
        comparisons=comparisons(
            found.by_run, result.by_run, limits, names=(asked.baseline.name, "this session"), paired=False
        ),
        findings=(*result.findings, *([lengths] if lengths else []), *waived(match)),
        notes=(
            *result.notes,
            f"compared with the baseline {name}, {found.runs} runs",
            *(f"{limit.origin}: {limit.metric} is no metric of this test" for limit in absent),
            *(f"beside the baseline: {text}" for text in match.shown),
        ),
    )


def _noted(result: TestResult, note: str) -> TestResult:
    return replace(result, notes=(*result.notes, note))


def lengths_of(seen: Sequence[Observation]) -> OutputLengths:
    """How often each output length came, among measured requests that ended well."""
    counted: Counter[int] = Counter()
    for run in seen:
        if run.plan.phase is Phase.MEASURE:
            tokens = run.records.output_tokens
            counted.update(tokens[run.records.ok & (tokens >= 0)].tolist())
    return OutputLengths(tokens=sorted(counted), requests=[counted[length] for length in sorted(counted)])


def lengths_vector(lengths: OutputLengths | None) -> FloatArray:
    """The lengths one by one, ascending; none of what is not known."""
    if lengths is None:
        return np.empty(0)
    return np.repeat(np.asarray(lengths.tokens, dtype=np.float64), lengths.requests)


def save(settings: Settings, entries: Sequence[Mapping[str, Any]], now_ns: int) -> list[str]:
    """Writes the baseline of a session; what is to be said about it. Void runs are left out. StoreError where
    it cannot be written."""
    last = {entry["nodeid"]: entry for entry in entries}  # of several attempts the last
    kept = [entry for entry in last.values() if entry["identity"] and entry["validity"]["verdict"] == "valid"]
    if not kept:
        return [f"baseline {settings.save or 'autosave'!r} not saved: no test measured validly"]
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


def automatic_name(commit: Commit | None, saved: str) -> str:
    """``3f2a1c9b04de``, ``3f2a1c9b04de-uncommitted``; outside of a repository ``20260120T093000Z``."""
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
    )
