"""The three judgements, never mixed (valid? compliant? good enough?), and two arms compared on
one metric.

Requests within a run share its weather (queue, cache, clock speed, neighbours), so differences between builds
are judged by how much whole runs differ, never by pooled requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import Amount, number, quantity
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.sentences import Note, Parameter, sentence_of

FEWEST_SESSIONS = 3
"""Fewest earlier sessions whose spread is used; from so many on the session is the unit of replication."""

MOST_SESSIONS = 10
"""The most earlier sessions that a metric is compared with; the latest of those that count."""

Better = Literal["lower", "higher"]
Unit = Literal["run", "session"]


THIS_SESSION = "this session"
"""Name of what is compared with a saved session, or with the results of another tool."""


class ComparisonVerdict(StrEnum):
    """The verdict on a comparison, by the whole interval of the worsening [lower, upper] and the allowed
    margin m."""

    REGRESSED = "regressed"
    """lower > m."""
    UNCONFIRMED = "unconfirmed"
    """lower > m, and in fewer of the latest sessions than was asked for (``--llm-compare-confirm``)."""
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
    """One metric of a candidate compared with a baseline, by runs or by sessions."""

    metric: str
    """Full name of the metric, such as ``ttft.p99``."""
    unit: str
    better: Better
    baseline_name: str
    candidate_name: str
    baseline: tuple[float, ...]
    """The value of the metric in each run, in order; runs in which it is undefined are left out. By session:
    the geometric mean over the runs of each."""
    candidate: tuple[float, ...]
    paired: bool
    """Whether run i of both arms was measured side by side, so that a drift cancels out of their ratio; or of
    requests with the same lengths, so that these do."""
    change: Estimate
    """exp(mean log(candidate / baseline)) - 1 with its interval; a share, unit ``1``: 0.05 is 5 % more."""
    margin: float
    """The worsening that is allowed; a share, at least 0."""
    mde: float | None
    """Minimum detectable effect: the worsening beyond the margin that so many runs with this noise would call
    regressed four times out of five; a share. None (in JSON ``null``) where the noise cannot be told."""
    verdict: ComparisonVerdict
    reason: str
    """The reason for the verdict in words; if it is inconclusive, what would decide it."""
    gated: bool = False
    """Whether a marker or an option asked for it: only then does it decide about the test's outcome."""
    unit_of_replication: Unit = "run"
    """``run``: the interval knows the noise between runs, and takes days to be alike. ``session``: it knows
    that between sessions."""


class ValidityVerdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"


class ComplianceVerdict(StrEnum):
    UNCONDITIONAL = "unconditional"
    CONDITIONAL = "conditional"
    NOT_COMPLIANT = "not_compliant"


@dataclass(frozen=True, slots=True)
class Overload:
    """A system that was offered more than it serves, so that its queue grew throughout, or had yet to begin
    where fewer requests came than fill its slots."""

    offered_rps: float
    """Requests per second of the schedule."""
    served_rps: float
    """Requests per second that were served while requests waited; that are with all slots at work."""
    wait_growth: float
    """Seconds by which a request waited longer than one that was sent a second before; 0 where the run ended
    before the queue began."""
    given_up: int
    """Number of requests that did not end well."""
    unbounded: tuple[str, ...]
    """Names of the families and metrics that grow with the length of the run (those of goodput fall), and
    thus keep no limit."""

    def __str__(self) -> str:
        rates = f"{quantity(self.offered_rps, 'req/s')} offered, {number(self.served_rps)} served"
        if not self.wait_growth:
            return f"{rates} with all slots busy: in a longer run the queue keeps growing"
        return f"{rates}, the queue grew throughout"

    def breaks(self, objective: Objective) -> bool:
        """Whether the limit cannot be kept: a ceiling on a latency with a wait in it, a floor of goodput."""
        name = objective.metric.partition("[")[0].partition(".")[0]
        return name in self.unbounded and objective.is_ceiling == (objective.unit == "ms")


class GateVerdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Status(StrEnum):
    """The status of one requirement."""

    MET = "met"
    UNMET = "unmet"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one validity check: an id with parameters, whose sentence is made last."""

    check: str
    """Stable name of the check, for example ``send_lag``."""
    ok: bool
    voids: bool
    """What a result that is not ok does: True makes the run invalid, False is a warning."""
    note: Note
    """What was seen: its id is the name of the check, with the case behind a dot if there are several."""
    value: float | None = None
    limit: float | None = None
    unit: str = ""

    @classmethod
    def of(
        cls,
        identifier: str,
        ok: bool = False,
        value: float | None = None,
        limit: float | None = None,
        *,
        voids: bool | None = None,
        unit: str | None = None,
        **parameters: Parameter,
    ) -> Finding:
        """A finding of the table. ``voids``, ``unit``: other than the table has them."""
        usual = sentence_of(identifier)
        return cls(
            identifier.partition(".")[0],
            ok,
            usual.voids if voids is None else voids,
            Note.of(identifier, **parameters),
            value,
            limit,
            usual.unit if unit is None else unit,
        )

    @property
    def message(self) -> str:
        """What was seen, against which limit, and what to do if it is not ok."""
        own = {"value": Amount(self.value, self.unit), "limit": Amount(self.limit, self.unit)}
        return self.note.text(self.ok, **own)


@dataclass(frozen=True, slots=True)
class Validity:
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> ValidityVerdict:
        voided = any(finding.voids and not finding.ok for finding in self.findings)
        return ValidityVerdict.INVALID if voided else ValidityVerdict.VALID

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the run is void; empty for a valid run."""
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
    """The values that were examined."""
    effect: str = "none"
    """Effect on the verdict if the entry is not met: ``blocks``, ``downgrades`` or ``none``."""
    statement: str = ""


def class_of(unmet: Iterable[str]) -> ComplianceVerdict:
    """The class of a run. ``unmet``: the effects of its unmet requirements."""
    effects = set(unmet)
    if "blocks" in effects:
        return ComplianceVerdict.NOT_COMPLIANT
    return ComplianceVerdict.CONDITIONAL if "downgrades" in effects else ComplianceVerdict.UNCONDITIONAL


@dataclass(frozen=True, slots=True)
class Compliance:
    verdict: ComplianceVerdict
    """The verdict by policy ``strict``: a violated constraint that defines the test blocks too (AMB-25)."""
    verdict_literal: ComplianceVerdict
    """The verdict by policy ``literal``: only capitalised keywords count."""
    draft: str
    requirements: tuple[RequirementStatus, ...]
    simulated: bool = False
    """Whether nothing was sent, because the embedded engine ran in virtual time. The class is then that of a
    simulation."""

    def keeping_from(self, verdict: ComplianceVerdict) -> tuple[RequirementStatus, ...]:
        """The unmet entries that keep this run from ``verdict``."""
        effects = {"blocks"} if verdict is ComplianceVerdict.CONDITIONAL else {"blocks", "downgrades"}
        if verdict is ComplianceVerdict.NOT_COMPLIANT:
            return ()
        return tuple(r for r in self.requirements if r.status is Status.UNMET and r.effect in effects)


@dataclass(frozen=True, slots=True)
class Advice:
    """How much in all would decide a limit that is undecided. Its text is the sentence of every report."""

    unit: str
    """The unit of what is counted: ``requests``, ``sessions``, ``pairs``, ``runs``, or ``s of load``."""
    now: int
    """How many there were."""
    total: int
    """How many in all would decide, in four of five sessions at least."""
    setting: str | None = None
    """The keyword of the marker, or the option, that gets as many: ``requests=2400``. None where nothing
    does."""
    more_than: bool = False
    """Whether ``total`` is the most that is ever advised, and is not known to decide either."""

    @property
    def further(self) -> int:
        return self.total - self.now

    def __str__(self) -> str:
        after = f"undecided after {self.now:,} {self.unit if self.now != 1 else self.unit.removesuffix('s')}"
        if self.more_than:
            return f"{after}: it may take more than {self.total:,} {self.unit} in all"
        by = "" if self.setting is None else f" ({self.setting})"
        return f"{after}: about {self.total:,} {self.unit} in all would decide this limit{by}"


@dataclass(frozen=True, slots=True)
class JudgedObjective:
    """One limit, judged on the whole interval of its metric."""

    objective: Objective
    point: float | None
    lower: float | None
    upper: float | None
    n: int
    verdict: GateVerdict
    reason: str
    """The reason for the verdict in words; of an undecided limit the advice, where there is one."""
    growth: float | None = None
    """How many times as many samples would decide it; None where more of them do not."""
    advice: Advice | None = None
    """The same as a number of what the marker counts."""
    too_high_by: float = 0.0
    """Amount by which the measuring machine may have made the numbers too high (see :class:`Estimate`); the
    verdict counts it."""
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
    advisory: tuple[JudgedObjective, ...] = ()
    """Limits that are judged and reported, and decide nothing."""

    @property
    def verdict(self) -> GateVerdict:
        """The verdict over all limits: fail before inconclusive before pass. A test without limits passes."""
        verdicts = {judged.verdict for judged in self.objectives}
        verdicts |= {verdict_of(found) for found in self.regressions}
        for verdict in (GateVerdict.FAIL, GateVerdict.INCONCLUSIVE):
            if verdict in verdicts:
                return verdict
        return GateVerdict.PASS


def verdict_of(comparison: Comparison) -> GateVerdict:
    """The verdict of a comparison that decides: regressed fails, undecided is inconclusive, all else
    passes."""
    return _OF_COMPARISONS.get(comparison.verdict, GateVerdict.PASS)
