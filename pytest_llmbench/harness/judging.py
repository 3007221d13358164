"""Judges the results of a session: valid, compliant, within their limits.

A few clauses of a test are met by another test of the same report, which may have run later, so there is
another audit at the end, with the whole report in view (AMB-05, AMB-06). Until then records are kept without
their streams, and only what the other tests change is taken from it.

A judged measurement is made as the plugin needs it: verdict in words, JUnit properties, report entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.compliance.audit import among_siblings, audit, revised
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.advice import advised
from pytest_llmbench.methodology.catalogue import OF_THE_DRAFT
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.offered import set_aside
from pytest_llmbench.methodology.measuring.validity import validity_of
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import TestDefinition
from pytest_llmbench.methodology.remeasured import disturbed, host_text, of_this_machine
from pytest_llmbench.metrics.latency import adjusted_ttft
from pytest_llmbench.metrics.server_side import startup_time
from pytest_llmbench.model.judgement import (
    Comparison,
    ComplianceVerdict,
    GateVerdict,
    JudgedObjective,
    verdict_of,
)
from pytest_llmbench.model.numbers import estimate, quantity, shown_unit
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.redaction import outward, outward_value
from pytest_llmbench.reports.ci_files import properties
from pytest_llmbench.reports.comparisons import comparison_text, sentence
from pytest_llmbench.reports.document import objective_text
from pytest_llmbench.stats.failing import FEWEST, are_unanswered, is_chance
from pytest_llmbench.store.entries import entry_from_error, entry_from_result
from pytest_llmbench.store.objects import plain_object
from pytest_llmbench.store.schema import TestOutcome

_ORDER = (ComplianceVerdict.NOT_COMPLIANT, ComplianceVerdict.CONDITIONAL, ComplianceVerdict.UNCONDITIONAL)
_CLAUSES_SHOWN = 8
_NOT_KEPT = (GateVerdict.FAIL, GateVerdict.INCONCLUSIVE)


@dataclass(frozen=True)
class MeasuredTest:
    """One test's result on its way to a pytest outcome."""

    nodeid: str
    result: TestResult
    parameters: TestParameters
    inconclusive_fails: bool
    records_file: str | None = None
    duration_s: float | None = None
    peers: tuple[TestResult, ...] = ()
    """Results of the other systems that the test was compared with."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the report entry, beside those from the result."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the load; the result then has what was measured until that."""
        return any(run.interrupted == INTERRUPTED_BY_CTRL_C for run in self.result.observations)

    @property
    def gate_fails(self) -> bool:
        return self.result.gate.verdict is GateVerdict.FAIL

    @property
    def gate_is_inconclusive(self) -> bool:
        return self.result.gate.verdict is GateVerdict.INCONCLUSIVE

    def void_text(self) -> str:
        """Why the run is void, one reason per line; empty for a valid run. What this machine did is one line,
        however many checks saw it."""
        aside = set_aside(self.result.levels)  # voids nothing
        counted = [run for index, run in enumerate(self.result.observations) if index not in aside]
        late = [run for run in counted if disturbed(run)]
        void = [finding for finding in self.result.validity.findings if finding.voids and not finding.ok]
        checks = {check for run in late for check in of_this_machine(run)}
        reasons = [finding.message for finding in void if finding.check not in checks]
        if len(reasons) < len(void):
            worst = max(late, key=lambda run: (run.plan.attempt, run.selfcheck.send_lag_p99_ns or 0))
            reasons.insert(0, host_text(worst))
        return "\n".join(f"  - {reason}" for reason in reasons)

    def void_headline(self) -> str:
        """The beginning of the message about a void run; a server that was lost is named before all else."""
        lost = stopped_answering(self.result.observations)
        return f"{lost}, INVALID" if lost else "INVALID"

    def void_summary(self) -> str:
        """The headline and the first reason, for a line in pytest's summary."""
        reasons = self.void_text().removeprefix("  - ").split("\n  - ")
        return f"{self.void_headline()}: {reasons[0]}"

    def verdict_summary(self) -> str:
        """The first objective that decides, for a line in pytest's summary: ``ttft.p99 412 [398, 431] ms,
        limit <= 300 ms``."""
        shown, worse = self._not_kept()
        told = [
            f"{(metric := entry.objective.metric)} {_seen(entry)}, limit{_asked(entry).removeprefix(metric)}"
            for entry in shown
        ]
        told += [sentence(plain_object(found)) for found in worse]
        undecided = "INCONCLUSIVE " if self.gate_is_inconclusive else ""
        return f"{undecided}{told[0]}" + (f"; and {len(told) - 1} more" if len(told) > 1 else "")

    def _not_kept(self) -> tuple[list[JudgedObjective], list[Comparison]]:
        """The objectives and the comparisons that are not kept, the broken ones first."""
        judged = [(one.verdict, one) for one in self.result.gate.objectives]
        compared = [(verdict_of(one), one) for one in self.result.gate.regressions]
        return (
            [one for wanted in _NOT_KEPT for verdict, one in judged if verdict == wanted],
            [one for wanted in _NOT_KEPT for verdict, one in compared if verdict == wanted],
        )

    def verdict_text(self) -> str:
        """The objectives that are not kept, one per line, the broken ones first."""
        judged, compared = self.result.gate.objectives, self.result.gate.regressions
        shown, worse = self._not_kept()
        lines = [
            f"{entry.verdict.upper()} {_asked(entry)}: {_seen(entry)}, n={entry.n}; {entry.reason}"
            for entry in shown
        ]
        lines += [f"{found.verdict.upper()} {comparison_text(plain_object(found))}" for found in worse]
        records = [run.records for run in self.result.observations]
        if records:
            ok, of = sum(int(run.ok.sum()) for run in records), sum(int(run.judged.sum()) for run in records)
            lines += [f"completion: {ok} of {of} requests"] if ok < of else []
        count, of = len(shown) + len(worse), len(judged) + len(compared)
        named = (("objectives", judged), ("comparisons", compared))
        called = " and ".join(name for name, each in named if each) or "objectives"
        return "\n  ".join([f"{self.result.test} on {count} of {of} {called}", *lines])

    def compliance_shortfall(self) -> str | None:
        """The clauses that keep the run from the class that the marker requires; None if it reaches that
        class."""
        compliance, asked = self.result.compliance, self.parameters.compliance
        if asked is None:
            return None
        if compliance is None:
            return f"{asked} asked for, but compliance was not audited"
        wanted = ComplianceVerdict(asked)
        if _ORDER.index(compliance.verdict) >= _ORDER.index(wanted):
            return None
        missing = compliance.keeping_from(wanted)
        lines = [f"{clause.id}: {clause.reason}" for clause in missing[:_CLAUSES_SHOWN]]
        if len(missing) > _CLAUSES_SHOWN:
            lines.append(f"and {len(missing) - _CLAUSES_SHOWN} more, see the report")
        head = f"{wanted} asked for, the run is {compliance.verdict}; {len(missing)} clauses are missing"
        return "\n  ".join([head, *lines])

    @property
    def properties(self) -> list[tuple[str, str]]:
        """JUnit properties. They are added to the item before its body runs, so that every reporter sees
        them."""
        return [(outward(name), outward(text)) for name, text in properties(self._passed)]

    def entry(self, outcome: TestOutcome, error: str | None = None) -> dict[str, Any]:
        """The test's entry of ``report.json`` in plain JSON types."""
        return _clean(self._passed | {"outcome": outcome, "error": error})

    @cached_property
    def _passed(self) -> dict[str, Any]:
        """The test's entry if it passed, before secrets are taken out. Made once, as it is needed before the
        body of the test and after it."""
        return entry_from_result(
            self.result,
            nodeid=self.nodeid,
            outcome="passed",
            records_file=self.records_file,
            duration_s=self.duration_s,
            shared=any(run.shared_from is not None for run in self.result.observations),
            more=self.more,
        ).plain()


