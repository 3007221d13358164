"""How a test is measured, and what its runs come to: the run is the unit of replication.

A test of one load that its author chose repeats that load. Of every other test the whole procedure is
repeated, each time from another seed and with its own warm-up: what a search finds differs between sessions
too, and runs of one load that it found would be more alike than those of two sessions. So it is with every
test that compares several systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_llmbench.harness.execution import stated
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.load_plans import derived_seed
from pytest_llmbench.methodology.measuring.validity import validity_of
from pytest_llmbench.methodology.parameters import LoadParameters, TestParameters
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import ByRun, by_run
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note

if TYPE_CHECKING:
    from pytest_llmbench.compare.limits import RegressionLimit

Values = Mapping[str, Sequence[float | None]]
"""Metric → its value in each run, for comparisons."""
HOW_TO_COMPARE = (
    "compare with a saved baseline (--llm-save NAME, then --llm-compare NAME), or with another "
    "system in this session (--llm-baseline-endpoint URL)"
)
PAIRS = 6
"""The pairs of runs in an A/B, by default."""
CALIBRATION_RUNS = 8
"""The runs of a calibration, by default: the noise is then known to a factor of two."""


class Replication(NamedTuple):
    """How often each arm of a test is run, and in which way."""

    parameters: TestParameters
    least_runs: int = 1
    """The least number of runs for a test that repeats its load, see :class:`Setting`."""
    whole: int = 1
    """How often the whole procedure is run."""
    most_runs: int | None = None
    """The most runs, where a budget of time ends them."""

    @property
    def runs(self) -> int:
        return max(self.least_runs, self.whole)

    def setting(self, setting: Setting, number: int = 0) -> Setting:
        """The setting of whole procedure ``number``: each has a seed of its own, the same in every
        session."""
        seed = setting.seed if number == 0 else derived_seed(setting.seed, f"run {number + 1}")
        return replace(setting, seed=seed, least_runs=self.least_runs, most_runs=self.most_runs)


@dataclass(frozen=True)
class MeasurementRequest:
    """How a test is to be measured so that it can be compared, and the identity of what is measured."""

    nodeid: str
    definition: TestDefinition
    parameters: TestParameters
    setting: Setting
    """The setting for the SUT itself; further arms have their own."""
    replication: Replication
    limits: Sequence[RegressionLimit] = ()
    budget_s: float | None = None
    """Seconds that the test may take; None without a budget."""
    virtual: bool = False
    """Whether it is measured in virtual time."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """The fields that baselines are matched by; empty where nothing is saved or compared."""

    def of_what(self) -> dict[str, Any]:
        """The fields that baselines are matched by, as far as they are known before a load."""
        from pytest_llmbench.harness.comparison.identity import identity_of

        return identity_of(self.definition, self.parameters, self.setting, virtual=self.virtual)

    def more(self, result: TestResult, files: Mapping[str, str]) -> dict[str, Any]:
        """Further keys for the test's report entry. ``files``: names of the files that were written."""
        found = {
            "identity": dict(self.identity),
            "parameters": stated(self.parameters),
            "loads_file": files.get("loads_file"),
        }
        if not self.identity:
            return found
        from pytest_llmbench.compare.split import parts_by_run
        from pytest_llmbench.harness.comparison.identity import lengths_of, made_by

        parts = parts_by_run(result.observations)
        return found | {
            "identity": {**self.identity, **made_by(result)},
            "output_lengths": lengths_of(result.observations),
            "latency_parts_ms": {} if isinstance(parts, str) else dict(parts),
        }


MOST_ROUNDS = 50
"""The most runs of each arm within a budget of time."""


