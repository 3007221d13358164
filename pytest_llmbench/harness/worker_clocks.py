"""Clock evidence (METHODOLOGY §8) of a load whose workers are on other machines than this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_llmbench.harness.probed import Stoppable
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan

FACT = "clock.workers"
"""Offset and error of the clock of each machine that has workers, from the generator."""


class ClockedExecutor:
    """A load generator, with what its workers' clocks add to what is known of the SUT's."""

    def __init__(self, inner: Stoppable, known: Facts) -> None:
        """``known``: where the SUT is, seen from this machine, and how the clocks of both are kept."""
        self._inner = inner
        self._known = known

    def run(self, plan: LoadPlan) -> Observation:
        seen = self._inner.run(plan)
        return replace(seen, facts=seen.facts | clock_facts(seen.facts.value(FACT, ()), self._known))

    def stop(self, reason: str) -> None:
        self._inner.stop(reason)

    def close(self) -> None:
        self._inner.close()


def clock_facts(machines: Sequence[Mapping[str, Any]], known: Facts) -> Facts:
    """Nothing, where all workers read this machine's clock.

    Else the clocks are distributed. If the SUT reads this machine's clock, the round trips to the workers are
    all the evidence that is needed; if not, their error comes on top of that between this machine and it.
    """
    errors_ms = [machine["error_ms"] for machine in machines if machine["method"] != "one clock"]
    if not errors_ms:
        return Facts()
    values: dict[str, Any] = {"clock.topology": "distributed"}
    accuracy_ms = known.value("clock.accuracy_ms")
    if known.value("clock.topology") == "single_machine":
        values |= {"clock.method": "other", "clock.accuracy_ms": max(errors_ms)}
    elif isinstance(accuracy_ms, int | float):
        values["clock.accuracy_ms"] = accuracy_ms + max(errors_ms)
    return Facts.of(Origin.MEASURED, values, "round trips to the workers")


__all__ = ["FACT", "ClockedExecutor", "clock_facts"]
