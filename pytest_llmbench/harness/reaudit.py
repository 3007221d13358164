"""The audit once more at the end, with the whole report in view (AMB-05, AMB-06).

A few clauses of a test are met by another test of the same report, which may have run later. Until then its
records are kept without their streams, so only what the other tests change is taken from the second audit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.compliance.audit import among_siblings, revised
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.harness.measured import Measured
from pytest_llmbench.model.result import TestResult


@dataclass(frozen=True)
class Reaudited:
    """The compliance that a test's entry of the report gets in place of its first one."""

    nodeid: str
    duration_s: float | None
    """The duration of the entry: it tells the attempts of one test apart."""
    compliance: Mapping[str, Any]
    """The part ``compliance`` of the entry, in plain JSON types."""

    def plain(self) -> dict[str, Any]:
        return {"nodeid": self.nodeid, "duration_s": self.duration_s, "compliance": dict(self.compliance)}


def light(measured: Measured) -> Measured:
    """The same without what takes memory: no streams, no engine readings, no plots."""
    peers = tuple(_light(peer) for peer in measured.peers)
    return replace(measured, result=_light(measured.result), peers=peers)


def _light(result: TestResult) -> TestResult:
    seen = tuple(
        replace(run, records=run.records.without_streams(), engine=None) for run in result.observations
    )
    return replace(result, observations=seen, plots=())


def reaudited(kept: Sequence[Measured]) -> list[Reaudited]:
    """The results whose compliance changes in the light of all others, each with its new compliance."""
    changed = []
    for index, measured in enumerate(kept):
        result = measured.result
        earlier = tuple(other.result for other in kept[:index])
        later = tuple(other.result for other in kept[index + 1 :])
        if not later or result.compliance is None:
            continue
        peers, systems = measured.peers, 1 + len(measured.peers)
        now = Evidence(result.test, result, siblings=earlier + later + peers, systems=systems)
        before = among_siblings(Evidence(result.test, result, siblings=earlier + peers, systems=systems))
        differing = {name: status for name, status in among_siblings(now).items() if status != before[name]}
        if differing:
            compliance = revised(result.compliance, differing, now)
            entry = replace(measured, result=replace(result, compliance=compliance)).entry("passed")
            changed.append(Reaudited(measured.nodeid, measured.duration_s, entry["compliance"]))
    return changed