def replication(parameters: TestParameters, settings: Settings, budget_s: float | None = None) -> Replication:
    """The replication of a test: as many runs as the options or the marker ask for, whichever is more. Where
    arms are compared or noise is measured, at least as many as it takes to tell a change from noise; within a
    budget of time as many as fit."""
    timed = budget_s is not None and settings.scale != "quick" and not settings.calibrate
    if timed and len(settings.endpoints) < 2 and (settings.compares_runs or parameters.is_job):
        least = FEWEST_RUNS if settings.compares_runs else 1
        return Replication(parameters, least_runs=least, most_runs=MOST_ROUNDS)
    if settings.baseline_endpoint is not None:
        pairs = _wanted(parameters, settings, PAIRS)
        return _replicated(parameters, pairs + pairs % 2)  # every second pair reverses the one before
    if settings.calibrate:
        return _replicated(parameters, _wanted(parameters, settings, CALIBRATION_RUNS))
    if len(settings.endpoints) > 1:
        return Replication(replace(parameters, runs=None), whole=_wanted(parameters, settings, FEWEST_RUNS))
    if settings.compare is None and parameters.runs_as_needed:
        return Replication(parameters)
    if settings.saves or settings.compare is not None:
        return _replicated(parameters, _wanted(parameters, settings, 1))
    return Replication(parameters)


def _wanted(parameters: TestParameters, settings: Settings, default: int) -> int:
    asked = 0 if parameters.runs is None else parameters.run_count
    return max(default if settings.runs is None else settings.runs, asked)


def _replicated(parameters: TestParameters, runs: int) -> Replication:
    """``runs`` repetitions: of the load, if the test repeats one of the author's choice, else of the whole
    procedure. A trace is one pass, and a search is no load."""
    if isinstance(parameters, LoadParameters) and parameters.repeats and parameters.arrival != "trace":
        return Replication(replace(parameters, runs=runs), least_runs=runs)
    return Replication(replace(parameters, runs=None), whole=runs)


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm."""

    result: TestResult
    """The reported result: that of all runs together, or that of the first."""
    by_run: ByRun
    every: tuple[TestResult, ...]
    """The result of each run, if runs have results of their own; else the one result."""
    level: float = 0.95
    """The level at which these runs are compared with others."""
    promised: Mapping[str, float] = field(default_factory=dict)
    """Metric → the worsening that was to be found within a budget of time; a share."""

    @property
    def observations(self) -> list[Observation]:
        """The loads of all runs."""
        return [seen for result in self.every for seen in result.observations]

    def invalid(self, budget: Budget) -> list[Finding]:
        """Findings about void runs after the first. The first is judged as every reported result is, and one
        that was cut short shows in that result."""
        return [
            Finding.of("further_runs", run=number, runs=len(self.every), why=why)
            for number, result in enumerate(self.every[1:], start=2)
            if not cut_short(result)
            for why in validity_of(result, budget).reasons
        ]


def runs_of(results: Sequence[TestResult], whole: int) -> ArmRuns:
    """The runs of one arm whose procedure was to be run ``whole`` times. The first result stands for all of
    them.

    One that Ctrl-C or a budget ended is the last, and comes with what it saw.
    """
    first, *later = results
    if whole == 1:
        return ArmRuns(first, dict(first.by_run), (first,))
    values = by_run([result.metrics for result in results])
    if not later:
        return ArmRuns(first, values, (first,))
    void = [
        replace(each, label=f"run {number}: {each.label}")
        for number, result in enumerate(later, start=2)
        for each in result.void_loads
    ]
    reported = replace(
        first,
        observations=(*first.observations, *cut_short(later[-1])),
        by_run=values,
        notes=(*first.notes, Note.of("first_of_runs", runs=whole)),
        void_loads=(*first.void_loads, *void),
    )
    return ArmRuns(reported, values, tuple(results))


def cut_short(result: TestResult) -> tuple[Observation, ...]:
    """The loads of a result that something ended early."""
    return tuple(run for run in result.observations if run.interrupted is not None)


def paired_runs(baseline: Values, candidate: Values) -> tuple[Values, Values]:
    """The values by run of both arms, cut to the runs that both have: Ctrl-C, or the end of a search, may
    leave one arm with more."""
    count = min((len(values) for arm in (baseline, candidate) for values in arm.values()), default=0)
    first, second = ({name: values[:count] for name, values in arm.items()} for arm in (baseline, candidate))
    return first, second
