"""The evidence for the capacity that levels are percentages of: a figure by itself is no measurement."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.compliance.evidence_view import EvidenceView
from pytest_llmbench.compliance.tested_levels import Tested, tested
from pytest_llmbench.model.facts import WorkloadFact
from pytest_llmbench.model.result import PROBE, TestResult

_SAME_RATE = 0.01
"""Largest relative difference of equal rates: rates of plans have three digits."""
MOST_BESIDE = 0.10
"""Largest relative difference of a stated capacity from the one that a throughput test of the report
found."""
WIDEST_BRACKET = 0.10
"""Largest distance between a load that holds and the next one that does not, as a share of the latter: the
draft's levels lie as far apart (sections 5.3.3 and 5.2.3.1). Of a maximum in a wider bracket nobody knows
where it is."""
SATURATES_FROM, SATURATES_TO = 80.0, 130.0
"""Percentages of a capacity between which a sweep beyond it begins to saturate, if it is one."""


def is_narrow(holds: float, fails: float, load_model: str = "open") -> bool:
    """Whether a maximum between these loads is found; of requests in flight neighbours are close enough."""
    widest = (WIDEST_BRACKET + _SAME_RATE) * fails
    return fails - holds <= (max(widest, 1.0) if load_model == "closed" else widest)


def measurement_behind(view: EvidenceView, rate: float) -> str | None:
    """The measurement that shows ``rate`` to be the capacity; None where there is none.

    A search of this test, with a saturated level close above; or a throughput test of the report on the same
    system with the same workload, with such a one.
    """
    if _found_by_search(view, rate):
        return "found by this test's search"
    name = view.need(WorkloadFact.NAME)
    rates = [
        found
        for sibling in view.evidence.others("throughput")
        if sibling.facts.value(WorkloadFact.NAME) == name
        for found in _sustainable(sibling)
    ]
    view.note("throughput_tests_rps", rates)
    if any(abs(found - rate) <= MOST_BESIDE * found for found in rates):
        return "as the throughput test of this report found"
    return None


def _found_by_search(view: EvidenceView, rate: float) -> bool:
    """Whether a tested level at that rate held, and one above it, on the same variant, did not."""
    if not any(level.role == PROBE for level in view.result.levels):
        return False
    probes = tested(view, PROBE)
    held = [
        one for one in probes if one.level.saturated is False and abs(one.value - rate) <= _SAME_RATE * rate
    ]
    return any(
        other.level.saturated is True
        and other.value > one.value
        and is_narrow(one.value, other.value, one.level.load_model)
        for one in held
        for other in probes
        if other.run.plan.variant == one.run.plan.variant
    )


def _sustainable(result: TestResult) -> list[float]:
    found = result.metrics.get("sustainable_rate")
    if found is None or found.point is None or found.upper is None:
        return []
    return [found.point] if is_narrow(found.point, found.upper) else []


def confirmed_by_sweep(levels: Sequence[Tested]) -> bool:
    """Whether levels up to and beyond the capacity saturate near it, not far below it and not far above."""
    saturated = [one.level.percent_of_capacity for one in levels if one.level.saturated]
    first = min((percent for percent in saturated if percent is not None), default=None)
    return first is not None and SATURATES_FROM <= first <= SATURATES_TO
