"""JUnit properties of a test: few keys, string values, for dashboards that read nothing else."""

from __future__ import annotations

from pytest_llmbench.reports import comparisons, numbers
from pytest_llmbench.reports.document import TestView
from pytest_llmbench.reports.entry import Entry
from pytest_llmbench.reports.vocabulary import shown_unit


def properties(entry: Entry) -> list[tuple[str, str]]:
    """The three verdicts, then value, limit, interval and n of each metric that has a limit, then the
    comparisons that decide."""
    found = {
        "llmbench.verdict": str(entry["gate"]["verdict"]),
        "llmbench.validity": str(entry["validity"]["verdict"]),
        "llmbench.compliance": str(entry["compliance"]["verdict"]),
    }
    if TestView(entry).simulated:
        found["llmbench.compliance"] += " (simulated)"
        found["llmbench.simulated"] = "nothing was sent: virtual time"
    for objective in TestView(entry).objectives:
        key = f"llmbench.{objective['metric']}"
        unit = shown_unit(objective["metric"], objective["unit"])
        limit = f"{objective['op']} {numbers.quantity(objective['limit'], unit)}"
        found[f"{key}.value"] = numbers.quantity(objective["point"], unit)
        # Two limits on one metric, a floor and a ceiling, share the line.
        earlier = found.get(f"{key}.limit")
        found[f"{key}.limit"] = f"{earlier} and {limit}" if earlier else limit
        found[f"{key}.interval"] = numbers.interval(objective["lower"], objective["upper"], unit)
        found[f"{key}.n"] = str(objective.get("n", 0))
    for comparison in TestView(entry).comparisons:
        if comparison.get("gated"):
            key = f"llmbench.{comparison['metric']}.regression"
            found[key] = comparisons.verdict_text(comparison)
            found[f"{key}.change"] = comparisons.change_text(comparison)
            found[f"{key}.allowed"] = comparisons.allowed_text(comparison)
            found[f"{key}.detectable"] = comparisons.detectable_text(comparison)
    return list(found.items())
