"""What is stored of each request (section 4.2.6); several systems in one report (section 6); reader advice,
security considerations and report forms.

What is compared are the results of the same test on other systems, where the report holds them; else the
facts ``comparison.*``, mappings from the name of a system to what it was measured with.

Of reader advice and the like (abstract, sections 1 and 7, appendix C) none enters a verdict (AMB-38); they
are answered as far as a run can answer them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_llmbench.compliance.checks.registry import Checks, stated
from pytest_llmbench.compliance.evidence import (
    Answer,
    EvidenceView,
    NoEvidenceError,
    chunk_counts,
    chunk_token_sums,
    has,
)
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.facts import (
    PRODUCTION_SAMPLE_CHECK,
    ComparisonFact,
    Key,
    LoadFact,
    ManifestFact,
    PublicationFact,
    SUTFact,
    TokenizerFact,
    WorkloadFact,
)
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import OUTCOMES, TOKEN_SOURCES, BoolColumn
from pytest_llmbench.model.result import TestResult

check = Checks()

_REPLIED = (
    Outcome.OK,
    Outcome.HTTP_ERROR,
    Outcome.RATE_LIMITED,
    Outcome.IN_BAND_ERROR,
    Outcome.TRUNCATED,
    Outcome.EMPTY,
    Outcome.REFUSED,
    Outcome.UNDECODABLE,
)
"""Outcomes that need a request on the wire; a timeout or a lost connection may have come before it."""
_FROM_SERVER = (TokenSource.SERVER_USAGE, TokenSource.CHUNK_USAGE)


def _every(view: EvidenceView, subject: BoolColumn, stored: BoolColumn, what: str) -> Answer:
    """The answer of an entry that is met when every request of ``subject`` has ``what`` stored."""
    lacking = int((subject & ~stored).sum())
    view.note("requests", int(subject.sum()))
    view.note("lacking", lacking)
    return view.answer(
        lacking == 0,
        f"every request has its {what}",
        f"{lacking} of {int(subject.sum())} requests have no {what}",
    )


@check("M-4.2.6-record-submit-time")
def submit_time(view: EvidenceView) -> Answer:
    records = view.records
    replied = np.isin(records.outcome, [OUTCOMES.index(outcome) for outcome in _REPLIED])
    on_the_wire = replied | has(records.first_byte_ns)
    again = int(records.stale_retries.clip(0).sum())
    if again:  # on a new connection: no byte of the first sending had arrived
        view.note("sent_again", again)
    return _every(view, on_the_wire, has(records.submitted_ns), "submission time")


@check("M-4.2.6-record-first-token")
def first_token(view: EvidenceView) -> Answer:
    records = view.records
    return _every(view, records.ok, has(records.first_content_ns), "first-token time")


@check("M-4.2.6-record-subsequent-tokens")
def subsequent_tokens(view: EvidenceView) -> Answer:
    """Chunk instants with token counts that add up to the output: every token has its time."""
    records = view.records
    sums, complete = chunk_token_sums(records)
    adds_up = complete & (chunk_counts(records) > 0) & (sums == records.output_tokens)
    subject = records.ok & (records.output_tokens >= 2)
    return _every(view, subject, np.asarray(adds_up), "token arrival times")


@check("M-4.2.6-record-final-token")
def final_token(view: EvidenceView) -> Answer:
    records = view.records
    after_first = ~has(records.first_content_ns) | (records.last_content_ns >= records.first_content_ns)
    return _every(view, records.ok, np.asarray(has(records.last_content_ns) & after_first), "last-token time")


@check("M-4.2.6-record-input-count")
def input_count(view: EvidenceView) -> Answer:
    """Counted for replies; for a failed request the planned length stands in, since no server counted it."""
    records = view.records
    sources = {TOKEN_SOURCES[code] for code in np.unique(records.token_source[records.ok])}
    view.note("token_sources", sorted(sources))
    if len({"server" if source in _FROM_SERVER else source for source in sources}) > 1:
        return view.unmet(f"counts from several sources in one run: {', '.join(sorted(sources))}")
    planned = ~records.ok & has(records.requested_input_tokens)
    everyone = np.ones(len(records), dtype=bool)
    return _every(view, everyone, np.asarray(has(records.input_tokens) | planned), "number of input tokens")


@check("M-4.2.6-record-output-count")
def output_count(view: EvidenceView) -> Answer:
    """A failed request without any content has none by construction."""
    records = view.records
    nothing_came = ~records.ok & (chunk_counts(records) == 0)
    everyone = np.ones(len(records), dtype=bool)
    return _every(
        view, everyone, np.asarray(has(records.output_tokens) | nothing_came), "number of output tokens"
    )


@check("M-4.2.6-record-status")
def status(view: EvidenceView) -> Answer:
    """Every request has an outcome, and none is called a success against its own HTTP status."""
    records = view.records
    known = (records.outcome >= 0) & (records.outcome < len(OUTCOMES))
    contradicted = records.ok & (records.http_status >= 400)
    everyone = np.ones(len(records), dtype=bool)
    return _every(view, everyone, np.asarray(known & ~contradicted), "outcome")


check("S-7.1-publication-caution")(stated(PublicationFact.CONSIDERED))
check("S-7.2-verify-with-production")(stated(PRODUCTION_SAMPLE_CHECK))


@check("S-0-consult-terminology")
@check("S-1-consult-terminology-first")
def terminology(view: EvidenceView) -> Answer:
    return view.unmet("no evidence: advice to readers, which no run can show")


@check("S-7.2-vary-workloads")
def vary_workloads(view: EvidenceView) -> Answer:
    """There is more than one workload or seed in the report."""
    own = view.need_all(WorkloadFact.NAME, WorkloadFact.SEED)
    drawn = {own} | {
        (sibling.facts.value(WorkloadFact.NAME), sibling.facts.value(WorkloadFact.SEED))
        for sibling in view.evidence.siblings
    }
    view.note("workloads_and_seeds", len(drawn))
    audits = [sibling for sibling in view.evidence.siblings if sibling.test == "integrity"]
    if audits:
        view.note("audited", {each.check: each.ok for audit in audits for each in audit.findings})
    return view.answer(len(drawn) > 1, f"{len(drawn)} workloads or seeds", "one workload with one seed")


@check("P-C.1-minimum-report")
def minimum_report(view: EvidenceView) -> Answer:
    """The result carries what the short report prints; what was not measured reads ``not measured`` there."""
    view.need_all(
        SUTFact.BOUNDARY, SUTFact.MODEL_NAME, SUTFact.SOFTWARE_ENGINE, WorkloadFact.NAME, LoadFact.MODEL
    )
    return view.answer(
        bool(view.result.configuration and view.result.metrics),
        "identification, configuration, results and notes are at hand",
        "the configuration summary or the metrics are missing",
    )


@check("P-C.2-full-report")
def full_report(view: EvidenceView) -> Answer:
    """The result fills the six sections; the fifth is this audit."""
    view.need_all(SUTFact.MODEL_NAME, SUTFact.SOFTWARE_ENGINE, SUTFact.SOFTWARE_VERSION)
    view.need_all(WorkloadFact.NAME, LoadFact.MODEL, WorkloadFact.N_REQUESTS)
    view.need_all(WorkloadFact.SEED, WorkloadFact.SEQUENCE_SHA256, ManifestFact.SHA256)
    return view.answer(
        bool(view.result.metrics) and bool(view.result.tables),
        "all six sections can be filled",
        "summary metrics or detailed tables are missing",
    )


CHECKLIST = (
    "workload",
    "duration",
    "warmup",
    "success_criteria",
    "same_time",
    "production_configuration",
    "differences",
)
"""The items of section 6.4."""
LOAD = (
    LoadFact.MODEL,
    LoadFact.ARRIVAL,
    LoadFact.RATE_RPS,
    LoadFact.CONCURRENCY,
    LoadFact.LEVELS_PERCENT,
    LoadFact.DURATION_S,
)
_RELATIVE_LOAD = (LoadFact.RATE_RPS, LoadFact.CONCURRENCY)
"""Facts that may differ in a test that takes percentages of each system's own capacity."""

