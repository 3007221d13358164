"""The part of the manifest that only the run itself can state: workload, load, warm-up, stream and timing
evidence.

Keys are those of the evidence vocabulary (``compliance/evidence.py``); with the SUT's disclosure they
are the manifest that the compliance audit reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics import chunking
from pytest_llmbench.model.draft import SINGLE_TOKEN_SHARE
from pytest_llmbench.model.facts import (
    COLD_START,
    Facts,
    GeneratorFact,
    GuardrailFact,
    Key,
    LoadFact,
    Origin,
    StreamingFact,
    SUTFact,
    TimingFact,
    TokenizerFact,
    WarmupFact,
    WireFact,
    WorkloadFact,
)
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop, describe_loads
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.model.request import LIVE_ANSWERS
from pytest_llmbench.model.result import CONFIGURATION_ITEMS, TestResult, WarmupReport
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import realised_sharing, told_of_cuts
from pytest_llmbench.workloads.profiles import told_of
from pytest_llmbench.workloads.sequence import Stretch, stretches_sha256

_CHUNK_HANDLING = (
    "every chunk is stored with its arrival and its token count; TTFT and TPOT use the first and the last "
    "content chunk and the server's token total, so several tokens in a chunk do not enter them"
)
ONE_DOCUMENT = "json"
"""Value of ``streaming.protocol`` for replies that are not streamed."""
_TEXT_ALONE: Mapping[Key[str], str] = {
    TokenizerFact.SPECIAL_BOS_EOS: "excluded",
    TokenizerFact.SPECIAL_SYSTEM_PROMPT: "none",
    TokenizerFact.SPECIAL_TOOL_FORMAT: "not_used",
}
"""Facts about our own token counts, which are of the text alone."""


def manifest(
    setting: Setting,
    plans: Sequence[LoadPlan],
    warmup: WarmupReport,
    seen: Sequence[Observation],
    load: Mapping[str, Any] | None = None,
) -> Facts:
    """The facts about the run. ``plans``: all that were intended; ``seen``: the observations.

    ``load``: what a test with several levels says of its load (``load.rate_range``, ``load.duration_s`` …).
    """
    wire, stated = Facts(), load or {}
    for run in seen:
        wire = wire | run.facts
    # A capacity that the test's own search found is measured, not declared.
    searched = stated.get(LoadFact.CAPACITY_FOUND) is True
    found = {key: value for key, value in stated.items() if searched and key.startswith("load.capacity_")}
    rest = {key: value for key, value in stated.items() if key not in found}
    return (
        wire
        | _workload(setting, plans)
        | _load(plans[0], stated)
        | Facts.of(Origin.DECLARED, rest, "marker")
        | Facts.of(Origin.MEASURED, found, "search")
        | _measured(setting, warmup, seen, wire)
        | _tokenizer(setting.facts, [run.records for run in seen])
    )


def _workload(setting: Setting, plans: Sequence[LoadPlan]) -> Facts:
    workload = setting.workload
    stretches = _stretches([plan for plan in plans if plan.workload == workload])
    names = {plan.seed: plan.part for plan in plans}
    values: dict[str, Any] = {
        f"workload.{key}": value for key, value in workload.specification().items() if value is not None
    }
    values |= {
        WorkloadFact.NAME: workload.name,
        WorkloadFact.STANDARD: workload.standard,
        WorkloadFact.SEED: setting.seed,
        WorkloadFact.N_REQUESTS: sum(count for _, _, count in stretches),
        WorkloadFact.SLICES: [[first, count] for _, first, count in stretches],
        WorkloadFact.PARTS: [[names[seed], seed] for seed, _, _ in stretches],
        WorkloadFact.SEQUENCE_SHA256: stretches_sha256(workload, stretches),
        WorkloadFact.PUBLISHED: "generator",
        WorkloadFact.RUNS: len(plans),
    }
    fraction = values.get(WorkloadFact.PREFIX_SHARING, {}).get("fraction")
    if stretches and isinstance(fraction, int | float) and fraction > 0:
        seed, first, count = stretches[0]
        shared = realised_sharing(workload, first, count, seed)
        values[WorkloadFact.PREFIX_SHARING] = {**values[WorkloadFact.PREFIX_SHARING], **shared}
    return Facts.of(Origin.DECLARED, values, "marker")


def _stretches(plans: Sequence[LoadPlan]) -> list[Stretch]:
    """The stretches of each part's sequence that were sent, in the order of the parts, joined where they
    meet."""
    found: list[Stretch] = []
    for seed in dict.fromkeys(plan.seed for plan in plans):
        joined: list[tuple[int, int]] = []
        for first, end in sorted({(p.first, p.first + p.requests) for p in plans if p.seed == seed}):
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((first, end))
        found += [(seed, first, end - first) for first, end in joined]
    return found


def _load(plan: LoadPlan, stated: Mapping[str, Any]) -> Facts:
    """The load facts of the first plan that has the load model of the test: bursts and probes may have
    another."""
    if stated.get(LoadFact.MODEL, plan.load.model) != plan.load.model:
        return Facts()
    values: dict[str, Any] = {LoadFact.MODEL: plan.load.model}
    load, of_sessions = plan.load, plan.load.of_sessions
    if isinstance(load, OpenLoop):
        values[LoadFact.ARRIVAL] = "bursty" if load.arrival == "gamma" else load.arrival
        values[LoadFact.SESSION_RATE if of_sessions else LoadFact.RATE_RPS] = load.rate
        if load.arrival == "gamma":
            values[LoadFact.BURSTINESS] = load.burstiness
        if load.most_in_flight is not None:
            values[LoadFact.CONCURRENCY] = load.most_in_flight
    else:
        values[LoadFact.SESSIONS if of_sessions else LoadFact.CONCURRENCY] = load.concurrency
    return Facts.of(Origin.DECLARED, values, "marker")


def _measured(setting: Setting, warmup: WarmupReport, seen: Sequence[Observation], wire: Facts) -> Facts:
    """The facts about the engine's own metrics (their source, and which of its times are known for each
    request), the warm-up, the streams and the guardrails."""
    records = [run.records for run in seen]
    sources = dict.fromkeys(run.engine.source for run in seen if run.engine is not None)
    known = [
        name
        for name, column in (("queue_wait", "queue_wait_ns"), ("prefill", "prefill_ns"))
        if any(bool(np.any(getattr(own, column) != MISSING)) for own in records)
    ]
    values: dict[str, Any] = {
        GeneratorFact.ENGINE_METRICS: ", ".join(sources) or None,
        TimingFact.SERVER_SIDE: known or None,
        WarmupFact.PERFORMED: warmup.performed,
        WarmupFact.REQUESTS_OK: warmup.requests_ok,
        WarmupFact.OUTPUT_TOKENS: warmup.output_tokens,
        WarmupFact.DRAINED: warmup.drained,
        WarmupFact.PROBE_BEFORE_MS: warmup.probe_before_ms,
        WarmupFact.PROBES_AFTER_MS: list(warmup.probes_after_ms),
        WarmupFact.DESCRIPTION: warmup.description,
        WarmupFact.LAST_FINISHED_NS: warmup.last_finished_ns,
        COLD_START: setting.warmup.cold_start,
        TimingFact.NONCONTENT_SHARE: chunking.noncontent_first_share(records),
        # Exported instants (report.json, the header of the records file) are ISO 8601 UTC with milliseconds.
        TimingFact.TIMESTAMP_FORMAT: "iso8601_ms",
        GuardrailFact.REFUSALS: sum(int(run.has_outcome(Outcome.REFUSED).sum()) for run in records),
    }
    off = [side for side, key in GuardrailFact.FILTERS.items() if setting.facts.value(key) == "disabled"]
    if off:
        values[GuardrailFact.DISABLED_NOTE] = f"{' and '.join(off)} filter switched off for this measurement"
    if wire.value(StreamingFact.PROTOCOL) != ONE_DOCUMENT:
        values[StreamingFact.CHUNK_HANDLING] = _CHUNK_HANDLING
        share = chunking.single_token_share(records)
        if share is not None:
            values |= {
                StreamingFact.CHUNKING: "single" if share == 1.0 else "multi",
                StreamingFact.SINGLE_TOKEN_SHARE: share,
                StreamingFact.ITL_OPTION: "direct" if share > SINGLE_TOKEN_SHARE else "A",
            }
    return Facts.of(Origin.MEASURED, values)


def _tokenizer(disclosed: Facts, records: Sequence[Records]) -> Facts:
    """The facts about the tokenizer that counted all replies here, as far as they were not disclosed.

    The reference tokenizer describes itself too; that of a file has done so.
    """
    sources = {TOKEN_SOURCES[code] for run in records for code in np.unique(run.token_source[run.ok])}
    if sources == {TokenSource.TOKENIZER_FILE}:
        untold = {key: value for key, value in _TEXT_ALONE.items() if disclosed.value(key) is None}
        return Facts.of(Origin.GENERATOR, untold, "tokenizer file")
    if disclosed.value(TokenizerFact.NAME) is not None or sources != {TokenSource.REFERENCE_TOKENIZER}:
        return Facts()
    tokenizer = reference_tokenizer()
    values: dict[Key[Any], Any] = {
        TokenizerFact.NAME: tokenizer.name,
        TokenizerFact.VERSION: tokenizer.version,
        TokenizerFact.VOCAB_SIZE: tokenizer.vocabulary_size,
        TokenizerFact.SOURCE: tokenizer.source,
        TokenizerFact.COUNTING_OPTION: "B",
        TokenizerFact.REFERENCE: tokenizer.name,
        **_TEXT_ALONE,
    }
    return Facts.of(Origin.GENERATOR, values, "reference tokenizer")


UNDECLARED = "not declared"

_BOUNDARIES = {
    "model_engine": "Model Engine",
    "application_gateway": "Application Gateway",
    "compound_system": "Compound System",
}


def configuration(facts: Facts, seen: Sequence[Observation]) -> tuple[tuple[str, str], ...]:
    """The summary as (item, text) pairs; the text says so where nobody declared or measured the item."""
    requests, runs = sum(len(run.records) for run in seen), f" in {len(seen)} runs" if len(seen) > 1 else ""
    lasted_s = sum(run.duration_s for run in seen)
    texts = (
        _boundary(facts),
        f"{_model(facts)} on {_hardware(facts)}",
        _workload_item(facts),
        describe_loads([run.plan.load for run in seen]) or UNDECLARED,
        f"{requests} requests{runs}, {quantity(lasted_s, 's')}",
        facts.value(WarmupFact.DESCRIPTION, UNDECLARED),
        facts.value(SUTFact.PREFIX_CACHING, UNDECLARED),
        _guardrails_item(facts),
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
    return f"{count} × {kind}" + (
        f" ({quantity(memory, 'GiB')} each)" if isinstance(memory, int | float) else ""
    )


def _workload_item(facts: Facts) -> str:
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


def _guardrails_item(facts: Facts) -> str:
    states = [f"{side} filter {facts.value(key, UNDECLARED)}" for side, key in GuardrailFact.FILTERS.items()]
    systems = facts.value(GuardrailFact.SYSTEMS)
    if systems:
        states.append("systems: " + (systems if isinstance(systems, str) else ", ".join(systems)))
    refusals = facts.value(GuardrailFact.REFUSALS)
    if refusals is not None:
        states.append(f"{refusals} refusals")
    return ", ".join(states)


def bare_result(
    heading: tuple[str, str, str],
    parameters: Any,
    setting: Setting,
    warmup: WarmupReport,
    seen: Sequence[Observation],
    plans: Iterable[LoadPlan] | None,
    load: Mapping[str, Any] | None = None,
) -> TestResult:
    """A result without figures: what the setting and the observations say. ``heading``: the name of the test,
    its section and its title. ``plans``: all that were intended;
    None: no facts of the run. ``load``: facts ``load.*`` of the test as a whole."""
    test, section, title = heading
    facts = setting.facts
    if plans is not None:
        facts |= manifest(setting, tuple(plans), warmup, seen, load)
    return TestResult(
        test=test,
        section=section,
        title=f"{title} (cold start)" if setting.warmup.cold_start else title,
        metrics={},
        tables=(),
        plots=(),
        configuration=configuration(facts, seen),
        observations=tuple(seen),
        warmup=warmup,
        facts=facts,
        objectives=parameters.objectives,
    )
