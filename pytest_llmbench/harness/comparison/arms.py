"""Arms: one test on one SUT or on several in one session, in turns, each with records of its own.

A test that repeats a load of the author's choice has one procedure per arm whose runs take turns
(:func:`drive_together`). Of the others whole procedures do (:func:`drive_whole`), each from a seed of its own
that is the same for all arms, and the first is reported: two searches on one system may end a step apart, and
runs at the loads they found would take that for a change.

Turns are pairs (rounds, where there are more than two arms) whose order is drawn: every second one reverses
the one before it, so that a steady drift cancels out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.allowance import nothing_sent
from pytest_llmbench.harness.comparison.replication import ArmRuns, MeasurementRequest, cut_short, runs_of
from pytest_llmbench.harness.execution import TestFiles, drive, recording
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.methodology.measuring.load_plans import derived_seed
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.metrics.definitions import OWN
from pytest_llmbench.metrics.server_side import cached_input
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.registry import named
from pytest_llmbench.workloads.adapted import Salted
from pytest_llmbench.workloads.stream import streamed

if TYPE_CHECKING:
    from pytest_llmbench.compare.limits import RegressionLimit
    from pytest_llmbench.harness.comparison.budget import Spending

R = TypeVar("R")
Execute = Callable[[str, LoadPlan], Observation]
"""Sends a plan to the arm with this name."""


def rounds(names: Sequence[str], seed: int) -> Iterator[tuple[str, ...]]:
    """An endless series of orders of the arms: drawn, reversed, drawn, reversed …"""
    generator = random.Random(derived_seed(seed, "order of the arms"))
    while True:
        order = list(names)
        generator.shuffle(order)
        yield tuple(order)
        yield tuple(reversed(order))


@dataclass
class _Arm(Generic[R]):
    """The procedure of one arm. It waits for the observation of ``plan``, or has its ``result``."""

    name: str
    procedure: Procedure[R]
    plan: LoadPlan | None = None
    result: R | None = None

    @property
    def is_late(self) -> bool:
        """Whether the others wait for it: it is still warming up, or its last run was void."""
        return self.plan is None or self.plan.phase is not Phase.MEASURE or self.plan.attempt > 1

    def begin(self) -> None:
        self._advance(lambda: next(self.procedure))

    def send(self, execute: Execute) -> Observation | None:
        """Execute the next load. Whatever ``execute`` raises is thrown into the procedure, as :func:`drive`
        does."""
        assert self.plan is not None
        plan = self.plan
        try:
            seen = execute(self.name, plan)
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to the procedure's yield
            thrown = error
            self._advance(lambda: self.procedure.throw(thrown))
            return None
        self._advance(lambda: self.procedure.send(seen))
        return seen

    def end(self, seen: Observation) -> None:
        """End the arm after Ctrl-C ended another: nothing more is sent, and the result says so."""
        while self.plan is not None and self.plan.phase is Phase.MEASURE:
            nothing = nothing_sent(self.plan, seen.anchor, interrupted=seen.interrupted)
            self._advance(partial(self.procedure.send, nothing))
        self.procedure.close()
        self.plan = None

    def _advance(self, step: Callable[[], LoadPlan]) -> None:
        try:
            self.plan = step()
        except StopIteration as stop:
            self.plan, self.result = None, stop.value


def in_turns(
    make: Callable[[str, int], Procedure[R]],
    names: Sequence[str],
    whole: int,
    execute: Execute,
    *,
    seed: int,
    cut: Callable[[R], object],
) -> dict[str, list[R]]:
    """The results of each arm's procedures, ``whole`` of them; where there is one, their loads take turns.

    An arm that Ctrl-C left nothing to keep is missing. See :func:`drive_whole` for ``make`` and ``cut``.
    """
    if whole > 1 or len(names) == 1:
        found = drive_whole(make, names, whole, execute, seed=seed, cut=cut)
        return {name: results for name, results in found.items() if results}
    together = drive_together({name: make(name, 0) for name in names}, execute, seed=seed)
    return {name: [result] for name, result in together.items()}


def drive_together(procedures: Mapping[str, Procedure[R]], execute: Execute, *, seed: int) -> dict[str, R]:
    """The result of each procedure; their steps take turns.

    An arm whose warm-up was shorter waits, and so does one beside another that has to measure a run again, so
    that runs stand beside runs. After Ctrl-C nothing more is sent: an arm that had nothing to keep is
    missing.
    """
    arms = [_Arm(name, procedure) for name, procedure in procedures.items()]
    by_name = {arm.name: arm for arm in arms}
    orders = rounds(list(by_name), seed)
    try:
        for arm in arms:
            arm.begin()
        while waiting := [arm for arm in arms if arm.plan is not None]:
            late = [arm for arm in waiting if arm.is_late]
            turn = [arm.name for arm in late or waiting]
            # Some that catch up do so alone: the orders are for the rounds in which all take part.
            for name in turn if len(turn) < len(arms) else next(orders):
                seen = by_name[name].send(execute)
                if seen is not None and seen.interrupted == INTERRUPTED_BY_CTRL_C:
                    for other in arms:
                        other.end(seen)
                    break
    finally:
        for arm in arms:
            arm.procedure.close()
    return {arm.name: arm.result for arm in arms if arm.result is not None}


def drive_whole(
    make: Callable[[str, int], Procedure[R]],
    names: Sequence[str],
    runs: int,
    execute: Execute,
    *,
    seed: int,
    cut: Callable[[R], object],
) -> dict[str, list[R]]:
    """The results of ``runs`` whole procedures of each arm, in rounds; ``make`` takes the arm and the number
    of the run, from 0. After Ctrl-C, or a result that is ``cut`` short, the round is left, and that result is
    the last one of its arm."""
    results: dict[str, list[R]] = {name: [] for name in names}
    ended: list[Observation] = []

    def noting(name: str, plan: LoadPlan) -> Observation:
        seen = execute(name, plan)
        if seen.interrupted == INTERRUPTED_BY_CTRL_C:
            ended.append(seen)
        return seen

    orders = rounds(names, seed)
    for number in range(runs):
        for name in next(orders):
            result = drive(make(name, number), partial(noting, name))
            results[name].append(result)
            if ended or cut(result):
                return results
    return results


CANDIDATE, BASELINE = "candidate", "baseline"
"""The names of the arms of an A/B; a test alone has the first."""

Send = Callable[[OpenSUT, LoadPlan, OnRecord | None], Observation]
"""Sends a plan to a SUT, hands its records to the callback as they are made, and returns the observation."""


Compared = tuple[TestResult, tuple[TestResult, ...]]
"""The result of the first arm, compared with the others; and the results of further systems, which the audit
looks at too."""


@dataclass(frozen=True)
class Arm:
    """One arm: the SUT, the setting, and the file for its records."""

    name: str
    opened: OpenSUT
    setting: Setting
    variant: str = ""
    """Name of the SUT's variant that the arm measures; empty for the SUT itself."""
    path: Path | None = None

    @property
    def server(self) -> tuple[str, str]:
        """A key of the server: arms with equal keys ask the same one, as far as can be told."""
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
                f"this test measures variants itself ({plan.variant}), so a variant cannot be its baseline",
                where=f"--llm-baseline-endpoint variant:{self.variant}",
                remedy="give the URL of a baseline",
            )
        return plan.with_(variant=self.variant)


