"""The compliance audit: each applicable entry of the catalogue judged from evidence, and the verdict
(section 2).

The catalogue of requirements is package data, read once. An entry binds under its ``condition``, an id of
``conditions``.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from types import MappingProxyType
from typing import Any

from pytest_llmbench.compliance import checks
from pytest_llmbench.compliance.checks.registry import Predicate, merged
from pytest_llmbench.compliance.conditions import CONDITIONS, LATENCIES, latencies_cut_off
from pytest_llmbench.compliance.evidence import BY_SIBLINGS, Evidence
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.model.judgement import Compliance, ComplianceVerdict, RequirementStatus, Status, class_of

DRAFT = "draft-gaikwad-llm-benchmarking-methodology-00"
"""The revision that is implemented (AMB-31)."""

ALL = "all"
"""Value of ``applies_to``: the entry binds each of the ten tests."""
COMPARISON = "comparison"
"""Value of ``applies_to``: the entry binds only where two or more systems are compared in one report."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One separately checkable statement of the draft, in our words. The fields are those of the file."""

    id: str
    section: str
    level: str
    """The level as worded in the draft: MUST, MUST NOT, REQUIRED, SHOULD, RECOMMENDED, MAY, or PROCEDURE for
    none."""
    counts_as: str
    """MUST, SHOULD, MAY, or ``none`` for a constraint without a capitalised keyword (AMB-24)."""
    verdict_effect: str
    """Effect on the verdict if the entry is not met: ``blocks``, ``downgrades`` or ``none``."""
    subject: str
    applies_to: tuple[str, ...]
    condition: str
    """Id of the condition under which the entry binds."""
    statement: str
    verification: str
    evidence: str
    notes: str = ""
    group: str | None = None
    """Name shared by the entries that were split from one sentence of the draft; None for all others."""

    @property
    def keyword(self) -> str:
        """MUST, SHOULD, MAY or PROCEDURE."""
        return "PROCEDURE" if self.counts_as == "none" else self.counts_as

    @property
    def is_literal(self) -> bool:
        """Whether a capitalised keyword stands behind the entry (policy ``literal``, AMB-25)."""
        return self.counts_as != "none"


@cache
def load_catalogue() -> Mapping[str, Requirement]:
    """All entries by id, in the order of the file."""
    entries = (_requirement(entry) for entry in _document()["requirements"])
    return {entry.id: entry for entry in entries}


@cache
def ambiguities() -> Mapping[str, Mapping[str, Any]]:
    """The settled ambiguities of the draft by id: sections, issue, resolution, rationale."""
    return {entry["id"]: entry for entry in _document()["ambiguities"]}


def applicable(test: str, *, systems: int = 1) -> tuple[Requirement, ...]:
    """The entries that bind ``test``, in the order of the file, whether or not their condition holds.

    Entries that bind comparisons only are among them from two ``systems`` on.
    """
    wanted = {test, ALL} | ({COMPARISON} if systems > 1 else set())
    return tuple(entry for entry in load_catalogue().values() if wanted.intersection(entry.applies_to))


@cache
def _document() -> Mapping[str, Any]:
    import yaml

    text = (
        importlib.resources.files("pytest_llmbench.compliance")
        .joinpath("requirements.yaml")
        .read_text("utf-8")
    )
    document: Mapping[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return document


def _requirement(entry: Mapping[str, Any]) -> Requirement:
    return Requirement(**{**entry, "applies_to": tuple(entry["applies_to"])})


_OF_EVERY_TEST = (
    "clock",
    "generator",
    "reporting",
    "sut",
    "warmup",
    "workload",
)
_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ttft": ("ttft",),
        "throughput": ("levels", "throughput"),
        "tradeoff": ("levels", "throughput", "tradeoff"),
        "itl": ("itl",),
        "capacity": ("capacity",),
        "fairness": ("fairness",),
        "prefix_cache": ("prefix_cache",),
        "memory_pressure": ("memory_pressure",),
        "long_context": ("long_context",),
        "guardrail": ("guardrail",),
        COMPARISON: ("comparison",),
    }
)
"""Modules of ``checks`` with the predicates of entries, by what these apply to, beside those of every test.
They are imported by the audits that ask for them."""


@cache
def predicates(*areas: str) -> Mapping[str, Predicate]:
    """Predicates by entry id, from the named modules of ``checks``, or from all of them. Derived entries are
    in ``DERIVED``."""
    wanted = areas or dict.fromkeys((*_OF_EVERY_TEST, *chain(*_OF.values())))
    modules = [import_module(f"{checks.__name__}.{area}") for area in wanted]
    return merged(*(module.check for module in modules))


