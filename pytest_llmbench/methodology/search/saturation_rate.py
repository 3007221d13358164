"""The saturation rate by which tests are defined ("75 % of maximum throughput"): declared, or searched
for.

The search has its defaults, so that all tests of a session that need the rate of one workload ask for the
same plans, which are measured once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.saturation import Reference
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.search.probing import lower_bound, sustainable
from pytest_llmbench.methodology.search.search import Searched, search
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.sentences import Note

DECLARED, SEARCHED = "declared by the marker (capacity_rps)", "found by this test's search"


@dataclass(frozen=True)
class SaturationRate:
    """A saturation rate, where it comes from, and what was sent to find it."""

    rps: float | None
    """The rate in requests per second; None: no tested level held."""
    source: str
    """Where it comes from, in words."""
    sequence: RequestSlice
    """The sequence that its levels were taken from; a load at a share of the rate is a part after it."""
    is_least: bool = False
    """Whether it is a lower bound, as the range of the search ended before saturation."""
    levels: tuple[Seen, ...] = ()
    notes: tuple[Note, ...] = ()
    reference: Reference = field(default_factory=Reference)
    """The TTFT of the search's lowest level, reference of the ten-fold rule."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """``load.capacity_rps`` and the other facts that the search adds about the load."""

    def percent(self, percent: float) -> float:
        """A percentage of the rate, rounded to three digits, as the rate of a plan.

        Raises ValueError if there is no saturation rate.
        """
        if self.rps is None:
            raise ValueError("there is no saturation rate for the levels")
        return float(f"{self.rps * percent / 100:.3g}")


def saturation_rate(
    setting: Setting, sequence: RequestSlice, declared_rps: float | None
) -> Procedure[SaturationRate]:
    """The declared rate, or without one the highest rate that a search finds not saturated."""
    if declared_rps is not None:
        facts: dict[str, Any] = {
            LoadFact.CAPACITY_RPS: declared_rps,
            LoadFact.CAPACITY_SOURCE: DECLARED,
            LoadFact.CAPACITY_FOUND: False,
        }
        return SaturationRate(declared_rps, DECLARED, sequence, facts=facts)
    return rate_found((yield from search(setting, sequence)), sequence)


def rate_found(found: Searched, sequence: RequestSlice) -> SaturationRate:
    """The saturation rate by the result of a search; ``sequence``: the one that the search was given."""
    bound = None if found.best is None else lower_bound(found.best, found.levels, sustainable)
    source = SEARCHED if bound is None else f"{SEARCHED}, a lower bound: {bound.words}"
    facts: dict[str, Any] = {
        LoadFact.CAPACITY_RPS: found.rate,
        LoadFact.CAPACITY_SOURCE: source,
        LoadFact.CAPACITY_FOUND: True,
        LoadFact.RATE_RANGE: found.range.as_list(),
    }
    return SaturationRate(
        rps=found.rate,
        source=source,
        is_least=bound is not None,
        sequence=found.sequence or sequence,
        levels=found.levels,
        notes=found.notes,
        reference=found.reference,
        facts=facts,
    )
