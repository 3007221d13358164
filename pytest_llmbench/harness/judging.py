"""The judgement on the results of a session: valid, compliant, within their limits.

A few clauses of a test are met by another test of the same report, which may have run later, so there is
another audit at the end, with the whole report in view (AMB-05, AMB-06). Until then records are kept without
their streams, and only what the other tests change is taken from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.compliance.audit import among_siblings, audit, revised
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.harness.measured import Measured
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.advice import advised
from pytest_llmbench.methodology.catalogue import BEYOND_THE_DRAFT
from pytest_llmbench.methodology.measuring.validity import Budget, validity_of
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.model.result import TestResult


class Judge:
    """Judges the results of a session one after another, each in view of those before it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: list[Measured] = []

    def judged(
        self, result: TestResult, parameters: TestParameters, peers: Sequence[TestResult] = ()
    ) -> TestResult:
        """``peers``: of the other systems that it is compared with."""
        judged_validity = validity_of(result, Budget(parameters.max_error_share))
        decisive = tuple(found for found in result.comparisons if found.gated)
        limits = advised(gate(result.objectives, result.metrics), result, parameters, self._settings.scale)
        judged_gate = replace(limits, regressions=decisive)
        siblings = (*(kept.result for kept in self._kept), *peers)
        beyond = result.test in BEYOND_THE_DRAFT
        evidence = Evidence(result.test, result, siblings=siblings, systems=1 + len(peers))
        compliance = None if beyond else audit(evidence)
        return result.judged(judged_validity, compliance, judged_gate)

    def kept(
        self,
        nodeid: str,
        judged: TestResult,
        parameters: TestParameters,
        *,
        records_file: str | None,
        duration_s: float,
        peers: tuple[TestResult, ...],
        more: Mapping[str, Any],
    ) -> Measured:
        """A judged result on its way to a pytest outcome; those after it are judged in view of it."""
        fails = self._settings.inconclusive == "fail"
        measured = Measured(nodeid, judged, parameters, fails, records_file, duration_s, peers, more)
        self._kept.append(light(measured))
        return measured

    def reaudit(self) -> list[Reaudited]:
        """The compliance of every result whose clauses other results have changed since."""
        return reaudited(self._kept)


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
