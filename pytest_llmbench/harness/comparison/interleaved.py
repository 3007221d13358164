"""Several arms in one session, in turns: whatever drifts (a neighbour, a clock, a cache) meets all of them.

An arm is one SUT with the procedure that measures it. The arms take turns in pairs (rounds, where there are
more than two) whose order is drawn: every second one reverses the one before it, so that a steady drift
cancels out of two of them. Either the loads inside one procedure take turns (:func:`drive_together`), or
whole procedures do (:func:`drive_whole`). A single arm has every turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from pytest_llmbench.harness.execution.drive import drive
from pytest_llmbench.methodology.measuring.load_plans import derived_seed
from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import Records

R = TypeVar("R")
Execute = Callable[[str, LoadPlan], Observation]
"""Sends a plan to the arm of that name."""


def rounds(names: Sequence[str], seed: int) -> Iterator[tuple[str, ...]]:
    """The orders of the arms, without end: drawn, reversed, drawn, reversed …"""
    generator = random.Random(derived_seed(seed, "order of the arms"))
    while True:
        order = list(names)
        generator.shuffle(order)
        yield tuple(order)
        yield tuple(reversed(order))


@dataclass
class _Arm(Generic[R]):
    """A procedure that waits for the observation of ``plan``, or has its ``result``."""

    name: str
    procedure: Procedure[R]
    plan: LoadPlan | None = None
    result: R | None = None

    @property
    def is_warm(self) -> bool:
        """Whether it wants to send one of its runs."""
        return self.plan is not None and self.plan.phase is Phase.MEASURE

    @property
    def is_late(self) -> bool:
        """Whether the others wait for it: it is still warming up, or its last run was void."""
        return not self.is_warm or (self.plan is not None and self.plan.attempt > 1)

    def begin(self) -> None:
        self._advance(lambda: next(self.procedure))

    def send(self, execute: Execute) -> Observation | None:
        """One step. What ``execute`` raises is thrown into the procedure, as :func:`drive` does."""
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
        """Ctrl-C ended the other arm: whatever is still to be sent is not, and the result says so."""
        while self.plan is not None and self.plan.phase is Phase.MEASURE:
            nothing = _nothing_of(self.plan, seen)
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


def _nothing_of(plan: LoadPlan, seen: Observation) -> Observation:
    """An observation of ``plan`` in which nothing was sent, because ``seen`` was interrupted."""
    return Observation(
        plan,
        Records.concatenate([]),
        seen.ended_ns - 1,  # rates are over a duration, which must not be zero
        seen.ended_ns,
        seen.anchor,
        interrupted=seen.interrupted,
    )