def predicate_of(entry: Requirement) -> Predicate | None:
    """The predicate that judges an entry; None for a derived entry, and for one of a later catalogue."""
    for areas in (_OF_EVERY_TEST, *(_OF[name] for name in entry.applies_to if name in _OF)):
        if entry.id in predicates(*areas):
            return predicates(*areas)[entry.id]
    return None


DERIVED: Mapping[str, Callable[[Requirement], bool]] = MappingProxyType(
    {
        "M-4.2-load-generator-umbrella": lambda entry: (
            entry.section.startswith("4.2.") and entry.verdict_effect == "blocks"
        ),
        "M-4.8-account-for-safety-systems": lambda entry: entry.id.startswith("M-4.8.1-"),
    }
)
"""Entries that follow from others, by id, each with a test of which entries it sums up. Answered last."""


def audit(evidence: Evidence) -> Compliance:
    """The status of every applicable entry, in the order of the catalogue, and both verdicts."""
    entries = applicable(evidence.test, systems=evidence.systems)
    statuses = {entry.id: status_of(entry, evidence) for entry in entries if entry.id not in DERIVED}
    return _summed_up(entries, statuses, evidence)


def among_siblings(evidence: Evidence) -> dict[str, RequirementStatus]:
    """The current statuses of the entries that depend on other results of the report."""
    entries = applicable(evidence.test, systems=evidence.systems)
    return {entry.id: status_of(entry, evidence) for entry in entries if entry.id in BY_SIBLINGS}


def revised(
    compliance: Compliance, changed: Mapping[str, RequirementStatus], evidence: Evidence
) -> Compliance:
    """The compliance with some statuses changed; derived entries and verdicts are recomputed."""
    statuses = {
        status.id: changed.get(status.id, status)
        for status in compliance.requirements
        if status.id not in DERIVED
    }
    return _summed_up(applicable(evidence.test, systems=evidence.systems), statuses, evidence)


def _summed_up(
    entries: Sequence[Requirement], statuses: dict[str, RequirementStatus], evidence: Evidence
) -> Compliance:
    answered = [entry for entry in entries if entry.id not in DERIVED]
    for entry in entries:
        if entry.id in DERIVED:
            parts = [statuses[part.id] for part in answered if DERIVED[entry.id](part)]
            statuses[entry.id] = _derived(entry, parts)
    return Compliance(
        verdict=_verdict(statuses[entry.id] for entry in entries),
        verdict_literal=_verdict(statuses[entry.id] for entry in entries if entry.is_literal),
        draft=DRAFT,
        requirements=tuple(statuses[entry.id] for entry in entries),
        simulated=evidence.simulated,
    )


def status_of(entry: Requirement, evidence: Evidence) -> RequirementStatus:
    """The status of one entry that is not derived."""
    predicate, condition = predicate_of(entry), CONDITIONS.get(entry.condition)
    if predicate is None or condition is None:
        return _entered(entry, Status.UNMET, Answer(False, "no evidence: this version does not check it", {}))
    view = EvidenceView(evidence)
    try:
        if not condition(view):
            reason = f"its condition does not hold: {_document()['conditions'][entry.condition]}"
            return _entered(entry, Status.NOT_APPLICABLE, view.unmet(reason))
        cut_off = latencies_cut_off(view) if entry.id in LATENCIES else None
        answer = predicate(view) if cut_off is None else view.unmet(cut_off)
    except NoEvidenceError as missing:
        answer = view.unmet(str(missing))
    return _entered(entry, Status.MET if answer.met else Status.UNMET, answer)


def _derived(entry: Requirement, parts: list[RequirementStatus]) -> RequirementStatus:
    unmet = [part.id for part in parts if part.status is Status.UNMET]
    reason = f"unmet: {', '.join(unmet)}" if unmet else f"{len(parts)} entries, none of them unmet"
    answer = Answer(not unmet, reason, {part.id: str(part.status) for part in parts})
    return _entered(entry, Status.UNMET if unmet else Status.MET, answer)


def _entered(entry: Requirement, status: Status, answer: Answer) -> RequirementStatus:
    return RequirementStatus(
        id=entry.id,
        level=entry.keyword,
        status=status,
        reason=answer.reason,
        evidence=answer.evidence,
        effect=entry.verdict_effect,
        statement=entry.statement,
    )


def _verdict(statuses: Iterable[RequirementStatus]) -> ComplianceVerdict:
    return class_of(status.effect for status in statuses if status.status is Status.UNMET)
