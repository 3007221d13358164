"""The compliance audit: each applicable entry of the catalogue judged from evidence, and the verdict
(METHODOLOGY §1.3).

The catalogue of requirements is package data, read once. An entry binds under its ``condition``: one
predicate for every such text of the catalogue. Where the fact that decides is missing, the condition holds,
so that silence never takes an entry out of the verdict; except where another blocking entry demands that very
fact (boundary, load model, workload name), and where the fact is a claim that was simply not made
(production, publication, cold start).
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

import numpy as np

from pytest_llmbench.compliance import checks
from pytest_llmbench.compliance.checks.clock import measured_apart
from pytest_llmbench.compliance.checks.registry import Predicate, merged
from pytest_llmbench.compliance.evidence import BY_SIBLINGS, Evidence
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.failures import LATENCIES, latencies_cut_off
from pytest_llmbench.compliance.stored import (
    chunk_sizes,
    first_output_before_content,
    has,
    has_first_token,
    reported,
)
from pytest_llmbench.metrics.itl import server_clock_holds
from pytest_llmbench.model.judgement import Compliance, ComplianceVerdict, RequirementStatus, Status, class_of
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.result import Level

FEWEST_LENGTHS = 3


def _always(_: EvidenceView) -> bool:
    return True


def _levels(view: EvidenceView) -> tuple[Level, ...]:
    return tuple(level for level in view.result.levels if not level.is_burst)


def _open_loop(view: EvidenceView) -> bool:
    levels = _levels(view)
    return not levels or any(level.load_model == "open" for level in levels)


def _queue_seen(view: EvidenceView) -> bool:
    return _open_loop(view) or any(_gauge(run, "waiting") for run in view.evidence.runs)


def _gauge(run: Observation, name: str) -> bool:
    return run.engine is not None and name in run.engine.gauges


def _lower_level(view: EvidenceView) -> bool:
    levels = _levels(view)
    return not levels or len({(level.offered_rps, level.concurrency) for level in levels}) > 1


def _reported(view: EvidenceView) -> bool:
    levels = _levels(view)
    return not levels or any(level.role == "reported" for level in levels)


def _batch_size(view: EvidenceView) -> bool:
    runs = view.evidence.runs
    return any(_gauge(run, "running") and run.engine and run.engine.max_num_seqs for run in runs)


def _latency_limits(view: EvidenceView) -> bool:
    return not {"ttft_p99_ms", "tpot_p99_ms"}.isdisjoint(view.fact("load.slo", {}))


def _accelerators(view: EvidenceView) -> bool:
    count = view.fact("sut.hardware.accelerator_count")
    return isinstance(count, int) and not isinstance(count, bool) and count >= 1


def _several_tokens(records: Records) -> bool:
    """Whether a chunk of a successful reply held several tokens, or nobody knows how many."""
    sizes = chunk_sizes(records)
    return sizes.several > 0 or sizes.known < sizes.chunks or sizes.chunks == 0


def _client_side(view: EvidenceView) -> bool:
    return bool(view.fact("streaming.itl_option") != "C")


def _option_due(view: EvidenceView) -> bool:
    return not _client_side(view) or _several_tokens(view.evidence.records)


def _server_instants(view: EvidenceView) -> bool:
    available = view.fact("streaming.server_timestamps_available")
    if available is None:
        records = view.evidence.records
        available = len(records.server_token_ns) > 0 and server_clock_holds(records)
    return available is True and _several_tokens(view.evidence.records)


def _option(name: str) -> Callable[[EvidenceView], bool]:
    return lambda view: bool(view.fact("streaming.itl_option") == name)


def _cache_on(view: EvidenceView) -> bool:
    return bool(view.fact("sut.prefix_caching") != "disabled")


def _cached_counts(view: EvidenceView) -> bool:
    return bool(has(view.evidence.records.cached_tokens).any())


def _preemptions(view: EvidenceView) -> bool:
    return _preemptions_by_request(view) or any(
        run.engine is not None and "preemptions" in run.engine.totals_after for run in view.evidence.runs
    )


def _preemptions_by_request(view: EvidenceView) -> bool:
    return bool(has(view.evidence.records.preemptions).any())


def _discarded_tokens(view: EvidenceView) -> bool:
    return bool(has(view.evidence.records.preempted_tokens).any())


def _three_lengths(view: EvidenceView) -> bool:
    levels = _levels(view)
    return not levels or sum(level.n_ok > 0 for level in levels) >= FEWEST_LENGTHS


def _baseline(view: EvidenceView) -> bool:
    levels = _levels(view)
    return not levels or any(level.role == "baseline" for level in levels)


def _compared(view: EvidenceView) -> bool:
    return view.evidence.systems > 1


def _tokenizers_differ(view: EvidenceView) -> bool:
    # Imported here, as below: one system has nothing to differ from.
    from pytest_llmbench.compliance.checks.comparison import tokenizers_differ

    return tokenizers_differ(view)


def _hardware_differs(view: EvidenceView) -> bool:
    from pytest_llmbench.compliance.checks.comparison import hardware_differs

    return hardware_differs(view)


LEVEL_CONDITIONS: Mapping[str, Callable[[EvidenceView], bool]] = MappingProxyType(
    {
        "ITL is measured on the client (manifest.streaming.itl_option is A, B or direct)": _client_side,
        "at least one content chunk held more than one token, or option C is used": _option_due,
        "streaming.server_timestamps_available is true and chunks held more than one token": _server_instants,
        "itl_option == A": _option("A"),
        "itl_option == B": _option("B"),
        "SSE delivery": lambda view: bool(view.fact("streaming.protocol", "sse") == "sse"),
        "load.slo has ttft_p99_ms or tpot_p99_ms": _latency_limits,
        "an SLO is configured": _latency_limits,
        "open-loop level, or server queue gauge available": _queue_seen,
        "open-loop level": _open_loop,
        "a lower level was measured": _lower_level,
        "the level is reported as sustainable": _reported,
        "accelerator count is known": _accelerators,
        "server exposes batch size": _batch_size,
        "prefix caching is enabled and is what the test examines": _cache_on,
        "cache enabled": _cache_on,
        "baseline and Cache (Cold) configurations": _always,
        "server reports cached token counts": _cached_counts,
        "server exposes preemption data": _preemptions,
        "server exposes preemption data per request": _preemptions_by_request,
        "server exposes discarded token counts": _discarded_tokens,
        "at least three lengths": _three_lengths,
        "baseline ran": _baseline,
        "two or more SUTs compared": _compared,
        "systems with different tokenizers are compared": _tokenizers_differ,
        "hardware differs": _hardware_differs,
        "a comparative claim is made": lambda view: view.fact("comparison.claim") is not False,
        "comparative results are published": lambda view: view.fact("publication.intended") is True,
    }
)
"""Predicates by condition text, letter for letter that of the catalogue."""


Condition = Callable[[EvidenceView], bool]

_ENGINE, _GATEWAY = "model_engine", "application_gateway"
DATASET_WORKLOADS = ("conversation", "code-completion")
SIGNIFICANT_RTT_MS = 1.0
SIGNIFICANT_RTT_SHARE = 0.01
COLD_FACTOR = 3.0
"""Factor by which a cold system's first tokens are slower than later ones, at least."""
_FEWEST_COLD = 10


