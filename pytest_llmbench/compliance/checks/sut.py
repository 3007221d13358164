"""The system under test and its safety systems: boundary, model, hardware, prefix cache, filters (sections
4.1, 4.8 and 5.1.2.3).
"""

from __future__ import annotations

import re

from pytest_llmbench.compliance.checks.registry import Checks, declared, one_of, stated
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, has
from pytest_llmbench.model.facts import EndpointFact, GuardrailFact, ManifestFact, SUTFact
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.record import Outcome

check = Checks()

BOUNDARIES = ("model_engine", "application_gateway", "compound_system")
_NO_ACCELERATOR = ("cpu", "none")
# Numbers of parameters in a name: 8x7b, 405b, 0.5b.
_SIZE = re.compile(r"(?<![a-z0-9.])(?:\d+x)?\d+(?:\.\d+)?[bm](?![a-z0-9])")
_BITS = re.compile(r"(?<![a-z0-9])(?:fp|int|bf|[qwkai])\d+[a-z0-9]*(?:_[a-z0-9]+)*")
"""Precisions in names: fp8, int4, q4_k_m, w4a16."""
_MEMBERS = frozenset({"nano", "mini", "tiny", "small", "medium", "large", "lite", "flash", "turbo"})
_WORDS_OF_ANY_MODEL = frozenset({"instruct", "chat", "base", "mini", "awq", "gptq", "gguf", "fp", "int"})


@check("M-4.1-sut-boundary-declared")
def boundary_declared(view: EvidenceView) -> Answer:
    boundary = view.need(SUTFact.BOUNDARY)
    if boundary == "custom":
        view.need(SUTFact.COMPONENTS)
    elif boundary not in BOUNDARIES:
        return view.unmet(f"sut.boundary is {boundary!r}, not one of {', '.join(BOUNDARIES)} or custom")
    frozen_ns, digest = view.need_all(ManifestFact.FROZEN_NS, ManifestFact.SHA256)
    dispatched = view.records.dispatched_ns[has(view.records.dispatched_ns)]
    if not len(dispatched):
        return view.unmet("no evidence: record.dispatched_ns")
    first_ns = int(dispatched.min())
    view.note("first_dispatched_ns", first_ns)
    if any(run.shared_from for run in view.runs):  # the test that measured them froze the same manifest
        owners = [s.facts for s in view.evidence.siblings if s.facts.value(ManifestFact.SHA256) == digest]
        frozen_ns = min([frozen_ns, *(each.value(ManifestFact.FROZEN_NS, frozen_ns) for each in owners)])
    return view.answer(
        frozen_ns < first_ns,
        f"{boundary}, declared before the first measured request",
        "the manifest was frozen after the first measured request",
    )


check("M-5.1.2.3-sut-configuration")(stated(SUTFact.BOUNDARY))


@check("M-5.1.2.3-model-identifier")
def model_identifier(view: EvidenceView) -> Answer:
    """Name, version and quantization; the name may be that of what the endpoint serves, or is said to be
    served under an alias that does not contradict it."""
    name, *_ = view.need_all(SUTFact.MODEL_NAME, SUTFact.MODEL_VERSION, SUTFact.MODEL_QUANTIZATION)
    served, alias = view.fact(EndpointFact.MODELS, []), view.fact(SUTFact.MODEL_SERVED_AS)
    aliased = alias is not None and alias in served and not _contradict(name, alias)
    known = not served or aliased or any(_same_name(name, each) for each in served)
    return view.answer(
        known,
        f"the model is {name}" + (f", served as {alias}" if alias else ""),
        f"the model is declared to be {name}, the endpoint serves {', '.join(served)}; if that is the same, "
        "sut.model.served_as says so",
    )


def _same_name(one: str, other: str) -> bool:
    words = [set(re.findall(r"[a-z]{2,}", name.lower())) - _WORDS_OF_ANY_MODEL for name in (one, other)]
    alike = bool(words[0] & words[1]) and _members(one) == _members(other)
    return one == other or (alike and not _contradict(one, other))


