"""What is stored of each request (section 4.2.6); reader advice, security considerations and report forms.

Of the latter (abstract, sections 1 and 7, appendix C) none enters a verdict (AMB-38); they are answered as
far as a run can answer them.
"""

from __future__ import annotations

import numpy as np

from pytest_llmbench.compliance.checks.registry import Checks, stated
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, chunk_counts, chunk_token_sums, has
from pytest_llmbench.model.facts import (
    PRODUCTION_SAMPLE_CHECK,
    LoadFact,
    ManifestFact,
    PublicationFact,
    SUTFact,
    WorkloadFact,
)
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import OUTCOMES, TOKEN_SOURCES, BoolColumn

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
        f"{lacking} of {int(subject.sum())} requests lack {what}",
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
        "there is no configuration summary, or there are no metrics",
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
        "there are no summary metrics or no detailed tables",
    )
