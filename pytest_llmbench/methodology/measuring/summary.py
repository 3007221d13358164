"""The configuration summary of section 5.1.5.1: eight items, printed for every test."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import describe_loads
from pytest_llmbench.model.result import CONFIGURATION_ITEMS
from pytest_llmbench.model.session import LIVE_ANSWERS
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
        facts.value("warmup.description", UNDECLARED),
        facts.value("sut.prefix_caching", UNDECLARED),
        _guardrails(facts),
    )
    return tuple(zip(CONFIGURATION_ITEMS, texts, strict=True))


def _boundary(facts: Facts) -> str:
    boundary = facts.value("sut.boundary")
    if boundary is None:
        return UNDECLARED
    software = " ".join(
        str(value) for key in ("sut.software.engine", "sut.software.version") if (value := facts.value(key))
    )
    components = facts.value("sut.components") or []
    detail = ", ".join([*([software] if software else []), *components])
    name = _BOUNDARIES.get(boundary, str(boundary))
    return f"{name} ({detail})" if detail else name


def _model(facts: Facts) -> str:
    parts = [facts.value("sut.model.name", "model not declared"), facts.value("sut.model.version")]
    quantization = facts.value("sut.model.quantization")
    if quantization not in (None, "none"):
        parts.append(str(quantization))
    return " ".join(str(part) for part in parts if part)


def _hardware(facts: Facts) -> str:
    if facts.value("sut.hardware.disclosed") is False:
        return "undisclosed hardware"
    kind = facts.value("sut.hardware.accelerator_type")
    if kind is None:
        return "hardware not declared"
    count = facts.value("sut.hardware.accelerator_count", "?")
    memory = facts.value("sut.hardware.accelerator_memory_gib")
    return f"{count} × {kind}" + (f" ({memory:g} GiB each)" if isinstance(memory, int | float) else "")


def _workload(facts: Facts) -> str:
    name = facts.value("workload.name", UNDECLARED)
    text = f"{name}, seed {facts.value('workload.seed', UNDECLARED)}{_parts(facts)}"
    if facts.value("workload.standard") is True:
        return text
    laws = [
        f"{what} {law.get('type')} {law.get('params')}"
        for what, law in (
            ("input", facts.value("workload.input_length") or {}),
            ("output", facts.value("workload.output_length") or {}),
        )
    ]
    profiles = "".join(f"; {told}" for told in told_of(facts.value("workload.profiles") or ()))
    cuts = told_of_cuts(facts.value("workload.cuts"))
    words = facts.value("wire.structured_output") == "prompt_words"
    no_form = (
        "; tools are words of the prompt and no form is asked for: the API has no field here" if words else ""
    )
    one_text = facts.value("wire.messages") == "one_text"
    no_roles = "; messages are rendered as one text: the API has no roles" if one_text else ""
    cut = f"{'; ' if cuts else ''}{cuts}"
    live = "" if facts.value("workload.answers") is None else f"; live answers: {LIVE_ANSWERS}"
    return f"{text} (custom: {'; '.join(laws)} tokens){profiles}{cut}{live}{no_form}{no_roles}"


def _parts(facts: Facts) -> str:
    """The parts of the workload, in words. No two parts of a session have a prompt in common."""
    parts = dict(facts.value("workload.parts") or {})
    if len(parts) != 1:
        return f", in {len(parts)} parts with seeds made from it" if parts else ""
    ((name, seed),) = parts.items()
    return f" (drawn with {seed}, of part {name!r})" if name else ""


def _count_and_duration(seen: Sequence[Observation]) -> str:
    requests = sum(len(run.records) for run in seen)
    runs = f" in {len(seen)} runs" if len(seen) > 1 else ""
    return f"{requests} requests{runs}, {sum(run.duration_s for run in seen):.1f} s"


def _guardrails(facts: Facts) -> str:
    states = [
        f"{side} filter {facts.value(f'guardrails.{side}_filter', UNDECLARED)}"
        for side in ("input", "output")
    ]
    systems = facts.value("guardrails.systems")
    if systems:
        states.append("systems: " + (systems if isinstance(systems, str) else ", ".join(systems)))
    refusals = facts.value("guardrails.refusals")
    if refusals is not None:
        states.append(f"{refusals} refusals")
    return ", ".join(states)