check("P-6.2-method-stated")(stated(ComparisonFact.NORMALISATION))


def others(view: EvidenceView) -> tuple[TestResult, ...]:
    """Results of this test on other systems."""
    own = view.result.disclosure
    return tuple(
        sibling
        for sibling in view.evidence.siblings
        if sibling.test == view.evidence.test and sibling.disclosure != own
    )


def _across(view: EvidenceView, key: Key[dict[str, Any]], *facts: Key[Any]) -> list[dict[str, Any]]:
    """The wanted facts of every system: from their results, or as ``comparison.key`` states them."""
    found = others(view)
    if found:
        for fact in facts:
            view.fact(fact)
        return [{fact: result.facts.value(fact) for fact in facts} for result in (view.result, *found)]
    return [dict(entry) for entry in _per_system(view, key).values()]


def _equal(entries: list[dict[str, Any]], *ignored: str) -> bool:
    kept = [{k: v for k, v in entry.items() if k not in ignored} for entry in entries]
    return all(entry == kept[0] for entry in kept) and any(v is not None for v in kept[0].values())


@check("M-6.1-identical-workload")
def identical_workload(view: EvidenceView) -> Answer:
    """Digest of the requests, seed, and digest of the arrivals where they are open."""
    entries = _across(view, ComparisonFact.SEQUENCES, WorkloadFact.SEQUENCE_SHA256, WorkloadFact.SEED)
    missing = [name for entry in entries for name, value in entry.items() if value is None]
    view.note("sequences", entries)
    return view.answer(
        _equal(entries) and not missing,
        "the same requests in the same order",
        f"other requests or seeds, or unknown ones ({', '.join(missing)})",
    )


