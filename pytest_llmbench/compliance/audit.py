"""The compliance audit: each applicable entry of the catalogue judged from evidence, and the verdict (section
2).

The catalogue of requirements is package data, read once. An entry binds under its ``condition``, an id of
:data:`CONDITIONS`. Where the fact that decides is missing, the condition holds, so that silence never
takes an entry out of the verdict; except where another blocking entry demands that very fact (boundary,
load model, workload name), and where the fact is a claim that was simply not made (production,
publication, cold start).
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from pytest_llmbench.compliance import checks
from pytest_llmbench.compliance.checks.generator import measured_apart
from pytest_llmbench.compliance.checks.registry import Predicate, merged
from pytest_llmbench.compliance.checks.reporting import hardware_differs, tokenizers_differ
from pytest_llmbench.compliance.evidence import (
    BY_SIBLINGS,
    Answer,
    Evidence,
    EvidenceView,
    NoEvidenceError,
    chunk_sizes,
    first_output_before_content,
    has,
    has_first_token,
    reported,
)
from pytest_llmbench.metrics.itl import server_clock_holds
from pytest_llmbench.metrics.server_side import cold_starts
from pytest_llmbench.model.draft import FEWEST_LENGTHS
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.facts import (
    COLD_START,
    ClockFact,
    ComparisonFact,
    GuardrailFact,
    Key,
    LoadFact,
    NetworkFact,
    PublicationFact,
    StreamingFact,
    SUTFact,
    TimingFact,
    WorkloadFact,
)
from pytest_llmbench.model.judgement import Compliance, ComplianceVerdict, RequirementStatus, Status, class_of
from pytest_llmbench.model.numbers import percentage
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import MOST_FAILED_SHARE
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import Level

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
    entries = (
        Requirement(**{**entry, "applies_to": tuple(entry["applies_to"])})
        for entry in _document()["requirements"]
    )
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


_OF_EVERY_TEST = ("generator", "levels", "reporting", "sut", "workload")
_OF: Mapping[str, str] = MappingProxyType(
    {name: name for name in (
        "ttft", "throughput", "itl", "capacity", "fairness", "prefix_cache", "memory_pressure",
        "long_context", "guardrail",
    )} | {"tradeoff": "throughput"}
)  # fmt: skip
"""Modules of ``checks`` with the predicates of entries, by what these apply to, beside those of every test.
They are imported by the audits that ask for them."""


@cache
def predicates(*areas: str) -> Mapping[str, Predicate]:
    """Predicates by entry id, from the named modules of ``checks``, or from all of them. Derived entries are
    in ``DERIVED``."""
    wanted = areas or dict.fromkeys((*_OF_EVERY_TEST, *_OF.values()))
    modules = [import_module(f"{checks.__name__}.{area}") for area in wanted]
    return merged(*(module.check for module in modules))


def predicate_of(entry: Requirement) -> Predicate | None:
    """The predicate that judges an entry; None for a derived entry, and for one of a later catalogue."""
    for areas in (_OF_EVERY_TEST, *((_OF[name],) for name in entry.applies_to if name in _OF)):
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
            unmet = [part.id for part in parts if part.status is Status.UNMET]
            reason = f"unmet: {', '.join(unmet)}" if unmet else f"{len(parts)} entries, none of them unmet"
            answer = Answer(not unmet, reason, {part.id: str(part.status) for part in parts})
            statuses[entry.id] = _entered(entry, Status.UNMET if unmet else Status.MET, answer)
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


Condition = Callable[[EvidenceView], bool]

DATASET_WORKLOADS = ("conversation", "code-completion")
SIGNIFICANT_RTT_MS = 1.0
SIGNIFICANT_RTT_SHARE = 0.01
COLD_FACTOR = 3.0
"""Factor by which a cold system's first tokens are slower than later ones, at least."""
_FEWEST_COLD = 10
_ENGINE = "model_engine"


def _fact_is(key: Key[Any], value: object) -> Condition:
    return lambda view: bool(view.fact(key) == value)


def _both(*conditions: Condition) -> Condition:
    return lambda view: all(condition(view) for condition in conditions)