def _fact_is(key: str, value: object) -> Condition:
    return lambda view: bool(view.fact(key) == value)


def _both(*conditions: Condition) -> Condition:
    return lambda view: all(condition(view) for condition in conditions)


def _custom_workload(view: EvidenceView) -> bool:
    return view.fact("workload.standard") is not True


def _warm(view: EvidenceView) -> bool:
    return not _seen_cold(view)


def _seen_cold(view: EvidenceView) -> bool:
    """Whether a latency test is called a cold start and its replies show one.

    They do where the first reply was far slower than those of the second half. A run that only leaves the
    warm-up out has not measured a cold start.
    """
    if view.fact("cold_start") is not True or view.evidence.test != "ttft":
        return False
    records = view.evidence.records
    started = records.select(has_first_token(records))
    order = np.argsort(started.submitted_ns, kind="stable")
    ttft_ns = (started.first_content_ns - started.submitted_ns)[order]
    if len(ttft_ns) < _FEWEST_COLD:
        return False
    return bool(ttft_ns[0] > COLD_FACTOR * float(np.median(ttft_ns[len(ttft_ns) // 2 :])))


def _from_dataset(view: EvidenceView) -> bool:
    """Whether the workload draws on a data set.

    The name of a reference workload tells: Long Context draws its lengths from a list of its own.
    """
    if view.fact("workload.name") in DATASET_WORKLOADS or view.fact("workload.dataset") is not None:
        return True
    if view.fact("workload.standard") is True:
        return False
    laws = (view.fact("workload.input_length", {}), view.fact("workload.output_length", {}))
    return any(law.get("type") == "empirical" for law in laws)


def _distributed(view: EvidenceView) -> bool:
    return bool(view.fact("clock.topology") != "single_machine") or measured_apart(view)


def _sub_ms_required(view: EvidenceView) -> bool:
    # Server instants (option C) beside client instants are the one case in which two clocks are subtracted.
    return bool(view.fact("clock.sub_ms_required", view.fact("streaming.itl_option") == "C"))


def _significant_network(view: EvidenceView) -> bool:
    """Whether the network matters: as declared, or else where the system is distributed and the RTT P50 is
    above 1 ms or 1 % of the TTFT P50."""
    declared = view.fact("network.significant")
    if declared is not None:
        return declared is True
    if not _distributed(view):
        return False
    rtt = view.fact("network.rtt_ms", {}).get("p50")
    if rtt is None:
        return True
    ttft = view.result.metrics.get("ttft.p50")
    share_ms = SIGNIFICANT_RTT_SHARE * ttft.point if ttft and ttft.point is not None else SIGNIFICANT_RTT_MS
    return bool(rtt > min(SIGNIFICANT_RTT_MS, share_ms))


def _adjusted(view: EvidenceView) -> bool:
    return view.fact("network.ttft_adjustment", {}).get("applied") is True


def _http(view: EvidenceView) -> bool:
    return view.fact("streaming.protocol") not in ("grpc", "websocket")


def _sse(view: EvidenceView) -> bool:
    return bool(view.fact("streaming.protocol", "sse") == "sse")


def _server_side(view: EvidenceView) -> bool:
    return bool(view.fact("timing.server_side", []))


def _queue_or_prefill(view: EvidenceView) -> bool:
    return not {"queue_wait", "prefill"}.isdisjoint(view.fact("timing.server_side", []))


def _names_known(view: EvidenceView) -> bool:
    filters = (view.fact("guardrails.input_filter"), view.fact("guardrails.output_filter"))
    if filters == ("absent", "absent") and view.fact("guardrails.systems") is None:
        return False
    return bool(view.fact("guardrails.systems") != "not known")


def _something_disabled(view: EvidenceView) -> bool:
    return "disabled" in (view.fact("guardrails.input_filter"), view.fact("guardrails.output_filter"))


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


def _noncontent_first(view: EvidenceView) -> bool:
    return bool(first_output_before_content(view.evidence.records).any())


def _input_varies(view: EvidenceView) -> bool:
    known = view.evidence.records.input_tokens
    known = known[known != MISSING]
    if len(known):
        return bool(known.min() != known.max())
    return bool(view.fact("workload.input_length", {}).get("type") != "fixed")


def _p999_reported(view: EvidenceView) -> bool:
    return reported(view.result, "p99_9")


_BOUNDARY_IS_ENGINE = _fact_is("sut.boundary", _ENGINE)
_BOUNDARY_IS_GATEWAY = _fact_is("sut.boundary", _GATEWAY)
_PRODUCTION = _both(_BOUNDARY_IS_GATEWAY, _fact_is("guardrails.production_claim", True))
_COLD = _fact_is("cold_start", True)

CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "always": _always,
        "open-loop runs and the open-loop capability itself": _always,
        "P99 is reported (always, see M-5.1.4.1-percentiles)": _always,
        "P99.9 is reported": _p999_reported,
        "request produced at least one token": _produced(1),
        "request produced at least one content token": _produced(1),
        "request produced at least two tokens": _produced(2),
        "manifest.workload.standard is false": _custom_workload,
        "workload derived from a dataset": _from_dataset,
        "workload derived from a dataset (conversation, code-completion, or custom empirical)": _from_dataset,
        "manifest.workload.name == synthetic-uniform": _fact_is("workload.name", "synthetic-uniform"),
        "manifest.workload.name == synthetic-skewed": _fact_is("workload.name", "synthetic-skewed"),
        "manifest.workload.name == conversation": _fact_is("workload.name", "conversation"),
        "manifest.workload.name == code-completion": _fact_is("workload.name", "code-completion"),
        "manifest.workload.name == long-context": _fact_is("workload.name", "long-context"),
        "input length of the workload varies": _input_varies,
        "load.model == open": _fact_is("load.model", "open"),
        "load.model == closed": _fact_is("load.model", "closed"),
        "manifest.sut.boundary == model_engine": _BOUNDARY_IS_ENGINE,
        "manifest.sut.boundary == application_gateway": _BOUNDARY_IS_GATEWAY,
        "not a cold-start measurement": _warm,
        "manifest.cold_start is true": _COLD,
        "manifest.cold_start is true (model load time or cold-start latency is being measured)": _COLD,
        "clock.topology == distributed": _distributed,
        "clock.topology == distributed and clock.sub_ms_required is true": _both(
            _distributed, _sub_ms_required
        ),
        "clock.topology == distributed and clock.method == ntp": _both(
            _distributed, _fact_is("clock.method", "ntp")
        ),
        "boundary == application_gateway and network.significant is true": _both(
            _BOUNDARY_IS_GATEWAY, _significant_network
        ),
        "network.ttft_adjustment.applied is true": _adjusted,
        "HTTP transport, client-side timing": _http,
        "SSE transport, client-side timing": _sse,
        "gRPC transport": _fact_is("streaming.protocol", "grpc"),
        "server instrumentation is used": _server_side,
        "server instrumentation exposes queue time or prefill time": _queue_or_prefill,
        "any record has t_first_any_ns < t_first_ns": _noncontent_first,
        "the names are known to the tester": _names_known,
        "boundary == application_gateway and guardrails.production_claim is true": _PRODUCTION,
        "boundary == application_gateway, production_claim true, and any safety system switched off": _both(
            _PRODUCTION, _something_disabled
        ),
        "results are published": _fact_is("publication.intended", True),
        **LEVEL_CONDITIONS,
    }
)
"""Predicates by condition text, letter for letter that of the catalogue."""


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
    if not condition(view):
        reason = f"its condition does not hold: {entry.condition}"
        return _entered(entry, Status.NOT_APPLICABLE, view.unmet(reason))
    cut_off = latencies_cut_off(view) if entry.id in LATENCIES else None
    try:
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