@check("M-6.1-equivalent-boundary")
def equivalent_boundary(view: EvidenceView) -> Answer:
    entries = _across(view, ComparisonFact.BOUNDARIES, SUTFact.BOUNDARY, SUTFact.COMPONENTS)
    boundaries = [entry.get(SUTFact.BOUNDARY, entry.get("boundary")) for entry in entries]
    components = [sorted(entry.get(SUTFact.COMPONENTS, entry.get("components")) or []) for entry in entries]
    view.note("boundaries", boundaries)
    same = all(each == boundaries[0] for each in boundaries) and boundaries[0] is not None
    return view.answer(
        same and all(each == components[0] for each in components),
        f"{boundaries[0]} for all",
        f"boundaries {boundaries} with components {components}",
    )


def hardware_differs(view: EvidenceView) -> bool:
    """Whether type, count or memory differ (AMB-48); unknown counts as different."""
    try:
        entries = _across(view, ComparisonFact.HARDWARE, *SUTFact.ACCELERATORS)
    except NoEvidenceError:
        return True
    known = all(value is not None for entry in entries for value in entry.values())
    return not (known and _equal(entries))


@check("M-6.1-comparable-hardware")
def comparable_hardware(view: EvidenceView) -> Answer:
    if not hardware_differs(view):
        return view.met("equal accelerators in type, number and memory")
    return view.met(f"normalised: {view.need(ComparisonFact.NORMALISATION)}")


@check("M-6.1-same-load")
def same_load(view: EvidenceView) -> Answer:
    """Equal in absolute terms; or equal percentages of capacities that were found in the same way."""
    entries = _across(view, ComparisonFact.LOADS, *LOAD, LoadFact.CAPACITY_FOUND)
    relative = all(entry.get(LoadFact.LEVELS_PERCENT) for entry in entries)
    ignored = _RELATIVE_LOAD if relative else (LoadFact.CAPACITY_FOUND,)
    view.note("loads", entries)
    return view.answer(
        _equal(entries, *ignored), "equal load model and parameters", f"loads differ: {entries}"
    )


