"""The three judgements of DESIGN §2.5, never mixed (valid? compliant? good enough?), and two arms compared on
one metric.

Requests within a run share its weather (queue, cache, clock speed, neighbours), so differences between builds
are judged by how much whole runs differ, never by pooled requests (DESIGN §6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.objective import Objective

FEWEST_RUNS = 3
"""The fewest runs of each arm (METHODOLOGY §12): below them nothing is compared."""

Better = Literal["lower", "higher"]


class ComparisonVerdict(StrEnum):
    """From the whole interval of the worsening [lower, upper] and the margin m that is allowed."""

    REGRESSED = "regressed"
    """lower > m."""
    IMPROVED = "improved"
    """upper < 0."""
    EQUIVALENT = "equivalent"
    """-m <= lower and upper <= m."""
    NOT_WORSE = "not_worse"
    """upper <= m, while lower < -m."""
    INCONCLUSIVE = "inconclusive"
    """The interval straddles the margin, or is open, or there is none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of a candidate against a baseline, the run being the unit of replication."""

    metric: str
    """Full name, ``ttft.p99``."""
    unit: str
    better: Better
    baseline_name: str
    candidate_name: str
    baseline: tuple[float, ...]
    """The metric in each run, in their order; runs in which it is undefined are left out."""
    candidate: tuple[float, ...]
    paired: bool
    """Run i of both were measured side by side, so what drifts drops out of their ratio."""
    change: Estimate
    """exp(mean log(candidate / baseline)) - 1 with its interval; a share, unit ``1``: 0.05 is 5 % more."""
    margin: float
    """Worsening that is allowed; a share, at least 0."""
    mde: float | None
    """Minimum detectable effect: the worsening beyond the margin that this many runs of this noise would call
    regressed four times out of five; a share. None (in JSON ``null``) where noise cannot be told."""
    verdict: ComparisonVerdict
    reason: str
    """The reason in words; for an inconclusive one what would decide it."""
    gated: bool = False
    """Whether a marker or an option asked for it: only then does it decide about the test's outcome."""


class ValidityVerdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"


class ComplianceVerdict(StrEnum):
    UNCONDITIONAL = "unconditional"
    CONDITIONAL = "conditional"
    NOT_COMPLIANT = "not_compliant"


class GateVerdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Status(StrEnum):
    """Of one requirement."""

    MET = "met"
    UNMET = "unmet"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the validity checks looked at."""

    check: str
    """Stable name of the check, for example ``send_lag``."""
    ok: bool
    voids: bool
    """True: not ok makes the run invalid. False: not ok is a warning."""
    message: str
    """What was seen, against which limit, and what to do if it is not ok."""
    value: float | None = None
    limit: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Validity:
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> ValidityVerdict:
        voided = any(finding.voids and not finding.ok for finding in self.findings)
        return ValidityVerdict.INVALID if voided else ValidityVerdict.VALID

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the run is void; empty for a valid one."""
        return tuple(finding.message for finding in self.findings if finding.voids and not finding.ok)


@dataclass(frozen=True, slots=True)
class RequirementStatus:
    """The status of one entry of the catalogue for one test."""

    id: str
    level: str
    """MUST, SHOULD, MAY or PROCEDURE."""
    status: Status
    reason: str
    evidence: Mapping[str, Any]
    """The values that were looked at."""
    effect: str = "none"
    """What an unmet entry does to the verdict: ``blocks``, ``downgrades`` or ``none``."""
    statement: str = ""


@dataclass(frozen=True, slots=True)
class Compliance:
    verdict: ComplianceVerdict
    """Policy ``strict``: a violated constraint that defines the test blocks too (AMB-25)."""
    verdict_literal: ComplianceVerdict
    """Policy ``literal``: capitalised keywords only."""
    draft: str
    requirements: tuple[RequirementStatus, ...]
    simulated: bool = False
    """Whether nothing was sent: the embedded engine ran in virtual time. The class is that of a
    simulation."""

    def keeping_from(self, verdict: ComplianceVerdict) -> tuple[RequirementStatus, ...]:
        """The unmet entries that stand between this run and ``verdict``."""
        effects = {"blocks"} if verdict is ComplianceVerdict.CONDITIONAL else {"blocks", "downgrades"}
        if verdict is ComplianceVerdict.NOT_COMPLIANT:
            return ()
        return tuple(r for r in self.requirements if r.status is Status.UNMET and r.effect in effects)


@dataclass(frozen=True, slots=True)
class JudgedObjective:
    """One limit against the whole interval of its metric."""

    objective: Objective
    point: float | None
    lower: float | None
    upper: float | None
    n: int
    verdict: GateVerdict
    reason: str
    """The reason in words, for an inconclusive one with the number of further samples needed."""
    requests_needed: int | None = None
    """Further requests after which it would be decided, as far as that can be said."""
    growth: float | None = None
    """How many times the samples that is."""
    advice: str | None = None
    """What to ask for to get them: ``requests=2400``."""
    too_high_by: float = 0.0
    """The amount by which the measuring machine may have put the numbers off (:class:`Estimate`); counted."""
    too_low_by: float = 0.0


_OF_COMPARISONS = {
    ComparisonVerdict.REGRESSED: GateVerdict.FAIL,
    ComparisonVerdict.INCONCLUSIVE: GateVerdict.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class Gate:
    objectives: tuple[JudgedObjective, ...] = ()
    regressions: tuple[Comparison, ...] = ()
    """The comparisons that decide: those that a marker or an option asked for."""

    @property
    def verdict(self) -> GateVerdict:
        """Fail before inconclusive before pass. A test without limits passes."""
        verdicts = {judged.verdict for judged in self.objectives}
        verdicts |= {verdict_of(found) for found in self.regressions}
        for verdict in (GateVerdict.FAIL, GateVerdict.INCONCLUSIVE):
            if verdict in verdicts:
                return verdict
        return GateVerdict.PASS


def verdict_of(comparison: Comparison) -> GateVerdict:
    """Regressed fails, what is not decided is inconclusive; all else passes."""
    return _OF_COMPARISONS.get(comparison.verdict, GateVerdict.PASS)
