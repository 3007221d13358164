"""The part of the manifest that only the run itself can state: workload, load, warm-up, stream and timing
evidence.

Keys are those of the evidence vocabulary (``compliance/evidence_view.py``); with the SUT's disclosure they
are the manifest that the compliance audit reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics import chunking
from pytest_llmbench.model.draft import SINGLE_TOKEN_SHARE
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.model.result import WarmupReport
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.sequence import Stretch, stretches_sha256
from pytest_llmbench.workloads.sharing import realised_sharing

_CHUNK_HANDLING = (
    "every chunk is stored with its arrival and its token count; TTFT and TPOT use the first and the last "
    "content chunk and the server's token total, so several tokens in a chunk do not enter them"
)
ONE_DOCUMENT = "json"
"""Value of ``streaming.protocol`` for replies that are not streamed."""
_TEXT_ALONE = {
    "tokenizer.special.bos_eos": "excluded",
    "tokenizer.special.system_prompt": "none",
    "tokenizer.special.tool_format": "not_used",
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
    return (
        wire
        | _workload(setting, plans)
        | _load(plans[0], load or {})
        | _stated(load or {})
        | _engine(seen)
        | _warmup(setting, warmup)
        | (Facts() if wire.value("streaming.protocol") == ONE_DOCUMENT else _streaming(records))
        | _tokenizer(setting.facts, records)
        | _guardrails(setting.facts, records)
        | _timing(records)
    )


def _stated(load: Mapping[str, Any]) -> Facts:
    """The facts that a test states about its load. A capacity that its own search found is measured, not
    declared."""
    searched = load.get("load.capacity_found") is True
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
        "workload.name": workload.name,
        "workload.standard": workload.standard,
        "workload.seed": setting.seed,
        "workload.n_requests": sum(count for _, _, count in stretches),
        "workload.slices": [[first, count] for _, first, count in stretches],
        "workload.parts": [[names[seed], seed] for seed, _, _ in stretches],
        "workload.sequence_sha256": stretches_sha256(workload, stretches),
        "workload.published": "generator",
        "workload.runs": len(plans),
    }
    if stretches and _shares(values):
        seed, first, count = stretches[0]
        shared = realised_sharing(workload, first, count, seed)
        values["workload.prefix_sharing"] = {**values["workload.prefix_sharing"], **shared}
    return Facts.of(Origin.DECLARED, values, "marker")


def _shares(values: Mapping[str, Any]) -> bool:
    fraction = values.get("workload.prefix_sharing", {}).get("fraction")
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
    values = {"engine.metrics": ", ".join(sources) or None, "timing.server_side": known or None}
    return Facts.of(Origin.MEASURED, values)


def _load(plan: LoadPlan, stated: Mapping[str, Any]) -> Facts:
    """The load facts of the first plan that has the load model of the test: bursts and probes may have
    another."""
    if stated.get("load.model", plan.load.model) != plan.load.model:
        return Facts()
    values: dict[str, Any] = {"load.model": plan.load.model}
    load, of_sessions = plan.load, plan.load.of_sessions
    if isinstance(load, OpenLoop):
        values["load.arrival"] = "bursty" if load.arrival == "gamma" else load.arrival
        values["load.session_rate" if of_sessions else "load.rate_rps"] = load.rate
        if load.arrival == "gamma":
            values["load.burstiness"] = load.burstiness
    else:
        values["load.sessions" if of_sessions else "load.concurrency"] = load.concurrency
    return Facts.of(Origin.DECLARED, values, "marker")


def _warmup(setting: Setting, warmup: WarmupReport) -> Facts:
    values = {
        "warmup.performed": warmup.performed,
        "warmup.requests_ok": warmup.requests_ok,
        "warmup.output_tokens": warmup.output_tokens,
        "warmup.drained": warmup.drained,
        "warmup.probe_before_ms": warmup.probe_before_ms,
        "warmup.probes_after_ms": list(warmup.probes_after_ms),
        "warmup.description": warmup.description,
        "warmup.last_finished_ns": warmup.last_finished_ns,
        "cold_start": setting.warmup.cold_start,
    }
    return Facts.of(Origin.MEASURED, values)


def _streaming(records: Sequence[Records]) -> Facts:
    share = chunking.single_token_share(records)
    values: dict[str, Any] = {"streaming.chunk_handling": _CHUNK_HANDLING}
    if share is not None:
        values |= {
            "streaming.chunking": "single" if share == 1.0 else "multi",
            "streaming.single_token_share": share,
            "streaming.itl_option": "direct" if share > SINGLE_TOKEN_SHARE else "A",
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
    if disclosed.value("tokenizer.name") is not None or sources != {TokenSource.REFERENCE_TOKENIZER}:
        return Facts()
    tokenizer = reference_tokenizer()
    values = {
        "tokenizer.name": tokenizer.name,
        "tokenizer.version": tokenizer.version,
        "tokenizer.vocab_size": tokenizer.vocabulary_size,
        "tokenizer.source": tokenizer.source,
        "tokenizer.counting_option": "B",
        "tokenizer.reference": tokenizer.name,
        **_TEXT_ALONE,
    }
    return Facts.of(Origin.GENERATOR, values, "reference tokenizer")


def _guardrails(disclosed: Facts, records: Sequence[Records]) -> Facts:
    refusals = sum(int(run.has_outcome(Outcome.REFUSED).sum()) for run in records)
    values: dict[str, Any] = {"guardrails.refusals": refusals}
    off = [side for side in ("input", "output") if disclosed.value(f"guardrails.{side}_filter") == "disabled"]
    if off:
        values["guardrails.disabled_note"] = f"{' and '.join(off)} filter switched off for this measurement"
    return Facts.of(Origin.MEASURED, values)


def _timing(records: Sequence[Records]) -> Facts:
    share = chunking.noncontent_first_share(records)
    # Exported instants (report.json, the header of the records file) are ISO 8601 UTC with milliseconds.
    values = {"timing.noncontent_share": share, "timing.timestamp_format": "iso8601_ms"}
    return Facts.of(Origin.MEASURED, values)
