"""The figures of a result with what the measuring machine may have added to each or taken from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.methodology.measuring.offered import set_aside
from pytest_llmbench.metrics.uncertainty import (
    Leeway,
    Leeways,
    e2e_leeways,
    gap_leeways,
    is_exact,
    rate_leeway,
    request_latency_leeways,
    tpot_leeways,
    ttft_leeways,
    ttot_leeways,
)
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.result import TestResult

_FAMILIES: Mapping[str, Callable[[Sequence[Observation]], Leeways]] = {
    "ttft": ttft_leeways,
    "ttft_scheduled": ttft_leeways,
    "ttft_any": ttft_leeways,
    "tpot": tpot_leeways,
    "e2e": e2e_leeways,
    "e2e_scheduled": e2e_leeways,
    "latency": request_latency_leeways,
    "latency_scheduled": request_latency_leeways,
    "itl": gap_leeways,
    "ttfo": ttft_leeways,
    "ttot": ttot_leeways,
    "output_itl": gap_leeways,
}
"""The scheduled ones begin at an instant that is known."""
_RATES = ("req/s", "tok/s")
SERVER_INSTANTS = "C"
"""The option of ITL by which the server says when a token came."""


def with_uncertainty(result: TestResult) -> TestResult:
    """A metric of a level, ``itl[90%].p99``, rests on the load of that level; one of the test on all of them
    together, or, where they are levels, on any: the most uncertain one counts."""
    aside = set_aside(result.levels)
    runs = [run for index, run in enumerate(result.observations) if index not in aside]
    if all(map(is_exact, runs)):
        return result
    served = result.facts.value("streaming.itl_option") == SERVER_INSTANTS
    of_level: dict[str, list[_Bounds]] = {}
    levels = []
    for level in result.levels:
        if level.observation is None:
            levels.append(level)
            continue
        bounds = _Bounds([result.observations[level.observation]], served=served)
        levels.append(replace(level, metrics=_bounded(level.metrics, [bounds], {})))
        if level.observation not in aside:
            of_level.setdefault(level.label, []).append(bounds)
    every = [bounds for some in of_level.values() for bounds in some] or [_Bounds(runs, served=served)]
    return replace(result, metrics=_bounded(result.metrics, every, of_level), levels=tuple(levels))


class _Bounds:
    """The bounds for one load, or for several together; each family is worked out once."""

    def __init__(self, runs: Sequence[Observation], *, served: bool) -> None:
        self._runs = runs
        self._served = served
        self._known: dict[str, Leeways] = {}

    def of(self, name: str, estimate: Estimate) -> Leeway | None:
        if estimate.point is not None and estimate.unit in _RATES:
            return rate_leeway(self._runs, estimate.point)
        family, statistic = name.split("[")[0].split(".")[0], name.rpartition(".")[2]
        measure = _FAMILIES.get(family)
        if measure is None or (family == "itl" and self._served):
            return None
        if family not in self._known:
            self._known[family] = measure(self._runs)
        return self._known[family].get(statistic)


def _bounded(
    metrics: Mapping[str, Estimate], every: Sequence[_Bounds], of_level: Mapping[str, Sequence[_Bounds]]
) -> dict[str, Estimate]:
    return {
        name: _widened(name, estimate, of_level.get(name.partition("[")[2].rpartition("]")[0], every))
        for name, estimate in metrics.items()
    }


def _widened(name: str, estimate: Estimate, bounds: Sequence[_Bounds]) -> Estimate:
    found = [leeway for each in bounds if (leeway := each.of(name, estimate)) is not None and leeway.most > 0]
    if not found:
        return estimate
    return replace(
        estimate,
        too_high_by=max(leeway.too_high_by for leeway in found),
        too_low_by=max(leeway.too_low_by for leeway in found),
    )