@check("S-4.4.2-option-b-cl100k")
def option_b(view: EvidenceView) -> Answer:
    keys = (TokenizerFact.COUNTING_OPTION, TokenizerFact.REFERENCE)
    entries = _across(view, ComparisonFact.TOKENIZERS, *keys)
    wrong = [entry for entry in entries if (entry.get(keys[0]), entry.get(keys[1])) != ("B", "cl100k_base")]
    return view.answer(not wrong, "all counted with cl100k_base", f"not counted with cl100k_base: {wrong}")


def tokenizers_differ(view: EvidenceView) -> bool:
    try:
        entries = _across(view, ComparisonFact.TOKENIZERS, TokenizerFact.NAME, TokenizerFact.COUNTING_OPTION)
    except NoEvidenceError:
        return True
    names = [entry.get(TokenizerFact.NAME) for entry in entries]
    return names[0] is None or any(name != names[0] for name in names)


def _per_system(view: EvidenceView, key: Key[dict[str, Any]]) -> Mapping[str, Any]:
    values = view.need(key)
    if len(values) < 2:
        raise NoEvidenceError(f"{key} of two systems")
    return values


@check("P-6.2-tokens-per-gpu-second")
def tokens_per_gpu_second(view: EvidenceView) -> Answer:
    values = _per_system(view, ComparisonFact.TOKENS_PER_GPU_SECOND)
    wrong = [name for name, value in values.items() if not isinstance(value, int | float) or value <= 0]
    return view.answer(
        not wrong,
        ", ".join(f"{name} {trimmed(value)}" for name, value in values.items() if name not in wrong),
        f"no tokens per GPU-second for {', '.join(wrong)}",
    )


@check("P-6.2-cost-normalised")
def cost_normalised(view: EvidenceView) -> Answer:
    """The throughput per dollar-hour of every system comes with the price and the date it was taken at."""
    values = _per_system(view, ComparisonFact.TOKENS_PER_DOLLAR_HOUR)
    lacking = [
        name
        for name, entry in values.items()
        if not isinstance(entry, Mapping) or not {"value", "dollars_per_hour", "date"} <= entry.keys()
    ]
    return view.answer(
        not lacking, "throughput per dollar-hour", f"value, price or date is missing for {', '.join(lacking)}"
    )


@check("P-6.3-confidence-intervals")
def confidence_intervals(view: EvidenceView) -> Answer:
    """A closed 95 % interval of every compared metric, for every system."""
    names = view.need(ComparisonFact.METRICS)
    results = (view.result, *others(view))
    lacking = []
    for name in names:
        for result in results:
            estimate = result.metrics.get(name)
            if estimate is None or not estimate.closed or estimate.level < 0.95:
                lacking.append(name)
    view.note("metrics", list(names))
    return view.answer(
        not lacking and bool(names),
        f"intervals of {', '.join(names)}",
        f"no closed 95 % interval of {', '.join(dict.fromkeys(lacking)) or 'anything'}",
    )


@check("P-6.3-three-runs")
def three_runs(view: EvidenceView) -> Answer:
    """Complete runs with a warm-up of their own, per system."""
    runs = _per_system(view, ComparisonFact.RUNS)
    few = {name: count for name, count in runs.items() if count < FEWEST_RUNS}
    return view.answer(not few, f"runs per system: {dict(runs)}", f"fewer than three independent runs: {few}")


@check("P-6.3-statistical-test")
def statistical_test(view: EvidenceView) -> Answer:
    """Name and statistic with a p-value, or an interval of the difference, for every compared metric."""
    tests = view.need(ComparisonFact.TESTS)
    covered = {
        entry.get("metric")
        for entry in tests
        if entry.get("name") and (entry.get("p_value") is not None or entry.get("interval"))
    }
    lacking = [name for name in view.need(ComparisonFact.METRICS) if name not in covered]
    return view.answer(
        not lacking, f"{len(tests)} tests", f"no test and no interval for {', '.join(lacking)}"
    )


@check("P-6.4-checklist")
def checklist(view: EvidenceView) -> Answer:
    answers = view.need(ComparisonFact.CHECKLIST)
    open_items = [item for item in CHECKLIST if not str(answers.get(item, "")).strip()]
    return view.answer(not open_items, "seven items answered", f"not answered: {', '.join(open_items)}")