def measure_arms(
    request: MeasurementRequest, arms: Sequence[Arm], send: Send, limits: Sequence[RegressionLimit] = ()
) -> dict[str, ArmRuns]:
    """The runs of each arm by its name: the arms in turns, or the one that there is. All are written to
    files. ``limits``: the comparisons that end a test within a budget of time.

    An arm without anything to keep (Ctrl-C) is missing; KeyboardInterrupt where that is the first.
    """
    test, replication, by_name = request.definition, request.replication, {arm.name: arm for arm in arms}

    def procedure(name: str, number: int) -> Procedure[TestResult]:
        setting = replication.setting(by_name[name].setting, number)
        return whole_procedure(test, replication.parameters, setting)

    spent = _spending(request, arms, limits)
    with ExitStack() as stack:
        recordings: dict[str, TestFiles] = {}
        for arm in arms:
            about = {"test": test.name, "seed": arm.setting.seed}
            about |= {"arm": arm.name} if len(arms) > 1 else {}
            writing = recording(arm.path, request.nodeid, arm.opened.anchor(), about)
            recordings[arm.name] = stack.enter_context(writing)

        def execute(name: str, plan: LoadPlan) -> Observation:
            arm, kept = by_name[name], recordings[name]
            why = None if spent is None else spent.declines(name, plan)
            if why is None:
                seen = send(arm.opened, arm.planned(plan), kept.keeps(plan))
            else:
                seen = nothing_sent(plan, arm.opened.anchor(), declined=why)
            if spent is not None:
                spent.note(name, plan, seen)
            kept.note(plan, seen)
            return seen

        found = in_turns(
            procedure, list(by_name), replication.whole, execute, seed=arms[0].setting.seed, cut=cut_short
        )
    for name, kept in recordings.items():
        setting = replication.setting(by_name[name].setting)
        kept.write_loads(test.name, replication.parameters, setting, whole=replication.whole)
    if arms[0].name not in found:
        raise KeyboardInterrupt
    runs = {
        name: runs_of([recordings[name].told(first), *rest], replication.whole)
        for name, (first, *rest) in found.items()
    }
    if spent is None:
        return runs
    return {name: replace(own, level=spent.level, promised=spent.promised) for name, own in runs.items()}


