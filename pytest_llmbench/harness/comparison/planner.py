"""The arms of a test and their joint result: a test alone, calibrated, against a baseline, or on several
systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.arms import BASELINE, CANDIDATE, Arm, Compared, without_shared_cache
from pytest_llmbench.harness.comparison.replication import HOW_TO_COMPARE, ArmRuns, MeasurementRequest
from pytest_llmbench.harness.execution import records_path
from pytest_llmbench.harness.setting import setting_on
from pytest_llmbench.harness.settings import BASE_MODEL, VARIANT, Settings
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.redaction import without_credentials
from pytest_llmbench.store.files import there_are_calibrations

if TYPE_CHECKING:  # each way to compare is imported by the sessions that ask for it
    from pytest_llmbench.compare.limits import RegressionLimit
    from pytest_llmbench.harness.comparison.baselines import Compares
    from pytest_llmbench.harness.comparison.systems import Listed, Wanted


Opens = Callable[[SUT, str, str, Settings | None], OpenSUT]
"""Opens a SUT once for a test; the role, the third, keeps those apart that have the same endpoint."""


class PlannedArms(NamedTuple):
    """The arms that a test is measured on, the reported one first."""

    arms: Sequence[Arm]
    notes: tuple[Note, ...] = ()
    """Notes on what was done so that no arm finds in a cache what another left there."""

    @property
    def virtual(self) -> bool:
        return all(arm.opened.virtual for arm in self.arms)


@dataclass(frozen=True)
class ComparisonPlanner:
    """Decides, by the options of the session, which arms a test has."""

    settings: Settings
    worker: str | None
    opens: Opens

    def flagged(self, request: MeasurementRequest, result: TestResult) -> TestResult:
        """The result with a warning for each limit that is tighter than the noise, where that is known."""
        if self.settings.calibrate or not there_are_calibrations(self.settings.folder):
            return result
        from pytest_llmbench.harness.comparison.calibrate import Calibrations

        return Calibrations(self.settings).flagged(request, result)

    @cached_property
    def systems(self) -> tuple[Listed, ...]:
        """The systems to compare; empty for fewer than two."""
        if len(self.settings.endpoints) < 2:
            return ()
        from pytest_llmbench.harness.comparison.systems import listed_systems

        return listed_systems(self.settings)

    def arms(
        self, request: MeasurementRequest, opened: OpenSUT, warmup: WarmupPolicy, wanted: Wanted | None
    ) -> PlannedArms:
        """The arm of the SUT itself, and those it is compared with. SuiteError for what cannot be
        compared."""
        name = self.systems[0].name if self.systems else CANDIDATE
        path = records_path(self.settings.report, request.nodeid, self.worker, self.settings.records)
        own = Arm(name, opened, request.setting, path=path)
        if self.systems:
            arms = [own]
            for system in self.systems[1:]:
                settings = self.settings.model_copy(update={"sut": system.file})
                sut = SUT(system.endpoint, model=self.settings.model, api=self.settings.api)
                other = self.opens(sut, request.nodeid, system.name, settings)
                setting = self._setting(request, other, warmup)
                arms.append(Arm(system.name, other, setting, path=self._path(request.nodeid, system.name)))
        elif self.settings.baseline_endpoint is not None:
            arms = [own, self._baseline(self.settings.baseline_endpoint, own, request, warmup)]
        else:
            arms = [own]
        if wanted is not None and not self.systems and not self.settings.calibrate:
            from pytest_llmbench.harness.comparison.systems import SEVERAL

            raise SuiteError(
                "llmbench.compare needs at least two systems",
                where=request.definition.title,
                remedy=f"give {SEVERAL}",
            )
        if len(arms) > 1:
            from pytest_llmbench.harness.comparison.identity import refuse_live_answers

            refuse_live_answers(request.setting.workload, request.definition.title)
        return PlannedArms(*without_shared_cache(arms, request.definition, request.replication.parameters))

    def _baseline(self, wanted: str, own: Arm, request: MeasurementRequest, warmup: WarmupPolicy) -> Arm:
        path = self._path(request.nodeid, BASELINE)
        if wanted == BASE_MODEL:
            from pytest_llmbench.workloads.mixture import on_base_model  # few ask for it

            if not request.parameters.adapters:
                raise SuiteError(
                    "the test names no adapters, so there is nothing to compare with the base model",
                    where=request.definition.title,
                    remedy="give the marker adapters=, or select the tests with adapters (-k)",
                )
            setting = replace(own.setting, workload=on_base_model(own.setting.workload))
            return Arm(BASELINE, own.opened, setting, path=path)
        if wanted.startswith(VARIANT):
            name = wanted.removeprefix(VARIANT)
            facts = own.setting.facts | own.opened.executor.endpoint(name, "--llm-baseline-endpoint").facts
            return Arm(BASELINE, own.opened, replace(own.setting, facts=facts), name, path)
        sut = SUT(wanted, model=self.settings.model, api=self.settings.api)
        opened = self.opens(sut, request.nodeid, BASELINE, None)
        return Arm(BASELINE, opened, self._setting(request, opened, warmup), path=path)

    def _setting(self, request: MeasurementRequest, opened: OpenSUT, warmup: WarmupPolicy) -> Setting:
        """The setting of an arm. The requests are the same for all arms."""
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
            from pytest_llmbench.harness.comparison.systems import against_baseline

            made = max((len(own) for own in measured[CANDIDATE].by_run.values()), default=runs)
            path, described = planned.arms[1].path, without_credentials(self.settings.baseline_endpoint)
            records = None if path is None else path.name
            note = Note.of("a_and_b", runs=made, baseline=described, records=records)
            limits = (*request.limits, *limits_of_option(self.settings.compare_fail))
            return against_baseline(measured, limits, (note, *planned.notes), budget), ()
        own = measured[CANDIDATE]
        result = replace(own.result, findings=(*own.result.findings, *own.invalid(budget)))
        if self.settings.calibrate:
            from pytest_llmbench.harness.comparison.calibrate import Calibrations

            result = Calibrations(self.settings).calibrated(request, result, own.by_run)
        return result, ()


class Baselines:
    """Saving and comparing in one session. Nothing is read before it is needed."""

    def __init__(self, settings: Settings, today: date | None = None) -> None:
        self._settings = settings
        self._today = today or datetime.now(UTC).date()

    @cached_property
    def limits(self) -> tuple[RegressionLimit, ...]:
        """The limits of ``--llm-compare-fail``."""
        if not self._settings.compare_fail:
            return ()
        from pytest_llmbench.compare.limits import limits_of_option

        return limits_of_option(self._settings.compare_fail)

    @cached_property
    def comparing(self) -> Compares | None:
        """What to compare with; None without ``--llm-compare``.

        Raises for every mistake in the options about baselines.
        """
        settings = self._settings
        if not settings.names_baselines:
            return None
        from pytest_llmbench.harness.comparison.baselines import comparing_by

        return comparing_by(settings, self._today)

    def require_for(self, limits: Sequence[RegressionLimit]) -> None:
        """Raise SuiteError if a test has limits on changes, and the session compares nothing and saves
        nothing."""
        settings = self._settings
        others = self.comparing, settings.save, settings.baseline_endpoint
        if limits and others == (None, None, None) and not settings.calibrate:
            guarded = ", ".join(limit.metric for limit in limits)
            raise SuiteError(f"no_regression({guarded}) has nothing to compare with", remedy=HOW_TO_COMPARE)

    def request(self, plain: MeasurementRequest) -> MeasurementRequest:
        """The measurement to make of a test, with what it is of and the runs that a comparison needs.

        Raises SuiteError, before any load is sent, for what keeps a comparison from being made.
        """
        self.require_for(plain.limits)
        asked, settings = self.comparing, self._settings
        if asked is None and not settings.saves:
            return plain
        from pytest_llmbench.harness.comparison.identity import refuse_live_answers

        if asked is not None:
            refuse_live_answers(plain.setting.workload, f"--llm-compare {asked.path}")
        request = replace(plain, identity=plain.of_what())
        if settings.baseline_endpoint is not None:
            return request
        own = plain.replication
        request = replace(request, parameters=own.parameters, setting=own.setting(plain.setting))
        if asked is not None:
            asked.refuse_early(request, self.limits)
        return request

    def compared(self, request: MeasurementRequest, result: TestResult) -> TestResult:
        """The result with its comparisons, the waivers that were needed, and notes on what else differs."""
        asked, settings = self.comparing, self._settings
        limits = (*request.limits, *self.limits)
        if asked is not None:
            return asked.compared(request, limits, result)
        if request.limits and settings.baseline_endpoint is None and not settings.calibrate:
            return replace(result, notes=(*result.notes, Note.of("nothing_saved_yet")))
        return result
