"""``--llm-budget`` and a marker's ``budget``: a test gets some time and spends it where it decides most.

Loads of the author's choice are cut into runs, as many as fit: where arms are compared the runs decide, since
requests of one run share its weather. After each round of the arms there is a look, and the test ends at the
first that decides every comparison. The looks share the error that one of them would have (Lan and DeMets
1983, see stats/looks.py; nominal levels with Student's t, Jennison and Turnbull 2000, ch. 11).

A load that is not compared goes on until its limits are decided: an open loop by looks at its requests
(``requests="auto"``), a job by further runs. Tests that search take the time that they take.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pytest_llmbench.compare.limits import RegressionLimit, comparisons
from pytest_llmbench.compare.regression import LogRatio, better_of
from pytest_llmbench.harness.comparison.replication import MOST_ROUNDS, MeasurementRequest
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.measuring.adaptive import AdaptiveParameters
from pytest_llmbench.methodology.parameters import TestParameters, seconds_of
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import SavedSpread
from pytest_llmbench.model.judgement import ComparisonVerdict
from pytest_llmbench.model.numbers import Amount, rough_duration
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.looks import planned_looks, spent_sooner
from pytest_llmbench.stats.percentiles import PERCENTILES

ALPHA = 0.03
"""Error of all looks together, both sides: an unchanged build is called slower in 1.5 of 100 sessions."""
ROUNDS = 12
"""How many rounds the time of an open loop is cut into: with 12 pairs the quantile of Student's t is within
12 % of the normal one."""
_FOR_RUNS = 0.8
"""Share of the time that is planned for runs; the rest is for warm-ups and drains."""
FEWEST_REQUESTS = 20
_USUAL_NOISE, _LEAST_NOISE = 0.03, 0.001
"""Spread between runs that is assumed where none is saved, and the least that is believed."""
_TAIL, _USELESS = 90.0, 0.5
"""The percentile from which on a run of few requests is noisier than that, and the worsening from which on a
promise to find it is none."""
DECIDED, TIME_IS_UP = "decided", "the time of the budget is up"


def budget_of(parameters: TestParameters, settings: Settings, tests: int) -> float | None:
    """The seconds that a test may take, its own or its part of the session's; None without a budget, and for
    tests whose author says how much is sent (``runs``, ``requests="auto"``) or that search."""
    if not isinstance(parameters, AdaptiveParameters):
        return None
    given = settings.budget if parameters.budget is None else parameters.budget
    if (
        given is None
        or parameters.arrival == "trace"
        or parameters.stages
        or parameters.runs is not None
        or parameters.is_auto
    ):
        return None
    return seconds_of(given) / (1 if parameters.budget is not None else max(1, tests))


def shaped(parameters: TestParameters, settings: Settings, seconds: float) -> TestParameters:
    """The parameters of a test that may take ``seconds``: how long its runs are."""
    if not isinstance(parameters, AdaptiveParameters):
        return parameters
    rate = parameters.load.request_rate
    if rate is None:
        return parameters
    if settings.compares_runs:
        if parameters.count is not None:
            return parameters
        arms = 1 + (settings.baseline_endpoint is not None)
        each = rate * _FOR_RUNS * seconds / (arms * ROUNDS)
        return replace(parameters, requests=max(FEWEST_REQUESTS, round(each)))
    if parameters.is_job or parameters.count is not None:
        return parameters
    within = max(FEWEST_REQUESTS, round(rate * _FOR_RUNS * seconds))
    looked_at = replace(parameters, requests="auto", max_requests=within, max_seconds=_FOR_RUNS * seconds)
    return replace(parameters, requests=within) if looked_at.contradictions() else looked_at


class Detectable(NamedTuple):
    """The worsening that a test is expected to find in 90 of 100 sessions."""

    metric: str
    share: float
    assumed: bool
    """Whether the noise is assumed, since none is saved."""


def detectable(
    limits: Sequence[RegressionLimit],
    spreads: Mapping[str, SavedSpread],
    rounds: int,
    requests: int | None = None,
) -> list[Detectable]:
    """For each compared metric the smallest worsening, its margin included, that ``rounds`` pairs find with
    power 0.9. ``requests``: how many a run has of which its percentiles are a sample."""
    found = []
    for limit in limits:
        saved, q = spreads.get(limit.metric), PERCENTILES.get(limit.metric.rpartition(".")[2])
        if saved is not None:
            noise, freedom = max(saved.deviation, _LEAST_NOISE), saved.count - 1.0
        else:
            noise, freedom = _USUAL_NOISE, math.inf
            if requests is not None and q is not None and q >= _TAIL:
                beyond_it = max(1.0, requests * (1 - q / 100))
                noise = max(noise, 0.5 / math.sqrt(beyond_it))
        error = noise * math.sqrt(2.0 / rounds)
        ratio = LogRatio(0.0, error, rounds - 1.0, 1 - ALPHA, "", noise_freedom=min(freedom, 1e6))
        beyond = ratio.found_with(0.9)
        if beyond is not None and better_of(limit.metric) is not None:
            found.append(
                Detectable(limit.metric, math.expm1(math.log1p(limit.margin) + beyond), saved is None)
            )
    return found


def announcement(request: MeasurementRequest, limits: Sequence[RegressionLimit]) -> Note:
    """What a test will do with its time; ``limits``: those of its comparison in this session."""
    time = rough_duration(request.budget_s or 0.0)
    if not limits:
        return Note.of("budget_of_limits", time=time)
    found = detectable(limits, request.setting.spreads, ROUNDS, _run_requests(request.parameters))
    told = tuple(
        Note.of("not_decided_in_time", metric=each.metric)
        if each.share > _USELESS
        else Note.of("worsening_of", share=Amount(each.share, "ratio"), metric=each.metric)
        for each in found
    )
    assumed = Amount(_USUAL_NOISE, "ratio") if any(each.assumed for each in found) else None
    return Note.of("budget_of_changes", time=time, found=told, assumed=assumed)


def _run_requests(parameters: TestParameters) -> int | None:
    """The requests of a run that is a sample of its load; None for a job, which is exact."""
    return None if parameters.is_job or not isinstance(parameters, AdaptiveParameters) else parameters.count


@dataclass
class Spending:
    """Spends the time of a test on rounds of its arms, and looks after each whether all is decided."""

    seconds: float
    arms: Sequence[str]
    runs_of: Callable[[str, Observation], Mapping[str, float | None]]
    """The figures of one run of an arm."""
    limits: Sequence[RegressionLimit] = ()
    spent_s: float = 0.0
    level: float = 1 - ALPHA
    """The level at which comparisons are judged: that of the last look."""
    promised: Mapping[str, float] = field(default_factory=dict)
    """Metric → the worsening that is to be found; a share."""
    ended: str | None = None
    """Why no further run was wanted; None while they are."""
    figures: dict[str, list[Mapping[str, float | None]]] = field(default_factory=lambda: defaultdict(list))
    _before_s: float | None = None

    @property
    def rounds(self) -> int:
        """The rounds that every arm has had."""
        return min(len(self.figures[arm]) for arm in self.arms)

    @property
    def most(self) -> int:
        """The rounds that fit, by how long those until now took."""
        if self._before_s is None or not self.rounds:
            return MOST_ROUNDS
        each = (self.spent_s - self._before_s) / self.rounds
        there = (self.seconds - self._before_s) / each if each > 0 else MOST_ROUNDS
        return min(MOST_ROUNDS, max(FEWEST_RUNS, self.rounds, math.floor(there)))

    def declines(self, arm: str, plan: LoadPlan) -> str | None:
        """Why a load is not wanted any more; None while it is. A round that has begun is finished."""
        if plan.phase is not Phase.MEASURE or plan.attempt > 1:
            return None
        if self._before_s is None:
            self._before_s = self.spent_s
        begun = any(len(self.figures[other]) > len(self.figures[arm]) for other in self.arms)
        if begun or self.rounds < FEWEST_RUNS:
            return None
        if self.ended is None and self._is_decided():
            self.ended = DECIDED
        if self.ended is None and self.rounds >= self.most:
            self.ended, self.level = TIME_IS_UP, self._level(closing=True) or self.level
        return self.ended

    def note(self, arm: str, plan: LoadPlan, seen: Observation) -> None:
        """Note a load that was sent."""
        self.spent_s += seen.duration_s
        if plan.phase is Phase.MEASURE and seen.declined is None:
            if plan.attempt > 1 and self.figures[arm]:
                self.figures[arm].pop()
            self.figures[arm].append(self.runs_of(arm, seen))

    def _is_decided(self) -> bool:
        """Whether every comparison is decided at the level of this look."""
        if not self.limits or len(self.arms) != 2:
            return False
        level = self._level()
        if level is None:
            return False
        candidate, baseline = (
            {name: tuple(run.get(name) for run in self.figures[arm]) for name in self.figures[arm][0]}
            for arm in self.arms
        )
        found = comparisons(baseline, candidate, self.limits, paired=True, level=level)
        decided = [each.verdict is not ComparisonVerdict.INCONCLUSIVE for each in found if each.gated]
        if decided and all(decided):
            self.level = level
            return True
        return False

    def _level(self, *, closing: bool = False) -> float | None:
        """The level of the look at the rounds that there are; None where so early a look has none."""
        looks = planned_looks(
            self.most, 1, ALPHA, closing=self.rounds if closing else None, spending=spent_sooner
        )
        found = {look.n: 1 - 2 * look.tail for look in looks}
        return found.get(self.rounds)


def spending(
    definition: TestDefinition,
    parameters: TestParameters,
    settings_of: Mapping[str, Setting],
    limits: Sequence[RegressionLimit],
    seconds: float,
) -> Spending:
    """The spending of a test. ``settings_of``: the setting of each arm, the reported one first."""

    def figures(arm: str, seen: Observation) -> Mapping[str, float | None]:
        assert definition.result is not None
        made = definition.result(parameters, settings_of[arm], WarmupReport(), [seen])
        return {name: estimate.point for name, estimate in made.metrics.items()}

    spreads = next(iter(settings_of.values())).spreads
    requests = _run_requests(parameters)
    promised = {each.metric: each.share for each in detectable(limits, spreads, ROUNDS, requests)}
    return Spending(seconds, tuple(settings_of), figures, limits, promised=promised)
