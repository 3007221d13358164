"""The configuration summary of section 5.1.5.1: eight items, printed for every test."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.model.facts import Facts, GuardrailFact, SUTFact, WarmupFact, WireFact, WorkloadFact
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import describe_loads
from pytest_llmbench.model.request import LIVE_ANSWERS
from pytest_llmbench.model.result import CONFIGURATION_ITEMS
from pytest_llmbench.workloads.adapted import told_of_cuts
from pytest_llmbench.workloads.profiles import told_of

UNDECLARED = "not declared"

_BOUNDARIES = {
    "model_engine": "Model Engine",
    "application_gateway": "Application Gateway",
    "compound_system": "Compound System",
}


def configuration(facts: Facts, seen: Sequence[Observation]) -> tuple[tuple[str, str], ...]:
    """The summary as (item, text) pairs; the text says so where nobody declared or measured the item."""
    texts = (
        _boundary(facts),
        f"{_model(facts)} on {_hardware(facts)}",
        _workload(facts),
        describe_loads([run.plan.load for run in seen]) or UNDECLARED,
        _count_and_duration(seen),
        facts.value(WarmupFact.DESCRIPTION, UNDECLARED),
        facts.value(SUTFact.PREFIX_CACHING, UNDECLARED),
        _guardrails(facts),
    )
    return tuple(zip(CONFIGURATION_ITEMS, texts, strict=True))


def _boundary(facts: Facts) -> str:
    boundary = facts.value(SUTFact.BOUNDARY)
    if boundary is None:
        return UNDECLARED
    software = " ".join(
        str(value)
        for key in (SUTFact.SOFTWARE_ENGINE, SUTFact.SOFTWARE_VERSION)
        if (value := facts.value(key))
    )
    components = facts.value(SUTFact.COMPONENTS) or []
    detail = ", ".join([*([software] if software else []), *components])
    name = _BOUNDARIES.get(boundary, str(boundary))
    return f"{name} ({detail})" if detail else name


def _model(facts: Facts) -> str:
    parts = [facts.value(SUTFact.MODEL_NAME, "model not declared"), facts.value(SUTFact.MODEL_VERSION)]
    quantization = facts.value(SUTFact.MODEL_QUANTIZATION)
    if quantization not in (None, "none"):
        parts.append(str(quantization))
    return " ".join(str(part) for part in parts if part)


def _hardware(facts: Facts) -> str:
    if facts.value(SUTFact.HARDWARE_DISCLOSED) is False:
        return "undisclosed hardware"
    kind = facts.value(SUTFact.ACCELERATOR_TYPE)
    if kind is None:
        return "hardware not declared"
    count = facts.value(SUTFact.ACCELERATOR_COUNT, "?")
    memory = facts.value(SUTFact.ACCELERATOR_MEMORY_GIB)
    return f"{count} × {kind}" + (f" ({memory:g} GiB each)" if isinstance(memory, int | float) else "")


def _workload(facts: Facts) -> str:
    name = facts.value(WorkloadFact.NAME, UNDECLARED)
    text = f"{name}, seed {facts.value(WorkloadFact.SEED, UNDECLARED)}{_parts(facts)}"
    if facts.value(WorkloadFact.STANDARD) is True:
        return text
    laws = [
        f"{what} {law.get('type')} {law.get('params')}"
        for what, law in (
            ("input", facts.value(WorkloadFact.INPUT_LENGTH) or {}),
            ("output", facts.value(WorkloadFact.OUTPUT_LENGTH) or {}),
        )
    ]
    profiles = "".join(f"; {told}" for told in told_of(facts.value(WorkloadFact.PROFILES) or ()))
    cuts = told_of_cuts(facts.value(WorkloadFact.CUTS))
    words = facts.value(WireFact.STRUCTURED_OUTPUT) == "prompt_words"
    no_form = (
        "; tools are words of the prompt and no form is requested: the API has no field for them"
        if words
        else ""
    )
    one_text = facts.value(WireFact.MESSAGES) == "one_text"
    no_roles = "; messages are rendered as one text: the API has no roles" if one_text else ""
    cut = f"{'; ' if cuts else ''}{cuts}"
    live = "" if facts.value(WorkloadFact.ANSWERS) is None else f"; live answers: {LIVE_ANSWERS}"
    return f"{text} (custom: {'; '.join(laws)} tokens){profiles}{cut}{live}{no_form}{no_roles}"


def _parts(facts: Facts) -> str:
    """The parts of the workload, in words. No two parts of a session have a prompt in common."""
    parts = dict(facts.value(WorkloadFact.PARTS) or {})
    if len(parts) != 1:
        return f", in {len(parts)} parts with seeds made from it" if parts else ""
    ((name, seed),) = parts.items()
    return f" (drawn with {seed}, of part {name!r})" if name else ""


def _count_and_duration(seen: Sequence[Observation]) -> str:
    requests = sum(len(run.records) for run in seen)
    runs = f" in {len(seen)} runs" if len(seen) > 1 else ""
    return f"{requests} requests{runs}, {sum(run.duration_s for run in seen):.1f} s"


def _guardrails(facts: Facts) -> str:
    states = [f"{side} filter {facts.value(key, UNDECLARED)}" for side, key in GuardrailFact.FILTERS.items()]
    systems = facts.value(GuardrailFact.SYSTEMS)
    if systems:
        states.append("systems: " + (systems if isinstance(systems, str) else ", ".join(systems)))
    refusals = facts.value(GuardrailFact.REFUSALS)
    if refusals is not None:
        states.append(f"{refusals} refusals")
    return ", ".join(states)
