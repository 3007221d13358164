"""More than one arm for the tests of a session: a baseline beside the SUT, or further systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.ab import (
    BASELINE,
    CANDIDATE,
    VARIANT,
    Asked,
    against_baseline,
    invalid_runs,
)
from pytest_llmbench.harness.comparison.arms import Arm, measure_arms, pairs_wanted, runs_wanted
from pytest_llmbench.harness.comparison.baselines import Baselines, MeasurementRequest
from pytest_llmbench.harness.comparison.calibrate import RUNS, Calibrations
from pytest_llmbench.harness.comparison.systems import (
    SEVERAL,
    Compared,
    Listed,
    Wanted,
    compare_systems,
    listed_systems,
)
from pytest_llmbench.harness.execution.loads import records_path
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.methodology.warmup_policy import WarmupPolicy
from pytest_llmbench.model.judgement import Validity
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.redaction import without_credentials


class Opens(Protocol):
    """Opens a SUT once; ``role`` keeps those apart that have the same endpoint."""

    def __call__(self, sut: SUT, who: str, role: str = "", settings: Settings | None = None) -> OpenSUT: ...


class Answers(Protocol):
    """What came of a plan, or what another test saw of the same load."""

    def __call__(
        self, opened: OpenSUT, plan: LoadPlan, who: str, on_record: OnRecord | None, *, may_share: bool
    ) -> Observation: ...


@dataclass(frozen=True)
class ComparisonPlanner:
    """What the session lends for it."""

    settings: Settings
    worker: str | None
    opens: Opens
    answers: Answers
    setting: Callable[[TestParameters, OpenSUT, WarmupPolicy], Setting]
    valid: Callable[[TestResult, TestParameters], Validity]
    baselines: Baselines

    @property
    def calibrations(self) -> Calibrations:
        return Calibrations(self.settings)

    @cached_property
    def systems(self) -> tuple[Listed, ...]:
        """Empty for fewer than two."""
        return listed_systems(self.settings)

    def arms(
        self, order: MeasurementRequest, opened: OpenSUT, path: Path | None, warmup: WarmupPolicy
    ) -> list[Arm]:
        """The SUT itself, and what it is to be compared with."""
        if self.systems:
            own = Arm(self.systems[0].name, opened, order.setting, path=path)
            return [own, *(self._system(each, order, warmup) for each in self.systems[1:])]
        own = Arm(CANDIDATE, opened, order.setting, path=path)
        wanted = self.settings.baseline_endpoint
        return [own] if wanted is None else [own, self._baseline(wanted, own, order, warmup)]

    def _baseline(self, wanted: str, own: Arm, order: MeasurementRequest, warmup: WarmupPolicy) -> Arm:
        path = self._path(order.nodeid, BASELINE)
        if wanted.startswith(VARIANT):
            name = wanted.removeprefix(VARIANT)
            facts = own.setting.facts | own.opened.variant(name, "--llm-baseline-endpoint").facts
            return Arm(BASELINE, own.opened, replace(own.setting, facts=facts), name, path)
        sut = SUT(wanted, model=self.settings.model, api=self.settings.api)
        opened = self.opens(sut, order.nodeid, role=BASELINE)
        return Arm(BASELINE, opened, self._asked(order, opened, warmup), path=path)

    def _system(self, system: Listed, order: MeasurementRequest, warmup: WarmupPolicy) -> Arm:
        settings = self.settings.model_copy(update={"sut": system.file})
        sut = SUT(system.endpoint, model=self.settings.model, api=self.settings.api)
        opened = self.opens(sut, order.nodeid, role=system.name, settings=settings)
        setting = self._asked(order, opened, warmup)
        return Arm(system.name, opened, setting, path=self._path(order.nodeid, system.name))

    def _asked(self, order: MeasurementRequest, opened: OpenSUT, warmup: WarmupPolicy) -> Setting:
        """All arms get the same requests."""
        return replace(self.setting(order.parameters, opened, warmup), salt=order.setting.salt)

    def _path(self, nodeid: str, arm: str) -> Path | None:
        return records_path(self.settings.report, f"{nodeid} {arm}", self.worker, self.settings.records)

    def run(self, order: MeasurementRequest, arms: Sequence[Arm], wanted: Wanted | None) -> Compared:
        """The result of the first arm, compared with the others."""
        definition, parameters = order.definition, order.parameters

        def answered(opened: OpenSUT, plan: LoadPlan, on_record: OnRecord | None) -> Observation:
            return self.answers(opened, plan, order.nodeid, on_record, may_share=not parameters.fresh)

        def valid(result: TestResult) -> Validity:
            return self.valid(result, parameters)

        header = {"nodeid": order.nodeid, "test": definition.name}
        if self.settings.calibrate:
            runs = runs_wanted(parameters, self.settings.runs, RUNS)
            found = measure_arms(definition, parameters, arms, runs, answered=answered, header=header)
            own = found[CANDIDATE]
            result = replace(own.result, findings=(*own.result.findings, *invalid_runs(own, valid)))
            virtual = arms[0].opened.virtual
            return Compared(self.calibrations.calibrated(order, result, own.by_run, virtual=virtual), ())
        if self.systems:
            runs = runs_wanted(parameters, self.settings.runs)
            return compare_systems(
                definition, parameters, arms, runs, wanted or Wanted(), self.systems,
                answered=answered, header=header, valid=valid,
            )  # fmt: skip
        if len(arms) < 2 or wanted is not None:
            raise SuiteError(
                "llmbench.compare needs two systems at least",
                where=definition.title,
                remedy=f"give {SEVERAL}",
            )
        asked = Asked(
            pairs_wanted(parameters, self.settings.runs),
            (*order.limits, *self.baselines.limits),
            without_credentials(str(self.settings.baseline_endpoint)),
        )
        result = against_baseline(
            definition, parameters, (arms[0], arms[1]), asked,
            answered=answered, header=header, valid=valid,
        )  # fmt: skip
        return Compared(result, ())