def whole_procedure(
    test: TestDefinition, parameters: TestParameters, setting: Setting
) -> Procedure[TestResult]:
    """The procedure of a test, whose result has what the machine of the system told as well, where it was
    sampled or a limit is on it."""
    result = yield from test.procedure(parameters, setting)
    sampled = any(run.telemetry is not None for run in result.observations)
    limited = (each.metric.partition("[")[0].partition(".")[0] for each in result.objectives)
    figures = named("machine", "figures") if sampled or any(name not in OWN for name in limited) else None
    return result if figures is None else figures(parameters, setting, result)


def _spending(
    request: MeasurementRequest, arms: Sequence[Arm], limits: Sequence[RegressionLimit]
) -> Spending | None:
    """What spends the time of the test; None without a budget of time."""
    if request.budget_s is None or request.replication.most_runs is None:
        return None
    from pytest_llmbench.harness.comparison.budget import spending  # few have one

    settings = {arm.name: request.replication.setting(arm.setting) for arm in arms}
    parameters = request.replication.parameters
    return spending(request.definition, parameters, settings, limits, request.budget_s)


def without_shared_cache(
    arms: Sequence[Arm], definition: TestDefinition, parameters: TestParameters
) -> tuple[list[Arm], tuple[Note, ...]]:
    """The arms, changed so that none finds in a prefix cache what another left there; and a note on what was
    done.

    Arms on one server get other words of the same lengths where there is one list of them; else prompts with
    another beginning, all of them, so that they stay alike. Not where the cache is what is tested, nor where
    the workload's own sharing would be lost with its beginnings.
    """
    shared = len({arm.server for arm in arms}) < len(arms)
    if not shared or definition.name == "prefix_cache":
        return list(arms), ()
    plans = definition.plans(parameters, arms[0].setting)
    if plans and all(plan.lengths_seed is not None for plan in plans):
        named = [(arm, f"{arm.setting.salt} arm {arm.name}".strip()) for arm in arms]
        made = [replace(arm, setting=replace(arm.setting, salt=salt)) for arm, salt in named]
        return made, (Note.of("arms_apart.own_words"),)
    specification = arms[0].setting.workload.specification()
    shares = specification.get("prefix_sharing", {}).get("fraction", 0) != 0
    exact = specification.get("input_length", {}).get("exact") is True
    # The turns of sessions begin with those before them.
    sessions = streamed(arms[0].setting.workload).unit == "session"
    whys = {"is of sessions": sessions, "shares prefixes": shares, "has prompts of exact lengths": exact}
    why = next((why for why, holds in whys.items() if holds), None)
    if why is not None:
        return list(arms), (Note.of("arms_not_apart", why=why),)
    salted = [
        replace(arm, setting=replace(arm.setting, workload=Salted(arm.setting.workload, arm.name)))
        for arm in arms
    ]
    return salted, (Note.of("arms_apart.salted"),)


def cached_share(runs: ArmRuns) -> float | None:
    """The share of the input tokens that came from a prefix cache; None where nothing tells."""
    found = cached_input([seen for seen in runs.observations if seen.plan.phase is Phase.MEASURE])
    return None if found is None else found.share
