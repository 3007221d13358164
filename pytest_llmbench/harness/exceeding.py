"""The tests that would certainly exceed a budget of the session: they are named before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_llmbench.harness.allowance import raised
from pytest_llmbench.harness.plan import Certain, Selected, certain
from pytest_llmbench.harness.settings import Settings

_LONGEST = 200_000
"""Tokens of a prompt: where so many for each request are within the budget, none is drawn to see."""
_NAMED = 5
_WIDEST = ("rate", "max_rate", "concurrency", "max_concurrency", "maximum")
"""The keywords of markers that say how far a load may go."""


def exceeding(
    tests: Selected, settings: Settings, offered: Callable[[str], Mapping[str, Any]] = lambda _: {}
) -> list[str]:
    """A line for each budget that is certainly exceeded, and for each test whose marker goes beyond the rate
    or the concurrency that is allowed. Raises SuiteError for a wrong SUT file."""
    budgets = settings.budgets
    least = certain(tests, settings, offered=offered, tokens=False)
    if sum(each.requests for each in least) * _LONGEST > budgets.tokens:
        least = certain(tests, settings, offered=offered)
    return [
        *_too_wide(tests, settings),
        *_summed("requests", least, [each.requests for each in least], budgets.requests),
        *_summed("tokens", least, [each.input_tokens for each in least], budgets.tokens),
        *_summed("seconds", least, [each.seconds for each in least], budgets.seconds),
    ]


def _summed(name: str, tests: Sequence[Certain], amounts: Sequence[float], budget: float) -> list[str]:
    total = sum(amounts)
    if total <= budget:
        return []
    rows = sorted(zip(amounts, tests, strict=True), key=lambda row: -row[0])
    named = ", ".join(f"{test.nodeid} {amount:,.0f}" for amount, test in rows[:_NAMED])
    more = f", {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    allowed = raised(name, budget, total)
    return [f"the tests send at least {total:,.0f} {name} ({named}{more}), more than {allowed}"]


def _too_wide(tests: Selected, settings: Settings) -> list[str]:
    budgets, found = settings.budgets, []
    for nodeid, _, parameters in tests:
        for keyword in _WIDEST:
            asked = getattr(parameters, keyword, None)
            name = "rate" if "rate" in keyword else "concurrency"
            most = budgets.rate if name == "rate" else budgets.concurrency
            if isinstance(asked, int | float) and asked > most:
                allowed = raised(name, most, asked)
                found.append(f"{nodeid}: {keyword}={asked:g} is more than {allowed}, or lower {keyword}")
    return found
