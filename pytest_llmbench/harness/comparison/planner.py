"""The arms of a test, and what comes of them together: a test alone, calibrated, against a baseline, or on
several systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.arms import BASELINE, CANDIDATE, Arm, Compared, apart
from pytest_llmbench.harness.comparison.baselines import MeasurementRequest
from pytest_llmbench.harness.comparison.identity import refuse_live_answers
from pytest_llmbench.harness.comparison.replication import ArmRuns
from pytest_llmbench.harness.execution.loads import records_path
from pytest_llmbench.harness.setting import setting_on
from pytest_llmbench.harness.settings import VARIANT, Settings
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.methodology.measuring.validity import Budget
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.redaction import without_credentials

if TYPE_CHECKING:  # each way to compare is imported by the sessions that ask for it
    from pytest_llmbench.harness.comparison.calibrate import Calibrations
    from pytest_llmbench.harness.comparison.systems import Listed, Wanted


class Opens(Protocol):
    """Opens a SUT once; ``role`` keeps those apart that have the same endpoint."""

    def __call__(self, sut: SUT, who: str, role: str = "", settings: Settings | None = None) -> OpenSUT: ...


class PlannedArms(NamedTuple):
    """The arms that a test is measured on, the reported one first."""

    arms: Sequence[Arm]
    notes: tuple[str, ...] = ()
    """What was done so that none finds in a cache what another left there."""

    @property
    def virtual(self) -> bool:
        return all(arm.opened.virtual for arm in self.arms)


@dataclass(frozen=True)
class ComparisonPlanner:
    """Which arms a test has by the options of the session."""

    settings: Settings
    worker: str | None
    opens: Opens

    @property
    def calibrations(self) -> Calibrations:
        from pytest_llmbench.harness.comparison.calibrate import Calibrations

        return Calibrations(self.settings)

    @cached_property
    def systems(self) -> tuple[Listed, ...]:
        """Empty for fewer than two."""
        if len(self.settings.endpoints) < 2:
            return ()
        from pytest_llmbench.harness.comparison.systems import listed_systems

        return listed_systems(self.settings)

    def arms(
        self, request: MeasurementRequest, opened: OpenSUT, warmup: WarmupPolicy, wanted: Wanted | None
    ) -> PlannedArms:
        """The SUT itself, and what it is to be compared with. SuiteError for what cannot be compared."""
        name = self.systems[0].name if self.systems else CANDIDATE
        path = records_path(self.settings.report, request.nodeid, self.worker, self.settings.records)
        own = Arm(name, opened, request.setting, path=path)
        if self.systems:
            arms = [own, *(self._system(each, request, warmup) for each in self.systems[1:])]
        elif self.settings.baseline_endpoint is not None:
            arms = [own, self._baseline(self.settings.baseline_endpoint, own, request, warmup)]
        else:
            arms = [own]
        if wanted is not None and not self.systems and not self.settings.calibrate:
            from pytest_llmbench.harness.comparison.systems import SEVERAL

            raise SuiteError(
                "llmbench.compare needs two systems at least",
                where=request.definition.title,
                remedy=f"give {SEVERAL}",
            )
        if len(arms) > 1:
            refuse_live_answers(request.setting.workload, request.definition.title)
        prepared, said = apart(arms, request.definition)
        return PlannedArms(prepared, () if said is None else (said,))

    def _baseline(self, wanted: str, own: Arm, request: MeasurementRequest, warmup: WarmupPolicy) -> Arm:
        path = self._path(request.nodeid, BASELINE)
        if wanted.startswith(VARIANT):
            name = wanted.removeprefix(VARIANT)
            facts = own.setting.facts | own.opened.variant(name, "--llm-baseline-endpoint").facts
            return Arm(BASELINE, own.opened, replace(own.setting, facts=facts), name, path)
        sut = SUT(wanted, model=self.settings.model, api=self.settings.api)
        opened = self.opens(sut, request.nodeid, role=BASELINE)
        return Arm(BASELINE, opened, self._setting(request, opened, warmup), path=path)

    def _system(self, system: Listed, request: MeasurementRequest, warmup: WarmupPolicy) -> Arm:
        settings = self.settings.model_copy(update={"sut": system.file})
        sut = SUT(system.endpoint, model=self.settings.model, api=self.settings.api)
        opened = self.opens(sut, request.nodeid, role=system.name, settings=settings)
        setting = self._setting(request, opened, warmup)
        return Arm(system.name, opened, setting, path=self._path(request.nodeid, system.name))

    def _setting(self, request: MeasurementRequest, opened: OpenSUT, warmup: WarmupPolicy) -> Setting:
        """All arms get the same requests."""
        return setting_on(opened, request.parameters, self.settings, warmup, salt=request.setting.salt)

    def _path(self, nodeid: str, arm: str) -> Path | None:
        return records_path(self.settings.report, f"{nodeid} {arm}", self.worker, self.settings.records)

    def compared(
        self,
        request: MeasurementRequest,
        planned: PlannedArms,
        measured: Mapping[str, ArmRuns],
        wanted: Wanted | None,
    ) -> Compared:
        """The result of the first arm, compared with the others."""
        budget, runs = Budget(request.parameters.max_error_share), request.replication.runs
        if self.systems:
            from pytest_llmbench.harness.comparison.systems import Wanted, compare_systems

            return compare_systems(measured, runs, wanted or Wanted(), self.systems, planned.notes, budget)
        if self.settings.baseline_endpoint is not None:
            from pytest_llmbench.compare.limits import limits_of_option
            from pytest_llmbench.harness.comparison.ab import ab_note, against_baseline

            note = ab_note(runs, planned.arms[1], without_credentials(self.settings.baseline_endpoint))
            limits = (*request.limits, *limits_of_option(self.settings.compare_fail))
            return Compared(against_baseline(measured, limits, (note, *planned.notes), budget))
        own = measured[CANDIDATE]
        result = replace(own.result, findings=(*own.result.findings, *own.invalid(budget)))
        if self.settings.calibrate:
            virtual = planned.virtual
            result = self.calibrations.calibrated(request, result, own.by_run, virtual=virtual)
        return Compared(result)
