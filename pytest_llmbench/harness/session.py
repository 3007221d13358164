"""One benchmark session: opens each SUT once in each set-up of its fixture, measures tests one after another,
judges them."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import GeneratorError, LLMBenchError, StoreError, SuiteError
from pytest_llmbench.harness.allowance import Allowance, Spent
from pytest_llmbench.harness.beforehand import refuse_client, refuse_other_kind
from pytest_llmbench.harness.comparison.arms import Send, measure_arms
from pytest_llmbench.harness.comparison.planner import Baselines, ComparisonPlanner
from pytest_llmbench.harness.comparison.replication import MeasurementRequest, replication
from pytest_llmbench.harness.execution import (
    EventLog,
    Observer,
    SentBefore,
    SharedRuns,
    files_of,
    path_in,
)
from pytest_llmbench.harness.machine_lock import machine_lock
from pytest_llmbench.harness.setting import salt_of, setting_on, warmup_for, with_runs, within_budget
from pytest_llmbench.harness.settings import AUTO, Settings
from pytest_llmbench.harness.sut.declared import prices_of
from pytest_llmbench.harness.sut.open_sut import OpenSUT, open_sut
from pytest_llmbench.harness.sut.sut import SUT, SetUp
from pytest_llmbench.methodology.catalogue import SENDS_AGAIN
from pytest_llmbench.methodology.catalogue import definition as definition_of
from pytest_llmbench.methodology.parameters import TestParameters, build
from pytest_llmbench.methodology.procedure import TestDefinition, WarmupPolicy
from pytest_llmbench.model.facts import EndpointFact, Facts, Origin
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, HostLimits, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.registry import named
from pytest_llmbench.stats.spectral import choose_intervals
from pytest_llmbench.store.files import there_are_saved
from pytest_llmbench.store.records_file import not_on_disk
from pytest_llmbench.workloads.sequence import begin_loads, follow_known, forget_drawn

if TYPE_CHECKING:
    from pytest_llmbench.compare.limits import RegressionLimit
    from pytest_llmbench.harness.client import LLMClient
    from pytest_llmbench.harness.comparison.systems import Wanted
    from pytest_llmbench.harness.judging import Judge, MeasuredTest
    from pytest_llmbench.harness.sut.early_workers import EarlyWorkers

ProgressSink = Callable[[LoadPlan | None, Any], None]
"""Called with the load being sent, None before the first one, and its progress: a
:class:`~pytest_llmbench.generator.loop_thread.Progress`, or words."""


@dataclass(frozen=True)
class _Failed:
    """A SUT that could not be opened. The first test gets the whole error, the others a reference to it; a
    test that asks a second time is run again, and has it tried again."""

    error: LLMBenchError
    told: dict[str, None]
    """The tests that got it, the first one first."""


class BenchSession:
    """The state that lives as long as the pytest session. Nothing is opened before it is needed."""

    def __init__(
        self,
        settings: Settings,
        *,
        worker: str | None = None,
        sessions: int = 1,
        disclosure: Callable[[str], Mapping[str, Any]] = lambda _: {},
        variants: Callable[[str], Mapping[str, Any]] = lambda _: {},
        early: EarlyWorkers | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """``sessions``: how many sessions send side by side (pytest-xdist) and share the budgets.
        ``disclosure`` and ``variants``: return what hooks offer for an endpoint. ``early``: measuring
        processes that have been started already. ``observers``: called with the events of each load."""
        self.settings = settings
        choose_intervals(settings.intervals)
        self.on_progress: ProgressSink | None = None
        self.on_announcement: Callable[[str], None] | None = None
        """Shows a line that is about the test and not about the load that is being sent."""
        self._worker = worker
        self._disclosure = disclosure
        self._variants = variants
        given = settings.host_limits
        self._host_limits = HostLimits() if given is None else HostLimits.parse(given)
        self._early = early
        self._open: dict[tuple[int | None, str], OpenSUT | _Failed] = {}
        """(number of the set-up of the fixture, what it gave) → the system; None: the options gave it."""
        self._opened_at: Counter[tuple[str, str]] = Counter()
        """How many systems were opened at an endpoint, by role."""
        self.baselines = Baselines(settings)
        self._observers = observers
        self._planner = ComparisonPlanner(settings, worker, self._opened)
        self._shared = SharedRuns()
        self._allowance = Allowance(settings.budgets.divided(sessions))
        self._sent_before = SentBefore()
        self._times: Counter[tuple[str, str, str, str]] = Counter()
        """How often each test was measured on a SUT; more than once by a plugin for reruns, or by hand."""
        self._plan: LoadPlan | None = None
        """The load that is being sent, or was sent last; None before the first."""

    @cached_property
    def _judge(self) -> Judge:
        # The first request does not wait for what judges, which is as much as all the rest.
        from pytest_llmbench.harness.judging import Judge

        return Judge(self.settings)

    @cached_property
    def _events(self) -> EventLog | None:
        if not self.settings.events and not self._observers:
            return None
        report = self.settings.report if self.settings.events else None
        path = None if report is None else path_in(report, "events", ".jsonl.gz", self._worker)
        return EventLog(path, self._observers)

    @cached_property
    def _telemetry_file(self) -> Any:
        """What writes the readings of the machine beside the report; None without a report, or the extra."""
        report, kind = self.settings.report, named("machine", "file")
        if report is None or kind is None:
            return None
        return kind(path_in(report, "telemetry", ".jsonl", self._worker))

    def sut_from_settings(self) -> SUT:
        """The SUT of the command line. Raises SuiteError without an endpoint."""
        if self.settings.endpoint is None:
            raise SuiteError("there is no endpoint", remedy="give one with --llm-endpoint")
        return SUT(self.settings.endpoint, model=self.settings.model, api=self.settings.api)

    def default_warmup(self) -> WarmupPolicy:
        return warmup_for(self.settings.scale)

    def facts(self, sut: SUT | str, set_up: SetUp | None = None) -> Facts:
        """What is known of the system before any load. SUTError if it does not answer."""
        return self._opened(_as_sut(sut), "llm_sut", set_up=set_up).facts

    def client(self, sut: SUT | str, set_up: SetUp | None = None) -> LLMClient:
        """A client for single requests. Raises SuiteError for a replay, SUTError if the system does not
        answer."""
        opened = self._opened(_as_sut(sut), "llm_client", set_up=set_up, for_load=False)
        if not opened.over_http:
            raise SuiteError(
                "llm_client sends requests over HTTP, but there is no server",
                where=opened.endpoint,
                remedy=f"measure {opened.endpoint.replace('replay', 'sim', 1)}, the same engine over HTTP"
                if opened.virtual
                else "call it in the test itself",
            )
        refuse_client(opened.api)
        return opened.client()

    def execute(self, plan: LoadPlan, sut: SUT | str, set_up: SetUp | None = None) -> Observation:
        """Execute one plan by hand: no warm-up, no judgement, no records file."""
        opened = self._opened(_as_sut(sut), plan.label, set_up=set_up)
        with self._alone(virtual=opened.virtual):
            return self._sent(opened, plan, "")

    def measure(
        self,
        nodeid: str,
        definition: TestDefinition,
        parameters: TestParameters,
        sut: SUT | str,
        warmup: WarmupPolicy,
        limits: Sequence[RegressionLimit] = (),
        wanted: Wanted | None = None,
        tests: int = 1,
        set_up: SetUp | None = None,
    ) -> MeasuredTest:
        """Measure one test and judge it. ``limits``: what must not get worse; ``wanted``: what is compared;
        ``tests``: how many share a budget of time; ``set_up``: of the fixture that gave ``sut``.
        KeyboardInterrupt is raised again once what was measured is kept."""
        opened = self._opened(_as_sut(sut), nodeid, set_up=set_up)
        parameters = with_runs(parameters, self.settings)
        parameters, budget_s = within_budget(parameters, self.settings, tests)
        salt = self._salt(nodeid, definition, parameters, opened)
        setting = setting_on(opened, parameters, self.settings, warmup, salt)
        refuse_other_kind(definition, opened.api)
        churned = getattr(parameters, "beside", None)
        if parameters.adapters or churned is not None:
            from pytest_llmbench.harness.sut.adapters import require_adapters  # few tests have some

            require_adapters(opened, parameters.adapters or (), churned)
        if missing := definition.needs(parameters, setting):
            listed = "\n".join(f"  - {thing}" for thing in missing)
            raise SuiteError(f"cannot be measured here\n{listed}", where=definition.title)
        runs = replication(parameters, self.settings, budget_s)
        request = self._with_spreads(
            self.baselines.request(
                MeasurementRequest(
                    nodeid, definition, parameters, setting, runs, limits, budget_s, opened.virtual
                )
            )
        )
        every = (*limits, *self.baselines.limits)
        told = self._announced(request, every)
        began, before = time.monotonic(), self._allowance.spent
        planned = self._planner.arms(request, opened, warmup, wanted)
        begin_loads()
        with self._alone(virtual=planned.virtual):
            measured = measure_arms(request, planned.arms, self._sender(request), every)
        result, peers = self._planner.compared(request, planned, measured, wanted)
        result = self._told(result, opened, definition, nodeid)
        result = self.baselines.compared(request, replace(result, notes=(*told, *result.notes)))
        result = self._planner.flagged(request, result)
        judged = self._judge.judged(self._exported(result), request.parameters, peers)
        files = files_of(planned.arms[0].path, self.settings.report)
        from pytest_llmbench.harness.judging import MeasuredTest  # as late as what judges

        more = {**request.more(judged, files), "spent": self._spent_since(before, opened)}
        fails, took_s = self.settings.inconclusive == "fail", time.monotonic() - began
        kept, records = request.parameters, files.get("records_file")
        return self._judge.keep(MeasuredTest(nodeid, judged, kept, fails, records, took_s, peers, more))

    def profile(self, measured: MeasuredTest, sut: SUT | str, set_up: SetUp | None = None) -> MeasuredTest:
        """The test with a note on what became of profiling its system. KeyboardInterrupt ends it early."""
        from pytest_llmbench.harness.profiling import profile  # few ask for it

        opened = self._opened(_as_sut(sut), measured.nodeid, set_up=set_up)
        with self._alone(virtual=opened.virtual):
            found = profile(opened, measured.result, lambda plan: self._sent(opened, plan, measured.nodeid))
        start = self.settings.report or Path.cwd()
        files = [Path(os.path.relpath(path, start)).as_posix() for path in found.files]
        result = replace(measured.result, notes=(*measured.result.notes, *found.notes))
        return replace(measured, result=result, more={**measured.more, "profile_files": files})

    def _announced(self, request: MeasurementRequest, limits: Sequence[RegressionLimit]) -> tuple[Note, ...]:
        """What a test with a budget of time will find, shown before its first load; nothing without one."""
        if request.budget_s is None:
            return ()
        from pytest_llmbench.harness.comparison.budget import announcement

        note = announcement(request, limits if self.settings.baseline_endpoint is not None else ())
        if self.on_announcement is not None:
            self.on_announcement(str(note))
        return (note,)

    def _with_spreads(self, request: MeasurementRequest) -> MeasurementRequest:
        """The request with what earlier sessions saved of the noise of its load."""
        if self.settings.calibrate or not there_are_saved(self.settings.folder):
            return request
        from pytest_llmbench.harness.comparison.calibrate import with_spreads

        return with_spreads(request, self.settings)

    def _spent_since(self, before: Spent, opened: OpenSUT) -> dict[str, Any] | None:
        """What a test has sent since ``before``, and its cost where there is one price; None in virtual
        time."""
        if opened.virtual:
            return None
        spent = self._allowance.spent.since(before)
        prices = prices_of(self.settings) if len(self.settings.endpoints) < 2 else None
        if prices is None:
            return asdict(spent)
        cost = prices.of(spent.input_tokens, spent.output_tokens)
        return {**asdict(spent), "cost": cost, "currency": prices.currency}

    def _salt(
        self, nodeid: str, definition: TestDefinition, parameters: TestParameters, opened: OpenSUT
    ) -> str:
        """Equal for what may be shared, whatever the order of the tests. What answers at an address where an
        earlier set-up found a server may be that server, which has its prompts."""
        key = (nodeid, definition.name, repr(parameters), opened.endpoint)
        self._times[key] += 1
        again = f" {self._times[key]}" if self._times[key] > 1 else ""
        own = f"{nodeid}{again}" if again or parameters.fresh else ""
        sut = SUT(opened.endpoint)
        number = opened.facts.value(EndpointFact.INSTANCE)
        if number and sut.was_there_before and opened.launched is None and self.settings.prompts == AUTO:
            own = f"system {number} {own}".strip()
        return salt_of(sut, self.settings, own)

    def _told(
        self, result: TestResult, opened: OpenSUT, definition: TestDefinition, nodeid: str
    ) -> TestResult:
        """The result with what has to be reported of the SUT, of a generator that went beyond its selftest,
        and of prompts that were sent again though the test does not want that."""
        again = self._sent_before.findings(nodeid)
        if self.settings.prompts != AUTO and SUT(opened.endpoint).was_there_before:
            # A server may know prompts by a name of the user's own, also where its prefix cache is declared
            # off: what answers may be a cache of whole replies.
            option = f"--llm-prompts={self.settings.prompts}"
            again = (*again, Finding.of("prompts_of_others", option=option))
        logs = (self._events, self.__dict__.get("_telemetry_file"))
        found = [*result.findings, *(each for log in logs if log is not None for each in log.findings)]
        if opened.facts.value(EndpointFact.CERTIFICATE_CHECKED) is False:
            found.append(Finding.of("certificate_checked"))
        if opened.facts.value(EndpointFact.KEY_IN_CLEAR):
            found.append(Finding.of("key_encrypted"))
        if (proxy := opened.facts.value(EndpointFact.PROXY)) not in (None, "none"):
            found.append(Finding.of("measured_through_proxy", proxy=proxy))
        if not opened.virtual:
            from pytest_llmbench.harness.selftest.certificate import beyond, find_for

            certificate, _ = find_for(opened.base_url, self.settings)
            found += beyond(result.observations, certificate, self.settings.workers)
        found += () if definition.name in SENDS_AGAIN else again
        return replace(result, notes=(*opened.opened.notes, *result.notes), findings=tuple(found))

    def reaudit(self) -> list[dict[str, Any]]:
        """The results of this process whose compliance other results have changed since, each with its new
        compliance."""
        return self._judge.reaudit()

    def forget(self, nodeid: str) -> None:
        self._judge.forget(nodeid)

    def _sender(self, request: MeasurementRequest) -> Send:
        """A function that sends a load for a test, unless another test's observation of it can be used."""
        who, may_share = request.nodeid, not request.parameters.fresh

        def send(opened: OpenSUT, plan: LoadPlan, on_record: OnRecord | None) -> Observation:
            key, state = opened.key, opened.executor.state(plan.variant)
            known = self._shared.find(key, plan, who, state) if may_share else None
            if known is not None:
                self._plan = plan
                self._show_progress(f"shared with {known.shared_from}, nothing is sent")
                if plan.phase is Phase.MEASURE:
                    follow_known(plan.workload, (plan.seed, plan.first, len(known.records)))
                return known
            seen = self._sent(opened, plan, who, on_record)
            # Starting a variant, or bringing it into a fresh state, may have changed the state.
            self._shared.keep(key, plan, who, opened.executor.state(plan.variant), seen)
            return seen

        return send

    def _sent(
        self, opened: OpenSUT, plan: LoadPlan, who: str, on_record: OnRecord | None = None
    ) -> Observation:
        self._plan = plan
        seen = self._allowance.run(plan, partial(opened.executor.run, on_record=on_record), opened.anchor)
        self._sent_before.note((opened.server, opened.executor.state(plan.variant)), who, seen)
        # What a variant says of its filters stands over what the SUT says of its own.
        facts = opened.facts.under("guardrails") | seen.facts
        seen = replace(seen, facts=facts, host_limits=self._host_limits)
        if self._events is not None:
            self._events.load(plan, seen, who)
        if seen.telemetry is not None and self._telemetry_file is not None:
            self._telemetry_file.write(who, plan, seen)
        if seen.interrupted == INTERRUPTED_BY_CTRL_C and plan.phase is not Phase.MEASURE:
            raise KeyboardInterrupt  # nothing has been measured yet; the warm-up's records are on disk
        return seen

    def _alone(self, *, virtual: bool) -> AbstractContextManager[None]:
        """Hold off the other workers of pytest-xdist: none of them starts or loads a server meanwhile."""
        return machine_lock(None if virtual else self._worker)

    def _exported(self, result: TestResult) -> TestResult:
        """The result with the files of its request sequences, where the session is to write them."""
        if not self.settings.export_sequence or self.settings.report is None:
            return result
        from pytest_llmbench.harness.workloads.files import with_sequence_files  # few ask for it

        try:
            return with_sequence_files(result, self.settings.report)
        except StoreError as error:
            return replace(result, findings=(*result.findings, not_on_disk(error)))

    def _opened(
        self,
        sut: SUT,
        who: str,
        role: str = "",
        settings: Settings | None = None,
        *,
        set_up: SetUp | None = None,
        for_load: bool = True,
    ) -> OpenSUT:
        """The opened SUT, opened once in each set-up of its fixture, and anew when a fixture has put another
        server at its address. ``role`` keeps arms with the same endpoint apart: they share neither engines
        nor runs."""
        given = role + json.dumps(asdict(sut), sort_keys=True, default=str)
        key = (None if set_up is None else set_up.number, given)
        who = who if set_up is None else set_up.test
        found = self._open.get(key)
        if isinstance(found, _Failed) and who not in found.told:
            first_line = str(found.error).splitlines()[0]
            first = next(iter(found.told))
            found.told[who] = None
            raise type(found.error)(f"{first_line} (see the first error, at {first})")
        if isinstance(found, OpenSUT):
            if found.is_served:
                return found
            self._close([key])
        self._plan = None  # what is told meanwhile is about the SUT, not about the load before
        try:
            with self._alone(virtual=sut.is_replay):
                opened = open_sut(
                    sut,
                    settings or self.settings,
                    on_progress=self._show_progress,
                    disclosed=self._disclosure(sut.endpoint),
                    variants=self._variants(sut.endpoint),
                    early=self._early,
                    for_load=for_load,
                )
        except LLMBenchError as error:
            self._open[key] = _Failed(error, {who: None})
            raise
        self._opened_at[role, opened.endpoint] += 1
        number = self._opened_at[role, opened.endpoint]
        told = Facts.of(Origin.GENERATOR, {EndpointFact.INSTANCE: number} if number > 1 else {})
        self._open[key] = opened = replace(opened, key=f"{given} {number}", facts=opened.facts | told)
        return opened

    def _show_progress(self, progress: Any) -> None:
        if self.on_progress is not None:
            self.on_progress(self._plan, progress)

    def close(self) -> None:
        """Close every connection and stop every engine; the first failure is raised after all were tried."""
        forget_drawn()  # reports come next, and need the memory more
        if self._events is not None:
            self._events.end()
        choose_intervals("analytic")
        self._close([*self._open])

    def close_set_up(self, number: int) -> None:
        """Close what was opened of a set-up of the fixture, which is about to be torn down: its server still
        answers."""
        self._close([key for key in self._open if key[0] == number])

    def _close(self, keys: Sequence[tuple[int | None, str]]) -> None:
        failures: list[Exception] = []
        for opened in [self._open.pop(key) for key in keys]:
            if isinstance(opened, OpenSUT):
                self._shared.forget(opened.key)
                try:
                    opened.close()
                except Exception as error:  # noqa: BLE001  # the others have to be closed all the same
                    failures.append(error)
        if failures:
            raise GeneratorError(f"closing failed: {failures[0]}") from failures[0]


