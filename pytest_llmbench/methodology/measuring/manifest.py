"""The part of the manifest that only the run itself can state: workload, load, warm-up, stream and timing
evidence.

Keys are those of the evidence vocabulary (``compliance/evidence.py``); with the SUT's disclosure they
are the manifest that the compliance audit reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    TimingFact,
    TokenizerFact,
    WarmupFact,
    WorkloadFact,
)
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.model.result import WarmupReport
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import realised_sharing
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
    records = [run.records for run in seen]
    wire = Facts()
    for run in seen:
        wire = wire | run.facts
    share = chunking.noncontent_first_share(records)
    # Exported instants (report.json, the header of the records file) are ISO 8601 UTC with milliseconds.
    values = {TimingFact.NONCONTENT_SHARE: share, TimingFact.TIMESTAMP_FORMAT: "iso8601_ms"}
    return (
        wire
        | _workload(setting, plans)
        | _load(plans[0], load or {})
        | _stated(load or {})
        | _engine(seen)
        | _warmup(setting, warmup)
        | (Facts() if wire.value(StreamingFact.PROTOCOL) == ONE_DOCUMENT else _streaming(records))
        | _tokenizer(setting.facts, records)
        | _guardrails(setting.facts, records)
        | Facts.of(Origin.MEASURED, values)
    )


def _stated(load: Mapping[str, Any]) -> Facts:
    """The facts that a test states about its load. A capacity that its own search found is measured, not
    declared."""
    searched = load.get(LoadFact.CAPACITY_FOUND) is True
    found = {key: value for key, value in load.items() if searched and key.startswith("load.capacity_")}
    rest = {key: value for key, value in load.items() if key not in found}
    return Facts.of(Origin.DECLARED, rest, "marker") | Facts.of(Origin.MEASURED, found, "search")


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
    if stretches and _shares(values):
        seed, first, count = stretches[0]
        shared = realised_sharing(workload, first, count, seed)
        values[WorkloadFact.PREFIX_SHARING] = {**values[WorkloadFact.PREFIX_SHARING], **shared}
    return Facts.of(Origin.DECLARED, values, "marker")


def _shares(values: Mapping[str, Any]) -> bool:
    fraction = values.get(WorkloadFact.PREFIX_SHARING, {}).get("fraction")
    return isinstance(fraction, int | float) and fraction > 0


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


def _engine(seen: Sequence[Observation]) -> Facts:
    """The facts about the engine's own metrics: their source, and which of its times are known for each
    request."""
    sources = dict.fromkeys(run.engine.source for run in seen if run.engine is not None)
    known = [
        name
        for name, column in (("queue_wait", "queue_wait_ns"), ("prefill", "prefill_ns"))
        if any(bool(np.any(getattr(run.records, column) != MISSING)) for run in seen)
    ]
    values = {GeneratorFact.ENGINE_METRICS: ", ".join(sources) or None, TimingFact.SERVER_SIDE: known or None}
    return Facts.of(Origin.MEASURED, values)


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


def _warmup(setting: Setting, warmup: WarmupReport) -> Facts:
    values = {
        WarmupFact.PERFORMED: warmup.performed,
        WarmupFact.REQUESTS_OK: warmup.requests_ok,
        WarmupFact.OUTPUT_TOKENS: warmup.output_tokens,
        WarmupFact.DRAINED: warmup.drained,
        WarmupFact.PROBE_BEFORE_MS: warmup.probe_before_ms,
        WarmupFact.PROBES_AFTER_MS: list(warmup.probes_after_ms),
        WarmupFact.DESCRIPTION: warmup.description,
        WarmupFact.LAST_FINISHED_NS: warmup.last_finished_ns,
        COLD_START: setting.warmup.cold_start,
    }
    return Facts.of(Origin.MEASURED, values)


def _streaming(records: Sequence[Records]) -> Facts:
    share = chunking.single_token_share(records)
    values: dict[str, Any] = {StreamingFact.CHUNK_HANDLING: _CHUNK_HANDLING}
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


def _guardrails(disclosed: Facts, records: Sequence[Records]) -> Facts:
    refusals = sum(int(run.has_outcome(Outcome.REFUSED).sum()) for run in records)
    values: dict[str, Any] = {GuardrailFact.REFUSALS: refusals}
    off = [side for side, key in GuardrailFact.FILTERS.items() if disclosed.value(key) == "disabled"]
    if off:
        values[GuardrailFact.DISABLED_NOTE] = f"{' and '.join(off)} filter switched off for this measurement"
    return Facts.of(Origin.MEASURED, values)