# The workload and its replies.


def _from_dataset(view: EvidenceView) -> bool:
    """Whether the workload draws on a data set.

    The name of a reference workload tells: Long Context draws its lengths from a list of its own.
    """
    if view.fact(WorkloadFact.NAME) in DATASET_WORKLOADS or view.fact(WorkloadFact.DATASET) is not None:
        return True
    if view.fact(WorkloadFact.STANDARD) is True:
        return False
    laws = (view.fact(WorkloadFact.INPUT_LENGTH, {}), view.fact(WorkloadFact.OUTPUT_LENGTH, {}))
    return any(law.get("type") == "empirical" for law in laws)


def _input_varies(view: EvidenceView) -> bool:
    known = view.evidence.records.input_tokens
    known = known[known != MISSING]
    if len(known):
        return bool(known.min() != known.max())
    return bool(view.fact(WorkloadFact.INPUT_LENGTH, {}).get("type") != "fixed")


def _produced(tokens: int) -> Condition:
    """The condition that some successful request may have produced ``tokens`` tokens. Without any records it
    holds."""

    def holds(view: EvidenceView) -> bool:
        records = view.evidence.records
        if not len(records):
            return True
        few_enough = (records.output_tokens != MISSING) & (records.output_tokens < tokens)
        return bool(np.any(records.ok & ~few_enough))

    return holds


def _several_tokens(view: EvidenceView) -> bool:
    """Whether a chunk of a successful reply held several tokens, or nobody knows how many."""
    sizes = chunk_sizes(view.evidence.records)
    return sizes.several > 0 or sizes.known < sizes.chunks or sizes.chunks == 0


def _client_side(view: EvidenceView) -> bool:
    return bool(view.fact(StreamingFact.ITL_OPTION) != "C")


def _server_instants(view: EvidenceView) -> bool:
    available = view.fact(StreamingFact.SERVER_TIMESTAMPS_AVAILABLE)
    if available is None:
        records = view.evidence.records
        available = len(records.server_token_ns) > 0 and server_clock_holds(records)
    return available is True and _several_tokens(view)


# Cold starts, clocks and the network.


