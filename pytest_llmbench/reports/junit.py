"""JUnit properties of a test: few keys, for dashboards that read nothing else. Values are texts, as JUnit has
it; those that are numbers read as numbers, in the units of ``report.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports import comparisons
from pytest_llmbench.reports.document import TestView


def properties(entry: Entry) -> list[tuple[str, str]]:
    """The properties of a test: the three verdicts; for each metric with a limit ``value``, ``lower``,
    ``upper``, ``unit``, ``op``, ``limit`` and ``n``; the comparisons that decide, whose changes are
    shares.

    What is undefined, and an end of an interval that is open, has no property.
    """
    test = TestView(entry)
    simulated = " (simulated)" if test.simulated else ""
    found: dict[str, str | None] = {
        "llmbench.verdict": str(entry["gate"]["verdict"]),
        "llmbench.validity": str(entry["validity"]["verdict"]),
        "llmbench.compliance": str(entry["compliance"]["verdict"]) + simulated,
    }
    if simulated:
        found["llmbench.simulated"] = "nothing was sent: virtual time"
    for objective in test.objectives:
        _add_limit(found, objective)
    for comparison in test.comparisons:
        if comparison.get("gated"):
            _add_comparison(found, comparison, test.comparisons)
    return [(name, text) for name, text in found.items() if text is not None]


def _add_limit(found: dict[str, str | None], objective: Entry) -> None:
    key = f"llmbench.{objective['metric']}"
    # Two limits on one metric, a floor and a ceiling: the second is numbered.
    earlier = sum(name.startswith(f"{key}.limit") for name in found)
    number = str(earlier + 1) if earlier else ""
    found |= {
        f"{key}.value": _number(objective["point"]),
        f"{key}.lower": _number(objective["lower"]),
        f"{key}.upper": _number(objective["upper"]),
        f"{key}.unit": str(objective["unit"]),
        f"{key}.op{number}": str(objective["op"]),
        f"{key}.limit{number}": _number(objective["limit"]),
        f"{key}.n": str(objective.get("n", 0)),
    }


def _add_comparison(found: dict[str, str | None], comparison: Entry, others: Sequence[Entry]) -> None:
    key = f"llmbench.{comparison['metric']}.regression"
    if comparisons.system_of(comparison, others):
        key += f".{comparison['candidate_name']}"
    change, sign = comparison["change"], 1 if comparison["better"] == "lower" else -1
    detectable = comparison["mde"]
    found |= {
        key: comparisons.verdict_text(comparison),
        f"{key}.change": _number(change["point"]),
        f"{key}.change.lower": _number(change["lower"]),
        f"{key}.change.upper": _number(change["upper"]),
        f"{key}.allowed": _number(sign * comparison["margin"]),
        f"{key}.detectable": None if detectable is None else _number(sign * detectable),
    }


def _number(value: float | None) -> str | None:
    """A number with six significant digits, with an exponent only where nobody writes digits; None if
    undefined."""
    if value is None or not math.isfinite(value):
        return None
    return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