def stopped_answering(runs: Iterable[Observation]) -> str | None:
    """Time at which the server stopped answering, from the first load in which it did: ``the server stopped
    answering at 12.3 s``; None if it never did."""
    seen = tuple(runs)
    for run in seen:
        last = _last_answer_ns(run)
        if last is not None:
            of = f" of {run.plan.label}" if len(seen) > 1 else ""
            at = quantity((last - run.started_ns) / 1e9, "s")
            return f"the server stopped answering at {at}{of}"
    return None


def _last_answer_ns(run: Observation) -> int | None:
    """The instant after which all requests of a load failed as they do when nobody answers; None if there is
    none."""
    records = run.records
    if not len(records):
        return None
    answers = [records.last_content_ns, np.where(records.ok, records.finished_ns, MISSING)]
    last = max(run.started_ns, *(int(column.max()) for column in answers))
    later = records.judged & (records.dispatched_ns > last) & ~records.has_outcome(Outcome.CANCELLED)
    count = int(np.count_nonzero(later))
    unanswered = are_unanswered(records)
    if count < FEWEST or not unanswered[later].all():
        return None
    before = (records.finished_ns != MISSING) & (records.finished_ns <= last)
    if is_chance(count, int(np.count_nonzero(before)), int(np.count_nonzero(unanswered[before]))):
        return None
    return last