def _seen_cold(view: EvidenceView) -> bool:
    """Whether a latency test is called a cold start and its replies show one.

    They do where the first reply was far slower than those of the second half. A run that only leaves the
    warm-up out has not measured a cold start.
    """
    if view.fact(COLD_START) is not True or view.evidence.test != "ttft":
        return False
    records = view.evidence.records
    started = records.select(has_first_token(records))
    order = np.argsort(started.submitted_ns, kind="stable")
    ttft_ns = (started.first_content_ns - started.submitted_ns)[order]
    if len(ttft_ns) < _FEWEST_COLD:
        return False
    return bool(ttft_ns[0] > COLD_FACTOR * float(np.median(ttft_ns[len(ttft_ns) // 2 :])))


def _distributed(view: EvidenceView) -> bool:
    return bool(view.fact(ClockFact.TOPOLOGY) != "single_machine") or measured_apart(view)


def _significant_network(view: EvidenceView) -> bool:
    """Whether the network matters: as declared, or else where the system is distributed and the RTT P50 is
    above 1 ms or 1 % of the TTFT P50."""
    declared = view.fact(NetworkFact.SIGNIFICANT)
    if declared is not None:
        return declared is True
    if not _distributed(view):
        return False
    rtt = view.fact(NetworkFact.RTT_MS, {}).get("p50")
    if rtt is None:
        return True
    ttft = view.result.metrics.get("ttft.p50")
    share_ms = SIGNIFICANT_RTT_SHARE * ttft.point if ttft and ttft.point is not None else SIGNIFICANT_RTT_MS
    return bool(rtt > min(SIGNIFICANT_RTT_MS, share_ms))


# Guardrails.


def _names_known(view: EvidenceView) -> bool:
    filters = (view.fact(GuardrailFact.INPUT_FILTER), view.fact(GuardrailFact.OUTPUT_FILTER))
    if filters == ("absent", "absent") and view.fact(GuardrailFact.SYSTEMS) is None:
        return False
    return bool(view.fact(GuardrailFact.SYSTEMS) != "not known")


# Levels, and what the server tells of them.


def _of_levels(holds: Callable[[tuple[Level, ...]], bool]) -> Condition:
    """The condition that the levels are so; without any of them it holds."""

    def condition(view: EvidenceView) -> bool:
        levels = tuple(level for level in view.result.levels if not level.is_burst)
        return not levels or holds(levels)

    return condition


def _has_role(role: str) -> Condition:
    return _of_levels(lambda levels: any(level.role == role for level in levels))


_open_loop_level = _of_levels(lambda levels: any(level.load_model == "open" for level in levels))


def _gauge(run: Observation, name: str) -> bool:
    return run.engine is not None and name in run.engine.gauges


def _preemptions_by_request(view: EvidenceView) -> bool:
    return bool(has(view.evidence.records.preemptions).any())


# Comparisons. Imported where they are asked for: one system has nothing to differ from.


def _gateway_inside(view: EvidenceView) -> bool:
    """Whether the boundary contains the application gateway: a compound system is one and more, and a
    boundary of one's own frees of nothing (AMB-49)."""
    return view.fact(SUTFact.BOUNDARY) not in (None, _ENGINE)


_PRODUCTION = _both(_gateway_inside, _fact_is(GuardrailFact.PRODUCTION_CLAIM, True))

CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "always": lambda _: True,
        "p999-reported": lambda view: reported(view.result, "p99_9"),
        "one-token": _produced(1),
        "two-tokens": _produced(2),
        "custom-workload": lambda view: view.fact(WorkloadFact.STANDARD) is not True,
        "dataset": _from_dataset,
        "synthetic-uniform": _fact_is(WorkloadFact.NAME, "synthetic-uniform"),
        "synthetic-skewed": _fact_is(WorkloadFact.NAME, "synthetic-skewed"),
        "conversation": _fact_is(WorkloadFact.NAME, "conversation"),
        "code-completion": _fact_is(WorkloadFact.NAME, "code-completion"),
        "long-context": _fact_is(WorkloadFact.NAME, "long-context"),
        "input-varies": _input_varies,
        "load-open": _fact_is(LoadFact.MODEL, "open"),
        "load-closed": _fact_is(LoadFact.MODEL, "closed"),
        "engine": _fact_is(SUTFact.BOUNDARY, _ENGINE),
        "gateway": _gateway_inside,
        "warm": lambda view: not _seen_cold(view),
        "cold-start": _fact_is(COLD_START, True),
        "cold-start-shown": lambda view: (
            view.fact(COLD_START) is True or bool(cold_starts(view.evidence.records).any())
        ),
        "distributed": _distributed,
        # Server instants (option C) beside client instants are the one case in which clocks are subtracted.
        "distributed-sub-ms": lambda view: (
            _distributed(view)
            and view.fact(ClockFact.SUB_MS_REQUIRED, view.fact(StreamingFact.ITL_OPTION) == "C")
        ),
        "distributed-ntp": _both(_distributed, _fact_is(ClockFact.METHOD, "ntp")),
        "gateway-network": _both(_gateway_inside, _significant_network),
        "ttft-adjusted": lambda view: view.fact(NetworkFact.TTFT_ADJUSTMENT, {}).get("applied") is True,
        "http": lambda view: view.fact(StreamingFact.PROTOCOL) not in ("grpc", "websocket"),
        "sse": lambda view: bool(view.fact(StreamingFact.PROTOCOL, "sse") == "sse"),
        "grpc": _fact_is(StreamingFact.PROTOCOL, "grpc"),
        "server-timing": lambda view: bool(view.fact(TimingFact.SERVER_SIDE, [])),
        "server-queue-or-prefill": lambda view: (
            not {"queue_wait", "prefill"}.isdisjoint(view.fact(TimingFact.SERVER_SIDE, []))
        ),
        "noncontent-first": lambda view: bool(first_output_before_content(view.evidence.records).any()),
        "guardrails-known": _names_known,
        "production": _PRODUCTION,
        "production-disabled": lambda view: (
            _PRODUCTION(view) and "disabled" in [view.fact(key) for key in GuardrailFact.FILTERS.values()]
        ),
        "published": _fact_is(PublicationFact.INTENDED, True),
        "itl-client": _client_side,
        "itl-option-due": lambda view: not _client_side(view) or _several_tokens(view),
        "server-instants": _server_instants,
        "itl-a": _fact_is(StreamingFact.ITL_OPTION, "A"),
        "itl-b": _fact_is(StreamingFact.ITL_OPTION, "B"),
        "latency-limits": lambda view: (
            not {"ttft_p99_ms", "tpot_p99_ms"}.isdisjoint(view.fact(LoadFact.SLO, {}))
        ),
        "queue-seen": lambda view: (
            _open_loop_level(view) or any(_gauge(run, "waiting") for run in view.evidence.runs)
        ),
        "open-loop-level": _open_loop_level,
        "lower-level": _of_levels(
            lambda levels: len({(level.offered_rps, level.concurrency) for level in levels}) > 1
        ),
        "level-reported": _has_role("reported"),
        "accelerators": lambda view: view.fact(SUTFact.ACCELERATOR_COUNT, 0) >= 1,
        "batch-size": lambda view: any(
            _gauge(run, "running") and run.engine and run.engine.max_num_seqs for run in view.evidence.runs
        ),
        "prefix-cache-on": lambda view: bool(view.fact(SUTFact.PREFIX_CACHING) != "disabled"),
        "cached-counts": lambda view: bool(has(view.evidence.records.cached_tokens).any()),
        "preemptions": lambda view: (
            _preemptions_by_request(view)
            or any(run.engine and "preemptions" in run.engine.totals_after for run in view.evidence.runs)
        ),
        "preemptions-by-request": _preemptions_by_request,
        "discarded-tokens": lambda view: bool(has(view.evidence.records.preempted_tokens).any()),
        "three-lengths": _of_levels(lambda levels: sum(level.n_ok > 0 for level in levels) >= FEWEST_LENGTHS),
        "baseline": _has_role("baseline"),
        "compared": lambda view: view.evidence.systems > 1,
        "tokenizers-differ": tokenizers_differ,
        "hardware-differs": hardware_differs,
        "comparative-claim": lambda view: view.fact(ComparisonFact.CLAIM) is not False,
    }
)
"""What decides whether a condition of the catalogue holds, by its id."""


LATENCIES = frozenset(
    {
        "M-5.1.4.1-percentiles",
        "P-5.2.4.3-latency-at-max",
        "P-5.3.4-per-level",
        "P-5.4.4.1-aggregate",
        "P-5.5.5-table",
        "P-5.6.4-per-class-latency",
        "P-5.7.4-ttft-both",
        "P-5.8.5-table",
        "P-5.9.4-per-length",
        "P-5.10.4-per-config",
    }
)
"""The entry of each test that has its latencies reported."""
_PERCENTILE = re.compile(r"\.p\d")


def latencies_cut_off(view: EvidenceView) -> str | None:
    """Why latencies do not stand for the runs that the error budget applies to; None where they do.

    They do not where many requests failed, nor where a percentile lies among those that the load generator
    gave up on ([0056](../../docs/decisions/0056-who-was-given-up-on-is-not-fast.md)).
    """
    result = view.result
    runs = result.observations
    if result.budgeted is not None:
        runs = tuple(runs[index] for index in result.budgeted)
    judged, failed = (
        sum(int(mask.sum()) for mask in masks)
        for masks in ([run.records.judged for run in runs], [run.records.failed for run in runs])
    )
    view.note("failed_requests", failed)
    if failed > MOST_FAILED_SHARE * judged:
        share = f"{failed} of {judged} requests failed ({percentage(failed / judged)})"
        most = percentage(MOST_FAILED_SHARE)
        return f"{share}: latencies of the others stand for a run with at most {most}"
    for name, metric in result.metrics.items():
        if metric.reason is Reason.GIVEN_UP and _PERCENTILE.search(name):
            return (
                f"{name} has no upper end: {metric.given_up} requests were given up on; extend the deadlines"
            )
    return None
