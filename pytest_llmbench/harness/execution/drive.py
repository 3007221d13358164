"""The executor of a LoadPlan (the load generator against a server, or the embedded engine in virtual time),
and the pump of a procedure, which hands it each plan and sends the Observation back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord


class Executor(Protocol):
    """Executes plans, one at a time, and returns their observations."""

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation: ...

    def close(self) -> None: ...


class Stoppable(Executor, Protocol):
    """A load generator that can be stopped, from any thread."""

    def stop(self, reason: str) -> None: ...


class Told:
    """A load generator whose Observations carry further facts."""

    def __init__(
        self,
        inner: Stoppable,
        facts: Callable[[LoadPlan, Observation], Facts],
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """``facts`` is asked after each load, ``end`` called before the generator is closed."""
        self._inner = inner
        self._facts = facts
        self._end = end
        self.stop = inner.stop

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        seen = self._inner.run(plan, on_record)
        return replace(seen, facts=seen.facts | self._facts(plan, seen))

    def close(self) -> None:
        try:
            self._end()
        finally:
            self._inner.close()


R = TypeVar("R")


def drive(procedure: Procedure[R], execute: Callable[[LoadPlan], Observation]) -> R:
    """The procedure's result. What ``execute`` raises is thrown into the procedure, which may clean up."""
    try:
        plan = next(procedure)
        while True:
            try:
                observation = execute(plan)
            except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to the procedure's yield
                plan = procedure.throw(error)
            else:
                plan = procedure.send(observation)
    except StopIteration as stop:
        result: R = stop.value
        return result