class Bench:
    """Runs plans and whole tests on one SUT. The generator has its own thread and loop, so the synchronous
    and the asynchronous methods work whether or not the caller has a loop running."""

    def __init__(
        self,
        session: BenchSession,
        sut: SUT | str,
        warmup: WarmupPolicy,
        on_missing: Callable[[str], None] = lambda _: None,
        set_up: SetUp | None = None,
    ) -> None:
        """``on_missing`` is called with the reason when somebody reads a number that a result does not
        have. ``set_up``: of the fixture that gave ``sut``."""
        self._session = session
        self._set_up = set_up
        self._on_missing = on_missing
        self.sut = _as_sut(sut)
        self.warmup = warmup

    def run(self, plan: LoadPlan) -> Observation:
        """Send one plan and return the observation. Nothing is judged."""
        return self._session.execute(plan, self.sut, self._set_up)

    async def run_async(self, plan: LoadPlan) -> Observation:
        """:meth:`run` without blocking the caller's loop."""
        from asyncio import to_thread  # few measure by hand

        return await to_thread(self.run, plan)

    def measure(self, test: str = "ttft", **parameters: Any) -> TestResult:
        """Measure a whole test with the keywords of its marker: warm-up, load, statistics, judgements."""
        chosen = definition_of(test, where="llm_bench.measure")
        built: TestParameters = build(chosen.parameters, parameters, where=f"llm_bench.measure({test!r})")
        measured = self._session.measure(
            f"llm_bench::{test}", chosen, built, self.sut, self.warmup, set_up=self._set_up
        )
        return measured.result.read_by(self._on_missing)

    async def measure_async(self, test: str = "ttft", **parameters: Any) -> TestResult:
        """:meth:`measure` without blocking the caller's loop."""
        from asyncio import to_thread

        return await to_thread(lambda: self.measure(test, **parameters))


def _as_sut(sut: SUT | str) -> SUT:
    return SUT(sut) if isinstance(sut, str) else sut
