"""``--llm-plan``: what the selected tests would send, how long it takes and what it costs. Sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmbench.harness.setting import setting_for, warmup_for, with_runs
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut_file import prices_of
from pytest_llmbench.methodology.parameters import LoadParameters
from pytest_llmbench.methodology.procedure import TestDefinition
from pytest_llmbench.model.plan import LoadPlan, OpenLoop


@dataclass(frozen=True)
class Budget:
    """Totals of one test, warm-up included. ``seconds`` is None for a closed loop: it depends on the SUT."""

    requests: int
    input_tokens: int
    output_tokens: int
    seconds: float | None


def plan_lines(tests: Sequence[tuple[str, TestDefinition, LoadParameters]], settings: Settings) -> list[str]:
    """Lines for the terminal: one block per test, then the total."""
    if not tests:
        return ["llmbench plan: no marked test is selected"]
    lines = [f"llmbench plan (scale {settings.scale}): nothing is sent"]
    budgets = []
    for nodeid, definition, parameters in tests:
        setting = setting_for(parameters, settings, warmup=warmup_for(settings.scale))
        plans = definition.plans(with_runs(parameters, settings), setting)
        budget = _budget(plans, setting.warmup.requests, setting.warmup.output_tokens)
        budgets.append(budget)
        lines.append(f"  {nodeid}")
        lines.append(f"    {definition.title}: {plans[0].load.describe()}, workload {plans[0].workload.name}")
        lines.append(f"    {_describe(budget)}")
    total = Budget(
        sum(budget.requests for budget in budgets),
        sum(budget.input_tokens for budget in budgets),
        sum(budget.output_tokens for budget in budgets),
        _sum([budget.seconds for budget in budgets]),
    )
    lines.append(f"  total of {len(tests)} tests: {_describe(total)}")
    return lines + _cost(total, settings)


def _budget(plans: Sequence[LoadPlan], warmup_requests: int, warmup_tokens: int) -> Budget:
    requests = [
        request
        for plan in plans
        for request in plan.workload.requests(plan.first + plan.requests, plan.seed)[plan.first :]
    ]
    inputs = sum(request.input_tokens for request in requests)
    outputs = sum(request.max_tokens for request in requests)
    count = len(requests)
    # The warm-up goes on until both amounts are reached, with requests of the same shape.
    warm = max(warmup_requests, -(-warmup_tokens * count // outputs)) if outputs else warmup_requests
    return Budget(
        requests=count + warm,
        input_tokens=inputs + warm * inputs // count,
        output_tokens=outputs + warm * outputs // count,
        seconds=_sum([_seconds(plan) for plan in plans]),
    )


def _seconds(plan: LoadPlan) -> float | None:
    return plan.requests / plan.load.rate if isinstance(plan.load, OpenLoop) else None


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _describe(budget: Budget) -> str:
    duration = (
        f"about {budget.seconds:.0f} s of measured load"
        if budget.seconds is not None
        else "duration set by the SUT (closed loop)"
    )
    return (
        f"{budget.requests:,} requests with the warm-up, {budget.input_tokens:,} input and at most "
        f"{budget.output_tokens:,} output tokens, {duration}"
    )


def _cost(total: Budget, settings: Settings) -> list[str]:
    prices = prices_of(settings)
    if prices is None:
        return []
    cost = (
        total.input_tokens * prices.input_per_million + total.output_tokens * prices.output_per_million
    ) / 1e6
    return [f"  cost at the declared prices: at most {cost:.2f} {prices.currency}"]


__all__ = ["Budget", "plan_lines"]
