"""Arms: one test on several SUTs in one session, run by run in turns, each with records of its own.

A test that repeats a load of the author's choice has one procedure per arm whose runs take turns. Of the
others whole procedures take turns, as often as there are to be runs, each from a seed of its own that is the
same for all arms; the first of them is the one that is reported. A test that searches is among these: two
searches on one system may end a step apart, and runs at the loads they found would take that for a change.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.interleaved import drive_together, drive_whole
from pytest_llmbench.harness.comparison.replication import repeats_its_load
from pytest_llmbench.harness.execution.loads import LoadsRecorder
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.methodology.measuring.by_run import ByRun, by_run
from pytest_llmbench.methodology.measuring.seeds import derived_seed
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.model.comparison import FEWEST_RUNS
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.session import OfSessions
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter
from pytest_llmbench.workloads.adapted import Salted

Answered = Callable[[OpenSUT, LoadPlan, OnRecord | None], Observation]


@dataclass(frozen=True)
class Arm:
    """One arm: the SUT that is asked, under which setting, and the file for its records."""

    name: str
    opened: OpenSUT
    setting: Setting
    variant: str = ""
    """Variant of that SUT which the arm is; empty for the SUT itself."""
    path: Path | None = None

    @property
    def server(self) -> tuple[str, str]:
        """Arms with equal ones ask the same server, as far as can be told."""
        served = self.opened.executor.servers[self.variant]
        return (self.opened.server, served.server)

    def planned(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is sent to the variant.

        Raises SuiteError for a test that goes to variants by itself.
        """
        if not self.variant:
            return plan
        if plan.variant:
            raise SuiteError(
                f"this test measures variants itself ({plan.variant}), so none can be its baseline",
                where=f"--llm-baseline-endpoint variant:{self.variant}",
                remedy="give the URL of a baseline",
            )
        return plan.with_(variant=self.variant)


PAIRS = 6
"""The pairs of an A/B, if nobody says how many."""


@dataclass(frozen=True)
class ArmRuns:
    """What came of one arm."""

    result: TestResult
    """The result that is reported: of all runs together, or of the first."""
    by_run: ByRun
    every: tuple[TestResult, ...]
    """The results of the runs, where they have results of their own; else the one result."""


def runs_wanted(parameters: TestParameters, asked: int | None, default: int = FEWEST_RUNS) -> int:
    """``--llm-runs`` or the default; more where the marker says so."""
    return max(default if asked is None else asked, parameters.runs or 0)


def pairs_wanted(parameters: TestParameters, asked: int | None) -> int:
    """The same of an A/B, as an even number: every second pair reverses the order of the one before."""
    wanted = runs_wanted(parameters, asked, PAIRS)
    return wanted + wanted % 2


def measure_arms(
    definition: TestDefinition,
    parameters: TestParameters,
    arms: Sequence[Arm],
    runs: int,
    *,
    answered: Answered,
    header: Mapping[str, Any],
    whole: bool = False,
) -> dict[str, ArmRuns]:
    """Each arm's runs by its name; an arm without anything to keep (Ctrl-C) is missing.

    ``whole``: whole procedures take turns even where the test repeats its load, each with a warm-up.
    """
    by_name, loads = {arm.name: arm for arm in arms}, {arm.name: LoadsRecorder() for arm in arms}
    if not whole and repeats_its_load(parameters):
        own = replace(parameters, runs=runs)
        settings = {arm.name: replace(arm.setting, least_runs=runs) for arm in arms}
        with _recorded(arms, header) as writers:
            execute = partial(_executed, by_name, writers, loads, answered)
            procedures = {name: definition.procedure(own, setting) for name, setting in settings.items()}
            results = drive_together(procedures, execute, seed=arms[0].setting.seed)
        _keep(loads, by_name, settings, own, header, 1)
        return {name: _one_of_all(_noted(name, result, writers, loads)) for name, result in results.items()}
    once = replace(parameters, runs=None)

    def make(name: str, number: int) -> Procedure[TestResult]:
        setting = by_name[name].setting
        seed = setting.seed if number == 0 else derived_seed(setting.seed, f"run {number + 1}")
        return definition.procedure(once, replace(setting, seed=seed))

    with _recorded(arms, header) as writers:
        execute = partial(_executed, by_name, writers, loads, answered)
        many = drive_whole(make, list(by_name), runs, execute, seed=arms[0].setting.seed)
    _keep(loads, by_name, {arm.name: arm.setting for arm in arms}, once, header, runs)
    kept = {name: results for name, results in many.items() if results}
    return {
        name: _first_of([_noted(name, first, writers, loads), *rest], runs)
        for name, (first, *rest) in kept.items()
    }