def _contradict(one: str, other: str) -> bool:
    """Whether both names state a size (405B and 1b), a version (3.1 and 3.2) or a member of a family (large
    and small), and not the same."""
    return any(
        bool(a) and bool(b) and not any(_begins(x, y) or _begins(y, x) for x in a for y in b)
        for a, b in (
            (found(one.lower()), found(other.lower())) for found in (_SIZE.findall, _versions, _members)
        )
    )


def _begins(one: str, other: str) -> bool:
    """Whether one version is the other or begins with it: ``3.1`` and ``3``."""
    return f"{one}.".startswith(f"{other}.")


def _members(name: str) -> set[str]:
    return set(_MEMBERS.intersection(re.findall(r"[a-z]+", name.lower())))


def _versions(name: str) -> set[str]:
    """The versions in a name: ``3.1`` of Llama-3.1-8B, ``2.5`` of qwen2.5; no sizes, dates or bits."""
    rest = _BITS.sub(" ", _SIZE.sub(" ", name))
    return set(re.findall(r"(?<![\d.])\d{1,2}(?:\.\d{1,2})?(?![\d.])", rest))


@check("M-5.1.2.3-hardware")
def hardware(view: EvidenceView) -> Answer:
    """``undisclosed`` is an answer at gateway and compound boundary (AMB-27), shown as a deviation."""
    kind = view.fact(SUTFact.ACCELERATOR_TYPE)
    if view.fact(SUTFact.HARDWARE_DISCLOSED) is False or kind == "undisclosed":
        view.note("deviation", "hardware undisclosed")
        boundary = view.need(SUTFact.BOUNDARY)
        return view.answer(
            boundary in ("application_gateway", "compound_system"),
            "hardware undisclosed, a deviation that is accepted at this boundary (AMB-27)",
            f"hardware undisclosed, which is not accepted at the boundary {boundary} (AMB-27)",
        )
    if kind is not None and kind.lower() in _NO_ACCELERATOR:
        return view.met(f"no accelerator ({kind})")
    _, count, memory_gib = view.need_all(*SUTFact.ACCELERATORS)
    return view.answer(
        count >= 1 and memory_gib > 0,
        f"{count} × {kind} with {trimmed(memory_gib)} GiB",
        f"{count} accelerators with {trimmed(memory_gib)} GiB are not a hardware description",
    )


@check("M-5.1.2.3-prefix-caching")
def prefix_caching(view: EvidenceView) -> Answer:
    state = view.need(SUTFact.PREFIX_CACHING)
    if state not in ("enabled", "disabled"):
        return view.unmet(f"sut.prefix_caching is {state!r}, neither enabled nor disabled")
    cached = int((view.evidence.records.cached_tokens > 0).sum())
    view.note("requests_with_cached_tokens", cached)
    return view.answer(
        state == "enabled" or cached == 0,
        f"prefix caching {state}",
        f"declared disabled, yet the server reported cached tokens for {cached} requests",
    )


_STATES = ("enabled", "disabled", "absent")

check("M-4.8.1-input-filter")(one_of(GuardrailFact.INPUT_FILTER, *_STATES))
check("M-4.8.1-output-filter")(one_of(GuardrailFact.OUTPUT_FILTER, *_STATES))
check("S-4.8.2-default-enabled")(
    declared(
        GuardrailFact.DEFAULT_CONFIG,
        "the safety systems run as delivered",
        "the safety systems do not run as delivered",
    )
)
check("M-4.8.2-disabled-noted")(stated(GuardrailFact.DISABLED_NOTE))


@check("M-4.8.1-system-names")
def system_names(view: EvidenceView) -> Answer:
    systems = view.need(GuardrailFact.SYSTEMS)
    if not isinstance(systems, list) or not all(systems):
        return view.unmet(f"guardrails.systems is {systems!r}, not a list of names")
    return view.met(", ".join(map(str, systems)) or "no safety system")


@check("M-4.8.1-refusals")
def refusals(view: EvidenceView) -> Answer:
    stated_count = view.need(GuardrailFact.REFUSALS)
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
    return view.met(f"compared with {view.need(GuardrailFact.COMPARATIVE_RUN)}")
