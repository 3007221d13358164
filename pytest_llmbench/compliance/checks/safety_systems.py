"""Safety systems in every test (section 4.8)."""

from __future__ import annotations

from pytest_llmbench.compliance.checks.registry import Checks, one_of, stated
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView
from pytest_llmbench.model.outcome import Outcome

check = Checks()

_STATES = ("enabled", "disabled", "absent")

check("M-4.8.1-input-filter")(one_of("guardrails.input_filter", *_STATES))
check("M-4.8.1-output-filter")(one_of("guardrails.output_filter", *_STATES))
check("S-4.8.2-default-enabled")(one_of("guardrails.default_config", True))
check("M-4.8.2-disabled-noted")(stated("guardrails.disabled_note"))


@check("M-4.8.1-system-names")
def system_names(view: EvidenceView) -> Answer:
    systems = view.need("guardrails.systems")
    return view.answer(
        isinstance(systems, list) and all(systems),
        ", ".join(systems) if systems else "no safety system",
        f"guardrails.systems is {systems!r}, not a list of names",
    )


@check("M-4.8.1-refusals")
def refusals(view: EvidenceView) -> Answer:
    stated_count = view.need("guardrails.refusals")
    counted = int(view.records.has_outcome(Outcome.REFUSED).sum())
    view.note("records_refused", counted)
    return view.answer(
        stated_count == counted,
        f"{counted} requests refused",
        f"{stated_count} refusals are reported, {counted} records were refused",
    )


@check("S-4.8.2-comparative-runs")
def comparative_runs(view: EvidenceView) -> Answer:
    """A reference to the run with the opposite state, or a guardrail test of the same report."""
    if view.evidence.others("guardrail"):
        return view.met("the report contains a guardrail test of this SUT")
    return view.met(f"compared with {view.need('guardrails.comparative_run')}")
