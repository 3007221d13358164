"""The pump: plans out, observations in, exceptions into the procedure."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_llmbench.harness.execution import drive


def echo(count: int) -> Generator[Any, Any, list[Any]]:
    seen = []
    for i in range(count):
        seen.append((yield i))
    return seen


def test_every_plan_is_answered_in_order() -> None:
    assert drive(echo(3), lambda plan: plan * 10) == [0, 10, 20]  # type: ignore[arg-type, operator, return-value]


def test_a_procedure_may_do_without_any_plan() -> None:
    assert drive(echo(0), lambda plan: plan) == []  # type: ignore[arg-type, return-value]


def test_what_fails_is_thrown_into_the_procedure() -> None:
    cleaned = []

    def procedure() -> Generator[Any, Any, str]:
        try:
            yield 1
        except ValueError as error:
            cleaned.append(str(error))
            yield 2
        return "went on"

    def execute(plan: Any) -> Any:
        if plan == 1:
            raise ValueError("no such server")
        return plan

    assert drive(procedure(), execute) == "went on"
    assert cleaned == ["no such server"]


def test_what_the_procedure_does_not_handle_comes_out() -> None:
    def execute(plan: Any) -> Any:
        raise ValueError("dead")

    with pytest.raises(ValueError, match="dead"):
        drive(echo(2), execute)