def _noted(
    name: str,
    result: TestResult,
    writers: Mapping[str, RecordsWriter],
    loads: Mapping[str, LoadsRecorder],
) -> TestResult:
    """The result with what there is to say about the writing of its records."""
    writer = writers.get(name)
    if writer is None:
        return result
    found = (*result.findings, *writer.findings, *loads[name].findings)
    return replace(result, notes=(*result.notes, *writer.notes), findings=found)


def _keep(
    loads: Mapping[str, LoadsRecorder],
    arms: Mapping[str, Arm],
    settings: Mapping[str, Setting],
    parameters: TestParameters,
    header: Mapping[str, Any],
    whole: int,
) -> None:
    """Beside each records file, what its figures can be computed from again."""
    for name, arm in arms.items():
        if arm.path is not None:
            loads[name].write(
                arm.path, str(header["nodeid"]), str(header["test"]), parameters, settings[name],
                whole=whole,
            )  # fmt: skip


def apart(arms: Sequence[Arm], definition: TestDefinition) -> tuple[list[Arm], str | None]:
    """The arms so that none finds in a prefix cache what another left there, and what was done, in words.

    Arms on one server get prompts with another beginning, all of them, so that they stay alike. Not where the
    cache is what is tested, nor where the workload's own sharing would be lost with its beginnings.
    """
    shared = len({arm.server for arm in arms}) < len(arms)
    if not shared or definition.name == "prefix_cache":
        return list(arms), None
    specification = arms[0].setting.workload.specification()
    shares = specification.get("prefix_sharing", {}).get("fraction", 0) != 0
    exact = specification.get("input_length", {}).get("exact") is True
    sessions = isinstance(arms[0].setting.workload, OfSessions)  # whose turns begin with those before them
    whys = {"is of sessions": sessions, "shares prefixes": shares, "has prompts of exact lengths": exact}
    why = next((why for why, holds in whys.items() if holds), None)
    if why is not None:
        return list(arms), (
            f"the arms are one server and its prompts could not be salted, since the workload {why}: "
            "switch prefix caching off, or the later arm finds what the earlier one left"
        )
    salted = [
        replace(arm, setting=replace(arm.setting, workload=Salted(arm.setting.workload, arm.name)))
        for arm in arms
    ]
    return salted, "the arms are one server: every prompt begins with a salt of its arm"


def measured_records(runs: ArmRuns) -> Records:
    """Measured requests of all runs, without their streams."""
    return Records.concatenate(
        [
            seen.records.without_streams()
            for result in runs.every
            for seen in result.observations
            if seen.plan.phase is Phase.MEASURE
        ]
    )


def cached_share(runs: ArmRuns) -> float | None:
    """The share of the input tokens that came from a prefix cache; None where the server does not tell."""
    records = measured_records(runs)
    known = (records.cached_tokens != MISSING) & (records.input_tokens > 0)
    if not known.any():
        return None
    return float(records.cached_tokens[known].sum() / records.input_tokens[known].sum())


def _executed(
    arms: Mapping[str, Arm],
    writers: Mapping[str, RecordsWriter],
    loads: Mapping[str, LoadsRecorder],
    answered: Answered,
    name: str,
    plan: LoadPlan,
) -> Observation:
    arm, writer = arms[name], writers.get(name)
    keep = None if writer is None else partial(writer.write, label=plan.title)
    return loads[name].noting(lambda asked: answered(arm.opened, arm.planned(asked), keep))(plan)


@contextmanager
def _recorded(
    arms: Sequence[Arm], header: Mapping[str, Any]
) -> Generator[Mapping[str, RecordsWriter], None, None]:
    """A writer for each arm that has a path."""
    with ExitStack() as stack:
        writers = {}
        for arm in arms:
            if arm.path is not None:
                said = {**header, "arm": arm.name, "seed": arm.setting.seed}
                head = RecordsHeader(arm.opened.anchor(), str(header["nodeid"]), said)
                writers[arm.name] = stack.enter_context(RecordsWriter(arm.path, head))
        yield writers


def _one_of_all(result: TestResult) -> ArmRuns:
    return ArmRuns(result, dict(result.by_run), (result,))


def _first_of(results: Sequence[TestResult], runs: int) -> ArmRuns:
    """Whole runs: the first stands for all. One that Ctrl-C ended comes with what it saw."""
    values = by_run([result.metrics for result in results])
    first, last = results[0], results[-1]
    cut = tuple(run for run in last.observations if run.interrupted is not None) if last is not first else ()
    note = (
        f"metrics, tables and limits are those of the first of {runs} runs; comparisons rest on all of them"
    )
    reported = replace(
        first, observations=(*first.observations, *cut), by_run=values, notes=(*first.notes, note)
    )
    return ArmRuns(reported, values, tuple(results))