def _asked(judged: JudgedObjective) -> str:
    return objective_text(plain_object(judged.objective))


def _seen(judged: JudgedObjective) -> str:
    unit = shown_unit(judged.objective.metric, judged.objective.unit)
    numbers = {
        name: getattr(judged, name) for name in ("point", "lower", "upper", "n", "too_high_by", "too_low_by")
    }
    return estimate(numbers | {"unit": unit})


def unmeasured_entry(
    nodeid: str, definition: TestDefinition, outcome: TestOutcome, *, error: str
) -> dict[str, Any]:
    """The report entry of a test that ended before it had a result."""
    built = entry_from_error(
        nodeid=nodeid,
        test=definition.name,
        section=definition.section,
        title=definition.title,
        error=error,
        outcome=outcome,
    )
    return _clean(built.plain())


def _clean(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry without secrets: every terminal, file and report is made from it."""
    clean: dict[str, Any] = outward_value(entry)
    return clean


class Judge:
    """Judges the results of a session one after another, each in view of those before it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: list[MeasuredTest] = []

    def judged(
        self, result: TestResult, parameters: TestParameters, peers: Sequence[TestResult] = ()
    ) -> TestResult:
        """The result with its judgements. ``peers``: the results of the other systems that it is compared
        with."""
        of_facts = adjusted_ttft(result.metrics, result.facts) | startup_time(result.facts)
        result = replace(result, metrics={**result.metrics, **of_facts})
        usual: float = type(parameters).max_error_share  # the default of this test
        judged_validity = validity_of(result, Budget(parameters.max_error_share, usual))
        decisive = tuple(found for found in result.comparisons if found.gated)
        limits = gate(result.objectives, result.metrics, result.overload)
        limits = advised(limits, result, parameters, self._settings.scale)
        advisory = gate(parameters.advisory, result.metrics, result.overload).objectives
        judged_gate = replace(limits, regressions=decisive, advisory=advisory)
        siblings = (*(kept.result for kept in self._kept), *peers)
        beyond = result.test not in OF_THE_DRAFT
        evidence = Evidence(result.test, result, siblings=siblings, systems=1 + len(peers))
        compliance = None if beyond else audit(evidence)
        return result.judged(judged_validity, compliance, judged_gate)

    def keep(self, measured: MeasuredTest) -> MeasuredTest:
        """Keep a judged result, in view of which later ones are judged."""
        peers = tuple(map(_light, measured.peers))
        self._kept.append(replace(measured, result=_light(measured.result), peers=peers))
        return measured

    def forget(self, nodeid: str) -> None:
        """Forget an attempt that another one replaces: no clause of another test rests on it any more."""
        self._kept = [measured for measured in self._kept if measured.nodeid != nodeid]

    def reaudit(self) -> list[dict[str, Any]]:
        """Audit every result again; returns the ``compliance`` of each entry that other results have changed
        since. ``duration_s`` tells the attempts of one test apart."""
        return list(_reaudited(self._kept))


def _light(result: TestResult) -> TestResult:
    """The result without what takes up memory: streams, engine readings, plots."""
    seen = tuple(
        replace(run, records=run.records.without_streams(), engine=None, telemetry=None)
        for run in result.observations
    )
    return replace(result, observations=seen, plots=())


def _reaudited(kept: Sequence[MeasuredTest]) -> Iterator[dict[str, Any]]:
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
            yield {name: entry[name] for name in ("nodeid", "duration_s", "compliance")}
