"""Pump a procedure: hand each LoadPlan to whoever can execute it, and send the Observation back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan

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
