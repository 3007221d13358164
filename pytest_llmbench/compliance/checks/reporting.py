"""Reader advice, security considerations and report forms (abstract, sections 1 and 7, appendix C).

None of these enters a verdict (AMB-38); they are answered as far as a run can answer them.
"""

from __future__ import annotations

from pytest_llmbench.compliance.checks.registry import Checks, stated
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView
from pytest_llmbench.model.result import CONFIGURATION_ITEMS

check = Checks()

check("S-7.1-publication-caution")(stated("publication.considered"))
check("S-7.2-verify-with-production")(stated("production_sample_check"))


@check("S-0-consult-terminology")
@check("S-1-consult-terminology-first")
def terminology(view: EvidenceView) -> Answer:
    return view.unmet("no evidence: advice to readers, which no run can show")


@check("S-7.2-vary-workloads")
def vary_workloads(view: EvidenceView) -> Answer:
    """More than one workload or seed in the report."""
    own = view.need_all("workload.name", "workload.seed")
    drawn = {own} | {
        (sibling.facts.value("workload.name"), sibling.facts.value("workload.seed"))
        for sibling in view.evidence.siblings
    }
    view.note("workloads_and_seeds", len(drawn))
    return view.answer(len(drawn) > 1, f"{len(drawn)} workloads or seeds", "one workload with one seed")


@check("P-C.1-minimum-report")
def minimum_report(view: EvidenceView) -> Answer:
    """The result carries what the short report prints; what was not measured reads ``not measured`` there."""
    view.need_all("sut.boundary", "sut.model.name", "sut.software.engine", "workload.name", "load.model")
    items = tuple(item for item, _ in view.result.configuration)
    return view.answer(
        items == CONFIGURATION_ITEMS and bool(view.result.metrics),
        "identification, configuration, results and notes are at hand",
        "the configuration summary is not complete and in order, or there are no metrics",
    )


@check("P-C.2-full-report")
def full_report(view: EvidenceView) -> Answer:
    """The result fills the six sections; the fifth is this audit."""
    view.need_all("sut.model.name", "sut.software.engine", "sut.software.version")
    view.need_all("workload.name", "load.model", "workload.n_requests")
    view.need_all("workload.seed", "workload.sequence_sha256", "manifest.sha256")
    return view.answer(
        bool(view.result.metrics) and bool(view.result.tables),
        "all six sections can be filled",
        "there are no summary metrics or no detailed tables",
    )
